"""The picture of the calendar: rows with a lane for each GPU, and spans of time in them.

Administrators see a row for each node, and users a row for each kind of GPU. If a reservation is for any node, the
picture chooses its lanes. When the reservation begins, it gets the GPUs that are free then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, inf
from typing import NamedTuple

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.administration import RestrictionKind
from gpuspawner.core.calendar import Opening
from gpuspawner.core.leases.lease import HOLDING, Lease
from gpuspawner.core.queue.snapshot import end_at
from gpuspawner.core.units import show_end, show_time
from gpuspawner.service.administration.restriction_effects import lease_title
from gpuspawner.service.calendar.api import CalendarReader, PlannedUse, for_words, gpus_words
from gpuspawner.service.parts import Parts

MOST_LANES = 8
"""The most lanes of a row by kind. A kind with more GPUs is drawn in proportion."""
LETTER_PERCENT = 0.6
"""The width of a letter of a label on a wide screen."""
LABEL_PERCENT = 3.0
"""The least width of a label inside a span."""


class TimeAxis(NamedTuple):
    """The time that the picture shows, in seconds since the epoch."""

    start: float
    end: float
    now: float

    def percent(self, at: float) -> float:
        """Return the position of a time, from 0 to 100."""
        return round(100 * (min(max(at, self.start), self.end) - self.start) / (self.end - self.start), 2)

    def shows(self, opening: Opening) -> bool:
        """Return whether a time is at least partly in the picture."""
        return opening.opens_at < self.end and opening.ends_at > self.start


@dataclass(frozen=True)
class Span:
    """A time in a row. ``kind`` is its class in the style sheet, ``words`` says everything about it."""

    kind: str
    first: int
    lanes: int
    left: float
    width: float
    label: str
    words: str
    side: str = ""
    """Where a label that does not fit inside is: ``before`` or ``after``."""
    pad: float | None = None
    """Per cent of the span that the label leaves to the line of the present time."""

    def reach(self, room: float) -> tuple[float, float]:
        """Return the start and the end of a label beside the span that is ``room`` per cent wide."""
        right = self.left + self.width
        return (self.left - room, self.left) if self.side == "before" else (right, right + room)


@dataclass(frozen=True)
class LaneRow:
    """A node, or a kind of GPU, with its spans in the order of their times."""

    title: str
    about: str
    lanes: int
    spans: tuple[Span, ...]


class Use(NamedTuple):
    """A time in which some lanes are used."""

    kind: str
    opening: Opening
    lanes: Sequence[int]
    label: str
    words: str


def spans_of(uses: Iterable[Use], axis: TimeAxis) -> tuple[Span, ...]:
    """Return a span for each run of adjacent lanes of each use that the picture shows."""
    shown = sorted((one for one in uses if one.lanes and axis.shows(one.opening)), key=lambda one: one.opening)
    found = [_span(use, run, axis) for use in shown for run in _runs(use.lanes)]
    return tuple(replace(one, label="") if one.side and _collides(one, found) else one for one in found)


def _collides(one: Span, others: Iterable[Span]) -> bool:
    """Return whether a label beside its span would cover another span or its label."""
    room = LETTER_PERCENT * len(one.label)
    left, right = one.reach(room)
    return any(
        other is not one
        and other.first < one.first + one.lanes
        and one.first < other.first + other.lanes
        and other.left < right
        and left < other.left + other.width
        for other in others
    )


def _runs(lanes: Sequence[int]) -> list[list[int]]:
    numbered = enumerate(sorted(lanes))
    return [[lane for _, lane in run] for _, run in groupby(numbered, key=lambda one: one[1] - one[0])]


def _span(use: Use, lanes: Sequence[int], axis: TimeAxis) -> Span:
    left, right, now = (axis.percent(at) for at in (*use.opening, axis.now))
    side, pad, label = "", None, use.label
    if left <= now <= right:
        if now - left < LABEL_PERCENT and right - now >= LABEL_PERCENT:
            pad = round(100 * (now - left) / (right - left), 1)
        elif now - left < LABEL_PERCENT:
            label = ""
    elif right - left < 2 * LABEL_PERCENT:
        side = "after" if right < 80 else "before"  # noqa: PLR2004 - where a label still has room
    return Span(use.kind, lanes[0], len(lanes), left, round(right - left, 2), label, use.words, side, pad)


@dataclass(frozen=True)
class Lane:
    """A GPU of the picture."""

    row: str
    number: int
    kind: str


class LaneChoice:
    """Chooses lanes for reservations: those of one row that are not used at that time, before others."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        """Begin with lanes that nothing uses."""
        self._lanes = list(lanes)
        self._used: dict[Lane, list[Opening]] = defaultdict(list)

    def take_row(self, row: str, opening: Opening) -> list[Lane]:
        """Take all lanes of a row."""
        return self._take([lane for lane in self._lanes if lane.row == row], opening)

    def take(self, kind: str, count: int, row: str, opening: Opening) -> list[Lane]:
        """Take up to ``count`` free lanes of a kind. If ``row`` is not "", take them in this row only."""
        fits = [x for x in self._lanes if x.kind == kind and row in {"", x.row} and self._is_free(x, opening)]
        room: dict[str, int] = defaultdict(int)
        for lane in fits:
            room[lane.row] += 1
        fits.sort(key=lambda lane: (room[lane.row] < count, lane.row, lane.number))
        return self._take(fits[:count], opening)

    def _take(self, lanes: list[Lane], opening: Opening) -> list[Lane]:
        for lane in lanes:
            self._used[lane].append(opening)
        return lanes

    def _is_free(self, lane: Lane, opening: Opening) -> bool:
        return all(opening.ends_at <= x.opens_at or x.ends_at <= opening.opens_at for x in self._used[lane])


def scaled_lanes(total: int) -> int:
    """Return the number of lanes that are drawn for a number of GPUs."""
    return min(total, MOST_LANES)


def scaled_count(count: int, total: int) -> int:
    """Return the number of lanes that are drawn for some of ``total`` GPUs."""
    return min(scaled_lanes(total), ceil(count * scaled_lanes(total) / total)) if total else 0


MOST_NODES = 40
"""The most nodes of the picture. Arbitrary: some screens. The table has all."""
FIRM = "until someone ends it"


def _time_words(opening: Opening, now: float) -> str:
    end = FIRM if opening.ends_at == inf else f"to {show_end(opening.ends_at, now)}"
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
    until = "without a set end" if end == inf else f"until {show_end(end, now)}"
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
    pools = Counter(gpu.pool for gpu in state.scheduler.fleet.gpus if not gpu.is_coming)
    totals = {name: pools[kind.pool] * kind.shares for name, kind in state.catalog.gpus.items() if name in reader.kinds}
    uses: dict[str, list[Use]] = defaultdict(list)
    choices = {
        name: LaneChoice(Lane(name, number, name) for number in range(scaled_lanes(total)))
        for name, total in totals.items()
        if total
    }
    for one in planned:
        for name, count in one.counts.items():
            if name not in choices:
                continue
            taken = choices[name].take(name, scaled_count(count, totals[name]), "", one.opening)
            uses[name].append(_planned(state, one, reader, [lane.number for lane in taken]))
    now = state.clock.now()
    for lease in own:
        if lease.phase in HOLDING and lease.kind in choices:
            opening = Opening(lease.granted_at or now, end_at(lease, now))
            count = scaled_count(lease.request.count, totals[lease.kind])
            lanes = [lane.number for lane in choices[lease.kind].take(lease.kind, count, "", opening)]
            title = lease.key.server or "Default workspace"
            uses[lease.kind].append(_run_of(lease, lanes or [0], title, title, now))
    return [
        LaneRow(
            gpu_title(name, state.catalog),
            f"{totals[name]} GPUs",
            scaled_lanes(totals[name]),
            spans_of(uses[name], axis),
        )
        for name in choices
    ]
