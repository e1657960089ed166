"""Tests on a GPU: a real one where this machine has it, else a simulated one, which they say.

They share the machine of real processes and probes with the bad days of ``tests/service``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "service")]

from gpu_machine import GpuMachine, real_gpus  # noqa: E402 - found only through the path above

from gpuspawner.backends.local import nvidia  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        metavar="FOLDER",
        help="write what this machine's nvidia-smi prints, identifiers replaced, as candidates for golden files",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"tests/gpu ran on {_gpus()}")


def _gpus() -> str:
    names = [row.name for row in real_gpus()]
    return ", ".join(names) if names else "simulated GPUs: this machine has no real one at hand"


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where golden candidates go."""
    chosen = request.config.getoption("--golden", default=None)
    folder = Path(chosen).resolve() if chosen else tmp_path / "golden"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
async def machine(tmp_path, monkeypatch):
    """This machine's GPUs, real ones where it has them, under a service of its own."""
    if not real_gpus():
        monkeypatch.setattr(nvidia, "find", lambda: None)
        monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    made = GpuMachine(tmp_path, simulated=not real_gpus())
    await made.round()
    yield made
    await asyncio.to_thread(made.close)
