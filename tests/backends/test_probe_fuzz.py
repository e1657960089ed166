"""The parser under arbitrary text: it never raises, and makes no number from what is none."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probe import ProcessTable, ProcessTime, parse_probe
from gpuspawner.core.readings import Sample

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
