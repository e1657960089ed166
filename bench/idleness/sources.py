"""Ours with and without each source, over families of sessions: what the monitor and DCGM exporter are worth."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

from figures import POLICY, Row, ours

from gpuspawner.simulate.habits import HOUR, Habits, Sharing, Work
from gpuspawner.simulate.probe import Probe
from gpuspawner.simulate.replay import totals
from gpuspawner.simulate.sessions import sessions

SOURCES_HEAD = ("sessions", "seen by", "stopped in use", "recovered", "freed: median", "95 %")
H = Habits()
EXCLUSIVE, SHARED = ((Sharing.EXCLUSIVE, 1.0),), ((Sharing.SHARED, 1.0),)
RARE = replace(H, never_share=0.0, task_seconds=(4 * HOUR, 6 * HOUR))
SOURCES: dict[str, Probe] = {
    "the script": Probe(),
    "and DCGM exporter": Probe(exporter=True),
    "and the monitor": Probe(monitor=True),
    "and both": Probe(monitor=True, exporter=True),
}
FAMILIES: dict[str, tuple[Habits, float]] = {
    "all, and endpoints, exclusive GPUs": (
        replace(H, works=(*H.works, (Work.ENDPOINT, 0.1)), sharing=EXCLUSIVE),
        1.0,
    ),
    "endpoints that somebody tests, exclusive": (replace(RARE, works=((Work.ENDPOINT, 1.0),), sharing=EXCLUSIVE), 0.1),
    "kernels minutes apart, shared": (replace(RARE, works=((Work.SPACED, 1.0),), sharing=SHARED), 0.1),
    "all, shared": (replace(H, sharing=SHARED), 0.1),
    "in use below the threshold, exclusive": (replace(RARE, works=((Work.LOW, 1.0),), sharing=EXCLUSIVE), 0.1),
}
"""Each with its share of the hours that are asked for."""


def sources(seed: int, hours: float) -> list[tuple[str, ...]]:
    """Return a line of cells for each family and source."""
    asked = [(family, source) for family in FAMILIES for source in SOURCES]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as workers:
        lines = []
        for line in workers.map(partial(_line, seed, hours), asked):
            print("  ".join(line), file=sys.stderr, flush=True)
            lines.append(line)
    return lines


def _line(seed: int, hours: float, asked: tuple[str, str]) -> tuple[str, ...]:
    family, source = asked
    habits, share = FAMILIES[family]
    drawn = sessions(seed, hours * share, habits)
    return Row(family, source, totals((ours(one, POLICY, SOURCES[source]), one.end) for one in drawn)).cells()
