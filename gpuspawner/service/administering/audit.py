"""The audit as a list: what it can be filtered by, and its rows, alike for page, API, CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.core.administering.acts import ActRefused
from gpuspawner.core.calendar.until import day_begins, day_ends, parse_day
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.leases.stored_events import EVENTS, fields_of
from gpuspawner.service.api.granting import refused_as
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.audit_log import AuditFilter, NumberedLine
from gpuspawner.service.tell.console.listing import Column, Filter, Table

WHAT = tuple(sorted((name, f"{kind.words} ({name})") for name, kind in EVENTS.items()))
BY = (("people", "people"), ("parts", "gpuspawner, hub and cluster"))
CURSOR = "before"
AUDIT = Table(
    "audit",
    (
        Column("at", "When", "time"),
        Column("actor", "Who"),
        Column("where", "From"),
        Column("what", "What"),
        Column("user", "Whose"),
        Column("target", "To what", "link"),
        Column("outcome", "Outcome"),
        Column("why", "Why", "words"),
    ),
    (
        Filter("by", "By", BY),
        Filter("who", "Who"),
        Filter("what", "What", WHAT),
        Filter("user", "Whose"),
        Filter("target", "Workspace, node, GPU"),
        Filter("since", "From day", of="date"),
        Filter("until", "To day", of="date"),
    ),
    others=(CURSOR,),
)


def sought_of(parts: Parts, filters: Mapping[str, str]) -> AuditFilter:
    """Return what is looked for. Raises RequestRefused for a day that is none, or two that are the wrong way round."""
    zone, now = parts.allocator.accounting.zone, parts.clock.now()
    days = {
        name: refused_as(name, parse_day, filters[name], now, zone) for name in ("since", "until") if filters.get(name)
    }
    if len(days) > 1 and days["since"] > days["until"]:
        raise RequestRefused("since", quoted(days["since"]), f"up to {days['until']}", "Begin before you end.")
    by, what = filters.get("by"), filters.get("what")
    return AuditFilter(
        filters.get("who", ""),
        (what,) if what else (),
        filters.get("user", ""),
        filters.get("target", ""),
        day_begins(days["since"], zone) if "since" in days else None,
        day_ends(days["until"], zone) if "until" in days else None,
        None if by is None else by == "people",
    )


def read_cursor(text: str) -> int | None:
    """Return the number that a page begins below; None for the newest."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(2**31))):
        raise RequestRefused(CURSOR, quoted(text), "what was answered as next", "Leave it out to begin anew.")
    return int(text)


async def rows_of(
    parts: Parts, sought: AuditFilter, before: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Return some rows, the newest first, and the cursor of those that follow; None where none do."""
    found = await parts.store.read(parts.store.audit_log.search, sought, before, limit + 1)
    rows = [row_of(parts.prefix, one) for one in found[:limit]]
    return rows, found[limit - 1].number if len(found) > limit else None


def row_of(prefix: str, one: NumberedLine) -> dict[str, Any]:
    """Return a line as a row of the list, with its fields besides."""
    line = one.line
    return {
        "id": str(one.number),
        "number": one.number,
        "at": line.at,
        "actor": line.actor,
        "where": line.where,
        "what": line.event.words,
        "action": line.event.action,
        "user": line.user,
        "target": line.target or line.lease,
        "page": f"{prefix}workspaces/{line.lease}" if line.lease else "",
        "why": line.event.why,
        "outcome": "refused" if isinstance(line.event, ActRefused) else "done",
        "fields": fields_of(line.event),
    }
