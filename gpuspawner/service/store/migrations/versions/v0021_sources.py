"""A reading keeps what the workspace's own monitor and DCGM exporter saw."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
NAMES = ("monitor_percent", "monitor_since", "outside_percent")


def upgrade() -> None:
    """Add it; of older readings it is unknown."""
    for name in NAMES:
        op.add_column("readings", sa.Column(name, sa.Float))


def downgrade() -> None:
    """Forget it."""
    for name in reversed(NAMES):
        op.drop_column("readings", name)
