"""Counters of the metrics, which survive restarts."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0018"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "counters",
        sa.Column("series", sa.String(1024), primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Forget them: they begin anew."""
    op.drop_table("counters")
