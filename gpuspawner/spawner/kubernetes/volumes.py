"""Home volumes: which pod mounts a volume that only one pod may mount, and the wait until it is free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from kubernetes_asyncio.client import ApiException

from gpuspawner.backends.kubernetes.nodes import seconds_of
from gpuspawner.backends.kubernetes.pods import LEASE_LABEL
from gpuspawner.core.units import show_time
from gpuspawner.spawner.kubernetes.pod_states import Stage

if TYPE_CHECKING:
    from gpuspawner.spawner.kubernetes.starting import PodStart

Json = Mapping[str, Any]

ONE_POD = "ReadWriteOncePod"
BLOCKED_SECONDS = 120.0
"""Time that a start waits for its volume and keeps its granted GPU, so that its user can stop the other workspace.
Arbitrary: time to read and decide, and the grace of the other workspace."""
_USER, _SERVER = "hub.jupyter.org/username", "hub.jupyter.org/servername"


@dataclass(frozen=True)
class Holder:
    """The pod that mounts a claim: the name of its workspace, and its age in seconds since the epoch.

    ``lease`` is the id of its lease, ``node`` its node. Unknown values are "".
    """

    claim: str
    user: str
    server: str
    lease: str
    since: float
    node: str


def claims_of(pod: Json) -> frozenset[str]:
    """Return the names of the claims that a pod mounts."""
    volumes = (volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or ())
    return frozenset(claim["claimName"] for claim in volumes if claim)


def for_one_pod(claim: Json) -> bool:
    """Return whether only one pod may mount a claim. The scheduler lets a second pod wait forever.

    Many pods of a node may mount a claim of ReadWriteOnce. With some storage, pods of other nodes may mount it too. The
    node reports a blocked claim (:func:`is_attached_elsewhere`).
    """
    return ONE_POD in (claim.get("spec", {}).get("accessModes") or ())


def is_attached_elsewhere(events: Sequence[Json]) -> bool:
    """Return whether a pod's node cannot attach its volume because another node has it. ``events`` are the pod's."""
    reasons = {"FailedMount", "FailedAttachVolume", "Pulling", "Pulled"}
    last = next((event for event in reversed(events) if event.get("reason") in reasons), {})
    return "Multi-Attach" in str(last.get("message", ""))


def holder_of(pod: Json, claims: Collection[str], pods: Iterable[Json]) -> Holder | None:
    """Return the oldest other pod that mounts one of these ``claims`` of a pod, or None."""
    own = pod["metadata"]
    found = []
    for one in pods:
        meta, shared = one["metadata"], sorted(claims_of(one) & claims_of(pod) & set(claims))
        is_itself = (meta["namespace"], meta["name"]) == (own.get("namespace", meta["namespace"]), own["name"])
        is_over = one.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        if not shared or is_itself or is_over:
            continue
        told = meta.get("annotations") or {}
        found.append(
            Holder(
                shared[0],
                told.get(_USER, ""),
                told.get(_SERVER, ""),
                (meta.get("labels") or {}).get(LEASE_LABEL, ""),
                seconds_of(meta.get("creationTimestamp")),
                one["spec"].get("nodeName") or "",
            )
        )
    return min(found, key=lambda holder: (holder.since, holder.lease), default=None)


def holder_words(holder: Holder, user: str, since: str) -> str:
    """Return a sentence why ``user``'s start waits. ``since`` is the other pod's start as text."""
    whose = "another pod"
    if holder.user == user:
        whose = f"your workspace {holder.server}" if holder.server else "your default workspace"
    where = f", on {holder.node}" if holder.node else ""
    return f"Your home is mounted by one workspace at a time, and {whose} has it since {since}{where}."


LOOK_SECONDS = 0.2


class HomeWait:
    """The wait of a start for volumes of other workspaces."""

    def __init__(self, spawner: PodStart) -> None:
        """Wait for the volumes of this spawner's pods."""
        self._spawner = spawner

    async def wait_until_free(self, pod: Mapping[str, Any]) -> None:
        """Return once no other pod mounts a volume for one pod. `blocked_stage` limits the time.

        A pod made earlier would count as a pod without a node, and return to the queue again and again.
        """
        alone = [claim for claim in sorted(claims_of(pod)) if await self._is_for_one_pod(claim)]
        while alone and (holder := holder_of(pod, alone, self._pods_seen())) is not None:
            known = self._spawner._gpu_attempt.pod.blocked_at
            self._spawner._gpu_attempt = self._spawner._gpu_attempt.with_pod(
                holder=holder, blocked_at=known or time.monotonic()
            )
            await asyncio.sleep(LOOK_SECONDS)
        self._spawner._gpu_attempt = self._spawner._gpu_attempt.with_pod(holder=None)

    def blocked_stage(
        self, pod: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]], seconds: float
    ) -> Stage | None:
        """Return the stage of a start whose volume another pod mounts, or None.

        ``seconds`` is the time since its pod was made.
        """
        holder, blocked_at = self._spawner._gpu_attempt.pod.holder, self._spawner._gpu_attempt.pod.blocked_at
        if pod is None and holder is not None and blocked_at is not None:
            return self._held_by(holder, time.monotonic() - blocked_at)
        if pod is None or not is_attached_elsewhere(events):
            return None
        found = holder_of(pod, claims_of(pod), self._pods_seen())
        return None if found is None else self._held_by(found, seconds)

    def _held_by(self, holder: Holder, seconds: float) -> Stage:
        since = show_time(holder.since, time.time(), ZoneInfo(self._spawner.gpu_catalog.rules.timezone))
        words, own = holder_words(holder, self._spawner.user.name, since), holder.user == self._spawner.user.name
        goes_on = f"{words} {'Stop that one, and this' if own else 'This'} start goes on by itself once it has ended."
        stop = f"Stop that one on its page, or by gpuspawner stop {holder.server or '-'}: then start this again."
        fatal = f"{words} {stop if own else 'Start this again once that has ended.'}"
        lease = holder.lease if own else ""
        link = f"{self._spawner.gpu_service_prefix}workspaces/{lease}" if lease else ""
        over = fatal if seconds >= BLOCKED_SECONDS else ""
        return Stage(55, goes_on, over, link=link, link_text="Its page, to stop it", stop=lease)

    def _pods_seen(self) -> list[Mapping[str, Any]]:
        reflector = self._spawner.pod_reflector
        return [] if reflector is None else list(reflector.pods.values())

    async def _is_for_one_pod(self, claim: str) -> bool:
        try:
            found = await self._spawner._gpu_asked(
                self._spawner.api.read_namespaced_persistent_volume_claim, claim, self._spawner.namespace
            )
        except ApiException:  # missing or unreadable: its pod reports it
            return False
        return for_one_pod(self._spawner._gpu_as_json(found))
