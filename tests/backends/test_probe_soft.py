"""The reading of the probe's lines with softer evidence, and of forged lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.backends.probes.activity import MOST_NAMES, is_soft, kernel_names, soft_readings
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.readings import PROBED, SoftReading

CLOCK = 1000.0
NO_SERVER = "no Jupyter server with gpuspawner's extension was found"


def read(*lines: str, interval_seconds: float = 60.0) -> dict[str, SoftReading]:
    return {one.name: one for one in soft_readings(lines, CLOCK, interval_seconds)}


def kernels(*told: tuple[str, bool | None, float], pid: int = 7, holder: int = 7, **more: Any) -> str:
    listed = [{"name": name, "busy": busy, "idle_seconds": idle} for name, busy, idle in told]
    document = {"begin": 3, "pid": pid, "uptime": CLOCK - 4, "kernels": listed, "end": 3, **more}
    return f"kernels {holder} {json.dumps(document)}"


def test_no_lines_are_no_activity() -> None:
    seen = read()
    assert [(one.active, one.words) for one in seen.values()] == [
        (None, NO_SERVER),
        (False, "no terminal open"),
        (False, "no SSH session"),
        (False, "no VS Code window"),
    ]
    assert tuple(seen) == PROBED


@pytest.mark.parametrize(
    ("lines", "active", "words"),
    [
        pytest.param([kernels()], False, "no kernel", id="none"),
        pytest.param([kernels(("a.ipynb", False, 65.0))], False, "kernels quiet", id="quiet, its age counted"),
        pytest.param([kernels(("a.ipynb", False, 56.0))], True, "kernel a.ipynb in use", id="used since the last look"),
        pytest.param([kernels(("a.ipynb", True, 9.0))], True, "kernel a.ipynb busy", id="busy"),
        pytest.param(
            [kernels(("a.ipynb", True, 0.0), ("b.ipynb", False, 0.0), ("c.ipynb", True, 0.0))],
            True,
            "kernels a.ipynb, c.ipynb busy",
            id="two busy",
        ),
        pytest.param(
            [kernels(*((f"{n}.ipynb", True, 0.0) for n in range(5)))],
            True,
            "kernels 0.ipynb, 1.ipynb and 3 more busy",
            id="five busy",
        ),
        pytest.param([kernels(("a\n\x1b.ipynb", True, 0.0))], True, "kernel a.ipynb busy", id="unprintable"),
        pytest.param([kernels(("", True, 0.0))], True, "kernel without a name busy", id="no name"),
        pytest.param([kernels(("a", None, 0.0))], None, "kernel a does not report its state", id="unknown state"),
        pytest.param([kernels(("a", None, 0.0), ("b", True, 0.0))], True, "kernel b busy", id="one busy, one unknown"),
        pytest.param([kernels(pid=8)], None, NO_SERVER, id="a child that kept its parent's file"),
        pytest.param([kernels(), kernels(("a", True, 0), pid=9, holder=9)], True, "kernel a busy", id="two servers"),
        pytest.param(
            [kernels(uptime=900.0)], None, "its Jupyter server has reported nothing for 100 s", id="a server that hangs"
        ),
        pytest.param(
            [kernels(uptime=1500.0)], None, "its Jupyter server has reported nothing for -500 s", id="another clock"
        ),
        pytest.param(
            [kernels(("a", True, 0.0), uptime=900.0)],
            None,
            "its Jupyter server has reported nothing for 100 s",
            id="stale: what was busy then may not be now",
        ),
        *(
            pytest.param([line], None, "the report of its Jupyter server is not understood", id=name)
            for name, line in {
                "cut off": kernels()[:-5],
                "empty": "kernels 7 ",
                "no pid": "kernels x {}",
                "bare": "kernels",
                "torn: read while it was written": kernels(end=4),
                "a list": "kernels 7 []",
                "a key too many": kernels(more=1),
                "busy as text": kernels(kernels=[{"name": "a", "busy": "no", "idle_seconds": 1}]),
                "idle below 0": kernels(("a", False, -1.0)),
                "idle as text": kernels(kernels=[{"name": "a", "busy": False, "idle_seconds": "1"}]),
                "yes for a number": kernels(pid=True),
                "deep": "kernels 7 " + "[" * 100_000,
            }.items()
        ),
    ],
)
def test_kernels(lines: list[str], active: bool | None, words: str) -> None:
    assert read(*lines)["kernel"] == SoftReading("kernel", active, words)


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        pytest.param([], None, id="no server"),
        pytest.param([kernels()], (), id="none"),
        pytest.param([kernels(("a.ipynb", False, 900.0), ("b.ipynb", True, 0.0))], ("a.ipynb", "b.ipynb"), id="two"),
        pytest.param(
            [kernels(("a", True, 0.0)), kernels(("b", None, 0.0), pid=9, holder=9)], ("a", "b"), id="two servers"
        ),
        pytest.param([kernels(("a", True, 0.0), pid=8)], None, id="a child that kept its parent's file"),
        pytest.param([kernels(("a", True, 0.0), uptime=900.0)], None, id="a server that hangs"),
        pytest.param([kernels(("a", True, 0.0)), "kernels x {}"], None, id="one report that is not understood"),
        pytest.param(
            [kernels(*((str(n), True, 0.0) for n in range(40)))], tuple(map(str, range(MOST_NAMES))), id="many"
        ),
    ],
)
def test_names_of_kernels(lines: list[str], names: tuple[str, ...] | None) -> None:
    assert kernel_names(lines, CLOCK) == names


@pytest.mark.parametrize(
    ("lines", "active", "words"),
    [
        pytest.param(["terminal /dev/pts/1 7 9"], True, "a terminal runs a program", id="a program in front"),
        pytest.param(
            ["terminal /dev/pts/1 7 7", "now 900", "used /dev/pts/1 100 832"], True, "a terminal is in use", id="typed"
        ),
        pytest.param(
            ["terminal /dev/pts/1 7 7", "now 900", "used /dev/pts/1 832 100"], True, "a terminal is in use", id="read"
        ),
        pytest.param(
            ["terminal /dev/pts/1 7 7", "now 900", "used /dev/pts/1 100 831"], False, "terminals quiet", id="at rest"
        ),
        pytest.param(
            ["terminal /dev/pts/1 7 7", "now 900", "used /dev/pts/1 100 9999"],
            True,
            "a terminal is in use",
            id="the clock went back",
        ),
        pytest.param(
            ["terminal /dev/pts/1 7 -1", "now 900", "used /dev/pts/1 1 1"], False, "terminals quiet", id="none"
        ),
        pytest.param(
            ["terminal /dev/pts/1 7 7", "terminal /dev/pts/2 8 8", "now 900", "used /dev/pts/1 1 1"],
            None,
            "the image has no tool that reports a terminal's last use",
            id="one of two not known",
        ),
        pytest.param(
            ["terminal /dev/pts/1 7 7", "terminal /dev/pts/2 8 8", "now 900", "used /dev/pts/1 1 899"],
            True,
            "a terminal is in use",
            id="the other one in use",
        ),
        pytest.param(
            ["terminal /dev/pts/1 7 7", "now "],
            None,
            "a line of the probe is not understood: 'now '",
            id="an image without date",
        ),
        pytest.param(["terminal /dev/tty1 7 7"], None, "a line of the probe is not understood", id="no pty"),
    ],
)
def test_terminals(lines: list[str], active: bool | None, words: str) -> None:
    seen = read(*lines)["terminal"]
    assert seen.active is active
    assert seen.words.startswith(words)


@pytest.mark.parametrize(
    ("line", "name", "active", "words"),
    [
        ("ssh 7", "ssh", True, "an SSH session is open"),
        ("editor 7", "editor", True, "a VS Code window is open"),
        ("ssh x", "ssh", None, "a line of the probe is not understood: 'ssh x'"),
        ("editor", "editor", None, "a line of the probe is not understood: 'editor'"),
    ],
)
def test_sessions(line: str, name: str, active: bool | None, words: str) -> None:
    assert read(line)[name] == SoftReading(name, active, words)


def test_an_odd_line_makes_only_its_own_evidence_unknown() -> None:
    uuid = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    text = probe_text({uuid: 3}, soft=["terminal ?", "ssh 100"])
    sample, table = parse_probe(ProbeResult(text), (uuid,), None, interval_seconds=60.0, age_seconds=600.0)
    assert (sample.gpus[0].utilization_percent, sample.gpus[0].problem, table is None) == (3.0, "", False)
    assert {one.name: one.active for one in sample.soft} == {
        "kernel": None,
        "terminal": None,
        "ssh": True,
        "editor": False,
    }


def test_without_processes_soft_evidence_is_unknown() -> None:
    text = probe_text({}, soft=["ssh 100"]).replace("clock", "clack")
    sample, _ = parse_probe(ProbeResult(text), (), None, interval_seconds=60.0, age_seconds=600.0)
    assert sample.soft == ()


WORDS = st.sampled_from(["kernels", "terminal", "now", "used", "ssh", "editor", "process"])
LINES = st.builds(lambda word, rest: f"{word} {rest}", WORDS, st.text(max_size=40)) | st.sampled_from(
    [kernels(("a", True, 1.0)), kernels(), "terminal /dev/pts/1 7 7", "now 900", "used /dev/pts/1 1 1", "ssh 9"]
)


@given(st.lists(LINES, max_size=8))
def test_any_lines_give_each_evidence_once_and_never_raise(lines: list[str]) -> None:
    assert tuple(read(*lines)) == PROBED


@given(st.lists(LINES.filter(is_soft), min_size=1, max_size=5), st.data())
def test_a_truncated_line_of_a_busy_kernel_never_makes_it_quiet(lines: list[str], data: st.DataObject) -> None:
    line = kernels(("train.ipynb", True, 0.0))
    begin = data.draw(st.integers(8, len(line)))
    end = data.draw(st.integers(begin, len(line)))
    cut = line[:begin] + line[end:]
    others = [other for other in lines if not other.startswith("kernels")]
    seen = read(*others, cut)["kernel"]
    assert seen.active is not False or cut == line


@pytest.mark.parametrize("seconds", [10**400, float("inf"), float("nan"), -1, True])
def test_an_impossible_time_is_unknown_and_causes_no_error(seconds):
    (found,) = [
        one for one in soft_readings([kernels(("a.ipynb", False, seconds))], CLOCK, 60.0) if one.name == "kernel"
    ]
    assert found.active is None
