"""The PodGroups of a cluster, followed: what its scheduler says of the pods that wait in its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.schedulers.base import Unfit
from gpuspawner.schedulers.pod_queues import Json, System

NOT_FOUND = 404
MANIFEST = "hub_config/kubernetes-podgroups-rbac.yaml"


@dataclass(frozen=True)
class PodGroup:
    """What is kept of one: the ids of the pods that own it, and its status."""

    owners: frozenset[str]
    status: Json


class PodGroups:
    """The PodGroups of the namespaces in which workspaces are."""

    def __init__(self, api: Api, settings: ClusterSettings, system: System) -> None:
        """Ask nothing yet."""
        self._api, self._system = api, system
        there = "" if settings.all_namespaces else f"namespaces/{settings.namespace}/"
        path = f"/apis/{system.group_version}/{there}podgroups"
        self._watch: Watch[PodGroup] = Watch(api, path, {}, _trimmed, lambda _before, _after: None, settings)
        self._following: asyncio.Task[None] | None = None

    @property
    def unseen(self) -> tuple[str, ...]:
        """Why they are not seen, in a sentence for the administrator; none where they are."""
        seen = f"The cluster does not let the service see {self._system.title}'s PodGroups ({self._watch.refused})"
        told = f"{seen}: why a workspace waits is told by its pod alone. The right stands in {MANIFEST}."
        return (told,) if self._watch.refused else ()

    async def meet(self) -> None:
        """See that the cluster has this scheduler. Raises Unfit where it has not, Unavailable where nobody answers."""
        title, version = self._system.title, self._system.group_version
        try:
            await self._api.get(f"/apis/{version}")
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                remedy = f"Install {title}, or take it out of the catalog's scheduler."
                raise Unfit(f"The catalog names {title}, and the cluster does not serve {version}. {remedy}") from error

    def follow(self) -> None:
        """Follow them from now on."""
        if self._following is None:
            self._following = asyncio.create_task(self._watch.run())

    def status_of(self, pods: Iterable[str]) -> Json:
        """Return the status of the PodGroup that one of these pods, by id, owns; empty where none is seen."""
        wanted = set(pods)
        return next((one.status for one in self._watch.objects.values() if not wanted.isdisjoint(one.owners)), {})

    async def close(self) -> None:
        """Follow no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)


def _trimmed(one: Mapping[str, Any]) -> PodGroup:
    owners = (owner["uid"] for owner in one["metadata"].get("ownerReferences") or () if owner.get("kind") == "Pod")
    return PodGroup(frozenset(owners), one.get("status") or {})
