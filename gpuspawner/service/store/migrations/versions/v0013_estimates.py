"""How far off estimates were, so that ranges cover what they claim."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "estimates",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("likely_seconds", sa.Float, nullable=False),
        sa.Column("latest_seconds", sa.Float, nullable=False),
        sa.Column("from_seconds", sa.Float, nullable=False),
        sa.Column("to_seconds", sa.Float, nullable=False),
        sa.Column("actual_seconds", sa.Float, nullable=False),
    )
    op.create_index("ix_estimates_at", "estimates", ["at"])


def downgrade() -> None:
    """Forget them."""
    op.drop_table("estimates")
