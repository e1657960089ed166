"""Other cullers in the hub's configuration: what stops idle servers beside gpuspawner, without asking it.

They judge by HTTP traffic, kernels or terminals, never by GPUs, and warn nobody: a training run in a closed browser is
idle to them. They are named at the hub's start. It starts all the same: an administrator may want both for a while.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuspawner.spawner.kubernetes.configuration import is_here

CULLER = re.compile(r"idle[-_ ]?cull|cull[-_ ]?idle", re.IGNORECASE)
"""jupyterhub-idle-culler and its predecessor cull_idle_servers.py, by command or by the usual names of the service."""
SETTING = re.compile(
    r"""\b(cull_idle_timeout|cull_inactive_timeout|shutdown_no_activity_timeout)["']?\s*[:=]\s*["']?([^\s"',}]+)"""
)
"""What makes a workspace end its own kernels, terminals or server; 0 is off, as by default."""
SECTIONS = ("MappingKernelManager", "MultiKernelManager", "TerminalManager", "ServerApp", "NotebookApp", "LabApp")
CONFIG_FOLDERS = ("/etc/jupyter", "/usr/local/etc/jupyter")
CONFIG_FILES = ("jupyter*_config.py", "jupyter*_config.json", "jupyter*_config.d/*.json")

REMEDY = "Take it out: the catalog's policies stop what is idle."


def other_cullers(
    services: Iterable[Mapping[str, Any]],
    roles: Sequence[Mapping[str, Any]],
    sections: Mapping[str, Any],
    arguments: Mapping[str, Any],
    folders: Iterable[Path],
) -> Iterator[str]:
    """Yield a sentence for each culler: where it stands, what it does and what to do.

    Args:
        services: ``c.JupyterHub.services``.
        roles: ``c.JupyterHub.load_roles``.
        sections: the whole configuration, by section.
        arguments: what single-user servers are started with (``args``, ``cmd``), by where it is written.
        folders: where the single-user servers of this machine find configuration; none where they run elsewhere.
    """
    value = " (cull.enabled of the chart)" if is_here() else ""
    for service in services:
        if _culls(service):
            yield (
                f"c.JupyterHub.services has the culler {service.get('name')!r}{value}. It stops servers without "
                f"HTTP traffic, also while their GPUs compute, and warns nobody. {REMEDY}{_roles_of(service, roles)}"
            )
    for where, line in _settings(sections, arguments, folders):
        found = SETTING.search(line)
        if found and found[2].strip("\"'") not in {"0", "0.0", "None", "null"}:
            yield (
                f"{where} sets {found[1]}={found[2]}: workspaces end what they run by themselves, also what a GPU "
                f"computes, and warn nobody. {REMEDY}"
            )


def _roles_of(service: Mapping[str, Any], roles: Sequence[Mapping[str, Any]]) -> str:
    """Return what else goes with a service: JupyterHub does not start with a role of one that is not there."""
    named = [repr(role.get("name")) for role in roles if service.get("name") in role.get("services", ())]
    if not named:
        return ""
    return f" Take it out of c.JupyterHub.load_roles, too ({', '.join(named)}): the hub does not start otherwise."


def _culls(service: Mapping[str, Any]) -> bool:
    command = service.get("command") or []
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    return any(CULLER.search(word) for word in [str(service.get("name", "")), *words])


def _settings(
    sections: Mapping[str, Any], arguments: Mapping[str, Any], folders: Iterable[Path]
) -> Iterator[tuple[str, str]]:
    """Yield every line in which such a setting may stand, with where that is."""
    for name in SECTIONS:
        for key, value in (sections.get(name) or {}).items():
            yield f"c.{name}", f"{key}={value!r}"
    for where, words in arguments.items():
        for word in [words] if isinstance(words, str) else words or []:
            yield where, str(word)
    for folder in folders:
        for path in sorted(path for pattern in CONFIG_FILES for path in folder.glob(pattern)):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # the servers may not be able to read it either
            for line in text.splitlines():
                if not line.lstrip().startswith("#"):
                    yield str(path), line
