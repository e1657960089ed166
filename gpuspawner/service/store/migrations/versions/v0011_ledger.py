"""What ended workspaces used, line by line, and what administrators add to quotas and budgets for a time."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "ledger",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("lease", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(255), nullable=False),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("milliseconds", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.String(64), nullable=False),
        sa.Column("price_per_hour", sa.String(64), nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )
    op.create_index("ix_ledger_end_ms", "ledger", ["end_ms"])
    op.create_index("ix_ledger_day", "ledger", ["day"])
    op.create_index("ix_ledger_owner", "ledger", ["hub", "user_created", "day"])
    op.create_table(
        "quota_grants",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(255), nullable=False),
        sa.Column("amount", sa.String(64), nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("taken_back_at", sa.Float),
        sa.Column("taken_back_by", sa.String(255), nullable=False, server_default=""),
        sa.Column("taken_back_why", sa.Text, nullable=False, server_default=""),
    )
    op.create_index("ix_quota_grants_until", "quota_grants", ["until"])


def downgrade() -> None:
    """Forget both."""
    op.drop_table("quota_grants")
    op.drop_table("ledger")
