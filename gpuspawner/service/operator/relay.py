"""Custom resources that `gpuspawner kube operate`, a process of its own, reads and writes for the service.

What is to be done is decided here all the same: each of its calls is one round, answered by what it is to write. So
there is one truth, and a process that ends at any step loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gpuspawner.backends.resources import Resource, Resources
from gpuspawner.core.errors import Conflict
from gpuspawner.core.units import show_duration
from gpuspawner.service.custom_resources.controller import Operator

LEADS_SECONDS = 10.0
"""Who was silent for so long leads no more: five rounds."""
SILENT_SECONDS = 30.0
"""After so long without a round of any operator, administrators are told. Arbitrary: longer than one takes to start."""


class Seen(BaseModel):
    """What a process sees of its cluster. ``who`` is a name that no other process has."""

    model_config = ConfigDict(extra="forbid", strict=True)

    who: str = Field(min_length=1, max_length=200)
    requests: tuple[Resource, ...]
    refuses: str
    going: bool


class Relay:
    """Requests as they were last shown; what is to be written is kept for the answer. Entries are the service's own."""

    def __init__(self, own: Resources, now: Callable[[], float] = time.monotonic) -> None:
        """Nothing is seen yet; ``own`` has the catalog's entries. ``now`` tells the time in seconds."""
        self._own, self._now = own, now
        self._seen = Seen(who="nobody", requests=(), refuses="", going=False)
        self._led_at, self._heard_at = float("-inf"), now()
        self._writes: list[dict[str, Any]] = []
        self._alone = asyncio.Lock()
        self.entries, self.close = own.entries, own.close

    async def round(self, seen: Seen, operator: Operator) -> list[dict[str, Any]]:
        """Go round over what is seen, to its end; return what is to be written, in order.

        Raises:
            Conflict: another process leads.
            Unavailable: the store does not answer.
        """
        self._heard_at = self._now()
        if self._seen.who != seen.who and self._now() - self._led_at < LEADS_SECONDS:
            raise Conflict(f"The operator {self._seen.who} leads: this one stands by.")
        self._led_at, who = self._now(), seen.who
        async with self._alone:
            self._seen, self._writes = seen, []
            await operator.round()
            await operator.idle()
            if self._seen.who == who:
                self._led_at = self._now()
            return self._writes

    def lacking(self) -> str:
        """Return in a sentence that no operator is heard; "" where one is."""
        silent_seconds = self._now() - self._heard_at
        if silent_seconds < SILENT_SECONDS:
            return ""
        return (
            f"No operator of custom resources was heard for {show_duration(silent_seconds)}. DevGPUVMRequests wait, "
            "and no status is written. Look at the deployment of gpuspawner kube operate and its log."
        )

    async def requests(self) -> tuple[Resource, ...]:
        """Return all of them, as they were shown."""
        return self._seen.requests

    async def refuses(self) -> str:
        """Return why no new request may be accepted; "" where they may."""
        return self._seen.refuses

    async def going(self, *, entries: bool = False) -> bool:
        """Return whether all of them are being deleted together."""
        return await self._own.going(entries=True) if entries else self._seen.going

    async def make(self, name: str, lease_id: str, spec: Mapping[str, Any]) -> None:
        """Have the request of a workspace made."""
        self._writes.append({"do": "make", "name": name, "lease_id": lease_id, "spec": dict(spec)})

    async def tell(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Have the whole status written. Of an entry it is written at once."""
        if resource.section:
            await self._own.tell(resource, status)
        else:
            self._writes.append({"do": "tell", "uid": resource.uid, "status": dict(status)})

    async def hold(self, resource: Resource) -> None:
        """Have it kept."""
        self._writes.append({"do": "hold", "uid": resource.uid})

    async def release(self, resource: Resource) -> None:
        """Have it kept no longer."""
        self._writes.append({"do": "release", "uid": resource.uid})

    async def delete(self, resource: Resource) -> None:
        """Have it deleted."""
        self._writes.append({"do": "delete", "uid": resource.uid})
