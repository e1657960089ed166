"""Stronger claims get a table."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Make it."""
    op.create_table(
        "preemptions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Index("uq_preemptions_key", "by", "key", unique=True),
        sa.Index("ix_preemptions_live", "live"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("preemptions")
