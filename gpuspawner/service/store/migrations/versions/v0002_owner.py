"""Workspaces are looked up by their owner, no longer by a name that may have passed to somebody else."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Index leases by owner instead of by name."""
    op.drop_index("ix_leases_user", "leases")
    op.create_index("ix_leases_owner", "leases", ["hub", "user_created", "ended_at"])


def downgrade() -> None:
    """Index them by name again."""
    op.drop_index("ix_leases_owner", "leases")
    op.create_index("ix_leases_user", "leases", ["user", "asked_at"])
