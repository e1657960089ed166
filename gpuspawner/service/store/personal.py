"""Rows that belong to one user: presets, schedules, tokens, preferences, secrets, and notices that were read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import sqlalchemy as sa
from pydantic import TypeAdapter

from gpuspawner.core.administration import NOTICE_KEPT_SECONDS, LeaseStep, ReadMarks
from gpuspawner.core.events import event_of
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.schedules import Schedule
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.database.dialects import IsJson
from gpuspawner.service.store.rows import (
    Row,
    RowWrite,
    StoredRows,
    owned_by,
    owner_columns,
    read_with_damaged_json,
    save_rows,
)

MAX_STEPS = 2000
"""An inbox shows the newest events. Arbitrary: more than a month of one person, and read in some milliseconds."""
MAX_MARKED = 500
"""Notices that are marked as read one by one. More are marked all at once."""
ALL_NOTICES = ""
"""Stands for all notices until then."""


@dataclass(frozen=True)
class Preset:
    """A user's own choices. ``options`` are as the form sends them. They are checked when they are used."""

    name: str
    options: Mapping[str, Any]
    saved_at: float


class NamedRows(StoredRows):
    """Base of tables in which each user has a limited number of rows by name."""

    table: ClassVar[sa.Table]

    def _save_named(self, owner: Owner, row: dict[str, Any], limit: int, *others: RowWrite) -> bool:
        """Write a row, in place of one of its name. Return False if the user has ``limit`` others."""
        t = self.table
        rest = sa.select(sa.func.count()).select_from(t).where(owned_by(t, owner), t.c.name != row["name"])
        with self._transaction(writes=True) as connection:
            if (connection.scalar(rest) or 0) >= limit:
                return False
            save_rows(connection, t, [{**owner_columns(owner), **row}])
            for write in others:
                write(connection)
        return True

    def _delete_named(self, owner: Owner, name: str, *others: RowWrite) -> bool:
        return self._delete(self.table, owned_by(self.table, owner) & (self.table.c.name == name), *others) > 0


class Presets(NamedRows):
    """Reads and writes presets."""

    table = tables.presets

    def of(self, owner: Owner) -> list[Preset]:
        """Return a user's presets, by name."""
        t = tables.presets.c
        query = sa.select(tables.presets).where(owned_by(tables.presets, owner)).order_by(t.name)
        return self._read_each(tables.presets, query, _preset_of, t.options, key="name")

    def of_hub(self, hub: str) -> list[tuple[Owner, Preset]]:
        """Return the presets of all of a hub's users."""
        t = tables.presets.c
        query = sa.select(tables.presets).where(t.hub == hub).order_by(t.user_created, t.name)
        return self._read_each(
            tables.presets, query, lambda row: (Owner(hub, row["user_created"]), _preset_of(row)), t.options, key="name"
        )

    def save(self, owner: Owner, one: Preset, limit: int) -> bool:
        """Write a preset, in place of one of its name. Return False if the user has ``limit`` others."""
        row = {"name": one.name, "options": dict(one.options), "saved_at": one.saved_at}
        return self._save_named(owner, row, limit)

    def rename(self, owner: Owner, before: str, name: str) -> bool:
        """Rename a preset. Return False if it does not exist, or another one has that name."""
        t, own = tables.presets, owned_by(tables.presets, owner)
        with self._transaction(writes=True) as connection:
            if connection.scalar(sa.select(t.c.name).where(own, t.c.name == name)):
                return False
            return connection.execute(t.update().where(own, t.c.name == before).values(name=name)).rowcount > 0

    def delete(self, owner: Owner, name: str) -> bool:
        """Delete a preset. Return whether there was one."""
        return self._delete_named(owner, name)


def _preset_of(row: Row) -> Preset:
    if not isinstance(row["options"], dict):
        raise TypeError("its options are not an object")
    return Preset(row["name"], row["options"], row["saved_at"])


_schedule_json: TypeAdapter[Schedule] = TypeAdapter(Schedule)


class Schedules(StoredRows):
    """Reads and writes scheduled workspaces."""

    def of_hub(self, hub: str) -> list[tuple[Owner, Schedule]]:
        """Return the schedules of all of a hub's users."""
        t = tables.schedules.c
        query = sa.select(tables.schedules).where(t.hub == hub).order_by(t.id)
        return self._read_each(
            tables.schedules, query, lambda row: (Owner(hub, row["user_created"]), _schedule_of(row)), t.document
        )

    def of(self, owner: Owner) -> list[Schedule]:
        """Return a user's schedules, oldest first."""
        with self._transaction() as connection:
            found = self._schedules_of(connection, owner)
        return sorted(found, key=lambda one: (one.made_at, one.id))

    def add(self, owner: Owner, one: Schedule, limit: int, line: AuditLine, *, once: bool = False) -> Schedule | None:
        """Write a schedule with its audit entry and return it. Return None if the user has ``limit`` already.

        With ``once``, an equal schedule is returned instead: the user clicked twice.
        """
        t = tables.schedules
        with self._transaction(writes=True) as connection:
            known = self._schedules_of(connection, owner)
            if once and (same := next((other for other in known if other.asks_the_same(one)), None)):
                return same
            if len(known) >= limit:
                return None
            connection.execute(t.insert(), {"id": one.id, **owner_columns(owner), "document": _document(one)})
            write_audit(connection, [line])
        return one

    def change(
        self, owner: Owner, name: str, change: Callable[[Schedule], Schedule], *audit: AuditLine
    ) -> Schedule | None:
        """Apply a change to a schedule in one transaction. Return None if its user has deleted it."""
        t = tables.schedules
        where = owned_by(t, owner) & (t.c.id == name)
        with self._transaction(writes=True) as connection:
            document = connection.scalar(sa.select(t.c.document).where(where))
            if document is None:
                return None
            after = change(_schedule_json.validate_python(document))
            connection.execute(t.update().where(where).values(document=_document(after)))
            write_audit(connection, audit)
        return after

    def delete(self, owner: Owner, name: str, line: AuditLine) -> bool:
        """Delete a schedule with an audit entry. Return whether there was one."""
        t = tables.schedules
        return self._delete(t, owned_by(t, owner) & (t.c.id == name), partial(write_audit, lines=[line])) > 0

    def _schedules_of(self, connection: sa.Connection, owner: Owner) -> list[Schedule]:
        t = tables.schedules
        rows = read_with_damaged_json(connection, sa.select(t).where(owned_by(t, owner)), t.c.document)
        return self._damaged.read(t, rows, _schedule_of)


def _schedule_of(row: Row) -> Schedule:
    return _schedule_json.validate_python(row["document"])


def _document(one: Schedule) -> Any:
    return _schedule_json.dump_python(one, mode="json")


@dataclass(frozen=True)
class TokenRow:
    """One token of the command line.

    ``device`` is the name that the machine gives itself. Until ``admin_until`` the token has ``scopes``, separated by
    spaces. A token without further roles has None and "".
    """

    id: str
    hash: str
    hub: str
    user_created: str
    user: str
    device: str
    made_at: float
    until: float
    admin_until: float | None = None
    scopes: str = ""

    @property
    def owner(self) -> Owner:
        """The user of the token."""
        return Owner(self.hub, self.user_created)


class Tokens(StoredRows):
    """Reads and writes tokens. The token itself is stored nowhere, only its hash."""

    def add(self, row: TokenRow, line: AuditLine) -> None:
        """Write a token with its audit entry."""
        self._save(tables.tokens, [asdict(row)], partial(write_audit, lines=[line]))

    def find_by_hash(self, hashed: str) -> TokenRow | None:
        """Return the token with this hash, None without one."""
        return next(iter(self._find(tables.tokens.c.hash == hashed)), None)

    def of(self, owner: Owner, now: float) -> list[TokenRow]:
        """Return a user's tokens that have not expired, newest first."""
        return self._find(owned_by(tables.tokens, owner) & (tables.tokens.c.until > now))

    def revoke(self, owner: Owner, name: str, line: AuditLine) -> bool:
        """Delete a user's token by its id, with an audit entry. Return whether there was one."""
        where = owned_by(tables.tokens, owner) & (tables.tokens.c.id == name)
        return self._delete(tables.tokens, where, partial(write_audit, lines=[line])) > 0

    def delete_user(self, owner: Owner) -> None:
        """Delete all tokens of a user who is gone."""
        self._delete(tables.tokens, owned_by(tables.tokens, owner))

    def _find(self, where: sa.ColumnElement[bool]) -> list[TokenRow]:
        query = sa.select(tables.tokens).where(where).order_by(tables.tokens.c.made_at.desc(), tables.tokens.c.id)
        return self._read_each(tables.tokens, query, lambda row: TokenRow(**row))


class InboxMarks(StoredRows):
    """Reads a user's notices, which are the audit of their workspaces, and stores which of them they have read."""

    def notices(self, owner: Owner, now: float) -> tuple[list[LeaseStep], ReadMarks]:
        """Return the events of a user's workspaces, newest first, and which of them the user has read."""
        a, x, since = tables.audit.c, tables.leases.c, now - NOTICE_KEPT_SECONDS
        recent = (sa.func.coalesce(x.ended_at, since) >= since) & (a.at >= since)
        seen = sa.case((IsJson(x.document), x.document["seen_by_user"].as_boolean()), else_=False).label("seen")
        query = sa.select(a.number, a.at, a.lease, x.server, x.user, x.asked_at, seen, a.actor, a.action, a.fields)
        query = query.join(tables.leases, x.id == a.lease).where(owned_by(tables.leases, owner) & recent)
        t = tables.inbox_read
        with self._transaction() as connection:
            rows = read_with_damaged_json(connection, query.order_by(a.number.desc()).limit(MAX_STEPS), a.fields)
            read = connection.execute(sa.select(t).where(owned_by(t, owner))).all()
        all_until = max((row.at for row in read if row.notice == ALL_NOTICES), default=0.0)
        steps = self._damaged.read(tables.audit, rows, _step_of, key="number")
        return steps, ReadMarks(all_until, frozenset(row.notice for row in read if row.notice != ALL_NOTICES))

    def mark(self, owner: Owner, names: Collection[str], now: float) -> None:
        """Note that a user has read notices. It may be repeated."""
        wanted = sorted(set(names))[:MAX_MARKED]
        self._save(tables.inbox_read, [{**owner_columns(owner), "notice": name, "at": now} for name in wanted])

    def mark_all(self, owner: Owner, now: float) -> None:
        """Note that a user has read all notices until now."""
        t = tables.inbox_read
        with self._transaction(writes=True) as connection:
            connection.execute(t.delete().where(owned_by(t, owner)))
            connection.execute(t.insert(), {**owner_columns(owner), "notice": ALL_NOTICES, "at": now})


def _step_of(row: Row) -> LeaseStep:
    columns = {name: row[name] for name in ("number", "at", "lease", "server", "user", "asked_at", "actor")}
    return LeaseStep(**columns, seen=bool(row["seen"]), event=event_of(row["action"], row["fields"]))


class Preferences(StoredRows):
    """Reads and writes preferences. A user without a row wants every message."""

    def wants_start_mail(self, owner: Owner) -> bool:
        """Return whether a user wants messages about starts outside of pages."""
        wanted = sa.type_coerce(tables.preferences.c.start_mail, sa.Integer)  # a damaged value is no False
        return bool(self._scalar(sa.select(wanted).where(owned_by(tables.preferences, owner))) != 0)

    def set_start_mail(self, owner: Owner, *, wanted: bool) -> None:
        """Store whether a user wants messages about starts."""
        self._save(tables.preferences, [{**owner_columns(owner), "start_mail": wanted}])


@dataclass(frozen=True)
class StoredSecret:
    """A secret. ``sealed`` is its encrypted value."""

    name: str
    sealed: str
    changed_at: float


class Secrets(NamedRows):
    """Reads and writes secrets."""

    table = tables.secrets

    def of(self, owner: Owner) -> list[StoredSecret]:
        """Return a user's secrets, by name."""
        t = tables.secrets.c
        query = sa.select(t.name, t.sealed, t.changed_at).where(owned_by(tables.secrets, owner)).order_by(t.name)
        return self._read_each(tables.secrets, query, lambda row: StoredSecret(**row), key="name")

    def of_hub(self, hub: str) -> list[tuple[Owner, StoredSecret]]:
        """Return the secrets of all of a hub's users."""
        t = tables.secrets.c
        query = sa.select(t.user_created, t.name, t.sealed, t.changed_at).where(t.hub == hub)
        return self._read_each(
            tables.secrets,
            query,
            lambda row: (
                Owner(hub, row["user_created"]),
                StoredSecret(row["name"], row["sealed"], row["changed_at"]),
            ),
            key="name",
        )

    def save(self, owner: Owner, one: StoredSecret, limit: int, line: AuditLine) -> bool:
        """Write a secret with its audit entry, in place of one of its name. Return False beyond ``limit``."""
        return self._save_named(owner, asdict(one), limit, partial(write_audit, lines=[line]))

    def delete(self, owner: Owner, name: str, line: AuditLine) -> bool:
        """Delete a secret with an audit entry. Return whether there was one."""
        return self._delete_named(owner, name, partial(write_audit, lines=[line]))
