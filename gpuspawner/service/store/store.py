"""Reads and writes, each in one transaction that checks the epoch."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from pydantic import TypeAdapter, ValidationError

from gpuspawner.core.errors import Superseded, Unavailable, quoted
from gpuspawner.core.leases.events import Event, event_of, fields_of
from gpuspawner.core.leases.lease import Key, Lease, Owner, Phase
from gpuspawner.service.store import tables
from gpuspawner.service.store.outputs import Outputs
from gpuspawner.service.store.preemptions import PreemptionRows

RAW_SECONDS = 24 * 3600.0
"""Raw readings are kept this long (design, section 7)."""
MAXIMA_SECONDS = 30 * 24 * 3600.0
"""Ten-minute maxima are kept this long."""
BUCKET_SECONDS = 600.0
FORGET_AT_ONCE = 200
"""So many leases, or audit lines, are forgotten in one transaction: some milliseconds, in which nobody is answered."""
WRITTEN_SECONDS, TROUBLE_SECONDS = 10.0, 2.0
"""How long ago something was written, at most: for how long a full disk may be unknown, and a mended one."""
PATIENCE_SECONDS = 0.25
"""How long a write waits for another process that holds SQLite's lock: a second service's takes milliseconds, and while
one waits, nobody else is answered."""

# Made once: building a statement takes longer than running it.
_IDS = sa.select(tables.leases.c.id).where(tables.leases.c.id.in_(sa.bindparam("ids", expanding=True)))
_UPDATE = tables.leases.update().where(tables.leases.c.id == sa.bindparam("this"))
_lease_json: TypeAdapter[Lease] = TypeAdapter(Lease)


@dataclass(frozen=True)
class ReadingRow:
    """One reading of one GPU as stored. ``seconds`` is the time it covers; ``kept`` rows are behind a stop.

    ``utilization_percent`` is the highest that was read. ``shared``, ``holders``, ``holders_cpu_cores``,
    ``buffer_percent`` and ``persistence`` are as in core.readings; ``cpu_cores`` is the whole workspace's.
    ``soft`` is the softer evidence, null where none was read: ``active`` and ``words`` of each that was active
    (true) or unknown (null), as in core.readings. The rest was quiet. ``gpu`` is "" where the workspace has none.
    """

    lease: str
    at: float
    seconds: float
    gpu: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    kind: str
    because: str
    kept: bool = False
    shared: bool = False
    holders: int | None = None
    holders_cpu_cores: float | None = None
    cpu_cores: float | None = None
    soft: dict[str, dict[str, Any]] | None = None
    buffer_percent: float | None = None
    persistence: bool | None = None


@dataclass(frozen=True)
class AuditLine:
    """Who or what did what to a lease, when and why."""

    at: float
    lease: str
    user: str
    actor: str
    event: Event


class Store:
    """The service's database. All methods block for the time of one small transaction.

    While another process holds SQLite's lock, what is read is answered all the same, and of the writes the first waits
    for PATIENCE_SECONDS and the others not at all: each is Unavailable at once until one succeeds.

    Raises:
        Unavailable: the database does not answer, is locked or full.
        Superseded: another service raised the epoch after this one.
    """

    def __init__(self, url: str) -> None:
        """Prepare; nothing is read or written before :meth:`open`."""
        self.trouble = ""
        """Why the last thing that was to be written or read was not; "" where all is well."""
        self._written_at = -math.inf
        self.epoch = 0
        self._thinned_to: float | None = None
        self._patience_seconds = PATIENCE_SECONDS
        self._engine = sa.create_engine(url, pool_pre_ping=True)
        self.outputs = Outputs(self._transaction)
        self.preemptions = PreemptionRows(self._transaction)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _sqlite_settings)
            sa.event.listen(self._engine, "begin", self._begin)

    def open(self) -> None:
        """Migrate the schema, then raise the epoch: from here older services can write no more."""
        logging.getLogger("alembic").setLevel(logging.WARNING)
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        with self._begun(writes=True) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        with self._begun(writes=True) as connection:
            epoch = self._read_epoch(connection)
            connection.execute(tables.meta.delete().where(tables.meta.c.name == "epoch"))
            connection.execute(tables.meta.insert().values(name="epoch", number=epoch + 1))
        self.epoch = epoch + 1

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def check_epoch(self) -> None:
        """Raise Superseded where a newer service has opened the store."""
        with self._transaction():
            pass

    def try_to_write(self) -> None:
        """Write something where nothing was written for a while: a full disk is then known before anybody asks.

        Raises:
            Unavailable: it can't be written; ``trouble`` says why until it can.
        """
        if time.monotonic() - self._written_at < (TROUBLE_SECONDS if self.trouble else WRITTEN_SECONDS):
            return
        self._written_at = time.monotonic()
        with self._transaction(writes=True) as connection:
            self._write_something(connection)

    @staticmethod
    def _write_something(connection: sa.Connection) -> None:
        connection.execute(tables.meta.delete().where(tables.meta.c.name == "written"))
        connection.execute(tables.meta.insert().values(name="written", number=int(time.time()) % 2**31))

    def _begin(self, connection: sa.Connection) -> None:
        """SQLite's BEGIN: a read takes no lock, and what it reads stays as it was at its beginning."""
        if not connection.get_execution_options().get("writes"):
            connection.exec_driver_sql("BEGIN")
            return
        connection.exec_driver_sql(f"PRAGMA busy_timeout={self._patience_seconds * 1000:.0f}")
        self._patience_seconds = 0.0  # whoever fails now has waited for those that come next
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        self._patience_seconds = PATIENCE_SECONDS

    @contextmanager
    def _begun(self, *, writes: bool) -> Iterator[sa.Connection]:
        try:
            with (
                _translated(),
                self._engine.connect() as connection,
                connection.execution_options(writes=writes).begin(),
            ):
                yield connection
                if writes and self.trouble and self.epoch:  # what changed no row says nothing about a full disk
                    self._write_something(connection)
        except Unavailable as error:
            self.trouble = str(error)
            raise
        if writes:
            self.trouble, self._written_at = "", time.monotonic()

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sa.Connection]:
        with self._begun(writes=writes) as connection:
            epoch = self._read_epoch(connection)
            if epoch != self.epoch:
                raise Superseded(f"A newer service owns the store (epoch {epoch}; this is {self.epoch}).")
            yield connection

    @staticmethod
    def _read_epoch(connection: sa.Connection) -> int:
        return int(connection.scalar(sa.select(tables.meta.c.number).where(tables.meta.c.name == "epoch")) or 0)

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
        self, leases: Iterable[Lease], audit: Iterable[AuditLine] = (), readings: Iterable[ReadingRow] = ()
    ) -> None:
        """Write leases, audit lines and readings in one transaction: all of it or nothing."""
        with self._transaction(writes=True) as connection:
            # What ends goes first: a key may pass from a lease that ends to a new one in the same transaction.
            found = [_lease_row(lease) for lease in sorted(leases, key=lambda x: x.live)]
            here = set(connection.scalars(_IDS, {"ids": [row["id"] for row in found]}))
            if old := [{**row, "this": row["id"]} for row in found if row["id"] in here]:
                connection.execute(_UPDATE, old)
            if new := [row for row in found if row["id"] not in here]:
                connection.execute(tables.leases.insert(), new)
            lines = [_audit_row(line) for line in audit]
            if lines:
                connection.execute(tables.audit.insert(), lines)
            rows = [asdict(row) for row in readings]
            if rows:
                connection.execute(tables.readings.insert(), rows)

    def live(self) -> list[Lease]:
        """Return every lease that has not ended."""
        return self._leases(tables.leases.c.phase != Phase.ENDED.value)

    def lease(self, lease_id: str) -> Lease | None:
        """Return one lease, ended or not."""
        return next(iter(self._leases(tables.leases.c.id == lease_id)), None)

    def ended(self, owner: Owner | None, limit: int = 20) -> list[Lease]:
        """Return the leases of ``owner`` (None: of all) that ended last, the newest first."""
        where = _owned(tables.leases.c.phase == Phase.ENDED.value, owner)
        return self._leases(where, order=tables.leases.c.ended_at.desc(), limit=limit)

    def last_ended(self, key: Key) -> Lease | None:
        """Return the lease of a key that ended last."""
        t = tables.leases.c
        of_key = (t.server == key.server) & (t.phase == Phase.ENDED.value)
        found = self._leases(_owned(of_key, key.owner), order=t.ended_at.desc(), limit=1)
        return found[0] if found else None

    def disputed(self, owner: Owner | None, limit: int = 100) -> list[Lease]:
        """Return the leases of ``owner`` (None: of all) whose end was called wrong and not answered, in that order."""
        where = _owned(tables.leases.c.disputed_at.is_not(None), owner)
        return self._leases(where, order=tables.leases.c.disputed_at, limit=limit)

    def _leases(
        self, where: sa.ColumnElement[bool], order: sa.ColumnElement[object] | None = None, limit: int | None = None
    ) -> list[Lease]:
        query = sa.select(tables.leases.c.document).where(where).limit(limit)
        if order is not None:
            query = query.order_by(order, tables.leases.c.id)
        with self._transaction() as connection:
            return [_lease_of(document) for document in connection.scalars(query)]

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

    def keep_readings(self, lease_id: str, since: float) -> None:
        """Mark the readings behind a stop: they stay as long as its audit."""
        with self._transaction(writes=True) as connection:
            connection.execute(
                tables.readings.update()
                .where(tables.readings.c.lease == lease_id, tables.readings.c.at >= since)
                .values(kept=True)
            )

    def audit(self, lease_id: str | None = None, limit: int = 100) -> list[AuditLine]:
        """Return the audit of one lease (None: of all), the newest first."""
        columns = [c for c in tables.audit.c if c.name != "number"]
        query = sa.select(*columns).order_by(tables.audit.c.number.desc()).limit(limit)
        if lease_id is not None:
            query = query.where(tables.audit.c.lease == lease_id)
        with self._transaction() as connection:
            rows = connection.execute(query).all()
        return [
            AuditLine(row.at, row.lease, row.user, row.actor, event_of(row.action, row.fields, row.why)) for row in rows
        ]

    def thin_readings(self, now: float, at_once_seconds: float = MAXIMA_SECONDS) -> bool:
        """Keep raw readings for a day, ten-minute maxima for 30 days; what is behind a stop as long as its audit.

        Goes through so much time at once, from where it was: True says that there is more. A month of a thousand
        workspaces takes a quarter of a minute, in which nothing else could be written.
        """
        r, until = tables.readings.c, now - RAW_SECONDS
        begin = now - MAXIMA_SECONDS if self._thinned_to is None else self._thinned_to
        end = min(begin + at_once_seconds, until)
        bucket = sa.cast(r.at / BUCKET_SECONDS, sa.Integer)
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


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sa.exc.DatabaseError as error:
        if isinstance(error, (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.DataError)):
            raise  # a fault of ours, which trying again would not mend
        raise Unavailable(f"The store does not answer ({error.orig}). It is tried again at every step.") from error
    except ValueError as error:  # no JSON, or no number, where there was one
        raise Unavailable(f"The store holds what can't be read ({error}). Is its file whole?") from error
    except CommandError as error:
        raise Unavailable(f"The store was made by another version of gpuspawner ({error}).") from error


def _sqlite_settings(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy's own advice: we send BEGIN
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(f"PRAGMA busy_timeout={PATIENCE_SECONDS * 1000:.0f}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _lease_of(document: Any) -> Lease:
    """Return a stored lease.

    Raises:
        Unavailable: it cannot be read. Whoever served without it would give its GPUs to somebody else.
    """
    try:
        return _lease_json.validate_python(document)
    except ValidationError as error:
        name = document.get("id") if isinstance(document, dict) else document
        where = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise Unavailable(
            f"The store holds the lease {quoted(name)}, whose {where} this version can't read. Was it written by a "
            "newer one? Nothing is served before it can be read."
        ) from error


def _owned(where: sa.ColumnElement[bool], owner: Owner | None) -> sa.ColumnElement[bool]:
    leases = tables.leases.c
    return where if owner is None else where & (leases.hub == owner.hub) & (leases.user_created == owner.user_created)


def _audit_row(line: AuditLine) -> dict[str, object]:
    return {
        "at": line.at,
        "lease": line.lease,
        "user": line.user,
        "actor": line.actor,
        "action": line.event.name,
        "why": line.event.why,
        "fields": fields_of(line.event),
    }


def _lease_row(lease: Lease) -> dict[str, object]:
    return {
        "id": lease.id,
        "hub": lease.key.hub,
        "user_created": lease.key.user_created,
        "server": lease.key.server,
        "user": lease.user,
        "phase": lease.phase.value,
        "asked_at": lease.asked_at,
        "ended_at": lease.ended_at,
        "document": _lease_json.dump_python(lease, mode="json"),
        "disputed_at": lease.dispute.at if lease.dispute and lease.dispute.answered_at is None else None,
    }
