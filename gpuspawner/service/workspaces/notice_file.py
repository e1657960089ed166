"""The notice file tells programs in a workspace to save their work, because the workspace is about to end.

``~/.gpuspawner/notice.json`` belongs to the default server, ``notice-NAME.json`` to a named one. The file exists while
an end is announced. It contains ``{"ends_at": seconds since the epoch, "kind": "idle", "words": "..."}``.
Programs find it by the variable ``GPUSPAWNER_NOTICE``. A pod's preStop hook reads it too. ``preempted`` keeps the
server until ``ends_at``. ``stopped`` lets the server end once programs have saved.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gpuspawner.backends.base import Backend
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.service.parts import Parts
from gpuspawner.service.workspaces.warnings import warnings_of

log = logging.getLogger("gpuspawner.notices")

NOTICES_SECONDS = 2.0
"""The interval of looking for announced ends."""
SAME_SECONDS = 5.0
"""An end that moves by less counts as the same, because each sample estimates it again."""
RUN_SECONDS, RETRY_SECONDS = 20.0, 60.0
"""The time limit of a write, and the pause after a failed one."""
STEP = "writing its notice file"
STOPPED = "This workspace is being stopped. Save what you need now."
AT_ONCE = 16
"""The number of files that are written at the same time, as when many nodes are drained. Arbitrary."""
WRITE = """\
cd "${HOME:-/}" && umask 077 && mkdir -p .gpuspawner && cd .gpuspawner || exit 1
if [ -n "$notice" ]; then
    printf '%s\\n' "$notice" >"$file.part" && mv "$file.part" "$file" || exit 1
else
    rm -f "$file"
fi
exit 0
"""


def notice_name(server: str) -> str:
    """Return the name of the notice file of a server."""
    return f"notice-{quote(server, safe='')}.json" if server else "notice.json"


def notice_variables(server: str) -> dict[str, str]:
    """Return the variables by which programs find the notice file: its path below the home."""
    return {"GPUSPAWNER_NOTICE": f".gpuspawner/{notice_name(server)}"}


def notice_of(parts: Parts, lease: Lease) -> dict[str, Any] | None:
    """Return the first announced end of a workspace, None without one."""
    ending = parts.engine.observer.ending(lease)
    if ending is not None and ending.ends_in_seconds is not None and not (ending.disruption and lease.phase in UP):
        ends_at = parts.clock.now() + ending.ends_in_seconds
        return {"ends_at": round(ends_at, 3), "kind": "stopped", "words": STOPPED}
    ends = [(one.ends_at, one) for one in warnings_of(parts, lease) if one.ends_at is not None]
    if not ends:
        return None
    ends_at, first = min(ends, key=lambda one: one[0])
    return {"ends_at": round(ends_at, 3), "kind": first.kind, "words": first.text}


def write_script(server: str, notice: Mapping[str, Any] | None) -> bytes:
    """Return the script that writes or removes the notice of a server."""
    text = "" if notice is None else json.dumps(notice)
    return f"file={shlex.quote(notice_name(server))}\nnotice={shlex.quote(text)}\n{WRITE}".encode()


class Notices:
    """Keeps the notice file of each workspace up to date.

    The store has no record of written files. So each file is written once when its workspace is first seen. This also
    removes what an earlier workspace left in the same home.
    """

    def __init__(self, parts: Parts, backend: Backend) -> None:
        """Begin without files."""
        self._parts, self._backend = parts, backend
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._written: dict[str, dict[str, Any] | None] = {}
        self._not_before: dict[str, float] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Stop writing."""
        for task in self._writing.values():
            task.cancel()
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    async def look(self) -> None:
        """Write the changed notices at the same time, so that a slow one delays no other."""
        parts, now = self._parts, self._parts.clock.now()
        live = {lease.id: lease for lease in parts.registry if _is_told(parts, lease)}
        self._written = {id_: notice for id_, notice in self._written.items() if id_ in live}
        self._not_before = {id_: at for id_, at in self._not_before.items() if id_ in live and at > now}
        for lease in (one for one in live.values() if one.id not in self._writing):
            if parts.registry.failures.may_try(STEP, lease.id):
                with parts.registry.failures.isolating(STEP, lease.id):
                    self._begin(lease, notice_of(parts, lease) if _may_end(parts, lease) else None)
        if self._writing:
            await asyncio.wait(self._writing.values(), timeout=NOTICES_SECONDS)
        ended = [id_ for id_, task in self._writing.items() if task.done()]
        await asyncio.gather(*(self._writing.pop(id_) for id_ in ended))

    def _begin(self, lease: Lease, notice: dict[str, Any] | None) -> None:
        written = lease.id in self._written and _same(notice, self._written[lease.id])
        if not written and lease.id not in self._not_before:
            self._writing[lease.id] = asyncio.create_task(self._write(lease, notice))

    async def _write(self, lease: Lease, notice: dict[str, Any] | None) -> None:
        await self._parts.registry.stored(lease.id)
        script = write_script(lease.key.server, notice)
        async with self._at_once:
            result = await self._backend.run_script(lease.id, lease.attempt, script, RUN_SECONDS)
        if result.problem:
            log.warning("the notice of %s was not written: %s", lease.id, result.problem)
            self._not_before[lease.id] = self._parts.clock.now() + RETRY_SECONDS
        else:
            self._written[lease.id] = notice


def _is_told(parts: Parts, lease: Lease) -> bool:
    """Return whether a workspace has a notice file: while it runs, and while its pod is being deleted."""
    return lease.phase in UP or (lease.phase is Phase.STOPPING and parts.engine.observer.ending(lease) is not None)


def _may_end(parts: Parts, lease: Lease) -> bool:
    """Return whether an end may be announced. This check is cheaper than to find the end."""
    if parts.engine.observer.ending(lease) is not None:
        return True
    announced = lease.phase is Phase.RECLAIMING or lease.warned_seconds or lease.notice or lease.disruption
    return bool(announced) or lease.arrival is not None


def _same(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one["kind"] == other["kind"] and abs(float(one["ends_at"]) - float(other["ends_at"])) < SAME_SECONDS
