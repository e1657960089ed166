"""What a person's home shows beside what runs and waits: use, quota, notices, and what has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuspawner.core.calendar.periods import day_of, milliseconds
from gpuspawner.core.leases.lease import Lease, Owner
from gpuspawner.core.units import show_money
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.rules.quota_view import quota_view, usage_view
from gpuspawner.service.tell.rules.rule_words import rule_id
from gpuspawner.service.web.quota_rows import names_of, part_of

ENDED_READ = 50
"""Among so many that ended last, the last of each server is looked for. Arbitrary: more servers than people have."""
ENDED_SHOWN = 5
SERVERS_SHOWN = 20


@dataclass(frozen=True)
class Line:
    """One limit or budget in words, with its rule; ``part`` is how much of it is taken, of 1; None: it has none."""

    words: str
    rule: str
    part: float | None


def quota_lines_of(parts: Parts, name: str, owner: Owner, teams: Sequence[str]) -> list[Line]:
    """Return what bounds somebody, a line each: what is used, what it will last for, and when it renews."""
    view = quota_view(parts, name, owner, teams)
    limits = [Line(one["words"], rule_id(one["entry"]), part_of(one["used"], one)) for one in view["limits"]]
    taken = [(one, one["used"] + one["set_aside"]) for one in view["budgets"]]
    return [*limits, *(Line(one["words"], rule_id(one["entry"]), part_of(much, one)) for one, much in taken)]


async def used_this_month(parts: Parts, by: str, owner: Owner | None) -> dict[str, Any]:
    """Return what was used in this month of the catalog's clock, as ``usage_view`` does, with ``cost_words``.

    Each row has besides a ``title``, as people read it.
    """
    today = day_of(milliseconds(parts.clock.now()), parts.allocator.accounting.zone)
    view = await usage_view(parts, by, f"{today[:-2]}01", today, owner)
    catalog = parts.catalog
    titles = {
        "kind": {name: kind.title for name, kind in catalog.gpus.items()},
        "team": {name: team.title for name, team in catalog.rules.teams.items()},
        "user": await names_of(parts) if by == "user" else {},
    }.get(by, {})
    rows = [{**row, "title": titles.get(row["key"]) or row["name"]} for row in view["rows"]]
    cost_words = "" if view["cost"] is None else show_money(view["cost"], parts.catalog.rules.currency)
    return {**view, "rows": rows, "cost_words": cost_words}


def ended_shown(ended: Iterable[Lease], live: Collection[str]) -> list[tuple[Lease, bool]]:
    """Return what ended last and the last of every other server, each with whether it can be started again.

    ``ended`` is the newest first; ``live`` are the names of servers that somebody has now.
    """
    seen: set[str] = set(live)
    found: list[tuple[Lease, bool]] = []
    for number, lease in enumerate(ended):
        newest = lease.key.server not in seen
        seen.add(lease.key.server)
        if number < ENDED_SHOWN or (newest and len(found) < SERVERS_SHOWN):
            found.append((lease, newest))
    return found
