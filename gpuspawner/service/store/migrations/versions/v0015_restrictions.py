"""What administrators keep from being given or judged; from where an act was done, and to what."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0013"

INDEXES = ("actor", "action", "user")


def upgrade() -> None:
    """Make the table, and the columns of the audit."""
    op.create_table(
        "restrictions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("until", sa.Float),
        sa.Column("lifted_at", sa.Float),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_restrictions_since", "restrictions", ["since"])
    op.add_column("audit", sa.Column("via", sa.String(64), nullable=False, server_default=""))
    op.add_column("audit", sa.Column("target", sa.String(255), nullable=False, server_default=""))
    for name in INDEXES:
        op.create_index(f"ix_audit_{name}", "audit", [name, "number"])


def downgrade() -> None:
    """Forget them."""
    for name in INDEXES:
        op.drop_index(f"ix_audit_{name}", "audit")
    op.drop_column("audit", "target")
    op.drop_column("audit", "via")
    op.drop_table("restrictions")
