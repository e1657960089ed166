"""Allocated time is active, idle or not measured, and nothing else: to the millisecond, on each day."""

from collections import defaultdict
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_world import NOW, running

from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.quotas.ledger import LedgerKind, ledger_lines_until, rate_of
from gpuspawner.core.rules import BudgetUnit, LostInterval
from gpuspawner.service.rules.accounting import part_of_reclaim, parts_of_rest, parts_of_step
from gpuspawner.service.store import ReadingRow
from tools.monitoring.panels import WASTE

ZURICH = ZoneInfo("Europe/Zurich")
MIDNIGHT = 1_800_054_000.0
"""2027-01-16 00:00 in Zurich."""
LATER = MIDNIGHT + 400
SAMPLES = st.lists(
    st.tuples(
        st.floats(0.0, 200.0),  # seconds since the last
        st.floats(0.0, 90.0),  # that its reading says it covers, which may be more
        st.sampled_from(["busy", "idle", "soft", "unknown"]),
    ),
    max_size=8,
)


def node_of(_gpu):
    return "n1"


def reading(lease, gpu, at, seconds, kind):
    return ReadingRow(
        lease.id, at, seconds, gpu=gpu, utilization_percent=None, memory_used_bytes=None, memory_total_bytes=None,
        kind=kind, because="",
    )  # fmt: skip


def totals(parts):
    found = defaultdict(float)
    for part in parts:
        found[part.day] += part.amounts.allocated
    return found


@given(
    st.floats(0.0, 600.0),
    SAMPLES,
    st.floats(0.0, 300.0),
    st.sampled_from([(0,), (0, 1)]),
    st.sampled_from(["running", "stopped", "lost"]),
)
def test_only_sampled_and_unmeasured_time_is_charged(before, samples, rest, gpus, how):
    kind = GpuKind("a100", "A100", 80 * 2**30, price_per_hour=2.0)
    since = MIDNIGHT - before
    lease = replace(running("x", gpus=gpus, rate=rate_of(kind, len(gpus))), running_at=since, sampled_at=None)
    lease = replace(lease, deadline_at=since + 1e5)
    if how == "lost":
        lease = replace(lease, lost=(LostInterval(since + 1, since + 50, "away"),))
    parts, read, at = [], 0.0, since
    for passed, seconds, what in samples:
        at += passed
        sampled = replace(lease, sampled_at=at)
        rows = [reading(lease, slot.gpu, at, seconds, what) for slot in lease.slots]
        parts += parts_of_step(lease, sampled, rows, ZURICH, node_of)
        read += min(seconds, passed) * len(gpus) if what in {"busy", "idle"} else 0.0
        lease = sampled
    at += rest
    if how == "stopped":
        parts += parts_of_step(lease, replace(lease, phase=Phase.STOPPING, phase_since=at), (), ZURICH, node_of)
    else:
        parts += parts_of_rest(lease, at, ZURICH, node_of)
    assert all(amount >= 0 for part in parts for amount in part.amounts)
    charged = defaultdict(float)
    for line in ledger_lines_until(lease, at, ZURICH):
        if line.what in {LedgerKind.USE, LedgerKind.OVERRUN}:
            charged[line.day] += float(line.amount(BudgetUnit.GPU_HOURS))
    assert dict(totals(parts)) == pytest.approx({day: hours for day, hours in charged.items() if hours})
    known = sum(part.amounts.active + part.amounts.idle for part in parts)
    assert 3600 * known == pytest.approx(read, abs=0.01 * (len(samples) + 1)), "a sample covers no time before the last"


def test_a_first_sample_counts_no_time_before_its_workspace_ran():
    rate = rate_of(GpuKind("a100", "A100", 1), 1)
    lease = replace(running("x", gpus=(0,), rate=rate), running_at=LATER, sampled_at=None)
    sampled = replace(lease, sampled_at=LATER + 5)
    rows = [reading(lease, lease.slots[0].gpu, LATER + 5, 60.0, "idle")]
    (part,) = parts_of_step(lease, sampled, rows, ZURICH, node_of)
    assert (3600 * part.amounts.idle, part.amounts.not_measured) == (pytest.approx(5.0), 0.0)


def test_the_dashboard_of_waste_counts_unvisited_workspaces():
    (panel,) = (one for one in WASTE.panels if one.title == "Reclaimed, last day")
    (asked,) = panel.expressions.values()
    assert 'reason=~"idle|nobody came"' in asked


@pytest.mark.parametrize(
    ("reason", "reclaims"),
    [(ExitReason.IDLE, 1), (ExitReason.NOBODY_CAME, 1), (ExitReason.STOPPED, 0), (ExitReason.EXPIRED, 0)],
)
def test_unvisited_workspaces_are_reclaimed_like_idle_ones(reason, reclaims):
    rate = rate_of(GpuKind("a100", "A100", 1), 2)
    lease = replace(running("x", gpus=(0, 1), rate=rate), deadline_at=NOW + 7200)
    ended = replace(lease, phase=Phase.STOPPING, phase_since=NOW, reason=reason)
    part = part_of_reclaim(lease, ended, ZURICH, node_of)
    assert (reclaims, 0.0) == (0, 0.0) if part is None else (part.amounts.reclaims, part.amounts.reclaimed) == (1, 4.0)
    assert (part is not None) is bool(reclaims)
