"""The chart's shapes: what was not measured is never drawn as if it had been."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.service.store import ReadingRow
from gpuspawner.service.web.base import area_of, beside, edge_of, tick
from gpuspawner.service.workspaces.cards import Card, summary_of
from gpuspawner.service.workspaces.chart import (
    PLOT_HEIGHT,
    Axis,
    Bar,
    Flag,
    curves_of,
    idle_stretches,
    in_rows,
    panels,
)

GPU = "GPU-1"
BELOW_PERCENT = 5.0
AXIS = Axis(0.0, 600.0)


def row(at, percent, seconds=60.0, kind=None, memory=2**30):
    if kind is None:
        kind = "unknown" if percent is None else "busy" if percent >= BELOW_PERCENT else "idle"
    return ReadingRow("l", at, seconds, GPU, percent, memory, 2**32, kind, "")


def only(rows, axis=AXIS):
    return panels(rows, [GPU], axis, BELOW_PERCENT)[0]


def test_a_reading_covers_the_time_before_it():
    panel = only([row(60, 50.0), row(120, 100.0)], Axis(0.0, 120.0))
    assert [(bar.left, bar.width, bar.y, bar.height) for bar in panel.used] == [(0, 50, 50, 50), (50, 50, 0, 100)]
    assert (panel.unknown, panel.highest_percent, panel.known_seconds) == ((), 100.0, 120.0)
    assert [bar.y for bar in panel.memory] == [0.75 * PLOT_HEIGHT] * 2


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([row(60, 10.0), row(300, 10.0)], id="no-sample"),
        pytest.param([row(60, 10.0), row(240, None, 180.0), row(300, 10.0)], id="unreadable"),
        pytest.param([row(60, 10.0), row(240, 90.0, 180.0, kind="unknown"), row(300, 10.0)], id="not-believed"),
    ],
)
def test_unknown_time_is_hatched_in_one_stretch_and_nothing_is_drawn_over_it(rows):
    panel = only(rows, Axis(0.0, 300.0))
    assert [(band.left, band.width) for band in panel.unknown] == [(20, 60)]
    assert [(bar.left, bar.right) for bar in panel.used] == [(0, 20), (80, 100)]
    assert panel.known_seconds == 120.0
    assert panel.highest_percent == 10.0


@pytest.mark.parametrize(("shared", "highest_percent"), [(True, 4.9), (False, 60.0)])
def test_use_outside_the_workspace_is_drawn_apart_and_left_out_only_where_others_use_the_gpu(shared, highest_percent):
    rows = [row(60, 60.0, kind="idle"), row(120, 5.0, kind="idle"), row(180, 4.9)]
    panel = only([replace(one, shared=shared) for one in rows], Axis(0.0, 180.0))
    assert [round(bar.left) for bar in panel.others] == [0, 33]
    assert [round(bar.left) for bar in panel.used] == [67]
    assert (panel.highest_percent, panel.known_seconds, panel.unknown) == (highest_percent, 180.0, ())
    assert only([replace(rows[0], shared=True)], Axis(0.0, 60.0)).highest_percent is None


def test_no_reading_at_all_is_all_unknown():
    panel = only([])
    assert [(band.left, band.width) for band in panel.unknown] == [(0, 100)]
    assert panel.highest_percent is None


def test_a_sample_that_comes_a_little_late_leaves_no_crack():
    assert only([row(60, 1.0), row(120.4, 1.0), row(180, 1.0)], Axis(0.0, 180.0)).unknown == ()


def test_two_shares_of_one_gpu_are_one_panel():
    assert len(panels([], [GPU, GPU], AXIS, BELOW_PERCENT)) == 1


readings_over_time = st.lists(
    st.tuples(
        st.floats(0.5, 100.0),
        st.floats(0.0, 1.0),
        st.one_of(st.none(), st.floats(0.0, 100.0)),
        st.sampled_from(["busy", "idle", "unknown"]),
    ),
    max_size=20,
)


@given(readings_over_time)
def test_every_moment_is_either_known_or_hatched_and_never_both(steps):
    rows, at = [], 0.0
    for step, part, percent, kind in steps:
        at += step
        rows.append(row(at, percent, step * part, kind="unknown" if percent is None else kind))
    panel = only(rows)
    stretches = sorted((band.left, band.left + band.width) for band in (*panel.used, *panel.others, *panel.unknown))
    for (_, end), (start, _) in itertools.pairwise(stretches):
        assert start >= end - 0.01
    assert sum(end - start for start, end in stretches) == pytest.approx(100, abs=0.5)
    known = sum(bar.width for bar in (*panel.used, *panel.others))
    assert known == pytest.approx(100 * panel.known_seconds / 600, abs=0.1)
    measured = sum(r.seconds for r in rows if r.kind != "unknown" and r.at <= 600)
    assert panel.known_seconds <= measured + 100 + 0.5 * len(rows)


@pytest.mark.parametrize(
    ("lefts", "rows", "sides"),
    [
        pytest.param([0, 30, 60], [0, 0, 0], "sss", id="far from one another"),
        pytest.param([20, 22, 60], [0, 1, 0], "sss", id="two near"),
        pytest.param([93, 96, 99], [0, 1, 2], "eee", id="near the right edge"),
        pytest.param([80, 100], [0, 1], "se", id="one runs into one that ends there"),
        pytest.param([], [], "", id="none"),
    ],
)
def test_no_flag_covers_another_or_leaves_the_chart(lefts, rows, sides):
    placed = in_rows(Flag(0.0, "bell", "Warned 11:38", left) for left in lefts)
    assert [flag.row for flag in placed] == rows
    assert "".join(flag.side[0] for flag in placed) == sides
    assert all(flag.span[0] >= 0 and flag.span[1] <= 100 for flag in placed)


def test_memory_of_all_gpus_and_cpu_are_curves_without_unknown_values():
    rows = [replace(row(60, 1.0), cpu_cores=2.0), replace(row(120, 1.0, memory=None), cpu_cores=None)]
    memory, cpu = curves_of(rows, Axis(0.0, 120.0), 8.0)
    assert [(bar.left, bar.width, bar.y) for bar in memory.bars] == [(0, 50, 75)]
    assert (memory.now, [bar.y for bar in cpu.bars], cpu.now) == ("1 GiB of 4 GiB", [75], "2.0 of 8 cores")
    assert curves_of(rows, Axis(0.0, 120.0), None) == (memory,)


def test_an_idle_stretch_is_told_once_it_is_long_and_ends_where_it_was_not_known():
    rows = [row(60, 1.0), row(120, 1.0), row(180, None), row(240, 1.0), row(300, 50.0)]
    assert idle_stretches(rows, Axis(0.0, 300.0), 100.0) == [(0.0, 120.0)]
    assert idle_stretches(rows, Axis(0.0, 300.0), 60.0) == [(0.0, 120.0), (180.0, 240.0)]


def test_bars_side_by_side_have_one_edge_and_a_gap_breaks_it():
    bars = [Bar(0, 10, 50.0), Bar(10, 10, 20.0), Bar(40, 10, 0.0)]
    assert edge_of(bars) == "M0 50.0H10V20.0H20M40 0.0H50"
    assert area_of(bars[:1]) == "M0 100V50.0H10V100z"


def test_softer_evidence_is_a_band_of_its_own_and_a_word_in_the_table():
    busy = {"kernel": {"active": True, "words": "kernel a.ipynb busy"}, "ssh": {"active": None, "words": "hidden"}}
    told = [replace(row(60, 1.0), soft=busy), replace(row(120, 1.0), soft=busy), replace(row(180, 1.0), soft={})]
    panel = only([*told, row(240, 1.0)], Axis(0.0, 240.0))
    assert [(band.left, band.width) for band in panel.active] == [(0, 50)]
    assert beside(told[0]) == "kernel a.ipynb busy, ssh not known"
    assert beside(told[2]) == "nothing in use"
    assert beside(row(240, 1.0)) == "not known"


@pytest.mark.parametrize("start", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("span", [0.0, 0.5, 1.2, 2.01, 3.0, 60.0, 1200.0, 43200.0])
def test_no_time_stands_twice_at_the_axis(start, span):
    axis = Axis(start, start + span)
    told = [tick(at, axis.step_seconds) for at, _ in axis.ticks()]
    assert len(told) == len(set(told)) <= 5
    assert all(0 <= left <= 100 for _, left in axis.ticks())


def test_the_axis_counts_in_round_times_of_the_clock_that_people_read():
    half_past = 5 * 3600 + 1800  # India is half an hour off the hours of UTC
    axis = Axis(7 * 60.0, 3 * 3600.0, half_past)
    assert [(at + half_past) % 3600 for at, _ in axis.ticks()] == [0.0] * 3


@pytest.mark.parametrize(
    ("earliest", "likely", "latest", "places"),
    [
        pytest.param(1100.0, 1200.0, 1400.0, (25.0, 50.0), id="likely"),
        pytest.param(1100.0, None, 1400.0, (25.0, None), id="no time is sure enough"),
        pytest.param(1899.0, None, 1900.0, (97.0, None), id="a short range"),
    ],
)
def test_marks_of_the_bar(earliest, likely, latest, places):
    queue = SimpleNamespace(earliest_start_at=earliest, likely_start_at=likely, range_end_at=latest)
    window = Card(SimpleNamespace(now=1000.0, queue=queue), "", ()).window
    assert (window.earliest_left, window.likely_left) == places
    assert (window.likely == "") is (likely is None)


@pytest.mark.parametrize(
    ("words", "summary"),
    [
        ("4 simulated A100 80 GB", "4 × A100 80 GB · PyTorch"),
        ("8 A100-SXM4-40GB (simulated driver)", "8 × A100-SXM4-40GB (simulated driver) · PyTorch"),
    ],
)
def test_the_card_of_a_waiting_request_names_the_gpus_as_its_badge_leaves_them(words, summary):
    request = SimpleNamespace(gpu="a100", words=words, template_title="PyTorch", team_title="")
    assert summary_of(SimpleNamespace(request=request, gpus=[])) == summary
