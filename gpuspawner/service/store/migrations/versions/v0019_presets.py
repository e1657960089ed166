"""What people saved of the form, by names of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0017"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "presets",
        sa.Column("hub", sa.String(64), primary_key=True),
        sa.Column("user_created", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("saved_at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_table("presets")
