"""The stored data of a person: each kind with its retention time, and the API to export it and to forget a person."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from gpuspawner.core.administration import NOTICE_KEPT_SECONDS
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.core.events import PersonExported, PersonForgotten
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.leases.reports import KEPT_SECONDS as OUTPUT_SECONDS
from gpuspawner.core.units import show_duration
from gpuspawner.service.api.rest import Answer, Body, Query
from gpuspawner.service.engine.hub_client import seconds_of
from gpuspawner.service.notifications.sender import KEPT_SECONDS as MESSAGE_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.settings import Settings
from gpuspawner.service.sign_in.tokens import TOKEN_SECONDS
from gpuspawner.service.store.history import HISTORY_SECONDS
from gpuspawner.service.store.retention import OF_WORKSPACES, SUMS, StoredPerson
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import MAX_NAME_LETTERS, NAME, Reason, allows
from gpuspawner.service.web.permissions import Permission, Reach

UNTIL_DELETED = "Until you delete it, or the hub deletes you"
_SECTIONS = {
    "leases": ("Workspaces", "Your requests, with GPUs, times, end and options", "ended"),
    "readings": ("Measurements", "Use of GPUs and CPU by your workspaces, thinned after a day", "ended"),
    "outputs": ("Output of failed starts", "The last lines that a failed server wrote", "output"),
    "estimates": ("Estimates", "When a request was expected to start, and when it did", "history"),
    "idle_traces": ("Idle times", "How long your ended workspaces were idle, to plan the queue", "history"),
    "audit": ("History", "Events of your workspaces, and your actions", "ended"),
    "ledger": ("Charges", "GPU hours and money for each workspace and day, with corrections", "use"),
    "usage_sums": ("Usage by day and month", "Your active, idle and charged GPU hours", "use"),
    "team_sums": ("Usage for teams", "The monthly charges of your teams for your usage, also in statements", "use"),
    "counters": ("Metrics", "Your GPU hours, for the charts of administrators", "metrics"),
    "quota_grants": ("Extra quota", "Additions to your quota, with their author and reason", "always"),
    "presets": ("Presets", "Your saved choices for starts", "own"),
    "schedules": ("Schedules", "Your scheduled workspaces", "own"),
    "tokens": ("Logged-in machines", "Their names and rights. The tokens themselves are not stored", "token"),
    "inbox_read": ("Read notices", "The notices that you have read", "notice"),
    "outbox": ("Messages", "Mails and chat messages to you that are being sent", "message"),
    "secrets": ("Secrets", "The names of your secrets. Their values are encrypted and not exported", "own"),
    "preferences": ("Switches", "Your choice about messages on starts", "own"),
    "quota_requests": ("Requests for extra quota", "Your requests, with their reason and answer", "ended"),
}


@dataclass(frozen=True)
class SectionText:
    """The words about a table."""

    name: str
    title: str
    what: str
    kept: str


def section_of(table: str, settings: Settings) -> SectionText:
    """Return the words about a table."""
    kept = {
        "ended": f"{show_duration(settings.keep_ended_seconds)} after the end",
        "metrics": f"{show_duration(settings.keep_ended_seconds)} after the last change",
        "history": show_duration(HISTORY_SECONDS),
        "use": show_duration(settings.keep_use_seconds),
        "output": show_duration(OUTPUT_SECONDS),
        "token": f"Until it expires, {show_duration(TOKEN_SECONDS)} at most",
        "notice": show_duration(2 * NOTICE_KEPT_SECONDS),
        "message": f"{show_duration(MESSAGE_SECONDS)} after it is sent",
        "own": UNTIL_DELETED,
        "always": "Until an administrator forgets you",
    }
    title, what, how_long = _SECTIONS.get(table, (table.replace("_", " ").capitalize(), "", "own"))
    return SectionText(table, title, what, kept[how_long])


def in_order(tables: Iterable[str]) -> list[str]:
    """Return tables in the order in which pages show them."""
    order = list(_SECTIONS)
    return sorted(tables, key=lambda table: (order.index(table) if table in _SECTIONS else len(order), table))


def all_sections(settings: Settings) -> list[SectionText]:
    """Return the words about all tables."""
    return [section_of(table, settings) for table in _SECTIONS]


PSEUDONYMISE, DELETE = "pseudonymise", "delete"


class StoredSection(Answer):
    """One kind of stored data. ``name`` is the name of the table, and ``kept`` the retention time."""

    name: str
    title: str
    what: str
    kept: str
    entries: int


class ExportedSection(StoredSection):
    """The same with each entry."""

    rows: list[dict[str, Any]]


class StoredData(Answer):
    """All stored data of a person."""

    user: str
    created: str
    """When the hub created the user. It tells them from others who had the name."""
    made_at: float
    sections: list[ExportedSection]


class ForgottenSection(Answer):
    """The outcome for the entries of one kind: ``deleted`` or ``kept under the pseudonym``."""

    title: str
    entries: int
    becomes: str
    words: str


class Forgotten(Answer):
    """A person who is forgotten, or with ``dry_run`` would be."""

    dry_run: bool
    pseudonym: str
    words: str
    note: str
    sides: list[ForgottenSection]
    """The outcome for each kind of entry."""


class StoredQuery(Query):
    """The person."""

    user: str = ""
    """Of this user, for administrators (default: one's own)."""
    created: str = ""
    """When the hub created the user, if several users had the name."""


class ForgetInput(Body):
    """A person to forget."""

    user: str = allows(*NAME, min_length=1, max_length=MAX_NAME_LETTERS)
    why: Reason
    how: Literal["pseudonymise", "delete"] = "pseudonymise"
    """``pseudonymise`` keeps workspaces and their history under a pseudonym. ``delete`` deletes them."""
    created: str = ""
    """When the hub created the user, if several users had the name."""
    dry_run: bool = False
    """Return the effects, and do nothing."""


DELETED, RENAMED = "deleted", "kept under the pseudonym"
STILL_THERE = "The hub still has this user. Whatever they do from now on is stored under their name again."
KEPT_SUMS = "Sums of usage, budgets and statements stay as they are."

router = Router()


@router.get("/api/v1/stored", Permission.SEE_STORED)
async def get_stored(actor: Actor, *, query: StoredQuery) -> StoredData:
    """Return all stored data of a person, entry by entry, without tokens and secrets."""
    state, name = actor.state, query.user or actor.person.name
    of_other = name != actor.person.name
    if of_other:
        actor.require(Permission.SEE_STORED, Reach.ALL)
        person = await find_person(state, name, query.created)
    else:
        person = _person(actor.person.owner, name)
    found = await state.store.read(state.store.person_rows.export, person)
    sections = [
        ExportedSection(**vars(section_of(table, state.settings)), entries=len(found[table]), rows=found[table])
        for table in in_order(found)
    ]
    if of_other:
        entries = sum(one.entries for one in sections)
        await state.registry.save(audit=[actor.audit_entry(PersonExported(entries), name)])
    return StoredData(user=name, created=person.owner.user_created, made_at=actor.now, sections=sections)


# Without a key: it takes several transactions, and repeating it does the rest.
@router.post("/api/v1/stored/forget", Permission.FORGET, status=201, other_status=200, audit="forget", idempotent=False)
async def forget_person(actor: Actor, *, body: ForgetInput) -> tuple[Forgotten, int]:
    """Delete what is stored of a person, or put it under a pseudonym. Sums of usage stay as they are.

    If it is interrupted, send it again: the pseudonym is the same.
    """
    state = actor.state
    person = await find_person(state, body.user, body.created)
    rows, pseudonym = state.store.person_rows, pseudonym_of(state, person.owner)
    if await state.store.read(rows.has_live_leases, person.owner):
        raise Conflict("This user has workspaces that run or wait. Stop them first, and then forget the user.")
    deletes = body.how == DELETE
    counts = await state.store.read(rows.count, person)
    sides = [
        _side(section_of(table, state.settings).title, counts[table], table, deletes=deletes)
        for table in in_order(counts)
    ]
    is_there = await _is_in_hub(state, person)
    shown = Forgotten(
        dry_run=body.dry_run,
        pseudonym=pseudonym,
        words=f"{'Delete' if deletes else 'Pseudonymise'} {sum(one.entries for one in sides)} entries",
        note=f"{KEPT_SUMS} {STILL_THERE if is_there else ''}".strip(),
        sides=sides,
    )
    if body.dry_run:
        return shown, 200
    while await state.store.write(lambda: rows.forget_workspaces(person, pseudonym, deletes=deletes)):
        pass
    await state.store.write(rows.forget_rest, person, pseudonym)
    await state.registry.save(audit=[actor.audit_entry(PersonForgotten(body.how, pseudonym, body.why))])
    await _read_again(state, person)
    return shown, 201


def _side(title: str, number: int, table: str, *, deletes: bool) -> ForgottenSection:
    stays = table in SUMS or (table in OF_WORKSPACES and not deletes)
    becomes = RENAMED if stays else DELETED
    words = f"{title}: {number} {'entry' if number == 1 else 'entries'}, {becomes}"
    return ForgottenSection(title=title, entries=number, becomes=becomes, words=words)


async def _read_again(state: Parts, person: StoredPerson) -> None:
    """Have everything in memory follow the store."""
    await state.accounting.load()
    await state.quota_requests.load()
    await state.announcements.load()
    await state.restrictions.load()
    await state.preemptions.load()
    state.roles_used.pop(person.name, None)
    state.counters.forget(person.name)
    counted = state.accounting.user_gpu_seconds
    for key in [one for one in counted if one[0] == person.name]:
        del counted[key]


async def _is_in_hub(state: Parts, person: StoredPerson) -> bool:
    try:
        return await state.hub.created(person.name) == person.owner.user_created
    except Unavailable:
        return False


def pseudonym_of(state: Parts, owner: Owner) -> str:
    """Return the pseudonym of a person. It is always the same, and only the service's secret leads to it."""
    text = f"forgotten:{owner.hub}:{owner.user_created}".encode()
    return f"former-{hmac.new(state.secret, text, hashlib.sha256).hexdigest()[:12]}"


def _person(owner: Owner, name: str) -> StoredPerson:
    return StoredPerson(owner, name, seconds_of(owner.user_created) or 0.0)


async def find_person(state: Parts, name: str, created: str = "") -> StoredPerson:
    """Return the person of a name: a user of the hub, or one who was.

    Raises:
        RequestRefused: nothing is stored under the name, or several users had it and ``created`` names none of them.
    """
    rows, sums = state.store.person_rows, state.store.usage_sums
    found = await state.store.read(rows.owners_named, name) | {*await state.store.read(sums.users_named, name)}
    try:
        now = await state.hub.created(name) if name.isprintable() else None
    except Unavailable:
        now = None
    if now is not None and not created:
        return _person(Owner(state.hub_id, now), name)
    found |= {now} if now is not None else set()
    if not found:
        raise RequestRefused("user", quoted(name), "a user with stored data", "Name one as the hub did.")
    if created not in found and (created or len(found) > 1):
        raise RequestRefused("created", quoted(created), ", ".join(sorted(found)), "Several users had this name.")
    return _person(Owner(state.hub_id, created or found.pop()), name)
