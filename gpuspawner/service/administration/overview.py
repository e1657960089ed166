"""The console's first page: what does not work, the map, the next ends, who waits and who borrows."""

from __future__ import annotations

from math import inf
from typing import Any

from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease
from gpuspawner.core.queue.fair_share import ShareUsage
from gpuspawner.service.administration.gpu_map import (
    NODES_SHOWN,
    WORDS,
    foreign_holders,
    kind_counts,
    machines,
    matching,
    shown,
)
from gpuspawner.service.administration.live_lists import DEFAULT_NAME, queue_rows
from gpuspawner.service.administration.people import person_page
from gpuspawner.service.administration.problems import Trouble, troubles
from gpuspawner.service.engine.gpu_states import STATES, SeenGpu, seen_gpus
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.lists import Column, Filter, Table, Wanted

FIRST = 6
"""How many of the next ends, of who waits and of who borrows the page names; the lists have all."""

GPUS = Table(
    "gpus",
    (
        Column("node", "Node"),
        Column("cluster", "Cluster"),
        Column("zone", "Zone"),
        Column("spot", "Spot"),
        Column("index", "GPU", "number"),
        Column("kind", "Kind"),
        Column("state", "State"),
        Column("user", "Held by", "link"),
        Column("note", "Note", "words"),
    ),
    (
        Filter("node", "Node", within=("node",)),
        Filter("state", "With a GPU that is", tuple((state, shown(state)) for state in STATES)),
        Filter("kind", "Kind", within=("kind",)),
    ),
    sort="node",
)
"""The map's rows, one a GPU."""


def gpu_rows(parts: Parts) -> list[dict[str, Any]]:
    """Return a row for each GPU of the fleet."""
    return [_gpu_row(parts, one) for one in seen_gpus(parts)]


def _gpu_row(parts: Parts, one: SeenGpu) -> dict[str, Any]:
    kind = parts.catalog.gpus.get(one.gpu.pool)
    users = dict.fromkeys(lease.user for lease in one.holders)
    return {
        "id": one.gpu.id,
        "page": person_page(parts, next(iter(users))) if len(users) == 1 else "",
        "node": one.gpu.node,
        "cluster": one.gpu.cluster,
        "zone": one.gpu.zone,
        "spot": "spot" if one.gpu.spot else "",
        "index": one.gpu.index,
        "kind": kind.title if kind else "no kind",
        "state": one.state,
        "user": ", ".join(users) or one.gpu.holder,
        "note": one.gpu.note,
    }


def now_view(parts: Parts, wanted: Wanted, ended: list[Lease], disputed: list[Lease]) -> dict[str, Any]:
    """Return all that the page shows. ``wanted`` filters and pages the map."""
    seen, kinds, live, now = seen_gpus(parts), parts.catalog.gpus, list(parts.registry), parts.clock.now()
    nodes = machines(seen, kinds)
    found = matching(nodes, *(wanted.filters.get(name, "") for name in ("node", "state", "kind")))
    begin = (wanted.page - 1) * NODES_SHOWN
    line = sorted((x for x in live if x.phase in WAITING), key=lambda x: _number(parts, x))
    others = foreign_holders(seen, kinds)
    found_troubles = troubles(parts, ended, disputed)
    return {
        "troubles": found_troubles,
        "counts": kind_counts(seen, kinds),
        "notes": {offer.kind: offer.note for offer in parts.queue.offers},
        "states": [(state, WORDS.get(state, state)) for state in STATES],
        "others": others[:FIRST],
        "others_total": len(others),
        "nodes": found[begin : begin + NODES_SHOWN],
        "nodes_begin": begin,
        "nodes_pages": max(1, -(-len(found) // NODES_SHOWN)),
        "nodes_found": len(found),
        "nodes_total": len(nodes),
        "ends": _next_ends(parts, live, now),
        "queue": sorted(queue_rows(parts, line[:FIRST]), key=lambda row: (row["place"] is None, row["place"] or 0)),
        "waiting": len(line),
        "borrowing": parts.queue.seldom("borrowing", lambda: _borrowing(parts)),
        "facts": _facts(parts, live, now, found_troubles),
    }


def _number(parts: Parts, lease: Lease) -> float:
    """Return a place to sort by: those that nobody knows come last."""
    number = parts.queue.place(lease).number
    return inf if number is None else number


def _next_ends(parts: Parts, live: list[Lease], now: float) -> list[dict[str, Any]]:
    """Return which workspaces end next, and why."""
    ends = []
    for lease in live:
        if lease.phase not in UP:
            continue
        at, why = lease.deadline_at, "its time is over"
        if lease.notice is not None:
            at, by = lease.notice.at, lease.notice.by
            why = "a stronger claim" if lease.notice.preemption else f"announced by {by}: {lease.notice.why}"
        elif lease.streak.grace_left_seconds is not None and lease.phase.value == "reclaiming":
            at, why = (lease.sampled_at or now) + lease.streak.grace_left_seconds, "idle, unless it is used or kept"
        if at is not None:
            ends.append((at, lease.id, lease, why))
    return [
        {**_named(parts, lease), "at": at, "why": why, "gpus": len(lease.slots)}
        for at, _, lease, why in sorted(ends)[:FIRST]
    ]


def _borrowing(parts: Parts) -> list[dict[str, Any]]:
    """Return who holds GPUs beyond the share that a soft quota gives: who has most of it comes first."""
    snapshot = parts.allocator.observed.snapshot()
    standings = ShareUsage(snapshot)
    used = ((standings.used(lease), lease) for lease in snapshot.leases if lease.phase in HOLDING)
    leases = [(part, lease) for part, lease in used if part is not None and part > 1]
    leases.sort(key=lambda one: (-one[0], one[1].id))
    return [
        {
            **_named(parts, lease),
            "gpus": len(lease.slots),
            "times_share": float(used),
            "idle_seconds": lease.streak.idle_seconds,
        }
        for used, lease in leases[:FIRST]
    ]


def _named(parts: Parts, lease: Lease) -> dict[str, Any]:
    page = f"{parts.prefix}workspaces/{lease.id}"
    return {"id": lease.id, "page": page, "user": lease.user, "workspace": lease.key.server or DEFAULT_NAME}


def _facts(parts: Parts, live: list[Lease], now: float, found: list[Trouble]) -> dict[str, Any]:
    """Return how old what is shown is. None is not known."""
    sampled = [x.sampled_at or x.running_at or x.phase_since for x in live if x.phase in UP and x.slots]
    fleet: Fleet = parts.scheduler.fleet
    return {
        "running": sum(lease.phase in UP for lease in live),
        "troubles": len(found),
        "oldest_sample_seconds": now - min(sampled) if sampled else None,
        "view_seconds": now - fleet.observed_at if fleet.complete else None,
        "catalog": parts.in_force.version,
    }
