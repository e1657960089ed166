"""Ours with and without each source, and each peer's rule, over the families."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from families import FAMILIES, sessions_of
from figures import POLICY, ours, theirs
from peers import PEERS

from gpuspawner.simulate.probe import Exporter, Monitor, Probe
from gpuspawner.simulate.replay import Totals, totals

SOURCES: dict[str, Probe] = {
    "probe": Probe(),
    "DCGM as shipped": Probe(exporter=Exporter.UTILIZATION),
    "DCGM": Probe(exporter=Exporter.ENGINE),
    "monitor": Probe(monitor=Monitor.UTILIZATION),
    "monitor with GPM": Probe(monitor=Monitor.GPM),
}
SIGNALS = {
    "probe": "nvidia-smi, CPU time",
    "DCGM as shipped": "and DCGM's utilization",
    "DCGM": "and DCGM's engine activity",
    "monitor": "and the monitor",
    "monitor with GPM": "such, on Hopper and newer",
}
FAMILIES_HEAD = ("family", "hours", *(f"{name}: {what}" for name in SOURCES for what in ("in use", "recovered")))
RULES_HEAD = ("rule", "looks at", "stopped in use", "families", "recovered")
RULES = {peer.name: peer for peer in PEERS}


class Found(NamedTuple):
    """The results of all rules over the families. ``hours`` are session hours that were simulated with one rule."""

    families: list[tuple[str, ...]]
    rules: list[tuple[str, ...]]
    hours: float


def families(seed: int, count: int, named: Iterable[str] = ()) -> Found:
    """Return a line of cells for each family with each source, and one for each rule over all families."""
    chosen = [family for family in FAMILIES if not named or any(part in family for part in named)]
    asked = [(family, rule) for rule in (*SOURCES, *RULES) for family in chosen]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as workers:
        found = dict(zip(asked, workers.map(partial(_run, seed, count), asked), strict=True))
    lines = []
    for family in chosen:
        own = [found[family, source] for source in SOURCES]
        lines.append((family, f"{own[0].session_hours:.0f}", *(cell for one in own for cell in _cells(one))))
    rules = [_over_all(rule, [found[family, rule] for family in chosen]) for rule in (*SOURCES, *RULES)]
    return Found(lines, rules, sum(found[family, "probe"].session_hours for family in chosen))


def _run(seed: int, count: int, asked: tuple[str, str]) -> Totals:
    family, rule = asked
    drawn = sessions_of(FAMILIES[family], seed, count)
    if peer := RULES.get(rule):
        return totals((theirs(one, peer), one.end) for one in drawn)
    return totals((ours(one, POLICY, SOURCES[rule]), one.end) for one in drawn)


def _cells(found: Totals) -> tuple[str, str]:
    """Return of how many sessions one was stopped in use, and the part of the winnable hours that was won."""
    return f"{found.wrong} of {found.workspaces}", f"{100 * found.recovered_share:.0f} %"


def _over_all(rule: str, found: list[Totals]) -> tuple[str, ...]:
    """Return wrong stops per 100,000 hours, the families with one, and the part of the winnable hours that was won."""
    hours, winnable = sum(one.session_hours for one in found), sum(one.winnable_hours for one in found)
    return (
        rule if rule in RULES else f"gpuspawner: {rule}",
        RULES[rule].signal if rule in RULES else SIGNALS[rule],
        f"{1e5 * sum(one.wrong for one in found) / hours:,.0f}",
        f"{sum(one.wrong > 0 for one in found)} of {len(found)}",
        f"{100 * sum(one.won_hours for one in found) / winnable:.0f} %",
    )
