"""The live leases in memory, and the one way to change them: write first, then remember, then tell who waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.endings import Reason
from gpuspawner.core.leases.lease import Key, Lease, Owner
from gpuspawner.core.quotas.charges import Line
from gpuspawner.service.store import AuditLine, ReadingRow, Store
from gpuspawner.service.tell.start_times import StartTimes


class Book:
    """All live leases. Everything here runs in the service's one event loop and never waits between read and write."""

    def __init__(self, store: Store) -> None:
        """Start empty; :meth:`load` reads what the store holds."""
        self.store = store
        self.ends: Counter[tuple[Reason, str]] = Counter()
        """How many leases ended since this service started, by reason and the team that they were charged to."""
        self.start_times = StartTimes()
        self.failed_to_write = False
        """Whether a write failed that nobody has made up for: see ``Lifecycle.catch_up``."""
        self.told: Callable[[Lease, AuditLine], None] = lambda _lease, _line: None
        """Hears each step of a lease, once it is stored."""
        self.charges: Callable[[Lease | None, Lease], Sequence[Line]] = lambda _before, _after: ()
        """Says what a step of a lease charges: written with it."""
        self.charged: Callable[[Sequence[Line]], None] = lambda _lines: None
        """Hears what was charged, once it is stored."""
        self.changes = 0
        """How many changes may have moved somebody in the queue, since this service started."""
        self.saves: Counter[Owner] = Counter()
        """How many times something of an owner's workspaces was stored, since this service started."""
        self._leases: dict[str, Lease] = {}
        self._id_of_key: dict[Key, str] = {}
        self._changed = asyncio.Event()

    def load(self) -> None:
        """Read every live lease from the store."""
        self._leases = {lease.id: lease for lease in self.store.live()}
        self._id_of_key = {lease.key: lease.id for lease in self._leases.values()}

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over the live leases as they are now."""
        return iter(list(self._leases.values()))

    def get(self, lease_id: str) -> Lease | None:
        """Return a live lease."""
        return self._leases.get(lease_id)

    def of_key(self, key: Key) -> Lease | None:
        """Return the live lease of a key: there is at most one."""
        return self._leases.get(self._id_of_key.get(key, ""))

    def save(self, *leases: Lease, audit: Iterable[AuditLine] = (), readings: Iterable[ReadingRow] = ()) -> None:
        """Write, and only then remember. A lease that another step changed meanwhile must be read again by the caller.

        Raises:
            Unavailable: the store does not answer; nothing changed.
            Superseded: a newer service owns the store; nothing changed.
        """
        saved = {lease.id for lease in leases}
        for lease in leases:
            other = self.of_key(lease.key)
            if lease.live and other is not None and other.id not in saved:
                raise Conflict("This workspace has a live lease already.")
        lines = list(audit)
        charged = [line for lease in leases for line in self.charges(self._leases.get(lease.id), lease)]
        self._write(leases, lines, readings, charged)
        moved = any(_matters_to_others(self._leases.get(lease.id), lease) for lease in leases)
        for lease in leases:
            self.start_times.note(self._leases.get(lease.id), lease)
            self.saves[lease.key.owner] += 1
            if lease.live:
                self._leases[lease.id] = lease
                self._id_of_key[lease.key] = lease.id
                continue
            if self._id_of_key.get(lease.key) == lease.id:
                del self._id_of_key[lease.key]
            if self._leases.pop(lease.id, None) is not None and lease.reason is not None:
                self.ends[lease.reason, lease.request.team] += 1
        if moved:
            self.changes += 1
            self._changed.set()
            self._changed = asyncio.Event()
        self.charged(charged)
        of_id = {lease.id: lease for lease in leases}
        for line in lines:
            if line.lease in of_id:
                self.told(of_id[line.lease], line)

    def _write(
        self,
        leases: Iterable[Lease],
        lines: list[AuditLine],
        readings: Iterable[ReadingRow],
        charged: list[Line],
    ) -> None:
        try:
            self.store.save(leases, lines, readings, charged)
        except Unavailable:
            self.failed_to_write = True
            raise

    def note_heard(self, lease_id: str, now: float) -> None:
        """Remember that somebody spoke for a lease. Not written: after a restart, everybody counts as just heard."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            self._leases[lease_id] = replace(lease, heard_at=now)

    async def wait_for_change(self, timeout_seconds: float) -> None:
        """Return at the next change that may move somebody in the queue, or after the timeout."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return


def _matters_to_others(before: Lease | None, after: Lease) -> bool:
    """Whether a change can move a place or an estimate: samples and heartbeats cannot, and come by the thousand."""
    if before is None:
        return True
    return (before.phase, before.asked_at, before.slots, before.deadline_at, before.request, before.not_before) != (
        after.phase,
        after.asked_at,
        after.slots,
        after.deadline_at,
        after.request,
        after.not_before,
    )
