"""Tokens of the command line, and what was answered by an idempotency key."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "answers",
        sa.Column("of", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("asked", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_index("ix_answers_at", "answers", ["at"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("device", sa.String(255), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("admin_until", sa.Float),
    )
    op.create_index("uq_tokens_hash", "tokens", ["hash"], unique=True)
    op.create_index("ix_tokens_owner", "tokens", ["hub", "user_created"])
    op.create_index("ix_tokens_until", "tokens", ["until"])


def downgrade() -> None:
    """Forget both."""
    op.drop_table("tokens")
    op.drop_table("answers")
