"""The audit log: its filters, entries and endpoint. Page, API, CSV and JSON show the same entries."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from gpuspawner.core.calendar import day_end, day_start, parse_day
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.events import EVENTS, ActionRefused, Stopped, StopperNamed, fields_of
from gpuspawner.core.leases.lease import DEFAULT_NAME
from gpuspawner.service.administration.models import AuditEntry, AuditPage, AuditQuery
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.audit_log import AuditFilter, NumberedLine
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import refused_as
from gpuspawner.service.web.lists import Column, Filter, Table, parse_list_state
from gpuspawner.service.web.permissions import Permission

router = Router()

SAME_WORDS = {
    "warned": "Warned as idle",
    "warned of end": "Warned of its end",
    "warned of claim": "Warned of a request with priority",
    "warned nobody came": "Warned that nobody has opened it",
    "parked": "Back in the queue, as the hub did not start it",
    "back in the queue": "Back in the queue at its old place",
    "claim gone": "Left running, as nobody needs its GPUs any more",
    "spared": "Left running by the cluster",
}
"""The words in the filter for events that have the same words in the rows."""
WHAT = tuple(
    sorted(
        ((name, SAME_WORDS.get(name, kind.words)) for name, kind in EVENTS.items() if kind is not StopperNamed),
        key=lambda choice: choice[1],
    )
)
BY = (("people", "People"), ("parts", "gpuspawner, hub and cluster"))
CURSOR = "before"
AUDIT = Table(
    "audit",
    (
        Column("at", "Time", "time"),
        Column("actor", "Done by"),
        Column("where", "From"),
        Column("what", "What"),
        Column("user", "User"),
        Column("target", "On"),
        Column("outcome", "Result"),
        Column("why", "Reason", "words"),
    ),
    (
        Filter("who", "Done by"),
        Filter("user", "User"),
        Filter("target", "Workspace, node or GPU"),
        Filter("by", "Anybody", BY),
        Filter("what", "Any action", WHAT),
        Filter("since", "From", input_type="date"),
        Filter("until", "to", input_type="date"),
    ),
    others=(CURSOR,),
)
EVENT_ICONS = {
    "stop": ("stop", "gs-warn"),
    "stopper": ("stop", "gs-warn"),
    "running": ("play", ""),
    "asked": ("plus", ""),
    "granted": ("check", "gs-good"),
    "extended": ("extend", ""),
    "kept": ("pause", "gs-good"),
    "warned": ("bell", "gs-warn"),
    "warned of claim": ("bell", "gs-warn"),
    "warned of end": ("bell", "gs-warn"),
    "warned nobody came": ("bell", "gs-warn"),
    "end announced": ("bell", "gs-warn"),
    "disputed": ("flag", "gs-bad"),
    "answered": ("mail", ""),
    "refused": ("x", "gs-bad"),
    "moved in queue": ("up", ""),
    "passed by move": ("down", ""),
    "quota granted": ("gift", "gs-good"),
    "quota limit set": ("edit", ""),
    "quota moved": ("right", ""),
    "quota requested": ("gift", ""),
    "quota request approved": ("check", "gs-good"),
    "quota request declined": ("x", "gs-bad"),
    "quota request withdrawn": ("stop", ""),
    "quota taken back": ("gift", ""),
    "usage corrected": ("edit", ""),
    "month closed": ("calendar", ""),
    "budget reached": ("coin", "gs-warn"),
    "waste found": ("pause", "gs-warn"),
    "statement mailed": ("mail", ""),
    "person forgotten": ("trash", "gs-bad"),
    "person exported": ("download", ""),
    "drained": ("wrench", ""),
    "quarantined": ("ban", "gs-bad"),
    "grants paused": ("pause", ""),
    "gpus reserved": ("calendar", ""),
    "exempted": ("exempt", ""),
    "lifted": ("check", "gs-good"),
    "catalog changed": ("code", ""),
    "message sent": ("bell", ""),
    "message withdrawn": ("bell", ""),
    "signed in": ("key", ""),
    "signed out": ("key", ""),
}
"""Icon and class of an event in the audit log, by its name."""


@router.get("/api/v1/admin/audit", Permission.SEE_AUDIT)
async def list_audit(actor: Actor, *, query: AuditQuery) -> AuditPage:
    """Return lines of the audit log, newest first. ``next`` is the ``before`` of the lines that follow."""
    given = {name: [str(value)] for name, value in query.model_dump(exclude={"limit"}).items() if value}
    wanted = parse_list_state(AUDIT, given)
    filters, before = parse_filters(actor.state, wanted.filters), parse_cursor(wanted.kept.get(CURSOR, ""))
    entries, following = await find_entries(actor.state, filters, before, query.limit)
    return AuditPage(audit=entries, next=following, now=actor.now)


def parse_filters(state: Parts, filters: Mapping[str, str]) -> AuditFilter:
    """Return the filter of a search. Raises RequestRefused for a wrong day, or if the first is after the last."""
    zone, now = state.accounting.zone, state.clock.now()
    days = {
        name: refused_as(name, parse_day, filters[name], now, zone) for name in ("since", "until") if filters.get(name)
    }
    if len(days) > 1 and days["since"] > days["until"]:
        raise RequestRefused(
            "since", quoted(days["since"]), f"up to {days['until']}", "Enter the earlier day as since."
        )
    by, what = filters.get("by"), filters.get("what")
    actions = (what, StopperNamed.name) if what == Stopped.name else (what,) if what else ()
    return AuditFilter(
        filters.get("who", ""),
        actions,
        filters.get("user", ""),
        filters.get("target", ""),
        day_start(days["since"], zone) if "since" in days else None,
        day_end(days["until"], zone) if "until" in days else None,
        None if by is None else by == "people",
    )


def parse_cursor(text: str) -> int | None:
    """Return the number that a page begins below, None for the newest."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(2**31))):
        raise RequestRefused(
            CURSOR, quoted(text), "what was answered as next", "Leave it out to start with the newest entry."
        )
    return int(text)


async def find_entries(
    state: Parts, filters: AuditFilter, before: int | None, limit: int
) -> tuple[list[AuditEntry], int | None]:
    """Return entries, the newest first, and the cursor of those that follow, None if no more follow."""
    found = await state.store.read(state.store.audit_log.search, filters, before, limit + 1)
    entries = await asyncio.to_thread(lambda: [present_entry(state.prefix, one) for one in found[:limit]])
    return entries, found[limit - 1].number if len(found) > limit else None


async def workspace_names(state: Parts, entries: Sequence[AuditEntry]) -> dict[str, str]:
    """Return the names of the workspaces of these entries, by their leases."""
    leases = [one.target for one in entries if one.page]
    servers = await state.store.read(state.store.leases.servers, leases)
    names = {lease: server or DEFAULT_NAME for lease, server in servers.items()}
    live = filter(None, map(state.registry.get, leases))
    return names | {lease.id: lease.name for lease in live}


def present_entry(prefix: str, one: NumberedLine) -> AuditEntry:
    """Return an audit entry."""
    line = one.line
    return AuditEntry(
        id=str(one.number),
        number=one.number,
        at=line.at,
        actor=line.actor,
        where=line.where,
        what=Stopped.words if isinstance(line.event, StopperNamed) else line.event.words,
        action=line.event.action,
        user=line.user,
        target=line.target or line.lease,
        page=f"{prefix}workspaces/{line.lease}" if line.lease else "",
        why=line.why,
        outcome="refused" if isinstance(line.event, ActionRefused) else "done",
        fields=fields_of(line.event),
    )
