"""The probe in real environments: what it printed there once, and what it prints there now."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.nvidia import require_files
from harness.programs import require
from probe_environments import ENVIRONMENTS, OUTPUTS, Environment, run_probe

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.readings import Sample

UUIDS = ("GPU-12345678-1234-1234-1234-123456780000", "GPU-12345678-1234-1234-1234-123456780001")
HIDDEN = "its processes are unknown: /proc hides those of other users (hidepid)"
FEW_FILES = "a process of the workspace may have 8 files open, too few for the probe"
PLAIN = [(1, 1, 0.0), (0, 0, 0.0)]
"""For each of the two GPUs: its holders, its possible holders, its encoder's utilization. The first process of the PID
namespace is root's, so the workspace's user can't list its open files. No memory of the second GPU is in use."""
EXPECTED = {
    "dash": PLAIN,
    "busybox": PLAIN,
    "bash": PLAIN,
    "soft-limit-of-8-files": PLAIN,
    "no-capabilities": [(1, 2, 0.0), (0, 0, 0.0)],
    "root-start": [(0, 2, 0.0), (0, 0, 0.0)],
    "own-nvidia-smi": [(0, 1, 0.0), (0, 0, 0.0)],
    "driver-470": PLAIN,
    "driver-418": PLAIN,
    "hidepid": [(None, 0, 0.0), (None, 0, 0.0)],
    "hidepid-as-root": [(1, 0, 0.0), (1, 0, 0.0)],
}
FIELDS = {"driver-470": 8, "driver-418": 7}
"""How many fields of a GPU older drivers tell. Others tell 10."""
ALL = pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda one: one.name)


def sample_of(text: str) -> Sample:
    return parse_probe(ProbeResult(text), UUIDS, None, interval_seconds=60.0, age_seconds=600.0)[0]


def assert_expected(environment: Environment, text: str) -> None:
    sample = sample_of(text)
    if environment.name == "hard-limit-of-8-files":
        assert (sample.problem, sample.gpus) == (FEW_FILES, ())
        return
    assert sample.problem == ""
    assert {gpu.problem for gpu in sample.gpus} == {HIDDEN if environment.name == "hidepid" else ""}
    rows = [line for line in text.splitlines() if line.startswith("smi ")]
    assert {row.count(",") + 1 for row in rows} == {FIELDS.get(environment.name, 10)}
    assert [gpu.utilization_percent for gpu in sample.gpus] == [0.0, 0.0]
    assert [gpu.persistence for gpu in sample.gpus] == [True, True]
    told = [(gpu.holders, gpu.possible_holders, gpu.encoder_percent) for gpu in sample.gpus]
    assert told == EXPECTED[environment.name]


@ALL
def test_probe_output_of_that_environment_is_parsed(environment: Environment) -> None:
    assert_expected(environment, (OUTPUTS / f"{environment.name}.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["hidepid", "hidepid-as-root"])
def test_with_hidden_processes_the_cpu_use_of_the_workspace_is_unknown(name: str) -> None:
    text = (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8")
    clock = re.search(r"^clock ([0-9.]+) ", text, re.MULTILINE)
    assert clock is not None
    later = text.replace(f"clock {clock[1]} ", f"clock {float(clock[1]) + 60:.2f} ")
    before = parse_probe(ProbeResult(text), UUIDS, None, interval_seconds=60.0, age_seconds=600.0)[1]
    sample, _ = parse_probe(ProbeResult(later), UUIDS, before, interval_seconds=60.0, age_seconds=660.0)
    expected = (None, None) if name == "hidepid" else (0.0, 0.0)
    assert (sample.cpu_cores, sample.ended_cpu_cores) == expected


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return an empty folder that every user can read, where this machine can make the environments."""
    require_files("trixie")
    require_files("bullseye")
    for program in ("busybox", "setpriv", "prlimit"):
        require(program)
    if os.geteuid() or subprocess.run(["unshare", "--pid", "--mount", "--fork", "true"], check=False).returncode:
        pytest.skip("only root can make these environments, where it may make namespaces")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("environment", [one for one in ENVIRONMENTS if one.suite], ids=lambda one: one.name)
def test_the_probe_prints_the_same_there_today(environment: Environment, folder: Path) -> None:
    assert_expected(environment, run_probe(environment, folder))
