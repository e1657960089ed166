"""Workspaces that users wish to be ready at a time of some weekdays."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "wishes",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_wishes_owner", "wishes", ["hub", "user_created"])


def downgrade() -> None:
    """Forget them."""
    op.drop_table("wishes")
