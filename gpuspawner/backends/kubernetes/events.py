"""Kubernetes Events on requests: one for each phase that a request enters, and for each refusal."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gpuspawner.backends.kubernetes.api import MERGE, Api, ApiRefused
from gpuspawner.backends.resources import LIFETIME, REFUSED, Resource
from gpuspawner.core.errors import Unavailable

log = logging.getLogger("gpuspawner.events")

CONFLICT = 409
LONGEST_NAME = 200
"""Letters of a request's name in the name of its Event, which has 253 at most."""


@dataclass(frozen=True)
class Change:
    """What an Event tells: ``reason`` in one word, ``message`` in full."""

    reason: str
    message: str
    is_warning: bool = False


def changes(before: Resource, status: Mapping[str, Any]) -> Iterator[Change]:
    """Yield what a new status tells that the one before did not: a phase, a refusal, an edited lifetime."""
    phase, message = str(status.get("phase", "")), str(status.get("message", ""))
    is_refused_anew = phase == REFUSED and message != before.status.get("message")
    if phase != before.phase or is_refused_anew:
        yield Change(phase, message, is_warning=phase == REFUSED)
    edited = next((one for one in status.get("conditions") or () if one["type"] == LIFETIME), None)
    if edited is not None and edited != before.condition(LIFETIME):
        is_refused = edited["status"] != "True"
        yield Change("LifetimeRefused" if is_refused else LIFETIME, edited["message"], is_warning=is_refused)


class Events:
    """Writes the Events of the requests in one namespace.

    Each request has one Event of each reason, which counts how often that came. The API server deletes Events after an
    hour, unless it is set otherwise. An Event that cannot be written is logged, and holds up nothing.
    """

    def __init__(self, api: Api, namespace: str, api_version: str, kind: str) -> None:
        """Write to ``namespace``, about objects of ``kind``."""
        self._api, self._namespace, self._of = api, namespace, {"apiVersion": api_version, "kind": kind}
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._is_failing = False

    async def write(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Write what changes with a request's new status."""
        for change in changes(resource, status):
            try:
                await self._write(resource, change)
            except (ApiRefused, Unavailable) as error:
                if not self._is_failing:
                    log.warning("Events on requests are not written: %s", error)
                self._is_failing = True
            else:
                self._is_failing = False

    async def _write(self, resource: Resource, change: Change) -> None:
        digest = hashlib.sha256(f"{resource.uid} {change.reason}".encode()).hexdigest()[:16]
        name = f"{resource.name[:LONGEST_NAME].rstrip('.-')}.{digest}"
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {"message": change.message, "lastTimestamp": now}
        about = {"namespace": self._namespace, "name": resource.name, "uid": resource.uid}
        event = {
            "metadata": {"name": name, "namespace": self._namespace},
            "involvedObject": {**self._of, **about, "resourceVersion": resource.version},
            "type": "Warning" if change.is_warning else "Normal",
            "reason": change.reason,
            "source": {"component": "gpuspawner"},
            "firstTimestamp": now,
            "count": 1,
            **told,
        }
        try:
            await self._api.write("POST", self._path, event)
        except ApiRefused as error:
            if error.status != CONFLICT:
                raise
            there = await self._api.get(f"{self._path}/{name}")
            again = {**told, "count": int(there.get("count") or 1) + 1}
            await self._api.write("PATCH", f"{self._path}/{name}", again, form=MERGE)
