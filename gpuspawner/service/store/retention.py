"""How long rows are kept, and all rows of one person: rows that are too old are deleted, and persons are forgotten.

A table's columns say how its rows belong to a person, so that a new table is covered without a line here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import sqlalchemy as sa

from gpuspawner.core.administration import NOTICE_KEPT_SECONDS
from gpuspawner.core.calendar import milliseconds
from gpuspawner.core.events import QuotaMoved, StatementMailed
from gpuspawner.core.leases.lease import Key, Lease, Owner, Phase
from gpuspawner.core.leases.reports import KEPT_SECONDS as OUTPUT_SECONDS
from gpuspawner.service.store import tables
from gpuspawner.service.store.history import HISTORY_SECONDS
from gpuspawner.service.store.leases import StoredLeases
from gpuspawner.service.store.personal import ALL_NOTICES
from gpuspawner.service.store.rows import StoredRows, owned_by, read_with_damaged_json, save_rows
from gpuspawner.service.store.usage_sums import MONTH_LENGTH, of_workspaces_of

LEASES_AT_ONCE = 200
"""The number of leases that one transaction forgets. It takes milliseconds, in which no other write is possible."""
SECRET_COLUMNS = frozenset({"hash", "sealed"})
"""Columns that are never exported."""
SUMS = frozenset({"ledger", "usage_sums", "team_sums", "quota_grants"})
"""Tables whose rows stay under a pseudonym, so that no sum changes."""
NAMING_OTHERS = frozenset({QuotaMoved.name, StatementMailed.name})
"""Events that name more people than their user and their actor."""
OF_WORKSPACES = frozenset({"leases", "readings", "estimates", "audit"})
"""Tables about workspaces. Their rows stay under the pseudonym, or are deleted."""
ACTED = {
    tables.ledger: ("at", ("by",)),
    tables.quota_grants: ("made_at", ("by", "taken_back_by")),
    tables.announcements: ("made_at", ("by", "withdrawn_by")),
    tables.catalog_versions: ("at", ("author",)),
    tables.preemptions: ("made_at", ("by",)),
}
"""Tables with the names of persons who acted: the column of the time, and the columns of names."""
ACTED_IN_DOCUMENTS = {
    tables.restrictions: ("since", ("by", "lifted_by")),
    tables.quota_requests: ("made_at", ("answered_by",)),
    tables.preemptions: ("made_at", ("by",)),
}
"""The same for names in documents."""


OF_USERS = (
    tables.presets,
    tables.schedules,
    tables.quota_requests,
    tables.secrets,
    tables.preferences,
    tables.idle_traces,
)
"""Tables whose rows are deleted when the hub has deleted their user."""


@dataclass(frozen=True)
class AgeLimits:
    """Which rows are too old, in seconds since the epoch. ``usage_day`` is the day of ``usage``, in ISO 8601."""

    now: float
    ended: float
    usage: float
    usage_day: str
    keys: float
    messages: float


OLD_ROWS: Mapping[sa.Table, Callable[[Any, AgeLimits], sa.ColumnElement[bool]]] = {
    tables.outputs: lambda t, limits: t.at < limits.now - OUTPUT_SECONDS,
    tables.ledger: lambda t, limits: t.end_ms < milliseconds(limits.usage),
    tables.usage_sums: lambda t, limits: t.span < limits.usage_day[:MONTH_LENGTH],
    tables.team_sums: lambda t, limits: t.month < limits.usage_day[:MONTH_LENGTH],
    tables.statements: lambda t, limits: t.month < limits.usage_day[:MONTH_LENGTH],
    tables.team_alerts: lambda t, limits: t.period < limits.usage_day,
    tables.idempotency_keys: lambda t, limits: t.at < limits.keys,
    tables.outbox: lambda t, limits: t.over_at < limits.messages,
    tables.tokens: lambda t, limits: t.until <= limits.now,
    tables.preemptions: lambda t, limits: (t.made_at < limits.ended) & ~t.live,
    tables.restrictions: lambda t, limits: (t.lifted_at < limits.ended) | (t.until < limits.ended),
    tables.announcements: lambda t, limits: (t.made_at < limits.ended) & (t.until < limits.ended),
    tables.quota_requests: lambda t, limits: (t.made_at < limits.ended) & (t.until < limits.ended),
    tables.inbox_read: lambda t, limits: (t.at < limits.now - 2 * NOTICE_KEPT_SECONDS) & (t.notice != ALL_NOTICES),
    tables.counters: lambda t, limits: t.at < limits.ended,
    tables.estimates: lambda t, limits: t.at < limits.now - HISTORY_SECONDS,
    tables.idle_traces: lambda t, limits: t.at < limits.now - HISTORY_SECONDS,
}
"""The tables whose rows are deleted by age alone, with the condition of rows that are too old, given the columns."""


class Retention(StoredRows):
    """Deletes rows that are too old, and rows of users who are gone."""

    def delete_old(self, table: sa.Table, limits: AgeLimits) -> None:
        """Delete the rows of a table of OLD_ROWS that are too old."""
        self._delete(table, OLD_ROWS[table](table.c, limits))

    def owners(self, hub: str) -> frozenset[str]:
        """Return the creation times of a hub's users who have rows in one of OF_USERS."""
        with self._transaction() as connection:
            queries = (sa.select(t.c.user_created).where(t.c.hub == hub).distinct() for t in OF_USERS)
            return frozenset(created for query in queries for created in connection.scalars(query))

    def delete_users(self, owners: Iterable[Owner]) -> None:
        """Delete the rows in OF_USERS of users who are gone."""
        with self._transaction(writes=True) as connection:
            for owner, table in product(owners, OF_USERS):
                connection.execute(table.delete().where(owned_by(table, owner)))


@dataclass(frozen=True)
class StoredPerson:
    """A person in the store. ``since`` is when the hub created the user. Earlier rows with the name are another's."""

    owner: Owner
    name: str
    since: float


class PersonRows(StoredRows):
    """Reads, counts and forgets the rows of a person."""

    def owners_named(self, name: str) -> set[str]:
        """Return the creation times of the users who had a name when something of them was stored."""
        found: set[str] = set()
        with self._transaction() as connection:
            for table in (tables.leases, tables.ledger, tables.tokens):
                found |= {*connection.scalars(sa.select(table.c.user_created).where(table.c.user == name).distinct())}
        return found

    def count(self, person: StoredPerson) -> dict[str, int]:
        """Return the number of a person's rows by table, without tables that have no rows of the person."""
        with self._transaction() as connection:
            counts = {
                table.name: connection.scalar(sa.select(sa.func.count()).select_from(table).where(where)) or 0
                for table, where in _conditions(person).items()
            }
            counts["outbox"] = len(_messages_to(connection, person.name))
        return {name: number for name, number in counts.items() if number}

    def export(self, person: StoredPerson) -> dict[str, list[dict[str, Any]]]:
        """Return a person's rows by table, without secrets."""
        with self._transaction() as connection:
            found = {table.name: _rows_of(connection, table, where) for table, where in _conditions(person).items()}
        return {name: rows for name, rows in found.items() if rows}

    def has_live_leases(self, owner: Owner) -> bool:
        """Return whether a person has workspaces that have not ended."""
        t = tables.leases
        query = sa.select(t.c.id).where(owned_by(t, owner), t.c.phase != Phase.ENDED.value).limit(1)
        return self._scalar(query) is not None

    def forget_workspaces(self, person: StoredPerson, pseudonym: str, *, deletes: bool) -> bool:
        """Delete some ended workspaces of a person, or put them under a pseudonym. Return whether there may be more."""
        t, text = tables.leases, tables.outputs
        with self._transaction(writes=True) as connection:
            query = sa.select(t.c.id, t.c.document).where(owned_by(t, person.owner), t.c.phase == Phase.ENDED.value)
            rows = read_with_damaged_json(connection, query.order_by(t.c.id).limit(LEASES_AT_ONCE), t.c.document)
            ids = [row["id"] for row in rows]
            connection.execute(text.delete().where(text.c.lease.in_(ids)))
            if deletes:
                for table in (tables.audit, tables.readings, tables.estimates):
                    connection.execute(table.delete().where(table.c.lease.in_(ids)))
                connection.execute(t.delete().where(t.c.id.in_(ids)))
            else:
                leases = self._damaged.read(t, rows, lambda row: StoredLeases.parse(row["document"]))
                renamed = [_renamed(one, person, pseudonym) for one in leases]
                StoredLeases.write(connection, StoredLeases.rows_of(renamed))
                damaged = {*ids} - {one.id for one in leases}
                connection.execute(t.delete().where(t.c.id.in_(damaged)))  # a damaged lease may hold anything
        return len(ids) == LEASES_AT_ONCE

    def forget_rest(self, person: StoredPerson, pseudonym: str) -> None:
        """Delete all other rows of a person. Rows of SUMS and the audit stay under a pseudonym.

        The sums of single workspaces are deleted, because the sums of the person contain them.
        """
        new = {"user_created": pseudonym, "user": pseudonym, "key": pseudonym, "name": pseudonym}
        with self._transaction(writes=True) as connection:
            _rename_in_documents(connection, person, pseudonym)
            for row in _messages_to(connection, person.name):
                connection.execute(tables.outbox.delete().where(tables.outbox.c.id == row))
            connection.execute(tables.usage_sums.delete().where(of_workspaces_of(person.owner.user_created)))
            for table, where in _conditions(person).items():
                if table.name in SUMS:
                    columns = ("key", "name") if table is tables.usage_sums else ("user_created", "user")
                    values = {name: new[name] for name in columns}
                    connection.execute(table.update().where(where).values(**values))
                elif table.name not in OF_WORKSPACES:
                    connection.execute(table.delete().where(where))
            for column in (tables.audit.c.user, tables.audit.c.actor):
                where = (column == person.name) & (tables.audit.c.at >= person.since)
                connection.execute(tables.audit.update().where(where).values({column.name: pseudonym}))
            _rename_acts(connection, person, pseudonym)


def _conditions(person: StoredPerson) -> dict[sa.Table, sa.ColumnElement[bool]]:
    """Return the tables that may have rows of a person, with the condition of these rows."""
    ids = sa.select(tables.leases.c.id).where(owned_by(tables.leases, person.owner))
    created, found = person.owner.user_created, dict[sa.Table, sa.ColumnElement[bool]]()
    for table in tables.metadata.sorted_tables:
        t = table.c
        if "hub" in t and "user_created" in t:
            found[table] = owned_by(table, person.owner)
        elif "user_created" in t:
            found[table] = t.user_created == created
        elif table is tables.usage_sums:
            found[table] = ((t.by == "user") & (t.key == created)) | of_workspaces_of(created)
        elif table is tables.audit:
            named = ((t.user == person.name) | (t.actor == person.name)) & (t.at >= person.since)
            found[table] = t.lease.in_(ids) | named
        elif table is tables.counters:
            label = json.dumps(["user", person.name], ensure_ascii=False, separators=(",", ":"))
            found[table] = t.series.contains(label, autoescape=True)
        elif "lease" in t:
            found[table] = t.lease.in_(ids)
    return found


def _rows_of(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> list[dict[str, Any]]:
    columns = [column for column in table.c if column.name not in SECRET_COLUMNS]
    documents = [column for column in columns if isinstance(column.type, sa.JSON)]
    rows = read_with_damaged_json(connection, sa.select(*columns).where(where), *documents)
    found = [{name: _readable(value) for name, value in row.items()} for row in rows]
    for row in found:
        if isinstance(row.get("document"), dict):
            row["document"].pop("token_hash", None)
    return found


def _readable(value: Any) -> Any:
    """Return a value that JSON can hold. SQLite stores bytes in any column."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _messages_to(connection: sa.Connection, name: str) -> list[str]:
    """Return the ids of messages to a user or about them that are in the outbox."""
    t = tables.outbox.c
    rows = read_with_damaged_json(connection, sa.select(t.id, t.document), t.document)
    return [row["id"] for row in rows if isinstance(row["document"], dict) and row["document"].get("user") == name]


def _renamed(lease: Lease, person: StoredPerson, pseudonym: str) -> Lease:
    """Return a lease without the name, the options and the words of its user."""
    dispute = None if lease.dispute is None else replace(lease.dispute, sentence="")
    return replace(
        lease,
        key=Key(lease.key.hub, pseudonym, lease.key.server),
        user=pseudonym,
        request=replace(lease.request, user=pseudonym),
        options={},
        with_gpu=None,
        ended_by=pseudonym if lease.ended_by == person.name else lease.ended_by,
        dispute=dispute,
    )


def _rename_acts(connection: sa.Connection, person: StoredPerson, pseudonym: str) -> None:
    """Replace the person's name by a pseudonym in acts as an administrator."""
    for table, (at, names) in ACTED.items():
        for name in names:
            where = (table.c[name] == person.name) & (table.c[at] >= person.since)
            connection.execute(table.update().where(where).values({name: pseudonym}))
    for table, (at, names) in ACTED_IN_DOCUMENTS.items():
        query = sa.select(table.c.id, table.c.document).where(table.c[at] >= person.since)
        for row in read_with_damaged_json(connection, query, table.c.document):
            after = _without_acts(row["document"], names, person, pseudonym)
            if after != row["document"]:
                connection.execute(table.update().where(table.c.id == row["id"]).values(document=after))


def _without_acts(document: Any, names: Iterable[str], person: StoredPerson, pseudonym: str) -> Any:
    """Return a document with a pseudonym for the person as actor, and for the account of the person."""
    if not isinstance(document, dict):
        return document
    found = document | {name: pseudonym for name in names if document.get(name) == person.name}
    account = document.get("account")
    if isinstance(account, list) and account[1:] == [person.owner.user_created]:
        found |= {"account": [account[0], pseudonym]}
        found |= {name: pseudonym for name in ("whom", "user") if name in document}
    return found


def _rename_in_documents(connection: sa.Connection, person: StoredPerson, pseudonym: str) -> None:
    """Put a pseudonym into statements, and into the fields of audit entries about the person."""
    created, audit = person.owner.user_created, tables.audit
    statements = read_with_damaged_json(connection, sa.select(tables.statements), tables.statements.c.document)
    for row in (one for one in statements if isinstance(one["document"], dict)):
        document = json.loads(json.dumps(row["document"]))
        mine = [line for line in document["lines"] if line["user"] == created]
        for line in mine:
            line |= {"user": pseudonym, "member": pseudonym}
        for one in document["credits"] if document["until"] > person.since else ():
            one["by"] = pseudonym if one["by"] == person.name else one["by"]
            if mine:
                one["members"] = [pseudonym if name == person.name else name for name in one["members"]]
        if document != row["document"]:
            save_rows(connection, tables.statements, [{**row, "document": document}])
    _rename_in_leases(connection, person, pseudonym)
    query = sa.select(audit.c.number, audit.c.fields).where(audit.c.at >= person.since)
    named = (audit.c.user == person.name) | (audit.c.actor == person.name) | audit.c.action.in_(NAMING_OTHERS)
    for row in read_with_damaged_json(connection, query.where(named), audit.c.fields):
        fields = _replaced(row["fields"], person.name, pseudonym)
        if fields != row["fields"]:
            connection.execute(audit.update().where(audit.c.number == row["number"]).values(fields=fields))


def _rename_in_leases(connection: sa.Connection, person: StoredPerson, pseudonym: str) -> None:
    """Put a pseudonym into the ended workspaces that the person acted on, as the audit knows."""
    t, audit = tables.leases, tables.audit.c
    acted = sa.select(audit.lease).where(audit.actor == person.name, audit.at >= person.since)
    query = sa.select(t.c.id, t.c.document).where(t.c.id.in_(acted), t.c.phase == Phase.ENDED.value)
    for row in read_with_damaged_json(connection, query, t.c.document):
        found = row["document"] if isinstance(row["document"], dict) else {}
        after = {**found}
        for name in {"ended_by", "message"} & found.keys():
            after[name] = _without_name(found[name], person.name, pseudonym)
        for name in {"dispute", "notice"} & found.keys():
            after[name] = _replaced(found[name], person.name, pseudonym)
        if after != found:
            connection.execute(t.update().where(t.c.id == row["id"]).values(document=after))


def _replaced(fields: Any, name: str, pseudonym: str) -> Any:
    if not isinstance(fields, Mapping):
        return fields
    return {key: _without_name(value, name, pseudonym) for key, value in fields.items()}


def _without_name(value: Any, name: str, pseudonym: str) -> Any:
    """Return a field with a pseudonym for the name, also within a sentence: ``It was stopped by alice``."""
    if isinstance(value, list):
        return [_without_name(one, name, pseudonym) for one in value]
    whole = rf"(?<![\w@.-]){re.escape(name)}(?![\w@-]|\.\w)"  # not a part of another name
    return re.sub(whole, pseudonym, value) if isinstance(value, str) else value
