"""The lines of ``probe.sh`` about soft evidence: kernels, terminals, SSH sessions and editors.

Pure, and never raises. A line that is not understood makes its own evidence unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpuspawner.core.errors import quoted
from gpuspawner.core.idle.readings import SoftReading

STALE_SECONDS = 60.0
"""A Jupyter server's report older than this is ignored. Reports are written every 5 s."""
TTY_SECONDS = 8.0
"""The kernel records the use of a terminal this coarsely, to protect typing patterns."""
KERNEL_SECONDS = 8.0
"""A Jupyter server's report is up to 5 s old and a probe takes some time, so a cell between two looks is still seen."""
OPENED = "opened"
"""The field for whether a page was loaded. Older extensions do not write it."""
NAMES_SHOWN = 2
"""Names of kernels in a sentence."""
MOST_NAMES = 20
"""The most kernels whose names are kept. A Jupyter server reports as many."""

_LINE = re.compile(r"(kernels|terminal|now|used|ssh|editor)( .*)?")
_KERNELS = re.compile(r"kernels ([0-9]{1,9}) (.*)")
_TERMINAL = re.compile(r"terminal (/dev/pts/[0-9]{1,7}) ([0-9]{1,9}) (-?[0-9]{1,9})")
_NOW = re.compile(r"now ([0-9]{1,15})")
_USED = re.compile(r"used (/dev/pts/[0-9]{1,7}) (-?[0-9]{1,15}) (-?[0-9]{1,15})")
_SESSION = re.compile(r"(ssh|editor) ([0-9]{1,9})")


def is_soft(line: str) -> bool:
    """Return whether this module reads a line of the probe as soft evidence."""
    return _LINE.fullmatch(line) is not None


def soft_readings(lines: Iterable[str], clock_seconds: float, interval_seconds: float) -> tuple[SoftReading, ...]:
    """Return the reading of each kind of soft evidence.

    Args:
        lines: lines of the probe. Other lines are skipped.
        clock_seconds: the script's clock, which the Jupyter server also reads.
        interval_seconds: time since the last sample. Use within it counts as active.
    """
    own = [line for line in lines if is_soft(line)]
    return (
        _kernels([line for line in own if line.startswith("kernels")], clock_seconds, interval_seconds),
        _terminals([line for line in own if line.startswith(("terminal", "now", "used"))], interval_seconds),
        _sessions([line for line in own if line.startswith("ssh")], "ssh", "SSH session"),
        _sessions([line for line in own if line.startswith("editor")], "editor", "VS Code window"),
    )


def opened_reading(lines: Iterable[str], clock_seconds: float) -> bool | None:
    """Return whether a page was loaded since the workspace's Jupyter server started, None if unknown."""
    reports = [_read_report(line) for line in lines if line.startswith("kernels")]
    own = [one for one in reports if one is not None and one.is_own]
    if any(one.opened for one in own):
        return True
    known = [one.opened is False and -1.0 <= clock_seconds - one.uptime <= STALE_SECONDS for one in own]
    return False if known and all(known) and None not in reports else None


def kernel_names(lines: Iterable[str], clock_seconds: float) -> tuple[str, ...] | None:
    """Return the names of the running kernels, None if a Jupyter server does not report them now."""
    reports = [_read_report(line) for line in lines if line.startswith("kernels")]
    own = [one for one in reports if one is not None and one.is_own]
    if None in reports or not own or not all(-1.0 <= clock_seconds - one.uptime <= STALE_SECONDS for one in own):
        return None
    return tuple(kernel.name for report in own for kernel in report.kernels)[:MOST_NAMES]


def _sessions(lines: list[str], name: str, title: str) -> SoftReading:
    if odd := [line for line in lines if not _SESSION.fullmatch(line)]:
        return SoftReading(name, None, f"a line of the probe is not understood: {quoted(odd[0])}")
    if not lines:
        return SoftReading(name, active=False, words=f"no {title}")
    return SoftReading(name, active=True, words=f"an {title} is open" if name == "ssh" else f"a {title} is open")


def _terminals(lines: list[str], interval_seconds: float) -> SoftReading:
    def unknown(why: str) -> SoftReading:
        return SoftReading("terminal", None, why)

    leaders: dict[str, bool] = {}
    used: dict[str, int] = {}
    now: int | None = None
    for line in lines:
        if match := _TERMINAL.fullmatch(line):
            leader, front = int(match[2]), int(match[3])
            leaders[match[1]] = leaders.get(match[1], False) or (front > 0 and front != leader)
        elif match := _USED.fullmatch(line):
            used[match[1]] = max(int(match[2]), int(match[3]))
        elif match := _NOW.fullmatch(line):
            now = int(match[1])
        else:
            return unknown(f"a line of the probe is not understood: {quoted(line)}")
    if any(leaders.values()):
        return SoftReading("terminal", active=True, words="a terminal runs a program")
    if now is not None and any(now - used[tty] <= interval_seconds + TTY_SECONDS for tty in leaders if tty in used):
        return SoftReading("terminal", active=True, words="a terminal is in use")
    if leaders and (now is None or set(leaders) - set(used)):
        return unknown("the image has no tool that reports a terminal's last use")
    return SoftReading("terminal", active=False, words="terminals quiet" if leaders else "no terminal open")


@dataclass(frozen=True)
class _Kernel:
    name: str
    busy: bool | None
    idle_seconds: float


@dataclass(frozen=True)
class _ServerReport:
    """The report of a Jupyter server. ``opened`` is None if an older extension does not write it.

    ``is_own`` is False for a child process that inherited its parent's file. The script lists each file by pid.
    """

    is_own: bool
    uptime: float
    kernels: list[_Kernel]
    opened: bool | None


def _kernels(lines: list[str], clock_seconds: float, interval_seconds: float) -> SoftReading:
    """Combine the reports of the workspace's Jupyter servers.

    One busy kernel is enough, and one unknown makes all so.
    """
    kernels: list[_Kernel] = []
    problems: list[str] = []
    servers = 0
    for line in lines:
        report = _read_report(line)
        if report is None:
            problems.append("the report of its Jupyter server is not understood")
            continue
        if not report.is_own:
            continue
        servers += 1
        age_seconds = clock_seconds - report.uptime
        if not -1.0 <= age_seconds <= STALE_SECONDS:
            problems.append(f"its Jupyter server has reported nothing for {age_seconds:.0f} s")
            continue
        kernels += [_Kernel(one.name, one.busy, one.idle_seconds + max(0.0, age_seconds)) for one in report.kernels]
    if busy := [one.name for one in kernels if one.busy]:
        return SoftReading("kernel", active=True, words=f"{_named(busy)} busy")
    if recent := [
        one.name for one in kernels if one.busy is False and one.idle_seconds <= interval_seconds + KERNEL_SECONDS
    ]:
        return SoftReading("kernel", active=True, words=f"{_named(recent)} in use")
    if strange := [one.name for one in kernels if one.busy is None]:
        problems.append(f"{_named(strange)} does not report its state")
    if problems:
        return SoftReading("kernel", None, problems[0])
    if not servers:
        return SoftReading("kernel", None, "no Jupyter server with gpuspawner's extension was found")
    return SoftReading("kernel", active=False, words="kernels quiet" if kernels else "no kernel")


def _named(names: list[str]) -> str:
    """Return ``kernel train.ipynb``, or ``kernels a.ipynb, b.ipynb and 3 more``."""
    if len(names) == 1:
        return f"kernel {names[0]}"
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"kernels {', '.join(names[:NAMES_SHOWN])}{more}"


MAX_SECONDS = 1e12
"""Longer than the uptime of any machine. Larger values are not times."""


def _is_seconds(value: Any) -> bool:
    return type(value) in {int, float} and 0 <= value <= MAX_SECONDS


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "begin": lambda value: type(value) is int,
    "pid": lambda value: type(value) is int,
    "uptime": _is_seconds,
    "kernels": lambda value: isinstance(value, list),
    "end": lambda value: type(value) is int,
}


def _read_report(line: str) -> _ServerReport | None:
    """Return the report that a Jupyter server keeps (gpuspawner.workspace.kernels), None for any other line."""
    match = _KERNELS.fullmatch(line)
    try:
        found = json.loads(match[2]) if match else None
    except (ValueError, RecursionError):
        return None
    if match is None or not isinstance(found, dict) or set(found) - {OPENED} != set(_CHECKS):
        return None
    opened = found.get(OPENED)
    if not (opened is None or isinstance(opened, bool)):
        return None
    if not all(check(found[key]) for key, check in _CHECKS.items()) or found["begin"] != found["end"]:
        return None
    kernels = [_kernel(one) for one in found["kernels"]]
    known = [one for one in kernels if one is not None]
    if len(known) < len(kernels):
        return None
    return _ServerReport(found["pid"] == int(match[1]), float(found["uptime"]), known, opened)


def _kernel(found: Any) -> _Kernel | None:
    if not isinstance(found, dict) or set(found) != {"name", "busy", "idle_seconds"}:
        return None
    name, busy, idle_seconds = found["name"], found["busy"], found["idle_seconds"]
    if not isinstance(name, str) or not (busy is None or isinstance(busy, bool)):
        return None
    if not _is_seconds(idle_seconds):
        return None
    return _Kernel("".join(c for c in name if c.isprintable())[:100] or "without a name", busy, float(idle_seconds))
