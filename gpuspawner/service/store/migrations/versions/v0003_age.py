"""What ended is forgotten by age, so it is found by age."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Index ended leases and audit lines by their time."""
    op.create_index("ix_leases_ended_at", "leases", ["ended_at"])
    op.create_index("ix_audit_at", "audit", ["at"])


def downgrade() -> None:
    """Drop both."""
    op.drop_index("ix_audit_at", "audit")
    op.drop_index("ix_leases_ended_at", "leases")
