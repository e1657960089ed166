"""The last lines of servers that failed, for a week: apart from leases and audit, which others read."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "outputs",
        sa.Column("lease", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("shared", sa.Boolean, nullable=False),
    )
    op.create_index("ix_outputs_at", "outputs", ["at"])


def downgrade() -> None:
    """Forget them."""
    op.drop_table("outputs")
