"""CPU seconds by test and by kind of process, as the kernel counts them for a control group.

Load it as a plugin: ``PYTHONPATH=tests/harness pytest -p accounting ...``. It puts pytest and all its children into a
group of their own. The pods of a test cluster are in the cluster's group, which is found by the pods' parents. A test's
figure includes its fixtures and all processes of that time. The kinds are sampled, so short processes are one line.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

CPUACCT = Path("/sys/fs/cgroup/cpuacct")
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 1.0
CLUSTERS = "gpus-*"
"""The groups that `tools.cluster` makes."""
SHOWN = 40


class Accounting:
    """CPU usage of one run of pytest and its clusters."""

    def __init__(self) -> None:
        self.before = time.process_time()
        """CPU seconds that pytest used for its start."""
        self.group = CPUACCT / f"pytest-{os.getpid()}"
        self.group.mkdir()
        (self.group / "cgroup.procs").write_text(str(os.getpid()))
        self.clusters: dict[Path, float] = {}
        self.foreign = set(CPUACCT.glob(CLUSTERS))
        self.processes: dict[tuple[int, str], tuple[str, float]] = {}
        self.tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.started = time.monotonic()
        self._ended = threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)
        self._sampling.start()

    def total_seconds(self) -> float:
        """Return the CPU seconds of all processes so far, those that have ended included."""
        for group in set(CPUACCT.glob(CLUSTERS)) - self.foreign:
            if group in self.clusters or self._is_ours(group):
                with suppress(OSError):
                    self.clusters[group] = int((group / "cpuacct.usage").read_text()) / 1e9
        own = int((self.group / "cpuacct.usage").read_text()) / 1e9
        return self.before + own + sum(self.clusters.values())

    def by_kind(self) -> list[tuple[float, str]]:
        """Return the seconds of each kind of process that was sampled, and of all others."""
        kinds: dict[str, float] = defaultdict(float)
        for kind, seconds in list(self.processes.values()):
            kinds[kind] += seconds
        kinds["(not sampled)"] = self.total_seconds() - sum(kinds.values())
        return sorted(((seconds, kind) for kind, seconds in kinds.items()), reverse=True)

    def close(self) -> None:
        """Stop sampling, and leave the group, which has others in it as long as a child lives."""
        self._ended.set()
        self._sampling.join()
        (CPUACCT / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):
            self.group.rmdir()

    def _is_ours(self, group: Path) -> bool:
        """Return whether a pod of the group was started by a process of ours."""
        own = f"/{self.group.name}\n"
        for pid in _members(group):
            with suppress(OSError, IndexError):
                parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
                if own in Path(f"/proc/{parent}/cgroup").read_text():
                    return True
        return False

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.total_seconds()
            for group in (self.group, *self.clusters):
                for pid in _members(group):
                    with suppress(OSError, IndexError):
                        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                        seconds = (int(fields[11]) + int(fields[12])) * TICK_SECONDS
                        known = self.processes.get((pid, fields[19]))
                        kind = _kind(pid) or (known[0] if known else "?")  # a process that has ended has no name
                        self.processes[pid, fields[19]] = (kind, seconds)


def _members(group: Path) -> Iterator[int]:
    for file in group.rglob("cgroup.procs"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def _kind(pid: int) -> str:
    """Return the name of a process's program; of Python and of a shell also what it runs."""
    words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    name = Path(words[0].partition(" ")[0]).name
    if name.startswith(("python", "node", "sh")):
        told = [Path(word).name for word in words[1:] if word and not word.startswith("-")]
        name += f" {' '.join(told[:2])[:40].partition(chr(10))[0]}"
    return name


def pytest_configure(config: pytest.Config) -> None:
    """Begin, but in a worker of xdist: its controller has begun."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Plugin(Accounting()), "cpu accounting")


class Plugin:
    """Counts each test, and reports at the end."""

    def __init__(self, accounting: Accounting) -> None:
        self.accounting = accounting

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Count the test with its fixtures."""
        before, begun = self.accounting.total_seconds(), time.monotonic()
        try:
            return (yield)
        finally:
            used = self.accounting.tests[item.nodeid]
            used[0] += self.accounting.total_seconds() - before
            used[1] += time.monotonic() - begun

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print both tables."""
        found, write = self.accounting, terminalreporter.write_line
        wall = time.monotonic() - found.started
        terminalreporter.section(f"{found.total_seconds():.0f} CPU seconds in {wall:.0f} s")
        for test, (seconds, its_wall) in sorted(found.tests.items(), key=lambda one: -one[1][0])[:SHOWN]:
            write(f"{seconds:7.1f} CPU s {its_wall:6.0f} s  {test}")
        write("")
        for seconds, kind in found.by_kind()[:SHOWN]:
            write(f"{seconds:7.1f} CPU s  {kind}")

    def pytest_unconfigure(self) -> None:
        """End."""
        self.accounting.close()
