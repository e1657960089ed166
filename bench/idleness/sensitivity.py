"""Ours with one thing changed at a time: how much the figures hang on what we chose."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from figures import POLICY, Row, ours

from gpuspawner.catalog import load_catalog
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.simulate.habits import HOUR, Habits, Sharing, Work
from gpuspawner.simulate.probe import Probe
from gpuspawner.simulate.replay import totals
from gpuspawner.simulate.sessions import sessions

SENSITIVITY_HEAD = ("changed", "to", "stopped in use", "recovered", "freed: median", "95 %")
H, P, PROBE = Habits(), POLICY, Probe()
ALL_COUNT = ("cpu", "kernel", "terminal", "ssh")
EXAMPLE = load_catalog(str(Path(__file__).parents[2] / "hub_config" / "catalog.yaml")).policies["default"].idle
ENDING = replace(H, works=((Work.ENDING, 1.0),), never_share=0.0, sharing=((Sharing.EXCLUSIVE, 1.0),))
ENDING_SHORT = replace(ENDING, burst_seconds=(1.5, 1.5), duty_share=(1.5 / 45,))
SURVIVES = replace(PROBE, buffer_seconds=16.6, buffer_survives=True)
LONG = replace(SURVIVES, buffer_seconds=100.0)

CASES: tuple[tuple[str, str, Habits, IdlePolicy, Probe], ...] = (
    ("nothing", "", H, P, PROBE),
    ("every session", "uses its GPU", replace(H, never_share=0.0), P, PROBE),
    ("GPU tasks", "four times as long", replace(H, task_seconds=(480.0, 1200.0)), P, PROBE),
    ("GPU tasks", "a quarter as long", replace(H, task_seconds=(30.0, 75.0)), P, PROBE),
    ("gaps between tasks", "15 min", replace(H, gap_seconds=900.0), P, PROBE),
    ("work", "bursts between waiting", replace(H, works=((Work.WAITING, 1.0),)), P, PROBE),
    ("work", "such, used 1 % of the time", replace(H, works=((Work.WAITING, 1.0),), duty_share=(0.01,)), P, PROBE),
    ("work", "bursts in processes that end", ENDING, P, PROBE),
    ("work", "such, and the driver tells 17 s", ENDING, P, replace(PROBE, buffer_seconds=16.6)),
    ("work", "such, 1.5 s each, used 3 % of the time", ENDING_SHORT, P, replace(PROBE, buffer_seconds=16.6)),
    ("work", "such, no persistence mode", replace(ENDING_SHORT, persistence_share=0.0), P, PROBE),
    ("work", "such, and a buffer of 17 s survives", replace(ENDING_SHORT, persistence_share=0.0), P, SURVIVES),
    ("work", "training in phases", replace(H, works=((Work.PHASES, 1.0),)), P, PROBE),
    ("long CPU phases", "24 min", replace(H, loading_seconds=(20.0, 1440.0)), P, PROBE),
    ("bursts", "0.3 to 1 s", replace(H, burst_seconds=(0.3, 1.0)), P, PROBE),
    ("pauses", "every third gap", replace(H, pause_share=0.33), P, PROBE),
    ("GPUs", "all shared", replace(H, sharing=((Sharing.SHARED, 1.0),)), P, PROBE),
    ("GPUs", "all MIG", replace(H, sharing=((Sharing.MIG, 1.0),)), P, PROBE),
    ("GPUs", "none with persistence mode", replace(H, persistence_share=0.0), P, PROBE),
    ("GPUs", "such, and a buffer of 17 s survives", replace(H, persistence_share=0.0), P, SURVIVES),
    ("GPUs", "such, never used", replace(H, persistence_share=0.0, never_share=1.0), P, PROBE),
    ("GPUs", "such, and a buffer of 100 s survives", replace(H, persistence_share=0.0, never_share=1.0), P, LONG),
    ("losses of NVML", "ten times as many", replace(H, loss_hours=20.0), P, PROBE),
    ("faults", "ten times as many", replace(H, fault_hours=5.0), P, PROBE),
    ("restarts", "every 4 h", replace(H, restart_hours=4.0), P, PROBE),
    ("failing probes", "10 %", H, P, replace(PROBE, failing_share=0.1)),
    ("readings in a probe", "1", H, P, replace(PROBE, readings=1)),
    ("twitching kernels", "all", replace(H, twitch_share=1.0), P, PROBE),
    ("sampled", "every 30 s", H, replace(P, sample_seconds=30.0), PROBE),
    ("sampled", "every 2 min", H, replace(P, sample_seconds=120.0), PROBE),
    ("idle time", "15 min", H, replace(P, for_seconds=900.0), PROBE),
    ("idle time", "1 h", H, replace(P, for_seconds=HOUR), PROBE),
    ("grace", "2 min", H, replace(P, grace_seconds=120.0), PROBE),
    ("soft evidence", "CPU does not count", H, replace(P, soft_names=()), PROBE),
    ("soft evidence", "counts for 2 h", H, replace(P, soft_seconds=2 * HOUR), PROBE),
    ("soft evidence", "kernels, terminals, SSH too", H, replace(P, soft_names=ALL_COUNT), PROBE),
    ("policy", "`default` of hub_config/catalog.yaml", H, EXAMPLE, PROBE),
)


def sensitivity(seed: int, hours: float) -> list[tuple[str, ...]]:
    """Return a line of cells for each case."""
    lines = []
    for changed, to, habits, policy, probe in CASES:
        found = totals((ours(session, policy, probe), session.end) for session in sessions(seed, hours, habits))
        lines.append(Row(changed, to, found).cells())
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return lines
