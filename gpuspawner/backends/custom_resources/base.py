"""Custom resources of a cluster, and the interface to the cluster that the operator needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuspawner.core.errors import GpuspawnerError

ENDED, REFUSED = "Ended", "Refused"
WAITS = "Pending"
"""The phase before a workspace is requested."""
SCHEDULED = "Scheduled"
"""The phase of a scheduled request whose workspace is not requested yet."""
READY_AT = "ready_at"
LIFETIME = "LifetimeExtended"
"""The condition with the result of an edited lifetime."""


@dataclass(frozen=True)
class Resource:
    """One custom resource. ``held``: it is kept until its workspace has ended. ``of_lease`` is the lease on its label.

    ``section`` is the catalog section of an entry, or "" for a request. A ``cluster_wide`` entry is in no namespace,
    and ``status`` is that for this hub. ``managed_by`` is the tool that writes it, for example Argo CD, or "".
    """

    name: str
    uid: str
    version: str
    created: str
    generation: int = 1
    deleting: bool = False
    held: bool = False
    of_lease: str = ""
    section: str = ""
    cluster_wide: bool = False
    managed_by: str = ""
    finalizers: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str]:
        """The user of the workspace and its name."""
        return str(self.spec.get("user", "")), str(self.spec.get("server", ""))

    @property
    def own_lease(self) -> str:
        """The id of the lease that it requests: its own uid, so that a repeated request changes nothing."""
        return self.uid.replace("-", "")

    @property
    def told_lease(self) -> str:
        """The id of the lease in its status."""
        return str(self.status.get("lease", ""))

    @property
    def phase(self) -> str:
        """The phase in its status."""
        return str(self.status.get("phase", ""))

    @property
    def options(self) -> dict[str, Any]:
        """The options of the requested start."""
        return {key: value for key, value in self.spec.items() if key not in {"user", "server", READY_AT}}

    @property
    def ready_at(self) -> Mapping[str, Any]:
        """The days and the time of a scheduled request, or {}."""
        return self.spec.get(READY_AT) or {}

    @property
    def is_new(self) -> bool:
        """Whether no workspace was requested for it yet, by its status."""
        return self.phase in {"", WAITS, REFUSED}

    @property
    def is_judged(self) -> bool:
        """Whether its status is about its present content."""
        return self.status.get("observedGeneration") == self.generation

    def condition(self, name: str) -> Mapping[str, Any]:
        """Return a condition of its status, or {}."""
        return next((one for one in self.status.get("conditions") or () if one.get("type") == name), {})


class EntryRefused(GpuspawnerError):
    """The cluster refused to write an entry, for example because of its schema or of a missing right."""


class Resources(Protocol):
    """The requests in one namespace of a cluster. Each call raises Unavailable if the cluster does not answer.

    A call about a resource that is gone or has changed does nothing. The operator looks again.
    """

    async def requests(self) -> tuple[Resource, ...]:
        """Return all requests as last observed."""

    async def entries(self) -> tuple[Resource, ...]:
        """Return all templates, policies and quotas as last observed."""

    async def refuses(self) -> str:
        """Return why no new request may be accepted, for example a missing policy. "" if it may."""

    async def going(self, *, entries: bool = False) -> bool:
        """Return whether the definition or the namespace is being deleted now.

        ``entries`` asks for the kinds of catalog entries instead of requests.
        """

    async def make(self, name: str, lease_id: str, spec: Mapping[str, Any]) -> None:
        """Create the request of an existing workspace, with our finalizer."""

    async def tell(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Write the whole status."""

    async def hold(self, resource: Resource) -> None:
        """Add our finalizer."""

    async def release(self, resource: Resource) -> None:
        """Remove our finalizer."""

    async def delete(self, resource: Resource) -> None:
        """Delete the resource."""

    async def may_write_entries(self) -> bool:
        """Return whether the service has the right to write entries."""

    async def write_entry(
        self, section: str, name: str, spec: Mapping[str, Any] | None, before: Resource | None, *, dry_run: bool
    ) -> Resource | None:
        """Create, change or delete an entry, and return it, None once it is deleted.

        Args:
            section: the section of the catalog.
            name: its name.
            spec: the whole spec, None to delete the entry.
            before: the entry as it was read, None to create one.
            dry_run: whether the cluster only checks the write.

        Raises:
            Conflict: the entry has changed since it was read. Nothing was written.
            EntryRefused: the cluster does not accept the spec.
        """

    async def close(self) -> None:
        """Stop watching the cluster."""
