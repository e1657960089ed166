"""``busy``: what the demo notebook calls inside a workspace."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.waiting import eventually

from gpuspawner.backends.local import busy, records, simulated

UUIDS = ("GPU-51a00000-0000-0000-0000-000000000000", "GPU-51a00000-0000-0000-0000-000000000001")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    simulated.create(tmp_path, [records.SimulatedGpu(uuid, "T4 (simulated)", 16 * 2**30, "7.5") for uuid in UUIDS])
    monkeypatch.setenv("GPUSPAWNER_SIMULATED_DIR", str(tmp_path))
    monkeypatch.setenv("GPUSPAWNER_GPUS", ",".join(UUIDS))
    return tmp_path


def test_busy_prints_its_progress_and_frees_the_gpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    busy(0.3, percent=10, gpus=[1], memory_percent=50)
    shown = capsys.readouterr().out
    assert "GPU 1 (T4 (simulated)): 10 % busy, 0 of 0 s" in shown
    assert shown.endswith("is free again.\n")
    assert records.holders(folder, UUIDS[1]) == ()
    assert list((folder / "holders").iterdir()) == []


def test_an_interrupt_ends_it_and_frees_the_gpu(folder: Path) -> None:
    code = "from gpuspawner.backends.local import busy; busy(60, percent=30)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        eventually(lambda: len(records.holders(folder, UUIDS[0])) == 1)
        (holder,) = records.holders(folder, UUIDS[0])
        assert (holder.percent, holder.memory_bytes) == (30, 16 * 2**30 * 40 // 100)
        os.killpg(process.pid, signal.SIGINT)  # as a notebook's stop button does
        shown, _ = process.communicate(timeout=60)
    assert "interrupted, free again." in shown
    assert process.returncode == -signal.SIGINT
    eventually(lambda: records.holders(folder, UUIDS[0]) == ())


def test_a_killed_kernel_frees_the_gpu(folder: Path) -> None:
    code = "from gpuspawner.backends.local import busy; busy(60, percent=5)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL) as process:
        eventually(lambda: len(records.holders(folder, UUIDS[1])) == 1)
        process.kill()
    eventually(lambda: records.holders(folder, UUIDS[1]) == ())


def test_an_unlocked_record_is_ignored(folder: Path) -> None:
    record = folder / "holders" / f"123.{UUIDS[0]}"
    record.write_text(records.to_lines({"percent": 99, "memory_bytes": 1}), encoding="utf-8")
    assert records.holders(folder, UUIDS[0]) == ()


def test_the_gpus_files_stay_the_same_files(folder: Path) -> None:
    before = (folder / UUIDS[0]).stat().st_ino
    gpu = records.SimulatedGpu(UUIDS[0], "T4, renamed (simulated)", 8 * 2**30, "")
    simulated.create(folder, [gpu])
    assert (folder / UUIDS[0]).stat().st_ino == before
    assert records.own_gpus({"GPUSPAWNER_SIMULATED_DIR": str(folder), "GPUSPAWNER_GPUS": UUIDS[0]}) == (gpu,)


@pytest.mark.parametrize("name", ["two\nlines", "name=value", "one\rother\u2028third", "half \ud800", ""])
def test_any_name_of_a_gpu_stays_one_line_of_its_file(folder: Path, name: str) -> None:
    simulated.create(folder, [records.SimulatedGpu(UUIDS[0], name, 2**30, "7.5")])
    (gpu,) = records.own_gpus({"GPUSPAWNER_SIMULATED_DIR": str(folder), "GPUSPAWNER_GPUS": UUIDS[0]})
    assert gpu == records.SimulatedGpu(UUIDS[0], " ".join(name.replace("\ud800", "?").splitlines()), 2**30, "7.5")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"percent": 99, "memory_bytes": 1}', "percent=9", "percent=a\nmemory_bytes=1"]
)
def test_a_file_that_is_no_record_is_ignored(folder: Path, text: str) -> None:
    with (folder / "holders" / f"123.{UUIDS[0]}").open("w", encoding="utf-8") as record:
        record.write(text)
        record.flush()
        fcntl.flock(record, fcntl.LOCK_EX)
        assert records.holders(folder, UUIDS[0]) == ()
    (folder / UUIDS[0]).write_text(text, encoding="utf-8")
    assert records.own_gpus({"GPUSPAWNER_SIMULATED_DIR": str(folder), "GPUSPAWNER_GPUS": UUIDS[0]}) == ()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param({}, "There is no simulated GPU here", id="nowhere"),
        pytest.param({"GPUSPAWNER_SIMULATED_DIR": "/tmp"}, "started without a GPU", id="none-leased"),
        pytest.param({"GPUSPAWNER_GPUS": "GPU-1"}, "has a real GPU", id="real"),
    ],
)
def test_busy_is_refused_without_simulated_gpus(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name in ("GPUSPAWNER_SIMULATED_DIR", "GPUSPAWNER_GPUS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=said):
        busy(1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seconds": -1}, "seconds is -1; it may be 0 to"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": 1, "percent": 101}, "percent is 101; it may be 0 to 100"),
        ({"seconds": 1, "memory_percent": 101}, "memory_percent is 101"),
        ({"seconds": 1, "gpus": [2]}, r"gpus is \[2\]; this workspace has GPU 0 to 1"),
        ({"seconds": 1, "gpus": []}, r"gpus is \[\]"),
    ],
    ids=str,
)
def test_it_names_a_bad_number_and_its_bounds(folder: Path, arguments: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        busy(**arguments)  # type: ignore[arg-type]
