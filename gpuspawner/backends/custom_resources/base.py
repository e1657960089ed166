"""The interface to custom resources: what the operator needs of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gpuspawner.backends.resources import Resource


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

    async def close(self) -> None:
        """Stop to watch the cluster."""
