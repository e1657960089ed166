"""The seam to custom resources: what the operator needs of the cluster that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gpuspawner.backends.resources import Resource


class Resources(Protocol):
    """The requests in one namespace of a cluster. Everything raises Unavailable where the cluster does not answer.

    A call about a resource that is gone, or has changed since, does nothing: it is looked at again.
    """

    async def requests(self) -> tuple[Resource, ...]:
        """Return all of them, as they were last seen."""

    async def entries(self) -> tuple[Resource, ...]:
        """Return all templates, policies and quotas, as they were last seen."""

    async def refuses(self) -> str:
        """Return why no new request may be accepted, such as a policy that is not there; "" where they may."""

    async def going(self, *, entries: bool = False) -> bool:
        """Return whether their definition or their namespace is being deleted, as it is now.

        Of requests or, with ``entries``, of any kind of the catalog's entries.
        """

    async def make(self, name: str, lease_id: str, spec: Mapping[str, Any]) -> None:
        """Make the request of a workspace that is there, held."""

    async def tell(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Write the whole status."""

    async def hold(self, resource: Resource) -> None:
        """Keep it, once deleted, until it is released."""

    async def release(self, resource: Resource) -> None:
        """Keep it no longer."""

    async def delete(self, resource: Resource) -> None:
        """Delete it."""

    async def close(self) -> None:
        """Follow the cluster no longer."""
