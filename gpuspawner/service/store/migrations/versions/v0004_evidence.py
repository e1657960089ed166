"""A reading keeps all that it was judged by, so that a history can be judged again by another policy."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add what is known of processes and their CPU use; of older readings it is unknown."""
    op.add_column("readings", sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("readings", sa.Column("holders", sa.Integer))
    op.add_column("readings", sa.Column("holders_cpu_cores", sa.Float))
    op.add_column("readings", sa.Column("cpu_cores", sa.Float))


def downgrade() -> None:
    """Forget it."""
    for name in ("cpu_cores", "holders_cpu_cores", "holders", "shared"):
        op.drop_column("readings", name)
