"""The service's database: transactions that check the epoch, and the readers and writers of its tables."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import sqlalchemy as sa

from gpuspawner import __version__
from gpuspawner.backends.base import OutageLog
from gpuspawner.core.errors import Conflict, Superseded, Unavailable
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.outages import DATABASE, Outage
from gpuspawner.core.quotas.ledger import LedgerLine
from gpuspawner.service.store import tables
from gpuspawner.service.store.administration import (
    Announcements,
    CatalogVersions,
    Preemptions,
    QuotaRequests,
    Restrictions,
)
from gpuspawner.service.store.audit_log import AuditLine, AuditLog, write_audit
from gpuspawner.service.store.database import schema
from gpuspawner.service.store.database.dialects import database_of
from gpuspawner.service.store.history import Counters, Estimates, IdleTraces, KindsSeen
from gpuspawner.service.store.idempotency import IdempotencyKeys, KeyRow, take_key, write_key
from gpuspawner.service.store.leases import StoredLeases
from gpuspawner.service.store.ledger import Ledger
from gpuspawner.service.store.outbox import Outbox, OutboxRow, write_outbox
from gpuspawner.service.store.personal import InboxMarks, Preferences, Presets, Schedules, Secrets, Tokens
from gpuspawner.service.store.readings import Outputs, ReadingRow, Readings
from gpuspawner.service.store.retention import PersonRows, Retention
from gpuspawner.service.store.rows import DamagedRows, RowWrite, save_rows
from gpuspawner.service.store.usage_sums import Statements, TeamAlerts, UsagePart, UsageSums

WRITE_CHECK_SECONDS, RETRY_SECONDS = 10.0, 2.0
"""How long a full disk may stay unnoticed, and how long one with room again."""
ANSWER_SECONDS = 75.0
"""How long a reader waits: longer than a server gets. A disk or a server that hangs gives no answer."""
HANGS = "The store has not answered for {seconds:.0f} s. The service tries again at every step."
THREADS = "gpuspawner-store"
"""How the names of its threads begin."""
READERS = 8
"""The number of threads that read: fewer than the connections of a pool."""

HEARTBEAT, MAX_HEARTBEATS = "beat", 2**31 - 1
"""The count of a service's heartbeats, for standby services. It is 0 once the service has ended."""
EPOCH, WRITES, ALIVE = "epoch", "writes", "alive"
"""How often the store was opened, how often it was written, and when a service last noted that it runs. A database with
fewer writes than a service has made is older than the service."""
OLDER = (
    "The database is older than what this service wrote (write {has} of {known}): a backup was restored, or a "
    "standby without the last writes took over. The service does not use it. Bring the newer database back, or start "
    "the service again to continue with this one. Running workspaces are then taken over."
)
ARRIVED = "The last write is stored, although the connection ended before the answer. The service reads it again."

_COUNT_WRITE = tables.meta.update().where(tables.meta.c.name == WRITES).values(number=sa.bindparam("writes"))
_READ_MARKS = sa.select(tables.meta.c.name, tables.meta.c.number).where(tables.meta.c.name.in_((EPOCH, WRITES)))

P = ParamSpec("P")
T = TypeVar("T")


class Store:
    """The service's database. Its plain methods, and those of its tables, block for the time of one transaction.

    The event loop calls them only through :meth:`read` and :meth:`write`, so that it never waits for the database. One
    thread writes, in the order of the calls.

    While another process writes, reads are answered. The first write waits for PATIENCE_SECONDS. The others are refused
    at once (Unavailable) until one succeeds.

    Raises:
        Unavailable: the database does not answer, is locked or full, or is older than what was written.
        Superseded: another service has raised the epoch, or a write that failed is stored after all.
    """

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        """Read and write nothing before :meth:`open`. Raises ValueError as ``database_of``."""
        self.outages = OutageLog()
        """The present and the last outage of the database."""
        self._written_at = -math.inf
        self.epoch = 0
        self._beats = self._writes = 0
        self._unsure = False
        self._key: KeyRow | None = None
        """The idempotency key that the next transaction of the writing thread stores."""
        self._writer = ThreadPoolExecutor(1, f"{THREADS}-writes")
        self._readers = ThreadPoolExecutor(READERS, f"{THREADS}-reads")
        self._database = database_of(url, password_file)
        self._engine = self._database.engine
        self.damaged = DamagedRows()
        shared = self._transaction, self.damaged
        self.leases = StoredLeases(*shared)
        self.readings = Readings(*shared)
        self.outputs = Outputs(*shared)
        self.audit_log = AuditLog(*shared)
        self.ledger = Ledger(*shared)
        self.usage_sums = UsageSums(*shared)
        self.statements = Statements(*shared)
        self.team_alerts = TeamAlerts(*shared)
        self.person_rows = PersonRows(*shared)
        self.retention = Retention(*shared)
        self.restrictions = Restrictions(*shared)
        self.preemptions = Preemptions(*shared)
        self.announcements = Announcements(*shared)
        self.quota_requests = QuotaRequests(*shared)
        self.outbox = Outbox(*shared)
        self.inbox = InboxMarks(*shared)
        self.presets = Presets(*shared)
        self.schedules = Schedules(*shared)
        self.secrets = Secrets(*shared)
        self.preferences = Preferences(*shared)
        self.tokens = Tokens(*shared)
        self.idempotency_keys = IdempotencyKeys(*shared)
        self.estimates = Estimates(*shared)
        self.idle_traces = IdleTraces(*shared)
        self.catalog_versions = CatalogVersions(*shared)
        self.counters = Counters(*shared)
        self.kinds_seen = KindsSeen(*shared)

    def open(self, after: int | None = None) -> None:
        """Migrate the schema, then raise the epoch, so that older services can no longer write.

        ``after`` is the epoch of a service that has ended. The store is opened in that state only, and a heartbeat is
        written.

        Raises:
            Conflict: another service opened the store meanwhile.
            Unavailable: also if a later version of gpuspawner has changed its schema.
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
                _note(connection, HEARTBEAT, 1)
        self.epoch, self._writes, self._beats, self._unsure = epoch + 1, writes, 1, False

    @property
    def outage(self) -> Outage | None:
        """The present outage of the database, None if the last read or write succeeded."""
        return self.outages.outage

    @property
    def trouble(self) -> str:
        """The reason of the present outage in a sentence, "" without one."""
        return "" if self.outage is None else self.outage.why

    def close(self) -> None:
        """Accept no more calls, and close every connection."""
        for threads in (self._writer, self._readers):
            threads.shutdown(wait=False, cancel_futures=True)
        self._database.close()

    async def wait_for_threads(self) -> None:
        """Return once no thread calls the database any more, after :meth:`close`."""
        while any(one.name.startswith(THREADS) for one in threading.enumerate()):  # noqa: ASYNC110 - threads set no event
            await asyncio.sleep(0.05)

    async def read(self, step: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method that reads, in a thread, and return its result.

        Raises Unavailable also if there is no answer in time.
        """
        call = partial(step, *arguments, **named)
        return await self.answer_of(asyncio.get_running_loop().run_in_executor(self._readers, call))

    async def answer_of(self, asked: asyncio.Future[T]) -> T:
        """Return the result of a call to the store, which is cancelled afterwards.

        Raises Unavailable also if there is no answer in time.
        """
        try:
            # Not `wait_for`: before Python 3.12 it may swallow a cancellation.
            done, _ = await asyncio.wait([asked], timeout=ANSWER_SECONDS)
        finally:
            asked.cancel()
        if not done:
            raise Unavailable(HANGS.format(seconds=ANSWER_SECONDS), DATABASE)
        return asked.result()

    async def write(self, step: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method that writes, in the writing thread after all earlier writes, and return its result.

        Its first transaction also stores the idempotency key of the current request.
        """
        call = partial(self._write_with, take_key(), partial(step, *arguments, **named))
        return await asyncio.get_running_loop().run_in_executor(self._writer, call)

    def _write_with(self, key: KeyRow | None, step: Callable[[], T]) -> T:
        self._key = key
        try:
            return step()
        finally:
            self._key = None

    def check_epoch(self) -> None:
        """Raise Superseded if a newer service has opened the store."""
        with self._transaction():
            pass

    def seen_owner(self) -> tuple[int, int]:
        """Return the epoch of the service that opened the store last, and its last heartbeat, 0 if it has ended.

        It may be called before :meth:`open`, and changes nothing.
        """
        with self._begun(writes=False) as connection:
            return self._seen_owner(connection)

    def _seen_owner(self, connection: sa.Connection) -> tuple[int, int]:
        if not sa.inspect(connection).has_table(tables.meta.name):
            return 0, 0  # no service has opened it yet
        beat = connection.scalar(sa.select(tables.meta.c.number).where(tables.meta.c.name == HEARTBEAT))
        return self._read_marks(connection)[0], beat or 0

    def _check_still(self, connection: sa.Connection, after: int | None) -> None:
        if after is not None and self._seen_owner(connection)[0] != after:
            raise Conflict("Another service opened the store just now.")

    def beat(self) -> None:
        """Write a heartbeat for standby services."""
        self._beats = self._beats % MAX_HEARTBEATS + 1
        self._note_beat(self._beats)

    def leave(self) -> None:
        """Tell standby services that this one has ended."""
        self._note_beat(0)

    def _note_beat(self, number: int) -> None:
        with self._transaction(writes=True) as connection:
            _note(connection, HEARTBEAT, number)

    def try_to_write(self) -> None:
        """Write something if nothing was written for a while, so that a full disk is known before a user writes.

        Raises:
            Unavailable: the store takes no writes. ``trouble`` has the reason.
        """
        if time.monotonic() - self._written_at < (RETRY_SECONDS if self.trouble else WRITE_CHECK_SECONDS):
            return
        self._written_at = time.monotonic()
        with self._transaction(writes=True):
            pass  # each write counts itself

    @contextmanager
    def _begun(self, *, writes: bool) -> Iterator[sa.Connection]:
        """Begin a transaction, and commit it at the end."""
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
        """Return whether a failed commit is stored after all: the connection may have ended before the answer."""
        if not self.epoch:
            return False
        self._unsure = True
        try:
            # A transaction that writes waits until the server has ended the failed one.
            with self._translated(), self._engine.connect() as one, one.execution_options(writes=True).begin():
                found = self._read_marks(one)
        except Unavailable:
            return False  # the next read or write notices it
        self._unsure = False
        return found == (self.epoch, self._writes + 1)

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sa.Connection]:
        known = self._writes
        with self._begun(writes=writes) as connection:
            self._check_marks(*self._read_marks(connection), known)
            self._unsure &= not writes  # the unsure write is not stored: this one replaces it
            yield connection
            if writes:
                if self._key is not None:
                    write_key(connection, self._key)
                connection.execute(_COUNT_WRITE, {WRITES: known + 1})
        if writes:
            self._writes, self._key = known + 1, None

    def _check_marks(self, epoch: int, writes: int, known: int) -> None:
        if epoch > self.epoch:
            raise Superseded(f"A newer service owns the store (epoch {epoch}; this is {self.epoch}).")
        if epoch < self.epoch or writes < known:
            self._database.lose()  # another one of several servers may have all writes
            raise Unavailable(OLDER.format(has=writes, known=known))
        if self._unsure and writes > known and known == self._writes:
            raise Superseded(ARRIVED)

    @staticmethod
    def _read_marks(connection: sa.Connection) -> tuple[int, int]:
        found = {row.name: row.number for row in connection.execute(_READ_MARKS)}
        if not all(isinstance(number, int) for number in found.values()):
            raise ValueError("its table meta is damaged")
        return found.get(EPOCH, 0), found.get(WRITES, 0)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            words = self._database.trouble(error)
            if words is None:
                raise
            raise Unavailable(f"The store does not answer ({words}). The service tries again at every step.") from error
        except sa.exc.TimeoutError as error:
            raise Unavailable("The store does not answer: all its connections are in use.") from error
        except UnicodeEncodeError:
            raise  # a defect of the service: text that cannot be written
        except (ValueError, RecursionError) as error:  # not JSON, or not a number
            raise Unavailable(f"The store holds what can't be read ({error}). Is its file whole?") from error

    def save(
        self,
        leases: Iterable[Lease],
        audit: Iterable[AuditLine] = (),
        readings: Iterable[ReadingRow] = (),
        charges: Iterable[LedgerLine] = (),
        kept: Iterable[tuple[str, float]] = (),
        usage: Iterable[UsagePart] = (),
        keys: Iterable[KeyRow] = (),
        outbox: Iterable[OutboxRow] = (),
        others: Iterable[RowWrite] = (),
    ) -> None:
        """Write leases and what belongs to them in one transaction.

        Args:
            leases: the leases as they are now.
            audit: audit entries.
            readings: readings of GPUs.
            charges: lines of the ledger.
            kept: ids of leases and times. Readings since then led to a stop: they are kept as long as the audit.
            usage: what is added to the sums of usage.
            keys: idempotency keys of the requests that this write is done for.
            outbox: messages about it.
            others: writes of further rows, which are called with the connection.
        """
        # Before the transaction, because a lease that can't be converted is a defect of the service, not an outage.
        rows, used = self.leases.rows_of(leases), tuple(usage)
        with self._transaction(writes=True) as connection:
            self.leases.write(connection, rows)
            write_audit(connection, audit)
            self.readings.write(connection, readings, kept)
            self.ledger.write(connection, charges)
            self.usage_sums.write(connection, used)
            self.statements.add_usage(connection, used)
            write_outbox(connection, outbox)
            for write in others:
                write(connection)
            for key in keys:
                write_key(connection, key)

    def last_alive_at(self) -> float | None:
        """Return when a service last noted that it runs, None before the first note."""
        with self._transaction() as connection:
            found = connection.scalar(sa.select(tables.meta.c.number).where(tables.meta.c.name == ALIVE))
        return None if found is None else float(found)

    def note_alive(self, now: float) -> None:
        """Note that this service runs."""
        with self._transaction(writes=True) as connection:
            _note(connection, ALIVE, int(now))


def _note(connection: sa.Connection, name: str, number: int) -> None:
    save_rows(connection, tables.meta, [{"name": name, "number": number}])
