"""When each kind of GPU was last there: what was there within a day is waited for."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "kinds_seen",
        sa.Column("kind", sa.String(255), primary_key=True),
        sa.Column("largest", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Forget it."""
    op.drop_table("kinds_seen")
