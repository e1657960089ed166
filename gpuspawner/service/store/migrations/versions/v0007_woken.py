"""A reading keeps what tells whether nvidia-smi itself may have caused it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add it; of older readings it is unknown."""
    op.add_column("readings", sa.Column("buffer_percent", sa.Float))
    op.add_column("readings", sa.Column("persistence", sa.Boolean))


def downgrade() -> None:
    """Forget it."""
    for name in ("persistence", "buffer_percent"):
        op.drop_column("readings", name)
