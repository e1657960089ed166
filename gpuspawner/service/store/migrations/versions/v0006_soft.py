"""A reading keeps the softer evidence beside it: kernels, terminals, SSH sessions, editors."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add it; of older readings it is unknown."""
    op.add_column("readings", sa.Column("soft", sa.JSON(none_as_null=True)))


def downgrade() -> None:
    """Forget it."""
    op.drop_column("readings", "soft")
