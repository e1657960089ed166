"""How long readings, ended leases and their audit are kept, and how they go: some at a time."""

from __future__ import annotations

import sqlalchemy as sa

from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.store import tables
from gpuspawner.service.store.databases.statements import Whole
from gpuspawner.service.store.outputs import Transactions

RAW_SECONDS = 24 * 3600.0
"""Raw readings are kept this long (design, section 7)."""
MAXIMA_SECONDS = 30 * 24 * 3600.0
"""Ten-minute maxima are kept this long."""
BUCKET_SECONDS = 600.0
FORGET_AT_ONCE = 200
"""So many leases, or audit lines, are forgotten in one transaction: some milliseconds, in which nobody is answered."""


class Ages:
    """What is too old. Raises what ``store.Store`` raises."""

    def __init__(self, transaction: Transactions) -> None:
        """Delete by the store's transactions."""
        self._transaction = transaction
        self._thinned_to: float | None = None

    def thin_readings(self, now: float, at_once_seconds: float = MAXIMA_SECONDS) -> bool:
        """Keep raw readings for a day, ten-minute maxima for 30 days; what is behind a stop as long as its audit.

        Goes through so much time at once, from where it was: True says that there is more. A month of a thousand
        workspaces takes a quarter of a minute, in which nothing else could be written.
        """
        r, until = tables.readings.c, now - RAW_SECONDS
        begin = now - MAXIMA_SECONDS if self._thinned_to is None else self._thinned_to
        end = min(begin + at_once_seconds, until)
        bucket = Whole(r.at / BUCKET_SECONDS)
        old = (r.at >= begin - begin % BUCKET_SECONDS) & (r.at < end) & ~r.kept
        # Of each GPU's bucket a busy row stays, of these the one with the highest reading, of these the latest.
        rank = sa.func.row_number().over(
            partition_by=(r.lease, r.gpu, bucket),
            order_by=(
                sa.case((r.kind == "busy", 0), else_=1),
                sa.func.coalesce(r.utilization_percent, -1.0).desc(),
                r.number.desc(),
            ),
        )
        ranked = sa.select(r.number, rank.label("rank")).where(old).subquery()
        with self._transaction(writes=True) as connection:
            connection.execute(tables.readings.delete().where((r.at < now - MAXIMA_SECONDS) & ~r.kept))
            connection.execute(
                tables.readings.delete().where(r.number.in_(sa.select(ranked.c.number).where(ranked.c.rank > 1)))
            )
        self._thinned_to = end
        return end < until

    def forget_ended(self, before: float, at_once: int = FORGET_AT_ONCE) -> bool:
        """Delete some leases that ended before, with their audit and readings, and older audit lines of no lease.

        Returns whether there may be more to delete. A live lease keeps all of its audit, however old.
        """
        leases, audit = tables.leases.c, tables.audit.c
        ended = sa.select(leases.id).where(leases.ended_at < before, leases.phase == Phase.ENDED.value)
        of_none = sa.select(audit.number).where(audit.at < before, ~sa.exists().where(leases.id == audit.lease))
        with self._transaction(writes=True) as connection:
            ids = connection.scalars(ended.order_by(leases.ended_at).limit(at_once)).all()
            for table, lease in ((tables.audit, audit.lease), (tables.readings, tables.readings.c.lease)):
                connection.execute(table.delete().where(lease.in_(ids)))
            connection.execute(tables.leases.delete().where(leases.id.in_(ids)))
            lines = connection.scalars(of_none.order_by(audit.at).limit(at_once)).all()
            connection.execute(tables.audit.delete().where(audit.number.in_(lines)))
        return at_once in {len(ids), len(lines)}
