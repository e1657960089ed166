"""Custom resources that a separate process (`gpuspawner kube operate`) reads and writes for the service.

The service still decides. Each call of the process is one round, and the answer says what to write. So there is one
truth, and a process that ends at any moment loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado.web import Application, HTTPError

from gpuspawner.backends.custom_resources.base import Resource, Resources
from gpuspawner.core.errors import Conflict
from gpuspawner.core.units import show_duration
from gpuspawner.service.api.internal import SpawnerHandler
from gpuspawner.service.custom_resources.controller import Operator
from gpuspawner.service.parts import Parts

LEADS_SECONDS = 10.0
"""A process that was silent for this long, five rounds, loses the lead."""
SILENT_SECONDS = 30.0
"""Administrators are warned after this time without a round. Arbitrary: longer than a start takes."""


class Seen(BaseModel):
    """The resources that a process sees. ``who`` is its unique name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    who: str = Field(min_length=1, max_length=200)
    requests: tuple[Resource, ...]
    refuses: str
    going: bool


class Relay:
    """The requests of the last call. Writes are collected for the answer. The service reads catalog entries itself."""

    def __init__(self, own: Resources, now: Callable[[], float] = time.monotonic) -> None:
        self._own, self._now = own, now
        self._seen = Seen(who="nobody", requests=(), refuses="", going=False)
        self._led_at, self._heard_at = float("-inf"), now()
        self._writes: list[dict[str, Any]] = []
        self._alone = asyncio.Lock()
        self.entries, self.close = own.entries, own.close

    async def round(self, seen: Seen, operator: Operator) -> list[dict[str, Any]]:
        """Run one round over the resources, and return what to write, in order.

        Raises:
            Conflict: another process leads.
            Unavailable: the store does not answer.
        """
        self._heard_at = self._now()
        if self._seen.who != seen.who and self._now() - self._led_at < LEADS_SECONDS:
            raise Conflict(f"The operator {self._seen.who} leads. This one waits.")
        self._led_at, who = self._now(), seen.who
        async with self._alone:
            self._seen, self._writes = seen, []
            await operator.round()
            await operator.idle()
            if self._seen.who == who:
                self._led_at = self._now()
            return self._writes

    def lacking(self) -> str:
        """Return a sentence if no process called for some time, or ""."""
        silent_seconds = self._now() - self._heard_at
        if silent_seconds < SILENT_SECONDS:
            return ""
        return (
            f"No operator of custom resources was heard for {show_duration(silent_seconds)}. DevGPUVMRequests wait, "
            "and no status is written. Look at the deployment of gpuspawner kube operate and its log."
        )

    async def requests(self) -> tuple[Resource, ...]:
        """Return the requests of the last call."""
        return self._seen.requests

    async def refuses(self) -> str:
        """Return why no new request is accepted now, or ""."""
        return self._seen.refuses

    async def going(self, *, entries: bool = False) -> bool:
        """Return whether all resources are being deleted together."""
        return await self._own.going(entries=True) if entries else self._seen.going

    async def make(self, name: str, lease_id: str, spec: Mapping[str, Any]) -> None:
        """Add the creation of a workspace's resource."""
        self._writes.append({"do": "make", "name": name, "lease_id": lease_id, "spec": dict(spec)})

    async def tell(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Add the write of a status. The status of an entry is written at once."""
        if resource.section:
            await self._own.tell(resource, status)
        else:
            self._writes.append({"do": "tell", "uid": resource.uid, "status": dict(status)})

    async def hold(self, resource: Resource) -> None:
        """Add a finalizer."""
        self._writes.append({"do": "hold", "uid": resource.uid})

    async def release(self, resource: Resource) -> None:
        """Remove the finalizer."""
        self._writes.append({"do": "release", "uid": resource.uid})

    async def delete(self, resource: Resource) -> None:
        """Add a deletion."""
        self._writes.append({"do": "delete", "uid": resource.uid})

    async def may_write_entries(self) -> bool:
        """Return whether the service has the right to write entries."""
        return await self._own.may_write_entries()

    async def write_entry(
        self, section: str, name: str, spec: Mapping[str, Any] | None, before: Resource | None, *, dry_run: bool
    ) -> Resource | None:
        """Create, change or delete an entry. The service writes entries itself."""
        return await self._own.write_entry(section, name, spec, before, dry_run=dry_run)


OPERATOR_PATH = "/internal/operator"


def add_operating(pages: Application, parts: Parts, relay: Relay, operator: Operator) -> None:
    """Add the endpoint to the service's application."""
    asked = {"parts": parts, "relay": relay, "operator": operator}
    pages.add_handlers(".*", [(parts.prefix.rstrip("/") + OPERATOR_PATH, Operate, asked)])


class Operate(SpawnerHandler):
    """POST: the resources that the process sees."""

    def initialize(self, parts: Parts, relay: Relay, operator: Operator) -> None:  # type: ignore[override]
        """Keep the relay and the operator."""
        super().initialize(parts)
        self._relay, self._operator = relay, operator

    async def post(self) -> None:
        """Answer what to write. 409 if another process leads."""
        try:
            seen = Seen.model_validate_json(self.request.body)
        except ValidationError as error:
            raise HTTPError(400, reason="The operator is not understood: is its version the same?") from error
        self.answer({"writes": await self._relay.round(seen, self._operator)})
