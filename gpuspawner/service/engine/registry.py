"""The lease registry: the live leases in memory. A change is applied, written, and reported only after that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, Superseded, Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Lease, Owner
from gpuspawner.core.leases.lifetimes import settled
from gpuspawner.core.outages import DATABASE
from gpuspawner.core.queue.snapshot import LeaseView, LiveLeases
from gpuspawner.core.quotas.ledger import LedgerLine
from gpuspawner.service.failures import Failures
from gpuspawner.service.log import log_step
from gpuspawner.service.metrics.counters import StartTimes
from gpuspawner.service.store import AuditLine, ReadingRow, Store
from gpuspawner.service.store.idempotency import KeyRow, context_without_act, take_key
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.store.rows import RowWrite
from gpuspawner.service.store.usage_sums import UsagePart

if TYPE_CHECKING:
    from gpuspawner.service.rules.accounting import Accounting

MISMATCHES = ("elsewhere", "unknown", "nobody's")
"""A workspace ran on other GPUs than its lease; it had no live lease; it had no lease at all, and was ended."""
EARLIER_FAILED = "An earlier change could not be stored, so this one was not made. Try again."


@dataclass(eq=False)
class _Write:
    """The changes of one step until they are stored. ``moves`` is whether they may change queue positions."""

    leases: tuple[Lease, ...]
    lines: tuple[AuditLine, ...]
    tells: tuple[AuditLine, ...]
    readings: tuple[ReadingRow, ...]
    charges: tuple[LedgerLine, ...]
    kept: tuple[tuple[str, float], ...]
    used: tuple[UsagePart, ...]
    key: KeyRow | None
    moves: bool
    done: asyncio.Future[None]
    others: tuple[RowWrite, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()


class LeaseRegistry:
    """All live leases, as the steps of the service's one event loop have left them.

    A change counts for every decision from the moment of :meth:`save`. It is stored a little later, in the order of
    saving, in one transaction with the changes made meanwhile. If that fails, this change and all later ones are
    undone: the leases are again as they are stored.

    So an answer or an effect must wait until the changes that it depends on are stored. For one's own change, await
    the result of :meth:`save`. For the changes of others, await :meth:`stored`.
    """

    def __init__(self, store: Store) -> None:
        """Start empty. :meth:`load` reads the stored leases."""
        self.store = store
        self.ends: Counter[tuple[ExitReason, str]] = Counter()
        """How many leases ended since this service started, by reason and the team that they were charged to."""
        self.warnings: Counter[tuple[str, str]] = Counter()
        """The outcomes of warnings, by kind and outcome of ``core.leases.lifetimes``."""
        self.mismatches: Counter[str] = Counter()
        """How often a running workspace differed from its lease: one of MISMATCHES."""
        self.start_times = StartTimes()
        self.failures = Failures()
        """Steps of leases that fail by a defect of the service."""
        self.failed_to_write = False
        """Whether a write failed since the engine last gave users time to react (``LeaseEngine.judge_sample``)."""
        self.messages_of: Callable[[Lease, AuditLine], Sequence[OutboxRow]] = lambda _lease, _line: ()
        """Returns the messages about a step of a lease, just before both are stored in one transaction."""
        self.on_stored: Callable[[Lease, AuditLine], None] = lambda _lease, _line: None
        """Called with each audit line of a lease after it is stored."""
        self.charging: Accounting | None = None
        """Computes the charges of each step, and keeps their sums."""
        self.changes = 0
        """How many changes may have moved queue positions since this service started."""
        self.saves: Counter[Owner] = Counter()
        """How many changes of an owner's workspaces were stored since this service started."""
        self.ended_lock = asyncio.Lock()
        """Held while an ended lease is read, changed and written back, so that no change is lost."""
        self._leases = LiveLeases()
        self._id_of_key: dict[Key, str] = {}
        self._as_stored: dict[str, Lease] = {}
        self._waiting: list[_Write] = []
        self._newest: dict[str | Key, _Write] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def load(self) -> None:
        """Read every live lease from the store."""
        self._as_stored = {lease.id: lease for lease in await self.store.read(self.store.leases.live)}
        self._take_stored()

    def _take_stored(self) -> None:
        """Return to the stored state. Heartbeats since then are kept."""
        heard = {lease.id: lease.heard_at for lease in self._leases}
        self._leases = LiveLeases(
            replace(lease, heard_at=max(lease.heard_at, heard.get(name, lease.heard_at)))
            for name, lease in self._as_stored.items()
        )
        self._id_of_key = {lease.key: lease.id for lease in self._leases}

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over the live leases as they are now."""
        return iter(self.view())

    def view(self) -> LeaseView:
        """Return the live leases as they are now."""
        return self._leases.seen()

    def get(self, lease_id: str) -> Lease | None:
        """Return a live lease."""
        return self._leases.get(lease_id)

    def of_key(self, key: Key) -> Lease | None:
        """Return the live lease of a key. A key has at most one."""
        return self._leases.get(self._id_of_key.get(key, ""))

    async def find(self, lease_id: str) -> Lease | None:
        """Return a lease as it is stored, also one that has ended; None if it does not exist.

        Wait for its unstored changes, because a reader must see no step that a crash could undo. If they can't be
        stored, the lease is as it was before.

        Raises:
            Unavailable: the store does not answer in time.
        """
        if lease_id in self._newest:
            try:
                await self.store.answer_of(asyncio.ensure_future(self.stored(lease_id)))
            except Unavailable:
                if lease_id in self._newest:
                    raise
        return self.get(lease_id) or await self.store.read(self.store.leases.get, lease_id)

    def save(
        self,
        *leases: Lease,
        audit: Iterable[AuditLine] = (),
        readings: Iterable[ReadingRow] = (),
        charges: Iterable[LedgerLine] = (),
        kept: Iterable[tuple[str, float]] = (),
        tells: Iterable[AuditLine] = (),
        others: Iterable[RowWrite] = (),
    ) -> asyncio.Future[None]:
        """Change leases at once, and write the change. Await the result before any answer or effect.

        The caller must read a lease again if another step changed it meanwhile. ``kept`` is the same as in
        ``Store.save``. ``tells`` are lines that are sent to people again, and are not audited. ``others`` write
        further rows in the same transaction.

        Raises:
            Conflict: at once; another live lease has the key of one of these.
            Unavailable: when awaited; the store does not answer, and neither this change nor a later one was made.
            Superseded: when awaited; a newer service owns the store, and nothing changed.
        """
        done = asyncio.get_running_loop().create_future()
        saved = {lease.id for lease in leases}
        for lease in leases:
            other = self.of_key(lease.key)
            if lease.live and other is not None and other.id not in saved:
                raise Conflict("This workspace has a live lease already.")
        charged, rows = [*charges], tuple(readings)
        used: Sequence[UsagePart] = ()
        if self.charging is not None:
            steps = [(self.get(lease.id), lease) for lease in leases]
            for before, lease in steps:
                charged += self.charging.lines_of(before, lease)
            used = self.charging.used_by(steps, charged, rows)
            self.charging.add(charged)
        known = ((self.get(lease.id), lease) for lease in leases)
        moves = any(before is None or _of_queue(before) != _of_queue(lease) for before, lease in known)
        self.changes += moves
        for lease in leases:
            self._remember(lease)
        write = _Write(
            leases, tuple(audit), tuple(tells), rows, tuple(charged), tuple(kept), tuple(used), take_key(), moves, done,
            tuple(others),
        )  # fmt: skip
        self._newest.update(dict.fromkeys(_names(write), write))
        self._waiting.append(write)
        if self._task is None:
            self._task = context_without_act().run(asyncio.create_task, self._write_all())
        return asyncio.shield(done)  # a cancelled caller undoes nothing

    def _remember(self, lease: Lease) -> None:
        if lease.live:
            self._leases.put(lease)
            self._id_of_key[lease.key] = lease.id
            return
        if self._id_of_key.get(lease.key) == lease.id:
            del self._id_of_key[lease.key]
        self._leases.remove(lease.id)

    async def stored(self, which: str | Key) -> None:
        """Return once all changes of a lease, by its id or key, are stored.

        Raises:
            Unavailable, Superseded: they could not be stored. The lease is again as it was.
        """
        while (write := self._newest.get(which)) is not None:
            await asyncio.shield(write.done)

    async def settled(self) -> None:
        """Return once all changes are stored."""
        while self._task is not None:
            await asyncio.wait({self._task})

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # changes of the same turn of the loop are written together
                some, self._waiting = self._waiting, []
                try:
                    await self._write_some(some)
                finally:
                    self._resolve(some)
        finally:
            self._task = None

    async def _write_some(self, some: list[_Write]) -> None:
        for write in some:
            write.outbox = tuple(self._messages(write))
        try:
            written, error = await self.store.write(self._write, some)
        except Exception as closed:  # noqa: BLE001 - the store is closed
            written, error = 0, closed
        for write in some[:written]:
            self._note_stored(write)
        if error is not None:
            self._go_back(error, [*some[written:], *self._waiting])
        self._wake(some)

    def _messages(self, write: _Write) -> Iterator[OutboxRow]:
        """Yield the messages about a write. A defect in one message must not prevent the write."""
        of_id = {lease.id: lease for lease in write.leases}
        for line in (*write.lines, *write.tells):
            if line.lease in of_id:
                with self.failures.isolating("telling of a step", line.lease, raises=()):
                    yield from self.messages_of(of_id[line.lease], line)

    def _resolve(self, some: Sequence[_Write]) -> None:
        """Fail each write that is still open after a defect, or at the end of the service."""
        for write in some:
            if not write.done.done():
                self._forget(write)
                write.done.set_exception(Unavailable(EARLIER_FAILED, DATABASE))
                write.done.exception()  # callers may await it, and need not

    def _write(self, some: Sequence[_Write]) -> tuple[int, BaseException | None]:
        """Write in one transaction. Return how many changes are stored, and the error that prevented the others.

        After a defect in one change, each is written in its own transaction, so that the changes before it are stored.
        """
        try:
            self._write_together(some)
        except (Unavailable, Superseded) as error:
            return 0, error
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where its change is awaited
            if len(some) == 1 or not isinstance(error, Exception):
                return 0, error
        else:
            return len(some), None
        for number, write in enumerate(some):
            try:
                self._write_together([write])
            except BaseException as error:  # noqa: BLE001 - as above
                return number, error
        return len(some), None

    def _write_together(self, some: Sequence[_Write]) -> None:
        newest = {lease.id: lease for write in some for lease in write.leases}
        self.store.save(
            newest.values(),
            [line for write in some for line in write.lines],
            [row for write in some for row in write.readings],
            [line for write in some for line in write.charges],
            [one for write in some for one in write.kept],
            [one for write in some for one in write.used],
            [write.key for write in some if write.key is not None],
            [one for write in some for one in write.outbox],
            [one for write in some for one in write.others],
        )

    def _note_stored(self, write: _Write) -> None:
        """Take over a stored write, and report it, in the order of saving.

        A defect in a report is recorded. It affects neither this write nor others.
        """
        before = {lease.id: self._as_stored.get(lease.id) for lease in write.leases}
        for lease in write.leases:
            if lease.live:
                self._as_stored[lease.id] = lease
            elif self._as_stored.pop(lease.id, None) is not None and lease.reason is not None:
                self.ends[lease.reason, lease.request.team] += 1
            self.saves[lease.key.owner] += 1
        with self.failures.isolating("charging what is stored", raises=()):
            if self.charging is not None:
                self.charging.keep_stored(write.charges, write.used)
        self._forget(write)
        if not write.done.done():
            write.done.set_result(None)
        with self.failures.isolating("counting what is stored", raises=()):
            for lease in write.leases:
                known = before[lease.id]
                self.start_times.note(known, lease)
                self.warnings.update(settled(known, lease) if known is not None else ())
                log_step(known, lease, self.get(lease.id))
        of_id = {lease.id: lease for lease in write.leases}
        for line in write.lines:
            if (found := _mismatch(line.event)) is not None:
                self.mismatches[found] += 1
            if line.lease in of_id:
                with self.failures.isolating("telling of a step", line.lease, raises=()):
                    self.on_stored(of_id[line.lease], line)

    def _go_back(self, error: BaseException, lost: Sequence[_Write]) -> None:
        """Return to the state of the store. Undo all changes that could not be written, and all later ones."""
        self._waiting = []
        self.failed_to_write |= isinstance(error, Unavailable)
        self._take_stored()
        with self.failures.isolating("charging what is stored", raises=()):
            if self.charging is not None:
                self.charging.roll_back()
        self.changes += 1
        concerns_all = isinstance(error, (Unavailable, Superseded)) or not isinstance(error, Exception)
        for number, write in enumerate(lost):
            self._forget(write)
            if write.done.done():
                continue
            write.done.set_exception(error if concerns_all or number == 0 else Unavailable(EARLIER_FAILED, DATABASE))
        self._wake(lost)

    def _forget(self, write: _Write) -> None:
        for name in _names(write):
            if self._newest.get(name) is write:
                del self._newest[name]

    def _wake(self, some: Sequence[_Write]) -> None:
        if any(write.moves for write in some):
            self._changed.set()
            self._changed = asyncio.Event()

    def note_heard(self, lease_id: str, now: float) -> None:
        """Record a heartbeat of a lease in memory only. After a restart, every lease counts as just heard."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            self._leases.put(replace(lease, heard_at=now))

    async def wait_for_change(self, timeout_seconds: float) -> None:
        """Return once a change that may affect queue positions is stored, or after the timeout."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return


async def wait_for_all(steps: Iterable[asyncio.Future[None] | None]) -> None:
    """Return once all of these are stored, or raise the error of one. None means no change."""
    await asyncio.gather(*filter(None, steps))


def _mismatch(event: events.Event) -> str | None:
    """Return the mismatch of MISMATCHES that an event reports. Return None if it reports no mismatch."""
    if isinstance(event, events.Stopped):
        return MISMATCHES[2] if event.reason == ExitReason.ORPHANED.value else None
    if isinstance(event, events.Placed):
        return MISMATCHES[0]
    return MISMATCHES[1] if isinstance(event, events.Adopted) else None


def _names(write: _Write) -> set[str | Key]:
    return {name for lease in write.leases for name in (lease.id, lease.key)}


_of_queue = attrgetter(
    "phase", "asked_at", "slots", "deadline_at", "request", "not_before", "queue_move", "passed_why",
)  # fmt: skip
"""The fields of a lease that queue positions, their reasons or estimates depend on. Samples change none of them."""
