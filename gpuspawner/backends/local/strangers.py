"""Who computes on this machine's GPUs without having been given them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

from gpuspawner.backends.local.processes import Process
from gpuspawner.backends.local.records import GPUS

FOREIGN_MIB = 500
"""Memory in use above this on a GPU that no workspace has is somebody else's (design, section 7)."""


class Users:
    """Who computes on this machine's GPUs, and who may: tells strangers.

    Args:
        apps: UUID and pid of each compute process that the driver tells.
        processes: those of all leases.
    """

    def __init__(self, apps: Iterable[tuple[str, int]], processes: Iterable[Process]) -> None:
        """Take what is seen now."""
        # What the oldest process of each was started with stands: its later ones may write there what they like.
        given: dict[tuple[str, int], frozenset[str]] = {}
        self._leases: dict[int, tuple[str, frozenset[str]]] = {}
        for one in sorted(processes, key=lambda process: process.start_ticks):
            own = given.setdefault((one.lease_id, one.attempt), frozenset(one.environment.get(GPUS, "").split(",")))
            self._leases[one.pid] = one.lease_id, own
        self._held = frozenset[str]().union(*given.values())
        self._pids: dict[str, list[int]] = {}
        for uuid, pid in apps:
            self._pids.setdefault(uuid, []).append(pid)

    def strangers_on(self, names: AbstractSet[str], uuid: str, used_mib: int | None) -> str:
        """Return who uses a GPU that no lease gave them, in words, or an empty text.

        ``names`` are those under which leases have it, or parts of it; the driver lists its processes under ``uuid``.
        A process that is listed and cannot be seen here has ended, or lives where we cannot look: the memory in use
        tells which, as it does where the driver lists no process at all.
        """
        seen = [pid for pid in self._pids.get(uuid, ()) if Path(f"/proc/{pid}").exists()]
        for pid in seen:
            lease, own = self._leases.get(pid, ("", frozenset()))
            if not lease:
                return f"process {pid}, which no lease gave it to, computes on it"
            if not names & own:
                return f"process {pid} of workspace {lease}, which has other GPUs, computes on it"
        told_nothing = not self._pids or (uuid in self._pids and not seen)
        if told_nothing and not names & self._held and (used_mib or 0) > FOREIGN_MIB:
            return f"{used_mib} MiB of it are in use although no workspace has it"
        return ""
