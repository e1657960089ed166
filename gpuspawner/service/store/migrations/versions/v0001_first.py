"""The first tables.

Written out, not taken from tables.py: a migration must go on meaning what it meant.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create meta, leases, readings and audit."""
    op.create_table(
        "meta",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_leases_user", "leases", ["user", "asked_at"])
    live = sa.text("phase <> 'ended'")
    op.create_index(
        "uq_leases_live_key",
        "leases",
        ["hub", "user_created", "server"],
        unique=True,
        sqlite_where=live,
        postgresql_where=live,
    )
    op.create_table(
        "readings",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("lease", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("gpu", sa.String(128), nullable=False),
        sa.Column("utilization_percent", sa.Float),
        sa.Column("memory_used_bytes", sa.BigInteger),
        sa.Column("memory_total_bytes", sa.BigInteger),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("because", sa.String(255), nullable=False),
        sa.Column("kept", sa.Boolean, nullable=False),
    )
    op.create_index("ix_readings_lease", "readings", ["lease", "at"])
    op.create_index("ix_readings_at", "readings", ["at"])
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("lease", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )
    op.create_index("ix_audit_lease", "audit", ["lease"])


def downgrade() -> None:
    """Drop them all."""
    for table in ("audit", "readings", "leases", "meta"):
        op.drop_table(table)
