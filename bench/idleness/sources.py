"""Ours with and without each source, over the families: what DCGM exporter and the monitor are worth."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from families import FAMILIES, sessions_of
from figures import POLICY, ours

from gpuspawner.simulate.probe import Probe
from gpuspawner.simulate.replay import Totals, totals
from gpuspawner.simulate.sources import Exporter

SOURCES: dict[str, Probe] = {
    "probe": Probe(),
    "DCGM as shipped": Probe(exporter=Exporter.UTILIZATION),
    "DCGM": Probe(exporter=Exporter.ENGINE),
    "monitor": Probe(monitor=True),
}
FAMILIES_HEAD = ("family", "hours", *(f"{name}: {what}" for name in SOURCES for what in ("in use", "recovered")))


def families(seed: int, count: int, named: Iterable[str] = ()) -> tuple[list[tuple[str, ...]], float]:
    """Return a line of cells for each family, and the session hours that were simulated."""
    chosen = [family for family in FAMILIES if not named or any(part in family for part in named)]
    asked = [(family, source) for family in chosen for source in SOURCES]
    lines, hours = [], 0.0
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as workers:
        found = list(workers.map(partial(_run, seed, count), asked))
    for number, family in enumerate(chosen):
        own = found[number * len(SOURCES) : (number + 1) * len(SOURCES)]
        hours += sum(one.session_hours for one in own)
        lines.append((family, f"{own[0].session_hours:.0f}", *(cell for one in own for cell in _cells(one))))
    print(f"{hours:,.0f} session hours in {len(chosen)} families", file=sys.stderr)
    return lines, hours


def _run(seed: int, count: int, asked: tuple[str, str]) -> Totals:
    family, source = asked
    drawn = sessions_of(FAMILIES[family], seed, count)
    return totals((ours(one, POLICY, SOURCES[source]), one.end) for one in drawn)


def _cells(found: Totals) -> tuple[str, str]:
    """Return of how many sessions one was stopped in use, and the part of the winnable hours that was won."""
    return f"{found.wrong} of {found.workspaces}", f"{100 * found.recovered_share:.0f} %"
