"""Ends that were called wrong and wait for an answer are found without reading every lease."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add when the end was called wrong, empty once it is answered. Of older leases nobody could say so."""
    op.add_column("leases", sa.Column("disputed_at", sa.Float))
    op.create_index("ix_leases_disputed_at", "leases", ["disputed_at"])


def downgrade() -> None:
    """Forget it."""
    op.drop_index("ix_leases_disputed_at", "leases")
    op.drop_column("leases", "disputed_at")
