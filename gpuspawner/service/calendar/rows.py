"""The rows of the calendar: by node for administrators, by kind of GPU for users."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, inf

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.administration import RestrictionKind
from gpuspawner.core.calendar import Opening
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.queue.snapshot import end_at
from gpuspawner.core.units import show_time
from gpuspawner.service.administration.restrictions import lease_title
from gpuspawner.service.calendar.entries import CalendarReader, PlannedUse, for_words, gpus_words
from gpuspawner.service.calendar.picture import (
    Lane,
    LaneChoice,
    LaneRow,
    TimeAxis,
    Use,
    scaled_count,
    scaled_lanes,
    spans_of,
)
from gpuspawner.service.parts import Parts

MOST_NODES = 40
"""The most nodes of the picture. Arbitrary: some screens. The table has all."""
FIRM = "until it is ended"


def _time_words(opening: Opening, now: float) -> str:
    end = FIRM if opening.ends_at == inf else f"to {show_time(opening.ends_at, now)}"
    return f"{show_time(opening.opens_at, now)} {end}"


def _planned(state: Parts, one: PlannedUse, reader: CalendarReader, lanes: Sequence[int]) -> Use:
    now, whom = state.clock.now(), for_words(one.hold, reader)
    gpus, time = gpus_words(state, one, reader), _time_words(one.opening, now)
    if one.hold.is_maintenance:
        label = one.restriction.reason if one.restriction is not None else whom
        return Use("care", one.opening, lanes, label, f"{whom} of {gpus}, {time}")
    name = whom.removeprefix("Class ")
    return Use("plan", one.opening, lanes, f"{name}, {gpus.replace(' × ', ' ')}", f"{gpus} for {whom}, {time}")


def rows_by_node(
    state: Parts, planned: Iterable[PlannedUse], reader: CalendarReader, axis: TimeAxis, *, kind: str, running: bool
) -> tuple[list[LaneRow], int]:
    """Return a row for each node, at most MOST_NODES, and the number of nodes that are left out.

    Args:
        state: the parts of the service.
        planned: what is planned.
        reader: the reader.
        axis: the time that is shown.
        kind: the only kind of GPU to show, "" for all.
        running: whether running workspaces are drawn.
    """
    catalog, fleet, names = state.catalog, state.allocator.observed.fleet, defaultdict[str, list[str]](list)
    pool = catalog.gpus[kind].pool if kind else ""
    for gpu in sorted(fleet.gpus, key=lambda gpu: (gpu.node, gpu.index, gpu.id)):
        if not gpu.is_coming and pool in {"", gpu.pool}:
            names[gpu.node].append(gpu.id)
    lanes = {
        name: Lane(node, number, fleet.by_id[name].pool)
        for node, found in names.items()
        for number, name in enumerate(found)
    }
    uses: dict[str, list[Use]] = defaultdict(list)
    choice = LaneChoice(lanes.values())
    for one in sorted(planned, key=lambda one: not one.hold.is_maintenance):
        hold = one.hold
        if hold.is_maintenance:
            taken = choice.take_row(hold.node, one.opening)
        else:
            shares = catalog.gpus[hold.kind].shares if hold.kind in catalog.gpus else 1
            pool_of = catalog.gpus[hold.kind].pool if hold.kind in catalog.gpus else ""
            taken = choice.take(pool_of, ceil(hold.count / shares), hold.node, one.opening)
        for node in dict.fromkeys(lane.row for lane in taken):
            uses[node].append(_planned(state, one, reader, [x.number for x in taken if x.row == node]))
    for node, use in (*_closed(state, lanes, axis), *(_running(state, lanes) if running else ())):
        uses[node].append(use)
    shown = sorted(names, key=lambda node: (not uses[node], node))[:MOST_NODES]
    rows = [
        LaneRow(node, _kinds_on(state, names[node]), len(names[node]), spans_of(uses[node], axis))
        for node in sorted(shown)
    ]
    return rows, len(names) - len(rows)


def _kinds_on(state: Parts, gpus: Iterable[str]) -> str:
    fleet = state.scheduler.fleet
    counted = Counter(fleet.by_id[name].pool for name in gpus if name in fleet.by_id)
    return ", ".join(f"{count} × {gpu_title(kind, state.catalog) or 'GPU'}" for kind, count in counted.items())


def _running(state: Parts, lanes: dict[str, Lane]) -> Iterable[tuple[str, Use]]:
    now = state.clock.now()
    for lease in state.registry:
        by_node: dict[str, list[int]] = defaultdict(list)
        for slot in lease.slots if lease.phase in HOLDING else ():
            if slot.gpu in lanes:
                by_node[lanes[slot.gpu].row].append(lanes[slot.gpu].number)
        for node, numbers in by_node.items():
            yield node, _run_of(lease, numbers, lease.user, lease_title(lease), now)


def _run_of(lease: Lease, lanes: Sequence[int], label: str, title: str, now: float) -> Use:
    end = end_at(lease, now)
    until = "without a set end" if end == inf else f"until {show_time(end, now)}"
    gpus = f"{len(lanes)} GPU{'s' if len(lanes) > 1 else ''}"
    since = lease.granted_at or lease.running_at or now
    return Use("busy", Opening(since, end), lanes, label, f"{title}, {gpus} {until}")


def _closed(state: Parts, lanes: dict[str, Lane], axis: TimeAxis) -> Iterable[tuple[str, Use]]:
    now, zone = state.clock.now(), state.accounting.zone
    for one in state.restrictions.live():
        lane, opening = lanes.get(one.target), one.opening(now, zone)
        if one.measure is RestrictionKind.QUARANTINE and lane is not None and opening is not None:
            words = f"GPU {lane.number} is quarantined"
            yield lane.row, Use("ill", opening, [lane.number], words, f"{words}, {_time_words(opening, now)}")
    for gpu in state.scheduler.fleet.gpus:
        if gpu.foreign and gpu.id in lanes:
            holder = gpu.holder or "Another program"
            words = f"GPU {gpu.index} is used by {holder}"
            always = Opening(axis.start, axis.end)
            yield lanes[gpu.id].row, Use("other", always, [lanes[gpu.id].number], holder, words)


def rows_by_kind(
    state: Parts, planned: Iterable[PlannedUse], reader: CalendarReader, axis: TimeAxis, own: Iterable[Lease]
) -> list[LaneRow]:
    """Return a row for each kind of GPU that a user sees, with their own workspaces."""
    totals = Counter(gpu.pool for gpu in state.scheduler.fleet.gpus if not gpu.is_coming)
    uses: dict[str, list[Use]] = defaultdict(list)
    choices: dict[str, LaneChoice] = {}
    for name, kind in state.catalog.gpus.items():
        total = totals[kind.pool] * kind.shares
        if name in reader.kinds and total:
            choices[name] = LaneChoice(Lane(name, number, name) for number in range(scaled_lanes(total)))
    for one in planned:
        for name, count in one.counts.items():
            if name not in choices:
                continue
            total = totals[state.catalog.gpus[name].pool] * state.catalog.gpus[name].shares
            taken = choices[name].take(name, scaled_count(count, total), "", one.opening)
            uses[name].append(_planned(state, one, reader, [lane.number for lane in taken]))
    now = state.clock.now()
    for lease in own:
        if lease.phase in HOLDING and lease.kind in choices:
            kind = state.catalog.gpus[lease.kind]
            opening = Opening(lease.granted_at or now, end_at(lease, now))
            count = scaled_count(lease.request.count, totals[kind.pool] * kind.shares)
            lanes = [lane.number for lane in choices[lease.kind].take(lease.kind, count, "", opening)]
            title = lease.key.server or "Default workspace"
            uses[lease.kind].append(_run_of(lease, lanes or [0], title, title, now))
    return [
        LaneRow(
            gpu_title(name, state.catalog),
            f"{totals[state.catalog.gpus[name].pool] * state.catalog.gpus[name].shares} GPUs",
            scaled_lanes(totals[state.catalog.gpus[name].pool] * state.catalog.gpus[name].shares),
            spans_of(uses[name], axis),
        )
        for name in choices
    ]
