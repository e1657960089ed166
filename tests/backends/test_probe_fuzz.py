"""The parser with arbitrary text: it never raises, and invalid text never becomes a number."""

from __future__ import annotations

import re

import pytest
from harness.verdicts import judge_sample
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.processes import ProcessTable, ProcessTime
from gpuspawner.backends.probes.script import MOST_LINES, parse_probe
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.idle.readings import Sample
from gpuspawner.core.idle.verdicts import SampleKind

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
PIECES = (
    "gpuspawner-probe 1 begin\n",
    "gpuspawner-probe 1 end\n",
    "clock 1000.00 100\n",
    "clock -1 0\n",
    "process 10 1 500 1200 300\n",
    "process 10 1 500 1 1\n",
    "process 9999999999999999999 1 1 1 1\n",
    "open 10 /dev/nvidia0\n",
    f"driver GPU UUID: {A}\n",
    "driver Device Minor: 0\n",
    "device /dev/nvidia0\n",
    "unreadable 10\n",
    "reading 0\n",
    "reading 9\n",
    "buffer GPU 00000000:83:00.0\n",
    "buffer     GPU Utilization Samples\n",
    "buffer         Duration                          : 16.59 sec\n",
    "buffer         Number of Samples                 : 99\n",
    "buffer         Max                               : 97 %\n",
    "buffer         Min                               : 0 %\n",
    "buffer         Avg                               : 31 %\n",
    f"smi 0, {A}, H200, Disabled, 97, 2048, 143771, 6.0\n",
    f"smi 0, {A}, H200, Disabled, [N/A], , 143771, 6.0\n",
    f"smi 0, {A}",
    "\n",
    "\0",
)
PREVIOUS = ProcessTable(900.0, 100, {(10, 500): ProcessTime(1, 5000, 0), (11, 9): ProcessTime(10, 70, 0)})


def parse(text: str) -> Sample:
    return parse_probe(ProbeResult(text), (A,), PREVIOUS, interval_seconds=60.0, age_seconds=600.0)[0]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=30)), max_size=40).map("".join))
def test_any_text_gives_a_sample_within_its_bounds(text: str) -> None:
    sample = parse(text)
    assert sample.cpu_cores is None or sample.cpu_cores >= 0
    for gpu in sample.gpus:
        assert gpu.utilization_percent is None or 0 <= gpu.utilization_percent <= 100
        assert gpu.utilization_percent is not None or gpu.problem
        assert gpu.memory_used_bytes is None or gpu.memory_used_bytes >= 0
        assert gpu.holders_cpu_cores is None or gpu.holders_cpu_cores >= 0


def test_too_many_lines_are_not_read() -> None:
    begin, end = PIECES[:2]
    assert not parse(begin + "\n" * (MOST_LINES - 2) + end).problem
    assert parse(begin + "\n" * MOST_LINES + end).problem == f"the probe printed more than {MOST_LINES} lines"


@given(st.text(max_size=20).filter(lambda text: not re.fullmatch(r"\s*[0-9]{1,3}\s*", text)))
def test_no_utilization_from_garbage(garbage: str) -> None:
    row = f"smi 0, {A}, H200, Disabled, {garbage}, 2048, 143771, 6.0"
    text = f"gpuspawner-probe 1 begin\nclock 1000.00 100\nreading 0\n{row}\ngpuspawner-probe 1 end\n"
    sample = parse(text)
    assert all(gpu.utilization_percent is None for gpu in sample.gpus)


@given(st.integers(0, 400), st.characters(codec="utf-8"))
def test_one_character_changed_never_raises(position: int, character: str) -> None:
    text = "".join(PIECES[index] for index in (0, 2, 4, 7, 8, 9, 10, 12, 14, 1))
    parse(text[:position] + character + text[position + 1 :])


B = "GPU-bbbbbbbb-0000-0000-0000-000000000001"
BUSY = f"""\
gpuspawner-probe 1 begin
clock 1000.00 100
process 10 1 500 1200 300
device /dev/nvidia0
driver GPU UUID: {A}
driver Device Minor: 0
open 10 /dev/nvidia0
reading 0
smi 0, {A}, NVIDIA H200, Disabled, 97, 2048, 143771, 627.40
gpuspawner-probe 1 end
"""
EDGES = st.integers(0, len(BUSY))


def judged(text: str) -> SampleKind:
    sample, _ = parse_probe(ProbeResult(text), (A,), PREVIOUS, interval_seconds=60.0, age_seconds=600.0)
    return judge_sample(sample, IdlePolicy(soft_names=()), 60.0).kind


@settings(max_examples=500)
@given(EDGES, EDGES)
def test_promise_4_a_busy_probe_with_a_missing_piece_is_never_idle(one: int, other: int) -> None:
    begin, end = sorted((one, other))
    assert judged(BUSY[:begin] + BUSY[end:]) is not SampleKind.IDLE


@settings(max_examples=500)
@given(EDGES, EDGES, EDGES)
def test_promise_4_a_busy_probe_with_a_moved_piece_is_never_idle(one: int, other: int, at: int) -> None:
    begin, end = sorted((one, other))
    assert judged(BUSY[:at] + BUSY[begin:end] + BUSY[at:]) is not SampleKind.IDLE


@given(st.permutations(BUSY.splitlines(keepends=True)[1:-1]))
def test_promise_4_a_busy_probe_is_never_idle_in_any_order_of_its_lines(lines: list[str]) -> None:
    text = "".join([BUSY.splitlines(keepends=True)[0], *lines, BUSY.splitlines(keepends=True)[-1]])
    assert judged(text) is not SampleKind.IDLE


CELL = st.one_of(
    st.integers(0, 100).map(str),
    st.sampled_from(["[N/A]", "", "ERR!", "101", "-1", "5 %", "[Unknown Error]", "nan", "1e1", "9.5", "\uff15"]),
)


@given(st.lists(st.lists(CELL, min_size=2, max_size=2), min_size=1, max_size=4), st.sampled_from([0, 1, 9, 255]))
def test_a_number_is_known_exactly_if_each_run_printed_it(runs: list[list[str]], code: int) -> None:
    """The highest of a GPU's readings where all of them are whole percentages and no run failed, else unknown."""
    text = "gpuspawner-probe 1 begin\nclock 1000.00 100\n"
    for number, cells in enumerate(runs):
        text += f"reading {code if number == 0 else 0}\n"
        for gpu, cell in zip((A, B), cells, strict=True):
            text += f"smi 0, {gpu}, H200, Disabled, {cell}, 1, 2, 6.0\n"
    text += "gpuspawner-probe 1 end\n"
    sample, _ = parse_probe(ProbeResult(text), (A, B), PREVIOUS, interval_seconds=60.0, age_seconds=600.0)
    for index, gpu in enumerate(sample.gpus):
        cells = [cells[index] for cells in runs]
        whole = all(re.fullmatch("[0-9]+", cell) and int(cell) <= 100 for cell in cells)
        assert gpu.utilization_percent == (max(map(float, cells)) if whole and code == 0 else None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("driver GPU UUID:{}x y", id="a GPU's name"),
        pytest.param("driver Device Minor:{}x y", id="a device"),
        pytest.param("buffer         x{}y", id="a buffer's value"),
        pytest.param("clock {}", id="a clock"),
        pytest.param("kernels 1 {}x", id="kernels"),
        pytest.param("{}", id="nothing"),
    ],
)
def test_a_forged_line_as_long_as_may_be_is_read_at_once(line: str) -> None:
    """A pattern that tries each of 1,000,000 spaces from each of them would take days and block all other work."""
    end = "gpuspawner-probe 1 end\n"
    buffer = "buffer GPU 00000000:01:00.0\nbuffer     GPU Utilization Samples\n"
    text = BUSY.replace(end, f"{buffer}{line.format(1_000_000 * ' ')}\n{end}")
    assert judged(text) in {SampleKind.BUSY, SampleKind.UNKNOWN}
