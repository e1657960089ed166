"""What happens is stored with its fields. What is there keeps its text, and none of it is parsed again."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

REASONS = ("stopped", "idle", "expired", "preempted", "moved", "failed", "cancelled", "orphaned")
"""As they stood before the words of a stop."""


def upgrade() -> None:
    """Add the fields; give the two kinds of warning a name each, and take the reason out of a stop's words."""
    op.add_column("audit", sa.Column("fields", sa.JSON()))
    audit = sa.table("audit", sa.column("action", sa.String), sa.column("why", sa.Text))
    of_end = (audit.c.action == "warned") & audit.c.why.like("ends in %")
    op.execute(audit.update().where(of_end).values(action="warned of end"))
    for reason in REASONS:
        told = (audit.c.action == "stop") & audit.c.why.like(f"{reason}: %")
        words = sa.func.substr(audit.c.why, sa.literal_column(str(len(reason) + 3)))
        op.execute(audit.update().where(told).values(why=words))


def downgrade() -> None:
    """Call every warning by one name again, and drop the fields."""
    audit = sa.table("audit", sa.column("action", sa.String))
    op.execute(audit.update().where(audit.c.action == "warned of end").values(action="warned"))
    with op.batch_alter_table("audit") as table:
        table.drop_column("fields")
