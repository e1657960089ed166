"""Use summed up by day and month, and by which reason workspaces ended: both from what is stored already."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0016"

AMOUNTS = ("held", "given_back", "cost", "busy", "idle", "unknown", "saved", "idle_stops")
HOUR_MS = 3_600_000


def upgrade() -> None:
    """Make the table and the column, and fill them."""
    op.create_table(
        "use_sums",
        sa.Column("by", sa.String(16), primary_key=True),
        sa.Column("span", sa.String(10), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in AMOUNTS),
        sqlite_with_rowid=False,
    )
    op.add_column("leases", sa.Column("reason", sa.String(32), nullable=False, server_default=""))
    leases = sa.table(
        "leases", sa.column("id"), sa.column("phase"), sa.column("reason"), sa.column("document", sa.JSON)
    )
    said = leases.c.document["reason"].as_string()
    op.execute(leases.update().where(leases.c.phase == "ended").values(reason=sa.func.coalesce(said, "")))
    op.create_index("ix_leases_user", "leases", ["user", "ended_at"])
    op.create_index("ix_leases_reason", "leases", ["reason", "ended_at"])
    _fill(op.get_bind(), leases)


def downgrade() -> None:
    """Forget both."""
    op.drop_index("ix_leases_reason", "leases")
    op.drop_index("ix_leases_user", "leases")
    op.drop_column("leases", "reason")
    op.drop_table("use_sums")


def _fill(connection: sa.Connection, leases: Any) -> None:
    """Sum the ledger up. Nodes are not known of it, nor what samples read: sums of those begin now."""
    names = ("day", "user_created", "user", "team", "kind", "lease", "what", "gpus", "price_per_hour", "milliseconds")
    ledger = sa.table("ledger", *map(sa.column, names))
    template = leases.c.document["request"]["template"].as_string()
    query = sa.select(*ledger.c, template.label("template"))
    query = query.select_from(ledger.outerjoin(leases, ledger.c.lease == leases.c.id))
    sums: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(AMOUNTS, 0.0))
    called = {}
    for row in connection.execute(query):
        held = float(Fraction(row.gpus)) * row.milliseconds / HOUR_MS
        cost = float(Fraction(row.price_per_hour)) * row.milliseconds / HOUR_MS
        back = row.what == "refund" or (row.what == "correction" and row.milliseconds < 0)
        keys = {"all": "", "user": row.user_created, "team": row.team, "kind": row.kind}
        for by, key in {**keys, "template": row.template or "", "node": ""}.items():
            called[by, key] = row.user if by == "user" else key
            for span in (row.day, row.day[:7]):
                amounts = sums[by, span, key]
                amounts["held"] += held
                amounts["cost"] += cost
                amounts["given_back"] -= held if back else 0.0
    table = sa.table("use_sums", *map(sa.column, ("by", "span", "key", "name", *AMOUNTS)))
    rows = [{"by": b, "span": s, "key": k, "name": called[b, k], **one} for (b, s, k), one in sums.items()]
    if rows:
        connection.execute(table.insert(), rows)
