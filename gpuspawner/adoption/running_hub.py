"""The hubs that run on this machine, and whether each ends its servers when it stops. No configuration is run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FILE = "jupyterhub_config.py"
SETTING = re.compile(r"^[^#\n]*\bcleanup_servers\b\s*=\s*(True|False)", re.MULTILINE)
CONFIGURED = re.compile(r"^\s*(\w+\.)*configure\(", re.MULTILINE)
"""configure() sets ``cleanup_servers`` to False, unless the configuration sets it."""
START_FIELD = 19
"""The field of /proc/PID/stat with the start of a process, in clock ticks since the boot. The fields are counted after
the program's name."""
CLOCK_SECONDS = 2.0
"""The precision of a start time. The kernel reports its boot time in whole seconds."""
OTHER_FILES = re.compile(r"^[^#\n]*\b(load_subconfig|exec)\(", re.MULTILINE)

BY_DEFAULT = "{hub} ends every server when it stops: c.JupyterHub.cleanup_servers is True, JupyterHub's default."
BY_SETTING = "{hub} ends every server when it stops: its configuration sets c.JupyterHub.cleanup_servers to True."
UNKNOWN = (
    "{hub} may end every server when it stops: its configuration does not show the value that "
    "c.JupyterHub.cleanup_servers had when the hub started."
)
KEEP_SERVERS = (
    "Do not restart it yet. Stop it by its API, which leaves the servers running: see Adopt a running hub, "
    "docs/how-to/administrators/adopt.md."
)
REMEDY = f"{KEEP_SERVERS} From the next start on configure() sets cleanup_servers to False."
SETTING_REMEDY = f"To let workspaces outlive a restart, set it to False before the next start. {KEEP_SERVERS}"


@dataclass(frozen=True)
class RunningHub:
    """A hub's process. ``ends_servers`` is None if its configuration does not show the value.

    ``is_set`` is whether its configuration or its command line sets it.
    """

    pid: int
    file: Path
    ends_servers: bool | None
    is_set: bool = False

    @property
    def words(self) -> str:
        """The hub in words."""
        return f"The hub that runs here (process {self.pid}, {self.file})"


def warning_of(hub: RunningHub) -> str:
    """Return a sentence about what a restart of the hub does to its servers."""
    words = UNKNOWN if hub.ends_servers is None else BY_SETTING if hub.is_set else BY_DEFAULT
    return words.format(hub=hub.words)


def remedy_of(hub: RunningHub) -> str:
    """Return how to restart a hub without ending its servers."""
    return SETTING_REMEDY if hub.is_set else REMEDY


def running_hubs(proc: Path = Path("/proc")) -> Iterator[RunningHub]:
    """Yield the hubs whose processes this user may see.

    Args:
        proc: the folder of the kernel's processes.
    """
    for folder in sorted(proc.glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            if not _is_hub(arguments):
                continue
            file = (folder / "cwd").readlink() / _file_of(arguments)
            # The file of a hub in a container is below this folder.
            seen_file = folder / "root" / file.relative_to("/")
            ends_servers, is_set = _ends_servers(arguments, seen_file, _started_at(folder))
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
        yield RunningHub(int(folder.name), file, ends_servers, is_set)


def _started_at(folder: Path) -> float:
    """Return when a process started, in seconds since the epoch. The time of its folder is that of the first read."""
    ticks = int((folder / "stat").read_text().rpartition(")")[2].split()[START_FIELD])
    lines = (folder.parent / "stat").read_text().splitlines()
    booted_at = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted_at + ticks / os.sysconf("SC_CLK_TCK")


def _is_hub(arguments: Sequence[str]) -> bool:
    words = [Path(word).name for word in arguments[:3]]
    as_module = arguments[1:3] == ["-m", "jupyterhub"]
    return as_module or "jupyterhub" in words[:2]


def _file_of(arguments: Sequence[str]) -> str:
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word in {"-f", "--config"}:
            return following
        if word.startswith("--config="):
            return word.partition("=")[2]
    return DEFAULT_FILE


def _ends_servers(arguments: Sequence[str], file: Path, started_at: float) -> tuple[bool | None, bool]:
    """Return whether a hub ends its servers, and whether a setting says so.

    The first is None if that is unknown, or if the file was changed after the hub's start.
    """
    if values := SETTING.findall("\n".join(word.lstrip("-") for word in arguments)):
        return bool(values[-1] == "True"), True
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        changed = file.stat().st_mtime > started_at + CLOCK_SECONDS
    except OSError:
        return None, False
    if changed:
        return None, False
    if values := SETTING.findall(text):
        return bool(values[-1] == "True"), True
    if CONFIGURED.search(text):
        return False, False
    return None if OTHER_FILES.search(text) else True, False
