"""Reads and writes, each in one transaction that checks the epoch."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import sqlalchemy as sa

from gpuspawner import __version__
from gpuspawner.backends.outages import OutageLog
from gpuspawner.core.errors import Conflict, Superseded, Unavailable
from gpuspawner.core.leases.lease import Key, Lease, Owner, Phase
from gpuspawner.core.leases.stored_events import event_of
from gpuspawner.core.outages import DATABASE, Outage
from gpuspawner.core.quotas.charges import Line
from gpuspawner.service.store import schema, tables
from gpuspawner.service.store.ages import Ages
from gpuspawner.service.store.clients.answers import AnswerRow, Answers
from gpuspawner.service.store.clients.keyed import take_key
from gpuspawner.service.store.clients.tokens import Tokens
from gpuspawner.service.store.clients.wishes import Wishes
from gpuspawner.service.store.damaged import DamagedLeases, rows_of
from gpuspawner.service.store.databases import database_of
from gpuspawner.service.store.databases.statements import Upsert
from gpuspawner.service.store.estimates import Estimates
from gpuspawner.service.store.inbox import InboxRows
from gpuspawner.service.store.ledger import Ledger
from gpuspawner.service.store.messages import MessageRows
from gpuspawner.service.store.outbox import Outbox, OutboxRow
from gpuspawner.service.store.outputs import Outputs
from gpuspawner.service.store.preemptions import PreemptionRows
from gpuspawner.service.store.presets import Presets
from gpuspawner.service.store.reports.audit_search import AuditSearch
from gpuspawner.service.store.reports.counters import CounterRows
from gpuspawner.service.store.reports.lookups import Lookups
from gpuspawner.service.store.reports.use_sums import Part, UseSums
from gpuspawner.service.store.restrictions import RestrictionRows
from gpuspawner.service.store.rows import AuditLine, ReadingRow, lease_of, row_of_lease, row_of_line

WRITTEN_SECONDS, TROUBLE_SECONDS = 10.0, 2.0
"""How long ago something was written, at most: for how long a full disk may be unknown, and a mended one."""
ANSWERED_SECONDS = 75.0
"""For so long whoever reads waits: longer than a server is given. A disk or a server that hangs gives no answer."""
HANGS = "The store does not answer: it was asked {seconds:.0f} s ago. It is tried again at every step."
READERS = 8
"""Threads that read: fewer than the connections that a pool has."""

BEAT, MOST_BEATS = "beat", 2**31 - 1
"""Where a service that others may stand by for counts its beats; 0 once it has ended. As much as the column holds."""
EPOCH, WRITES = "epoch", "writes"
"""How often the store was opened, and written: who knows of a later write knows that what answers is older."""
OLDER = (
    "The database is older than what this service wrote (write {has} of {known}): it was put back, or a standby that "
    "had not got all of it took over. Nothing is served from it. Let the newer one answer again; or start the service "
    "again to go on with this one: workspaces that run are taken on."
)
ARRIVED = "What was written last is stored, though the connection ended before that was known: it is read again."

_SAVED = Upsert(tables.leases, lambda new: {c.name: new[c.name] for c in tables.leases.c if not c.primary_key})
_COUNTED = tables.meta.update().where(tables.meta.c.name == WRITES).values(number=sa.bindparam("writes"))
_MARKS = sa.select(tables.meta.c.name, tables.meta.c.number).where(tables.meta.c.name.in_((EPOCH, WRITES)))

P = ParamSpec("P")
T = TypeVar("T")


class Store:
    """The service's database. Its plain methods block for the time of one transaction.

    The event loop calls them by :meth:`read` and :meth:`write` alone: however slow the database is, it waits for none.
    All that is written goes through one thread, in the order of asking.

    While another process writes, what is read is answered all the same, and of the writes the first waits for
    PATIENCE_SECONDS and the others not at all: each is Unavailable at once until one succeeds.

    Raises:
        Unavailable: the database does not answer, is locked or full, or older than what was written.
        Superseded: another service raised the epoch after this one; or what failed is stored all the same.
    """

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        """Prepare; nothing is read or written before :meth:`open`. Raises ValueError: ``databases.database_of``."""
        self.outages = OutageLog()
        """Whether it answers now."""
        self._written_at = -math.inf
        self.epoch = 0
        self._beats = self._writes = 0
        self._unsure = False
        self._key: AnswerRow | None = None
        """The idempotency key that the next transaction of the writing thread stores."""
        self._writer = ThreadPoolExecutor(1, "gpuspawner-writes")
        self._readers = ThreadPoolExecutor(READERS, "gpuspawner-reads")
        self._database = database_of(url, password_file)
        self._engine = self._database.engine
        self.outputs = Outputs(self._transaction)
        self.ages = Ages(self._transaction)
        self.estimates = Estimates(self._transaction)
        self.ledger = Ledger(self._transaction)
        self.preemptions = PreemptionRows(self._transaction)
        self.restrictions = RestrictionRows(self._transaction)
        self.use_sums = UseSums(self._transaction)
        self.damaged = DamagedLeases()
        self.lookups = Lookups(self._transaction, self.damaged)
        self.audit_search = AuditSearch(self._transaction)
        self.inbox = InboxRows(self._transaction)
        self.outbox = Outbox(self._transaction)
        self.messages = MessageRows(self._transaction, self.outbox)
        self.presets = Presets(self._transaction)
        self.answers = Answers(self._transaction)
        self.tokens = Tokens(self._transaction)
        self.wishes = Wishes(self._transaction)
        self.counters = CounterRows(self._transaction)

    def open(self, after: int | None = None) -> None:
        """Migrate the schema, then raise the epoch: from here older services can write no more.

        ``after`` is the epoch of a service that has ended: it opens for no other state of the store, and beats.

        Raises:
            Conflict: another service opened the store meanwhile.
            Unavailable: also where a later version of gpuspawner has changed its schema.
        """
        with self._begun(writes=True) as connection:
            self._check_still(connection, after)
            schema.upgrade(connection)
        with self._begun(writes=True) as connection:
            self._check_still(connection, after)
            epoch, writes = self._read_marks(connection)
            _note(connection, EPOCH, epoch + 1)
            _note(connection, WRITES, writes)
            _note(connection, schema.OPENED_BY, schema.number_of(__version__))
            if after is not None:
                _note(connection, BEAT, 1)
        self.epoch, self._writes, self._beats, self._unsure = epoch + 1, writes, 1, False

    @property
    def outage(self) -> Outage | None:
        """Why the last thing that was to be written or read was not."""
        return self.outages.outage

    @property
    def trouble(self) -> str:
        """Why it was not, in a sentence; "" where all is well."""
        return "" if self.outage is None else self.outage.why

    def close(self) -> None:
        """Take nothing more, and close every connection."""
        for threads in (self._writer, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)
        self._database.close()

    async def read(self, step: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what a method that reads returns, called beside the loop.

        Raises Unavailable also where nothing was answered in time, whatever became of the thread that asked.
        """
        asked = asyncio.get_running_loop().run_in_executor(self._readers, partial(step, *arguments, **named))
        try:
            # Not `wait_for`: before Python 3.12 it may forget that whoever waits was cancelled.
            done, _ = await asyncio.wait([asked], timeout=ANSWERED_SECONDS)
        finally:
            asked.cancel()
        if not done:
            raise Unavailable(HANGS.format(seconds=ANSWERED_SECONDS), DATABASE)
        return asked.result()

    async def write(self, step: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what a method that writes returns, called beside the loop, after all writes that were asked before.

        Its first transaction also stores the idempotency key of the request that it is done for.
        """
        call = partial(self._write_with, take_key(), partial(step, *arguments, **named))
        return await asyncio.get_running_loop().run_in_executor(self._writer, call)

    def _write_with(self, key: AnswerRow | None, step: Callable[[], T]) -> T:
        self._key = key
        try:
            return step()
        finally:
            self._key = None

    def check_epoch(self) -> None:
        """Raise Superseded where a newer service has opened the store."""
        with self._transaction():
            pass

    def seen_owner(self) -> tuple[int, int]:
        """Return the epoch of the service that opened the store last, and its last beat: 0 where it has ended.

        It may be asked before :meth:`open`, and changes nothing.
        """
        with self._begun(writes=False) as connection:
            return self._seen_owner(connection)

    def _seen_owner(self, connection: sa.Connection) -> tuple[int, int]:
        if not sa.inspect(connection).has_table(tables.meta.name):
            return 0, 0  # nobody has opened it yet
        beat = connection.scalar(sa.select(tables.meta.c.number).where(tables.meta.c.name == BEAT))
        return self._read_marks(connection)[0], beat or 0

    def _check_still(self, connection: sa.Connection, after: int | None) -> None:
        if after is not None and self._seen_owner(connection)[0] != after:
            raise Conflict("Another service opened the store just now.")

    def beat(self) -> None:
        """Show those that stand by that this service works."""
        self._beats = self._beats % MOST_BEATS + 1
        self._note_beat(self._beats)

    def leave(self) -> None:
        """Show those that stand by that this service works no more."""
        self._note_beat(0)

    def _note_beat(self, number: int) -> None:
        with self._transaction(writes=True) as connection:
            _note(connection, BEAT, number)

    def try_to_write(self) -> None:
        """Write something where nothing was written for a while: a full disk is then known before anybody asks.

        Raises:
            Unavailable: it can't be written; ``trouble`` says why until it can.
        """
        if time.monotonic() - self._written_at < (TROUBLE_SECONDS if self.trouble else WRITTEN_SECONDS):
            return
        self._written_at = time.monotonic()
        with self._transaction(writes=True):
            pass  # each write counts itself

    @contextmanager
    def _begun(self, *, writes: bool) -> Iterator[sa.Connection]:
        """Begin a transaction, and commit what is done in it."""
        done = False
        try:
            with (
                self._translated(),
                self._engine.connect() as connection,
                connection.execution_options(writes=writes).begin(),
            ):
                yield connection
                done = writes
        except Unavailable as error:
            if not (done and self._arrived()):
                self.outages.begin(DATABASE, str(error), time.time())
                raise Unavailable(str(error), DATABASE) from error
        if writes:
            self._written_at = time.monotonic()
            self.outages.end(time.time())

    def _arrived(self) -> bool:
        """Whether a write is stored that was committed, and failed: its connection may have ended before the answer."""
        if not self.epoch:
            return False
        self._unsure = True
        try:
            # As one that writes: it waits until the server has done with the other.
            with self._translated(), self._engine.connect() as one, one.execution_options(writes=True).begin():
                found = self._read_marks(one)
        except Unavailable:
            return False  # it is seen by whoever reads or writes next
        self._unsure = False
        return found == (self.epoch, self._writes + 1)

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sa.Connection]:
        known = self._writes
        with self._begun(writes=writes) as connection:
            self._check_marks(*self._read_marks(connection), known)
            self._unsure &= not writes  # it did not arrive: what comes now is written in its place
            yield connection
            if writes:
                if self._key is not None:
                    self.answers.write(connection, self._key)
                connection.execute(_COUNTED, {WRITES: known + 1})
        if writes:
            self._writes, self._key = known + 1, None

    def _check_marks(self, epoch: int, writes: int, known: int) -> None:
        if epoch > self.epoch:
            raise Superseded(f"A newer service owns the store (epoch {epoch}; this is {self.epoch}).")
        if epoch < self.epoch or writes < known:
            self._database.lose()  # of several servers, another one may be right
            raise Unavailable(OLDER.format(has=writes, known=known))
        if self._unsure and writes > known and known == self._writes:
            raise Superseded(ARRIVED)

    @staticmethod
    def _read_marks(connection: sa.Connection) -> tuple[int, int]:
        found = {row.name: row.number for row in connection.execute(_MARKS)}
        return found.get(EPOCH, 0), found.get(WRITES, 0)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            words = self._database.trouble(error)
            if words is None:
                raise
            raise Unavailable(f"The store does not answer ({words}). It is tried again at every step.") from error
        except sa.exc.TimeoutError as error:
            raise Unavailable("The store does not answer: all its connections are in use.") from error
        except UnicodeEncodeError:
            raise  # a fault of ours: text that nobody can write
        except ValueError as error:  # no JSON, or no number, where there was one
            raise Unavailable(f"The store holds what can't be read ({error}). Is its file whole?") from error

    def kinds_seen(self) -> dict[str, tuple[int, float]]:
        """Return, by kind of GPU, how many one workspace could have when it was last there, and when that was."""
        with self._transaction() as connection:
            rows = connection.execute(sa.select(tables.kinds_seen)).all()
        return {row.kind: (row.largest, row.at) for row in rows}

    def note_kinds(self, seen: Mapping[str, tuple[int, float]]) -> None:
        """Note kinds as :meth:`kinds_seen` returns them."""
        rows = [{"kind": kind, "largest": largest, "at": at} for kind, (largest, at) in seen.items()]
        with self._transaction(writes=True) as connection:
            connection.execute(tables.kinds_seen.delete().where(tables.kinds_seen.c.kind.in_(list(seen))))
            connection.execute(tables.kinds_seen.insert(), rows)

    def save(
        self,
        leases: Iterable[Lease],
        audit: Iterable[AuditLine] = (),
        readings: Iterable[ReadingRow] = (),
        charges: Iterable[Line] = (),
        kept: Iterable[tuple[str, float]] = (),
        used: Iterable[Part] = (),
        keys: Iterable[AnswerRow] = (),
        outbox: Iterable[OutboxRow] = (),
    ) -> None:
        """Write leases, audit lines, readings, lines of the ledger and use in one transaction: all of it or nothing.

        ``kept`` are leases, by id, and since when their readings stay as long as their audit: those behind a stop.
        ``keys`` are the idempotency keys of the requests that this was done for, ``outbox`` the messages about it.
        """
        # What ends goes first: a key may pass from a lease that ends to a new one in the same transaction.
        found = [row_of_lease(lease) for lease in sorted(leases, key=lambda x: x.live)]
        lines, rows = [row_of_line(line) for line in audit], [asdict(row) for row in readings]
        with self._transaction(writes=True) as connection:
            _SAVED.execute(connection, found)
            if lines:
                connection.execute(tables.audit.insert(), lines)
            if rows:
                connection.execute(tables.readings.insert(), rows)
            self.ledger.write(connection, charges)
            self.use_sums.write(connection, used)
            self.outbox.write(connection, outbox)
            for key in keys:
                self.answers.write(connection, key)
            for lease_id, since in kept:
                readings_since = (tables.readings.c.lease == lease_id) & (tables.readings.c.at >= since)
                connection.execute(tables.readings.update().where(readings_since).values(kept=True))

    def live(self) -> list[Lease]:
        """Return every lease that has not ended."""
        return self._leases(tables.leases.c.phase != Phase.ENDED.value)

    def lease(self, lease_id: str) -> Lease | None:
        """Return one lease, ended or not."""
        return next(iter(self._leases(tables.leases.c.id == lease_id)), None)

    def ended(self, owner: Owner | None, limit: int = 20, before: tuple[float, str] | None = None) -> list[Lease]:
        """Return the leases of ``owner`` (None: of all) that ended last, the newest first.

        ``before`` are the end and the id of one: those that come after it in that order.
        """
        t = tables.leases.c
        where = _owned(t.phase == Phase.ENDED.value, owner)
        if before is not None:
            at, name = before
            where &= (t.ended_at < at) | ((t.ended_at == at) & (t.id > name))
        return self._readable(where, order=t.ended_at.desc(), limit=limit)

    def last_ended(self, key: Key) -> Lease | None:
        """Return the lease of a key that ended last."""
        t = tables.leases.c
        of_key = (t.server == key.server) & (t.phase == Phase.ENDED.value)
        found = self._readable(_owned(of_key, key.owner), order=t.ended_at.desc(), limit=1)
        return found[0] if found else None

    def disputed(self, owner: Owner | None, limit: int = 100) -> list[Lease]:
        """Return the leases of ``owner`` (None: of all) whose end was called wrong and not answered, in that order."""
        where = _owned(tables.leases.c.disputed_at.is_not(None), owner)
        return self._readable(where, order=tables.leases.c.disputed_at, limit=limit)

    def _leases(self, where: sa.ColumnElement[bool]) -> list[Lease]:
        with self._transaction() as connection:
            return [lease_of(one) for one in connection.scalars(sa.select(tables.leases.c.document).where(where))]

    def _readable(self, where: sa.ColumnElement[bool], order: sa.ColumnElement[object], limit: int) -> list[Lease]:
        query = sa.select(tables.leases.c.document).where(where).order_by(order, tables.leases.c.id).limit(limit)
        with self._transaction() as connection:
            return self.damaged.readable(connection, query)

    def readings(self, lease_id: str, since: float = 0.0) -> list[ReadingRow]:
        """Return the readings of one lease, oldest first."""
        columns = [c for c in tables.readings.c if c.name != "number"]
        query = (
            sa.select(*columns)
            .where(tables.readings.c.lease == lease_id, tables.readings.c.at >= since)
            .order_by(tables.readings.c.at, tables.readings.c.number)
        )
        with self._transaction() as connection:
            return [ReadingRow(**row) for row in connection.execute(query).mappings()]

    def audit(self, lease_id: str | None = None, limit: int = 100) -> list[AuditLine]:
        """Return the audit of one lease (None: of all), the newest first."""
        columns = [c for c in tables.audit.c if c.name != "number"]
        query = sa.select(*columns).order_by(tables.audit.c.number.desc()).limit(limit)
        if lease_id is not None:
            query = query.where(tables.audit.c.lease == lease_id)
        with self._transaction() as connection:
            rows = rows_of(connection, query, tables.audit.c.fields)
        return [
            AuditLine(
                row.at, row.lease, row.user, row.actor, event_of(row.action, row.fields, row.why), row.via, row.target
            )
            for row in rows
        ]


def _note(connection: sa.Connection, name: str, number: int) -> None:
    connection.execute(tables.meta.delete().where(tables.meta.c.name == name))
    connection.execute(tables.meta.insert().values(name=name, number=number))


def _owned(where: sa.ColumnElement[bool], owner: Owner | None) -> sa.ColumnElement[bool]:
    leases = tables.leases.c
    return where if owner is None else where & (leases.hub == owner.hub) & (leases.user_created == owner.user_created)
