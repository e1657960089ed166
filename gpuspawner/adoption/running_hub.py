"""The hubs that run on this machine, and whether each ends its servers when it stops. No configuration is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_FILE = "jupyterhub_config.py"
SETTING = re.compile(r"^[^#\n]*\bcleanup_servers\b\s*=\s*(True|False)", re.MULTILINE)
CONFIGURED = re.compile(r"^\s*(\w+\.)*configure\(", re.MULTILINE)
"""configure() sets ``cleanup_servers`` to False, unless the configuration sets it."""
OTHER_FILES = re.compile(r"^[^#\n]*\b(load_subconfig|exec)\(", re.MULTILINE)

ENDS = "{hub} ends every server when it stops: c.JupyterHub.cleanup_servers is True, JupyterHub's default."
UNKNOWN = (
    "{hub} may end every server when it stops: its configuration does not tell what c.JupyterHub.cleanup_servers was "
    "when it started."
)
REMEDY = (
    "Do not restart it yet. Stop it by its API, which leaves the servers running: see Adopt a running hub, "
    "docs/how-to/administrators/adopt.md. From the next start on configure() sets cleanup_servers to False."
)


@dataclass(frozen=True)
class RunningHub:
    """A hub's process. ``ends_servers`` is None where its configuration does not tell."""

    pid: int
    file: Path
    ends_servers: bool | None

    @property
    def words(self) -> str:
        """Which hub it is, for people."""
        return f"The hub that runs here (process {self.pid}, {self.file})"


def warning_of(hub: RunningHub) -> str:
    """Return a sentence on what a restart of a hub may do to its servers."""
    return (UNKNOWN if hub.ends_servers is None else ENDS).format(hub=hub.words)


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
            started_at = folder.stat().st_mtime
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
        yield RunningHub(int(folder.name), file, _ends_servers(arguments, file, started_at))


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


def _ends_servers(arguments: Sequence[str], file: Path, started_at: float) -> bool | None:
    """Return whether a hub ends its servers; None where nothing tells, or its file was changed since it started."""
    if told := SETTING.findall("\n".join(word.lstrip("-") for word in arguments)):
        return bool(told[-1] == "True")
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        changed = file.stat().st_mtime > started_at
    except OSError:
        return None
    if told := SETTING.findall(text):
        return None if changed else bool(told[-1] == "True")
    if CONFIGURED.search(text):
        return changed  # a hub that started before it was added has JupyterHub's default
    return None if OTHER_FILES.search(text) else True
