"""A reading keeps all that its sources saw, and the processes that may hold a GPU."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0024"
BEFORE = ("monitor_percent", "monitor_since", "outside_percent")
NAMES = ("encoder_percent", "decoder_percent", "possible_cpu_cores", "ended_cpu_cores")


def upgrade() -> None:
    """Add what is kept now. What a source saw before is dropped: it did not tell how much of the time it covered."""
    for name in NAMES:
        op.add_column("readings", sa.Column(name, sa.Float))
    op.add_column("readings", sa.Column("possible_holders", sa.Integer, nullable=False, server_default="0"))
    op.add_column("readings", sa.Column("seen_seconds", sa.Float, nullable=False, server_default="0"))
    op.add_column("readings", sa.Column("sources", sa.JSON))
    for name in BEFORE:
        op.drop_column("readings", name)


def downgrade() -> None:
    """Forget what is kept now."""
    for name in BEFORE:
        op.add_column("readings", sa.Column(name, sa.Float))
    for name in ("sources", "seen_seconds", "possible_holders", *NAMES):
        op.drop_column("readings", name)
