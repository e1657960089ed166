"""Estimates for those who wait, at their request and at half of their wait, by each method, and how right they were.

A method sees what was known at that moment. A first replay, which no estimate changes, tells who waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import NamedTuple

from disciplines import OURS
from served import TICK_SECONDS, Cluster, Served, serve
from sessions import Workload

from gpuspawner.core.queue.calibration import NEAR_SECONDS, Calibration, EstimateOutcome, adjusted_range
from gpuspawner.core.queue.estimates import estimate_starts, later_requests, queue_positions
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import Claim, Snapshot

FIRST, HALF = "first", "half of the wait"
TODAY, DRAWN = "median of 3", "drawn"
"""The methods: ``positions``, which answers at once, with a range of nine in ten; and ``estimates``, which draws."""
LEARN_SHARE = 0.3
"""The first part of the time is not scored: the methods learn from it."""
NINE_OF_TEN = 0.05
WAITS = (("under 10 min", 0.0, 600.0), ("10 to 60 min", 600.0, 3600.0), ("longer", 3600.0, inf))
"""Real waits by their title. The longer a wait, the harder it is to tell."""


class _Mark(NamedTuple):
    at: float
    name: str
    stage: str


class Estimated(NamedTuple):
    """One estimate: when it was made, when in the wait, and its outcome."""

    made_at: float
    name: str
    stage: str
    outcome: EstimateOutcome


class Estimating:
    """Makes the estimates during a replay."""

    def __init__(self, first: Sequence[Served], draws: int) -> None:
        """Know from a first replay who waits, and how long."""
        self._draws = draws
        self._starts = {one.session.id: one.started_at for one in first}
        marks = [mark for one in first for mark in _marks(one)]
        self._marks = sorted(marks, reverse=True)
        self.made: dict[str, list[Estimated]] = {TODAY: [], DRAWN: []}
        self.cpu_seconds: list[float] = []

    def next_at(self) -> float:
        """Return when the next estimate is due."""
        return self._marks[-1].at if self._marks else inf

    def look(self, cluster: Cluster) -> None:
        """Make the estimates that are due."""
        due = list[_Mark]()
        while self._marks and self._marks[-1].at <= cluster.now:
            due.append(self._marks.pop())
        due = [mark for mark in due if mark.name in cluster.waiting]
        if due and cluster.run_times.is_known:
            seen = cluster.snapshot()
            self._today(seen, cluster, due)
            self._drawn(seen, cluster, due)

    def _today(self, seen: Snapshot, cluster: Cluster, due: Sequence[_Mark]) -> None:
        places = queue_positions(seen, run_times=cluster.run_times)
        past = self._past(TODAY, cluster.now)
        for mark in due:
            latest, likely = places[mark.name].unchanged_seconds, places[mark.name].likely_seconds
            if latest is None and likely is None:
                continue
            latest = likely if latest is None else latest
            likely = latest if likely is None else likely
            low, high = adjusted_range(likely, latest, past, NINE_OF_TEN)
            outcome = EstimateOutcome(likely, 1.0, likely, latest, low, high, is_shown=True, actual_seconds=inf)
            self._note(TODAY, mark, cluster.now, outcome)

    def _drawn(self, seen: Snapshot, cluster: Cluster, due: Sequence[_Mark]) -> None:
        requests = [Claim(x.id, x.request.user, x.request, x.asked_at, user=x.request.user) for x in cluster.asked]
        names = {mark.name for mark in due}
        claims = [claim for claim in seen.claims if claim.id in names]
        others = [claim for claim in seen.claims if claim.id not in names]
        began = time.thread_time()
        found = estimate_starts(
            seen, Index(seen), claims, cluster.run_times,
            lambda draw: [*others, *later_requests(requests, cluster.now, draw)], self._draws,
        )  # fmt: skip
        self.cpu_seconds.append(time.thread_time() - began)
        calibration = Calibration(self._past(DRAWN, cluster.now))
        for mark in due:
            point, *drawn = found[mark.name]
            outcome = calibration.estimate(inf if point is None else point, *drawn)
            self._note(DRAWN, mark, cluster.now, outcome)

    def _note(self, method: str, mark: _Mark, now: float, outcome: EstimateOutcome) -> None:
        started_at = self._starts[mark.name]
        actual = inf if started_at is None else started_at - now
        self.made[method].append(Estimated(now, mark.name, mark.stage, replace(outcome, actual_seconds=actual)))

    def _past(self, method: str, now: float) -> list[EstimateOutcome]:
        """Return the outcomes that are known by now."""
        return [
            one.outcome
            for one in self.made[method]
            if one.made_at + one.outcome.actual_seconds <= now and one.outcome.point_seconds < inf
        ]


def _marks(one: Served) -> Iterable[_Mark]:
    asked_at, started_at, name = one.session.asked_at, one.started_at, one.session.id
    yield _Mark(asked_at, name, FIRST)
    if started_at is not None:
        yield _Mark((asked_at + started_at) / 2, name, HALF)


def scored_outcomes(made: Iterable[Estimated], end: float) -> list[EstimateOutcome]:
    """Return the outcomes that count. A wait that is overdue at the end is a miss. Others that wait are left out."""
    return [
        one.outcome
        for one in made
        if one.made_at >= LEARN_SHARE * end
        and (one.outcome.actual_seconds < inf or end - one.made_at > one.outcome.point_seconds + NEAR_SECONDS)
    ]


def score(scored: Sequence[EstimateOutcome]) -> str:
    """Return how good estimates were."""
    if not scored:
        return "no estimates"
    errors = [abs(one.actual_seconds - one.point_seconds) / 60 for one in scored if one.point_seconds < inf]
    ranges = [one for one in scored if one.to_seconds < inf]
    widths = [(one.to_seconds - one.from_seconds) / 60 for one in ranges]
    shown = [one.is_near for one in scored if one.is_shown]
    by_wait = ", ".join(
        f"{title} {_percent(near)} of {len(near)}"
        for title, least, most in WAITS
        if (near := [one.is_near for one in scored if least <= one.actual_seconds < most])
    )
    return (
        f"{len(scored)} estimates, {_percent([one.is_near for one in scored])} within 10 min, median error "
        f"{median(errors):.0f} min; shown {_percent([one.is_shown for one in scored])}, right {_percent(shown)}; "
        f"{len(ranges)} ranges, {_percent([one.is_within for one in ranges])} held, "
        f"median width {median(widths):.0f} min; within 10 min by the real wait: {by_wait}"
    )


def _percent(values: Sequence[bool]) -> str:
    return f"{100 * sum(values) / len(values):.0f} %" if values else "-"


def report(works: Iterable[Workload], waiters: int, draws: int) -> Iterator[str]:
    """Replay each queue with estimates, and yield a line for each method and moment of all of them together.

    Args:
        works: the workloads.
        waiters: how many of the requests that wait are estimated in each, evenly spread.
        draws: the number of draws for an estimate.
    """
    scored: dict[tuple[str, str], list[EstimateOutcome]] = {(s, m): [] for s in (FIRST, HALF) for m in (TODAY, DRAWN)}
    cpu_seconds = list[float]()
    for work in works:
        end = work.sessions[-1].asked_at
        first = serve(work, OURS)
        waited = [one for one in first if one.started_at is None or one.waited_seconds(end) > TICK_SECONDS]
        chosen = waited[:: max(1, len(waited) // waiters)]
        estimating = Estimating(chosen, draws)
        serve(work, OURS, estimating.look, estimating.next_at)
        for stage, method in scored:
            made = (one for one in estimating.made[method] if one.stage == stage)
            scored[stage, method] += scored_outcomes(made, end)
        cpu_seconds += estimating.cpu_seconds
    for (stage, method), outcomes in scored.items():
        yield f"{stage}, {method}: {score(outcomes)}"
    yield f"{len(cpu_seconds)} estimates of {draws} draws took {sum(cpu_seconds):.0f} s of CPU"
