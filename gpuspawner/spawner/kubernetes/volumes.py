"""Volumes of pods: those of a template, the claims of a user, and the wait for a volume of another workspace."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from kubernetes_asyncio.client import ApiException

from gpuspawner.backends.kubernetes.nodes import seconds_of
from gpuspawner.backends.kubernetes.pods import LEASE_LABEL
from gpuspawner.catalog.pod_models import Container, Volume
from gpuspawner.catalog.template_models import Template
from gpuspawner.core.units import show_time
from gpuspawner.spawner.kubernetes.manifests import container
from gpuspawner.spawner.kubernetes.pod_ends import message_of
from gpuspawner.spawner.kubernetes.pod_states import Stage, last_event, short
from gpuspawner.spawner.waiting import StartEnded

if TYPE_CHECKING:
    from gpuspawner.spawner.kubernetes.starting import PodStart

Json = Mapping[str, Any]


def with_template(
    manifest: Mapping[str, Any], template: Template, volumes: Mapping[str, Volume], claims: Mapping[str, str]
) -> dict[str, Any]:
    """Return KubeSpawner's manifest with everything that a template adds.

    Args:
        manifest: The manifest with the administrator's settings and profiles.
        template: The template of the workspace.
        volumes: Its volumes for this user.
        claims: The names of the user's own claims, by volume.
    """
    pod: dict[str, Any] = deepcopy(dict(manifest))
    spec, server = pod["spec"], container(pod)
    if template.resources:
        written = server.get("resources") or {}
        parts = {part: {**(written.get(part) or {}), **dict(template.resources)} for part in ("limits", "requests")}
        server["resources"] = {**written, **parts}
    if template.priority_class:
        spec["priorityClassName"] = template.priority_class
        spec.pop("priority", None)
    mounts = [_mount(name, one) for name, one in volumes.items()]
    added = [{"name": _name(name), **_source(one, claims.get(name, ""))} for name, one in volumes.items()]
    _add(spec, "volumes", added)
    _add(spec, "initContainers", [_container(*each, mounts) for each in template.init.items()])
    _add(spec, "containers", [_container(*each, mounts) for each in template.sidecars.items()])
    _add(server, "volumeMounts", mounts)
    return pod


def claim_manifest(
    volume: Volume, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """Return the PersistentVolumeClaim of a user for a ``per_user`` volume."""
    spec: dict[str, Any] = {
        "accessModes": [volume.access],
        "resources": {"requests": {"storage": str(volume.per_user_bytes)}},
    }
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    metadata = {"name": name, "labels": dict(labels), "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _name(volume: str) -> str:
    """Return a volume's name in the pod. Volumes of KubeSpawner have other names."""
    return f"gpu-{volume}"[:63].rstrip("-")


def _mount(name: str, volume: Volume) -> dict[str, Any]:
    return {"name": _name(name), "mountPath": volume.mount, **({"readOnly": True} if volume.read_only else {})}


def _source(volume: Volume, own_claim: str) -> dict[str, Any]:
    read_only = {"readOnly": True} if volume.read_only else {}
    if volume.claim or own_claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim or own_claim, **read_only}}
    if volume.empty:
        medium = {"medium": "Memory"} if volume.empty == "memory" else {}
        limit = {"sizeLimit": str(volume.size_bytes)} if volume.size_bytes else {}
        return {"emptyDir": {**medium, **limit}}
    if volume.nfs:
        server, _, path = volume.nfs.partition(":")
        return {"nfs": {"server": server, "path": path, **read_only}}
    if volume.csi:
        return {"csi": {**json.loads(volume.csi), **read_only}}
    if volume.config_map:
        return {"configMap": {"name": volume.config_map}}
    return {"secret": {"secretName": volume.secret}}


def _container(name: str, one: Container, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    amounts = {"cpu": f"{one.cpu_cores:g}", "memory": str(one.memory_bytes)}
    found: dict[str, Any] = {"name": name, "image": one.image, "resources": {"limits": amounts, "requests": amounts}}
    if one.command:
        found["command"] = list(one.command)
    if one.environment:
        found["env"] = [{"name": key, "value": value} for key, value in one.environment]
    if mounts:
        found["volumeMounts"] = mounts
    return found


def _add(holder: dict[str, Any], key: str, items: list[dict[str, Any]]) -> None:
    if items:
        holder[key] = [*(holder.get(key) or []), *deepcopy(items)]


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


def is_for_one_pod(claim: Json) -> bool:
    """Return whether only one pod may mount a claim. The scheduler lets a second pod wait forever.

    Many pods of a node may mount a claim of ReadWriteOnce. With some storage, pods of other nodes may mount it too. The
    node reports a blocked claim (:func:`is_attached_elsewhere`).
    """
    return ONE_POD in (claim.get("spec", {}).get("accessModes") or ())


def is_attached_elsewhere(events: Sequence[Json]) -> bool:
    """Return whether a pod's node cannot attach its volume because another node has it. ``events`` are the pod's."""
    last = last_event(events, "FailedMount", "FailedAttachVolume", "Pulling", "Pulled")
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


def describe_holder(holder: Holder, user: str, since: str) -> str:
    """Return a sentence why ``user``'s start waits. ``since`` is the other pod's start as text."""
    whose = "another pod"
    if holder.user == user:
        whose = f"your workspace {holder.server}" if holder.server else "your default workspace"
    where = f", on {holder.node}" if holder.node else ""
    return f"Your home is mounted by one workspace at a time, and {whose} has it since {since}{where}."


LOOK_SECONDS = 0.2


class PodVolumes:
    """The volumes of a spawner's pod."""

    def __init__(self, spawner: PodStart) -> None:
        """Make and wait for the volumes of this spawner's pods."""
        self._spawner = spawner

    def user_claims(self) -> dict[str, str]:
        """Return the names of the user's own claims by volume. Templates with a volume of one name share its claim."""
        names = [name for name, one in self._spawner._gpu_volumes().items() if one.per_user_bytes]
        return {name: self._spawner._expand_user_properties(f"gpu-{name}-{{username}}") for name in names}

    async def make_user_claims(self) -> None:
        """Make the user's own claims unless they exist. They stay when the workspace ends."""
        spawner = self._spawner
        volumes = spawner._gpu_volumes()
        for volume, name in self.user_claims().items():
            home = spawner.get_pvc_manifest()
            manifest = claim_manifest(volumes[volume], name, home.metadata.labels, home.metadata.annotations)
            make = spawner.api.create_namespaced_persistent_volume_claim
            try:
                await spawner._gpu_asked(make, spawner.namespace, manifest)
            except ApiException as error:
                if error.status == HTTPStatus.CONFLICT:
                    continue
                words = f"Your volume {volume} cannot be made: {short(message_of(error))}"
                message = f"{words} Tell your administrator; nothing was charged."
                raise StartEnded(message, reason="cannot-start", status=409) from error

    async def wait_until_free(self, pod: Mapping[str, Any]) -> None:
        """Return once no other pod mounts a volume for one pod. `blocked_stage` limits the time.

        A pod made earlier would count as a pod without a node, and return to the queue again and again.
        """
        alone = [claim for claim in sorted(claims_of(pod)) if await self._is_for_one_pod(claim)]
        while alone and (holder := holder_of(pod, alone, self._observed_pods())) is not None:
            known = self._spawner._gpu_attempt.pod.blocked_at
            self._spawner._gpu_change_pod(holder=holder, blocked_at=known or time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)
        self._spawner._gpu_change_pod(holder=None)

    def blocked_stage(
        self, pod: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]], seconds: float
    ) -> Stage | None:
        """Return the stage of a start whose volume another pod mounts, or None.

        ``seconds`` is the time since its pod was made.
        """
        holder, blocked_at = self._spawner._gpu_attempt.pod.holder, self._spawner._gpu_attempt.pod.blocked_at
        if pod is None and holder is not None and blocked_at is not None:
            return self._blocked_by(holder, time.monotonic() - blocked_at)
        if pod is None or not is_attached_elsewhere(events):
            return None
        found = holder_of(pod, claims_of(pod), self._observed_pods())
        return None if found is None else self._blocked_by(found, seconds)

    def _blocked_by(self, holder: Holder, seconds: float) -> Stage:
        since = show_time(holder.since, time.time(), ZoneInfo(self._spawner.gpu_catalog.rules.timezone))
        words, own = describe_holder(holder, self._spawner.user.name, since), holder.user == self._spawner.user.name
        goes_on = f"{words} {'Stop that one, and this' if own else 'This'} start goes on by itself once it has ended."
        stop = f"Stop that one on its page, or by gpuspawner stop {holder.server or '-'}: then start this again."
        fatal = f"{words} {stop if own else 'Start this again once that has ended.'}"
        lease = holder.lease if own else ""
        link = f"{self._spawner.gpu_service_prefix}workspaces/{lease}" if lease else ""
        over = fatal if seconds >= BLOCKED_SECONDS else ""
        return Stage(55, goes_on, over, link=link, link_text="Its page, to stop it", stop=lease)

    def _observed_pods(self) -> list[Mapping[str, Any]]:
        reflector = self._spawner.pod_reflector
        return [] if reflector is None else list(reflector.pods.values())

    async def _is_for_one_pod(self, claim: str) -> bool:
        try:
            found = await self._spawner._gpu_asked(
                self._spawner.api.read_namespaced_persistent_volume_claim, claim, self._spawner.namespace
            )
        except ApiException:  # missing or unreadable: its pod reports it
            return False
        return is_for_one_pod(self._spawner._gpu_as_json(found))
