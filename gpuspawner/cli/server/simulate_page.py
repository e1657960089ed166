"""A page with charts. It loads no script, font or picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gpuspawner.cli.output import counted
from gpuspawner.cli.server.simulate_report import Case, heading, policy_sentence, sentences, show_moment, show_outcome
from gpuspawner.core.units import show_duration
from gpuspawner.simulate.replay import HOUR

STRIPS, LISTED, GROUPS = 30, 500, 12
"""Workspaces drawn, rows listed, bars of groups. Arbitrary: more than that is read in the JSON."""
BINS_MINUTES = (0, 30, 40, 45, 50, 60, 75, 90, 120, 180, 360)
"""Edges of the time from the last GPU work to the stop. Arbitrary; the last bin is open."""


@dataclass(frozen=True)
class Bar:
    """A bar: its ``share`` of the longest bar, 0 to 1, and its value in words."""

    name: str
    share: float
    words: str


@dataclass(frozen=True)
class Piece:
    """A part of a strip, in percent of its width."""

    left: float
    width: float
    kind: str
    words: str


@dataclass(frozen=True)
class Strip:
    """One workspace over its time: evidence, GPU work, warnings and stop."""

    name: str
    words: str
    seen: tuple[Piece, ...]
    work: tuple[Piece, ...]
    warned: tuple[float, ...]
    stops: tuple[float, ...]
    wrong: bool


def page(report: dict[str, Any], cases: Sequence[Case]) -> str:
    """Return the page as HTML."""
    # StrictUndefined: a chart without its numbers is a fault, not an empty place.
    environment = Environment(loader=PackageLoader("gpuspawner.cli"), autoescape=True, undefined=StrictUndefined)
    generated = report["source"].startswith("generated")
    stopped = [case for case in cases if case.judged.stops]
    worst_first = sorted(stopped, key=lambda case: (not _wrong(case), -_won(case)))
    return environment.get_template("simulate.html").render(
        report=report,
        policies=[policy_sentence(policy) for policy in report["policies"]],
        sentences=sentences(report),
        generated=generated,
        hours=_hours(cases),
        groups=_groups(stopped),
        freed=_freed(stopped),
        strips=[_strip(case) for case in worst_first[:STRIPS]],
        stops=report["stops"][:LISTED],
        more=max(0, len(report["stops"]) - LISTED),
        warned=report["warned_only"][:LISTED],
        more_warned=max(0, len(report["warned_only"]) - LISTED),
        heading=heading(report),
        then=show_outcome,
        moment=lambda at: show_moment(at, generated=generated),
        duration=show_duration,
    )


def _won(case: Case) -> float:
    return sum(stop.won_hours for stop in case.judged.stops)


def _wrong(case: Case) -> bool:
    return any(stop.wrong for stop in case.judged.stops)


def _hours(cases: Sequence[Case]) -> list[Bar]:
    """Return all GPU hours in three parts: at work, won, and allocated without work."""
    total = sum(case.judged.gpu_hours for case in cases)
    used = sum(case.gpus * case.work.integral(0.0, case.end) / HOUR for case in cases)
    won = sum(map(_won, cases))
    parts = (("at work", used), ("won", won), ("held, not at work", max(0.0, total - used - won)))
    return [Bar(name, part / total if total else 0.0, f"{part:.1f} GPU h") for name, part in parts]


def _groups(stopped: Sequence[Case]) -> list[Bar]:
    won: dict[str, float] = {}
    for case in stopped:
        won[case.user] = won.get(case.user, 0.0) + _won(case)
    most = sorted(won.items(), key=lambda pair: (-pair[1], pair[0]))[:GROUPS]
    longest = max((hours for _, hours in most), default=0.0)
    return [Bar(name, hours / longest if longest else 0.0, f"{hours:.1f} GPU h") for name, hours in most]


def _freed(stopped: Sequence[Case]) -> list[Bar]:
    times = [stop.freed_after_seconds for case in stopped for stop in case.judged.stops]
    minutes = [seconds / 60 for seconds in times if seconds is not None]
    edges = (*BINS_MINUTES, float("inf"))
    counts = [(low, high, sum(low <= minute < high for minute in minutes)) for low, high in pairwise(edges)]
    longest = max(count for _, _, count in counts)
    return [
        Bar(
            f"{low} to {high} min" if high != float("inf") else f"over {low} min",
            count / longest if longest else 0.0,
            str(count),
        )
        for low, high, count in counts
        if minutes
    ]


def _strip(case: Case) -> Strip:
    end = max(case.end, 1.0)

    def piece(begin: float, until: float, kind: str, words: str) -> Piece:
        begin, until = max(0.0, begin), min(until, end)
        return Piece(round(100 * begin / end, 3), round(100 * max(0.0, until - begin) / end, 3), kind, words)

    seen, begin = [], 0.0
    for number, replay in enumerate(case.replays):
        for until, kind in replay.stretches:
            seen.append(piece(begin, until, kind.value, f"{kind.value} for {show_duration(until - begin)}"))
            begin = until
        if number < len(case.judged.stops):
            stop = case.judged.stops[number]
            until = end if stop.wrong or stop.wanted_at is None else stop.wanted_at
            words = "stopped in use" if stop.wrong else f"{stop.won_hours:.1f} GPU hours won"
            seen.append(piece(begin, until, "lost" if stop.wrong else "won", words))
            begin = until
    stops = counted(len(case.judged.stops), "stop")
    rightly = "IN USE" if _wrong(case) else "rightly"
    return Strip(
        name=f"{case.user}, {counted(case.gpus, 'GPU')}",
        words=f"{show_duration(end)}, {stops}, {rightly}, {_won(case):.1f} GPU h won",
        seen=tuple(one for one in seen if one.width),
        work=_work(case, end),
        warned=tuple(round(100 * at / end, 3) for replay in case.replays for at in replay.warned_at),
        stops=tuple(round(100 * stop.at / end, 3) for stop in case.judged.stops),
        wrong=_wrong(case),
    )


def _work(case: Case, end: float) -> tuple[Piece, ...]:
    """Return the intervals of GPU work. Intervals that a screen cannot separate are drawn as one."""
    joined: list[list[float]] = []
    for begin, until, _ in case.work.spans:
        if joined and begin - joined[-1][1] < end / 500:
            joined[-1][1] = until
        else:
            joined.append([begin, until])
    return tuple(
        Piece(
            round(100 * begin / end, 3),
            max(0.15, round(100 * (min(until, end) - begin) / end, 3)),
            "work",
            f"GPU work of {show_duration(until - begin)}",
        )
        for begin, until in joined
        if begin < end
    )
