"""The cluster's claimed devices, by list and watch. Watched only if a kind is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.dra.counting import (
    DeviceCounts,
    count_devices,
    devices_of,
    needs_of,
    order_domains,
    resource_of,
    resources_of,
    with_claims,
    with_devices,
)
from gpuspawner.backends.kubernetes.dra.models import (
    Claim,
    Device,
    DeviceClass,
    DeviceName,
    Slice,
    to_claim,
    to_class,
    to_slice,
)
from gpuspawner.backends.kubernetes.nodes import Node
from gpuspawner.backends.kubernetes.pods import Pod
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.core.gpus.fleet import GpuKind

GROUP = "/apis/resource.k8s.io/v1"
UNSEEN = (
    "Claimed devices cannot be observed ({}), so they are not granted. They need Kubernetes 1.34 or newer, and list "
    "and watch of deviceclasses, resourceslices and resourceclaims, as in hub_config/kubernetes-claims-rbac.yaml."
)


class DeviceView:
    """Watches ResourceSlices, DeviceClasses and ResourceClaims. ``changed`` is called with each changed node."""

    def __init__(
        self, api: Api, settings: ClusterSettings, kinds: Iterable[GpuKind], changed: Callable[[str], None]
    ) -> None:
        self._changed = changed
        self._slices_on: dict[str, dict[str, Slice]] = {}
        self._of_pod: dict[str, dict[str, Claim]] = {}
        self._on_device: dict[DeviceName, dict[str, Claim]] = {}
        self._node_of: dict[tuple[str, str], str] = {}
        self._found: dict[
            str, tuple[Mapping[DeviceName, Device], Mapping[DeviceName, Sequence[str]], DeviceCounts]
        ] = {}
        self._classes = Watch(api, f"{GROUP}/deviceclasses", {}, to_class, self._class_changed, settings)
        self._slices = Watch(api, f"{GROUP}/resourceslices", {}, to_slice, self._slice_changed, settings)
        self._claims = Watch(api, f"{GROUP}/resourceclaims", {}, to_claim, self._claim_changed, settings)
        self.use_kinds(kinds)
        self._needed = bool(self._kinds) or settings.claims

    @property
    def watches(self) -> Sequence[Watch[Any]]:
        """The watches. Empty if no kind was claimed at the service's start and no extended resource is served."""
        return (self._classes, self._slices, self._claims) if self._needed else ()

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Count devices as these kinds."""
        self._kinds = tuple(kind for kind in kinds if kind.claim is not None)
        self._needs = needs_of(self._kinds)
        self._all_changed()

    def run_watches(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield a coroutine for each watch, which runs until cancelled."""
        return (watch.run_despite_refusal(UNSEEN.format, then=self._all_changed) for watch in self.watches)

    def node(self, node: Node) -> Node:
        """Return a node with its claimed devices. Call this before asking for its pods."""
        if not (self._needed and all(watch.complete for watch in self.watches)):
            return node  # Without others' claims, their devices would look free.
        advertised = frozenset(resource for resource, count in node.allocatable.items() if count)
        devices, left = devices_of(self._slices_on.get(node.name, {}).values())
        classes = {one.name: one for one in self._classes.objects.values()}
        kinds = [kind for kind in self._kinds if kind.spot == node.spot]
        resources = {d.name: found for d in devices if (found := resources_of(d, kinds, classes, advertised))}
        has = count_devices(devices, left, self._claims_on(devices), resources, self._needs)
        self._found[node.name] = {device.name: device for device in devices}, resources, has
        return with_devices(node, has)

    def with_domains_in_use(self, node: Node, pods: Mapping[str, Pod], hub: str) -> Node:
        """Return a node whose GPUs have the domains of the devices that its pods have. ``pods`` are by uid."""
        devices, _, has = self._found.get(node.name, ({}, {}, DeviceCounts()))
        if not node.device_domains or not has.domains:
            return node
        claims, ordered = self._claims_on(devices.values()), dict[str, Sequence[str]]()
        for resource, domains in has.domains.items():
            index_of, last = dict[DeviceName, int](), [name for name in domains if devices[name].tainted]
            for claim in claims:
                own = pods.get(_counting_pod(claim, pods))
                names = sorted(one.device for one in claim.devices if one.device in domains)
                if own is None or own.hub != hub:
                    last += names
                else:
                    indexes = (*own.gpu_indexes(node.name, resource), *[-1 for _ in names])
                    index_of |= zip(names, indexes, strict=False)
            ordered[resource] = order_domains(domains, index_of, last)
        return replace(node, device_domains=ordered)

    def pod(self, pod: Pod) -> Pod:
        """Return a pod that also requests the devices of its claims."""
        return self._with_claims(pod, self._of_pod.get(pod.uid, {}).values())

    def pods(self, seen: Mapping[str, Pod]) -> Iterator[Pod]:
        """Yield pods that also request the devices of their claims.

        Args:
            seen: all pods of a node, by uid. A claim shared by several pods counts once, for a workspace if there is
            one.
        """
        for pod in seen.values():
            claims = self._of_pod.get(pod.uid, {}).values()
            yield self._with_claims(pod, [claim for claim in claims if _counting_pod(claim, seen) == pod.uid])

    def _with_claims(self, pod: Pod, claims: Collection[Claim]) -> Pod:
        return with_claims(pod, ((claim, self._allocated(pod.node, claim)) for claim in claims)) if claims else pod

    def other_users(self, node: str, pods: Mapping[str, Pod]) -> Iterator[Pod]:
        """Yield other users of a node's devices as pods: claims of unknown pods, and units that claims block."""
        devices, _, has = self._found.get(node, ({}, {}, DeviceCounts()))
        for claim in self._claims_on(devices.values()):
            if not any(uid in pods for uid, _ in claim.pods) and (allocated := self._allocated(node, claim)):
                yield Pod(claim.uid, claim.namespace, claim.name, node, allocated, holder=_holder(claim))
        for resource, count in has.blocked.items():
            for claim in list(has.blockers.get(resource, ()))[:1] if count else ():
                user = next((pods[uid] for uid, _ in claim.pods if uid in pods), None)
                holder = user.holder if user else _holder(claim)
                yield Pod(
                    f"{claim.uid}/{resource}", claim.namespace, claim.name, node, {resource: count}, holder=holder
                )

    def unhealthy(self, pod: Pod) -> tuple[str, ...]:
        """Return a pod's tainted devices, by uuid if they have one."""
        devices = self._found.get(pod.node, ({}, {}, DeviceCounts()))[0]
        names = (one.device for claim in self._of_pod.get(pod.uid, {}).values() for one in claim.devices)
        ill = (devices[name] for name in names if name in devices and devices[name].tainted)
        return tuple(sorted(str(device.attribute("uuid") or device.name.device) for device in ill))

    def uuids(self, pod: Pod) -> tuple[str, ...]:
        """Return the uuids of the GPUs of a pod's claims, () if one has no uuid."""
        devices, resources, _ = self._found.get(pod.node, ({}, {}, DeviceCounts()))
        allocated = (one for claim in self._of_pod.get(pod.uid, {}).values() for one in claim.devices)
        found = [devices[one.device].uuid for one in allocated if resource_of(one, resources, self._needs)]
        return tuple(found) if all(found) else ()

    def _allocated(self, node: str, claim: Claim) -> dict[str, int]:
        _, resources, _ = self._found.get(node, ({}, {}, DeviceCounts()))
        found = (resource_of(one, resources, self._needs) for one in claim.devices)
        return dict(Counter(resource for resource in found if resource))

    def _claims_on(self, devices: Iterable[Device]) -> Sequence[Claim]:
        found = {uid: claim for d in devices for uid, claim in self._on_device.get(d.name, {}).items()}
        return [found[uid] for uid in sorted(found)]

    def _all_changed(self) -> None:
        for name in self._slices_on:
            self._changed(name)

    def _class_changed(self, _before: DeviceClass | None, _after: DeviceClass | None) -> None:
        self._all_changed()

    def _slice_changed(self, before: Slice | None, after: Slice | None) -> None:
        for one, there in ((before, False), (after, True)):
            if one is None:
                continue
            on_node = self._slices_on.setdefault(one.node, {})
            key = f"{one.driver}/{one.pool}/{one.generation}/{one.name}"
            on_node.pop(key, None)
            if there:
                on_node[key] = one
                self._node_of[one.driver, one.pool] = one.node
            self._changed(one.node)

    def _claim_changed(self, before: Claim | None, after: Claim | None) -> None:
        for claim, there in ((before, False), (after, True)):
            for one in claim.devices if claim else ():
                assert claim is not None, "it has devices"
                _update_index(self._on_device, one.device, claim, there=there)
                node = self._node_of.get((one.device.driver, one.device.pool))
                if node is not None:
                    self._changed(node)
            for uid, _ in claim.pods if claim else ():
                assert claim is not None, "it has pods"
                _update_index(self._of_pod, uid, claim, there=there)


def _update_index(index: dict[Any, dict[str, Claim]], key: object, claim: Claim, *, there: bool) -> None:
    found = index.setdefault(key, {})
    if there:
        found[claim.uid] = claim
        return
    found.pop(claim.uid, None)
    if not found:
        index.pop(key)


def _counting_pod(claim: Claim, seen: Mapping[str, Pod]) -> str:
    """Return the uid of the pod for which a claim counts, "" if none of its pods is known."""
    known = [uid for uid, _ in claim.pods if uid in seen]
    return next((uid for uid in known if seen[uid].hub), next(iter(known), ""))


def _holder(claim: Claim) -> str:
    """Return the owner of a claim whose pod is unknown."""
    return next(
        (f"Pod {claim.namespace}/{pod}" for _, pod in claim.pods), f"ResourceClaim {claim.namespace}/{claim.name}"
    )
