"""People: what each holds, waits for and used, and one person with what they were told. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.web.lists import Column, Filter, Table

PEOPLE = Table(
    "people",
    (
        Column("user", "User", "link"),
        Column("teams", "Teams"),
        Column("runs", "Run", "number"),
        Column("waits", "Wait", "number"),
        Column("gpus", "GPUs held", "number"),
        Column("idle_gpus", "GPUs idle", "number"),
        Column("allocated", "GPU h allocated this month", "hours"),
        Column("idle", "Idle GPU h", "hours"),
        Column("idle_percent", "Idle share", "percent"),
        Column("reclaims", "Reclaims", "number"),
    ),
    (
        Filter("find", "User", within=("user",)),
        Filter("team", "Team", within=("teams",)),
        Filter("now", "Now", (("runs", "runs something"), ("waits", "waits"), ("nothing", "has nothing"))),
    ),
    sort="-allocated",
)


def people_rows(parts: Parts, used: Mapping[str, tuple[str, UsageAmounts]]) -> list[dict[str, Any]]:
    """Return a row for each who has something now, or used something: ``used`` is by their ``created``."""
    leases: dict[str, list[Lease]] = defaultdict(list)
    for lease in parts.registry:
        leases[lease.key.user_created].append(lease)
    return [
        _person(parts, leases.get(created, []), *used.get(created, ("", UsageAmounts())), created)
        for created in dict.fromkeys([*used, *leases])
    ]


def _person(parts: Parts, leases: list[Lease], name: str, used: UsageAmounts, created: str) -> dict[str, Any]:
    user = leases[0].user if leases else name
    holds = [x for x in leases if x.phase in HOLDING]
    runs, waits = len(holds), sum(x.phase in WAITING for x in leases)
    known = used.active + used.idle
    titles = dict.fromkeys(team_title(parts.catalog, x.request.team) or "" for x in leases)
    return {
        "id": created,
        "page": person_page(parts, user),
        "user": user,
        "teams": ", ".join(filter(None, titles)),
        "runs": runs,
        "waits": waits,
        "now": "waits" if waits and not runs else "runs" if runs else "nothing",
        "gpus": sum(len(x.slots) for x in holds),
        "idle_gpus": sum(len(x.slots) for x in holds if x.phase in UP and x.streak.idle_seconds),
        "allocated": used.allocated,
        "idle": used.idle,
        "idle_percent": 100 * used.idle / known if known else None,
        "reclaims": round(used.reclaims),
    }


def person_page(parts: Parts, user: str) -> str:
    """Return the address of a person's page."""
    return f"{parts.prefix}console/people/{quote(user, safe='')}"


def told_rows(parts: Parts, lines: Iterable[AuditLine]) -> list[dict[str, Any]]:
    """Return what somebody was warned of and what came of it, the newest first."""
    return [
        {
            "at": line.at,
            "words": line.event.words,
            "why": line.event.why,
            "by": line.actor,
            "page": f"{parts.prefix}workspaces/{line.lease}" if line.lease else "",
        }
        for line in lines
    ]


def counted(lines: Iterable[AuditLine]) -> Counter[str]:
    """Return how often each thing happened, by its words."""
    return Counter(line.event.words for line in lines)
