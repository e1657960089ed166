"""Simulated GPUs: one file for each in one folder, and ``busy``, which uses them.

A process holds a simulated GPU while it has the GPU's file open. It describes its use in a record in ``holders/``,
which it keeps locked. A record without a lock belongs to a dead process (``records``). Workspaces import this module,
so it uses only the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # the holder, which runs without site packages
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from gpuspawner.backends.local.records import ENDED, FOLDER, GPUS, HOLDERS, SimulatedGpu, own_gpus, to_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENDED_SECONDS = 60.0
"""How long the record of an ended holder is kept."""


def create(folder: Path, gpus: Iterable[SimulatedGpu]) -> None:
    """Write the GPUs' files. Correct files stay unchanged, because holders have them open.

    All users may write to the folder, like /tmp, because workspaces of other users hold GPUs too.
    """
    for path in (folder, folder / HOLDERS, folder / ENDED):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o1777)
    for gpu in gpus:
        text = to_lines(gpu._asdict())
        # In place, never by renaming: an open file must remain the GPU's file.
        with (folder / gpu.uuid).open("a+", encoding="utf-8") as file:
            file.seek(0)
            if file.read() != text:
                file.truncate(0)
                file.write(text)
                os.fchmod(file.fileno(), 0o644)


def busy(seconds: float, percent: int = 80, gpus: Iterable[int] | None = None, memory_percent: int = 40) -> None:
    """Use this workspace's simulated GPUs and print the progress.

    Args:
        seconds: duration. An interrupt (the notebook's stop button) ends it earlier.
        percent: utilization, 0 to 100, and the same share of one processor core. 0 holds the GPU without using it.
        gpus: indexes as in ``nvidia-smi``, None for all GPUs.
        memory_percent: share of each GPU's memory, 0 to 100.

    Raises:
        RuntimeError: The workspace has no simulated GPU.
        ValueError: A number is out of range.
    """
    own = own_gpus(os.environ)
    if not own:
        raise RuntimeError(_why_none(os.environ))
    for name, value, highest in (
        ("seconds", seconds, 10**7),
        ("percent", percent, 100),
        ("memory_percent", memory_percent, 100),
    ):
        if not 0 <= value <= highest:
            raise ValueError(f"{name} is {value}; it may be 0 to {highest}")
    chosen = range(len(own)) if gpus is None else sorted(set(gpus))
    if not chosen or any(index not in range(len(own)) for index in chosen):
        raise ValueError(f"gpus is {list(chosen)}; this workspace has GPU 0 to {len(own) - 1}")
    title = "GPU " + ", ".join(f"{index} ({own[index].name})" for index in chosen)
    uuids = ",".join(own[index].uuid for index in chosen)
    _watch(title, seconds, percent, [os.environ[FOLDER], uuids, str(percent), str(memory_percent)])


def _watch(title: str, seconds: float, percent: int, arguments: list[str]) -> None:
    """Run the holder and print the progress each second until the time is over."""
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:  # noqa: S603 - our own file
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != b"holding\n":
                raise RuntimeError(f"{title} could not be held: its file in {arguments[0]} cannot be opened")
            began = time.monotonic()
            while (past := time.monotonic() - began) < seconds and holder.poll() is None:
                _show(f"\r{title}: {percent} % busy, {past:.0f} of {seconds:.0f} s ")
                time.sleep(min(1.0, seconds - past))
            if holder.poll() is not None:
                raise RuntimeError(f"{title}: another process ended the holder after {past:.0f} s")
            _show(f"\r{title}: was {percent} % busy for {seconds:.0f} s and is free again.\n")
        except KeyboardInterrupt:
            _show(f"\n{title}: interrupted, free again.\n")
            raise
        finally:
            assert holder.stdin is not None
            holder.stdin.close()  # which ends the holder


def hold(folder: str, uuids: str, percent: str, memory_percent: str) -> None:
    """Hold GPUs and use processor time until standard input ends. ``busy`` runs this in a separate process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the records below are removed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt goes to the whole group; ``busy`` answers it
    duty = int(percent) / 100
    period_seconds = 0.1
    with contextlib.ExitStack() as held:
        for uuid in uuids.split(","):
            (gpu,) = own_gpus({FOLDER: folder, GPUS: uuid})
            held.enter_context((Path(folder) / uuid).open(encoding="utf-8"))
            path = Path(folder) / HOLDERS / f"{os.getpid()}.{uuid}"
            record = held.enter_context(path.open("w", encoding="utf-8"))
            fcntl.flock(record, fcntl.LOCK_EX)
            memory_bytes = gpu.memory_bytes * int(memory_percent) // 100
            values = {"percent": int(percent), "memory_bytes": memory_bytes, "since": time.monotonic()}
            held.callback(_end, path, values)
            record.write(to_lines(values))
            record.flush()
        _show("holding\n")
        while not select.select([sys.stdin], [], [], period_seconds * (1 - duty))[0]:
            until = time.perf_counter() + period_seconds * duty
            while time.perf_counter() < until:
                pass


def _end(path: Path, values: dict[str, float]) -> None:
    """Move a record to the ended ones, for the sample buffer, and remove old ones."""
    folder = path.parent.parent / ENDED
    now = time.monotonic()
    with contextlib.suppress(OSError):  # a folder of an older version has no such folder
        (folder / path.name).write_text(to_lines({**values, "until": now}), encoding="utf-8")
        for old in folder.glob(f"*{path.suffix}"):
            if time.time() - old.stat().st_mtime > ENDED_SECONDS:
                old.unlink()
    path.unlink()


def _why_none(environ: Mapping[str, str]) -> str:
    if environ.get(FOLDER):
        return "This workspace was started without a GPU. Start one with a GPU on the hub's page, then call busy again."
    if environ.get(GPUS):
        return "This workspace has a real GPU, and busy() is for simulated ones. Any CUDA program makes it work."
    return "There is no simulated GPU here: busy() works in a workspace that gpuspawner started with one."


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    hold(*sys.argv[1:])
