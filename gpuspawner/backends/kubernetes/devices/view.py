"""Devices that pods claim as the cluster has them now, by list and watch; asked for only where a kind is claimed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpuspawner.backends.kubernetes.api import Api
from gpuspawner.backends.kubernetes.connection import ClusterSettings
from gpuspawner.backends.kubernetes.dra.counting import (
    Counted,
    counted,
    devices_of,
    needs_of,
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
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.core.gpus.fleet import GpuKind

log = logging.getLogger("gpuspawner.kubernetes")

GROUP = "/apis/resource.k8s.io/v1"


class DeviceView:
    """ResourceSlices, DeviceClasses and ResourceClaims.

    ``changed`` hears of each node whose devices, or who has them, changed.
    """

    def __init__(
        self, api: Api, settings: ClusterSettings, kinds: Iterable[GpuKind], changed: Callable[[str], None]
    ) -> None:
        """Look through ``api``."""
        self._changed = changed
        self._slices_on: dict[str, dict[str, Slice]] = {}
        self._of_pod: dict[str, dict[str, Claim]] = {}
        self._on_device: dict[DeviceName, dict[str, Claim]] = {}
        self._node_of: dict[tuple[str, str], str] = {}
        self._found: dict[str, tuple[Mapping[DeviceName, Device], Mapping[DeviceName, Sequence[str]], Counted]] = {}
        self._classes = Watch(api, f"{GROUP}/deviceclasses", {}, to_class, self._class_changed, settings)
        self._slices = Watch(api, f"{GROUP}/resourceslices", {}, to_slice, self._slice_changed, settings)
        self._claims = Watch(api, f"{GROUP}/resourceclaims", {}, to_claim, self._claim_changed, settings)
        self._told: dict[Watch[Any], str] = {}
        self.use_kinds(kinds)
        self._needed = bool(self._kinds) or settings.claims

    @property
    def watches(self) -> Sequence[Watch[Any]]:
        """What is followed: nothing where no kind was claimed when the service began, and no extended resource is."""
        return (self._classes, self._slices, self._claims) if self._needed else ()

    @property
    def limits(self) -> tuple[str, ...]:
        """What may not be seen, each in a sentence for the administrator."""
        return tuple(sentence for watch, sentence in self._told.items() if not watch.complete)

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Count devices as these kinds from now on."""
        self._kinds = tuple(kind for kind in kinds if kind.claim is not None)
        self._needs = needs_of(self._kinds)
        self._all_changed()

    def follow(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what follows each of them, until cancelled."""
        return (self._follow(watch) for watch in self.watches)

    def node(self, node: Node) -> Node:
        """Return a node with its claimed devices. To be asked before its pods."""
        if not (self._needed and all(watch.complete for watch in self.watches)):
            return node  # without the claims of others, what they have would look free
        advertised = frozenset(resource for resource, count in node.allocatable.items() if count)
        devices, left = devices_of(self._slices_on.get(node.name, {}).values())
        classes = {one.name: one for one in self._classes.objects.values()}
        kinds = [kind for kind in self._kinds if kind.spot == node.spot]
        resources = {d.name: found for d in devices if (found := resources_of(d, kinds, classes, advertised))}
        has = counted(devices, left, self._claims_on(devices), resources, self._needs)
        self._found[node.name] = {device.name: device for device in devices}, resources, has
        return with_devices(node, has)

    def pod(self, pod: Pod) -> Pod:
        """Return a pod that asks for what its claims were given."""
        return self._with_claims(pod, self._of_pod.get(pod.uid, {}).values())

    def pods(self, seen: Mapping[str, Pod]) -> Iterator[Pod]:
        """Yield pods that ask for what their claims were given.

        Args:
            seen: all pods of a node, by uid. A claim that several of them share is counted once: for a workspace, else
                for the first that reserved it.
        """
        for pod in seen.values():
            claims = self._of_pod.get(pod.uid, {}).values()
            yield self._with_claims(pod, [claim for claim in claims if _counting_pod(claim, seen) == pod.uid])

    def _with_claims(self, pod: Pod, claims: Collection[Claim]) -> Pod:
        return with_claims(pod, ((claim, self._given(pod.node, claim)) for claim in claims)) if claims else pod

    def others(self, node: str, pods: Mapping[str, Pod]) -> Iterator[Pod]:
        """Yield who else has devices of a node, as pods: claims of pods that are not seen, and what they block."""
        devices, _, has = self._found.get(node, ({}, {}, Counted()))
        for claim in self._claims_on(devices.values()):
            if not any(uid in pods for uid, _ in claim.pods) and (given := self._given(node, claim)):
                yield Pod(claim.uid, claim.namespace, claim.name, node, given, holder=_holder(claim))
        for resource, count in has.blocked.items():
            for claim in list(has.blockers.get(resource, ()))[:1] if count else ():
                user = next((pods[uid] for uid, _ in claim.pods if uid in pods), None)
                holder = user.holder if user else _holder(claim)
                yield Pod(
                    f"{claim.uid}/{resource}", claim.namespace, claim.name, node, {resource: count}, holder=holder
                )

    def unhealthy(self, pod: Pod) -> tuple[str, ...]:
        """Return those of a pod's devices that are tainted, by uuid where they have one."""
        devices = self._found.get(pod.node, ({}, {}, Counted()))[0]
        names = (one.device for claim in self._of_pod.get(pod.uid, {}).values() for one in claim.devices)
        ill = (devices[name] for name in names if name in devices and devices[name].tainted)
        return tuple(sorted(str(device.attribute("uuid") or device.name.device) for device in ill))

    def uuids(self, pod: Pod) -> tuple[str, ...]:
        """Return the GPUs that a pod's claims were given, by uuid; none where one of them has none."""
        devices, resources, _ = self._found.get(pod.node, ({}, {}, Counted()))
        given = (one for claim in self._of_pod.get(pod.uid, {}).values() for one in claim.devices)
        found = [devices[one.device].uuid for one in given if resource_of(one, resources, self._needs)]
        return tuple(found) if all(found) else ()

    def _given(self, node: str, claim: Claim) -> dict[str, int]:
        _, resources, _ = self._found.get(node, ({}, {}, Counted()))
        given = (resource_of(one, resources, self._needs) for one in claim.devices)
        return dict(Counter(resource for resource in given if resource))

    def _claims_on(self, devices: Iterable[Device]) -> Sequence[Claim]:
        found = {uid: claim for d in devices for uid, claim in self._on_device.get(d.name, {}).items()}
        return [found[uid] for uid in sorted(found)]

    async def _follow(self, watch: Watch[Any]) -> None:
        await watch.run(until_refused=True)
        self._told[watch] = (
            f"Devices that are claimed are not seen ({watch.refused}), and none is given. They need Kubernetes 1.34 "
            "or newer, and list and watch of deviceclasses, resourceslices and resourceclaims, as in "
            "hub_config/kubernetes-claims-rbac.yaml."
        )
        log.warning(self._told[watch])
        await watch.allowed()
        self._all_changed()
        await watch.run()

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
                _keep(self._on_device, one.device, claim, there=there)
                node = self._node_of.get((one.device.driver, one.device.pool))
                if node is not None:
                    self._changed(node)
            for uid, _ in claim.pods if claim else ():
                assert claim is not None, "it has pods"
                _keep(self._of_pod, uid, claim, there=there)


def _keep(index: dict[Any, dict[str, Claim]], key: object, claim: Claim, *, there: bool) -> None:
    found = index.setdefault(key, {})
    if there:
        found[claim.uid] = claim
        return
    found.pop(claim.uid, None)
    if not found:
        index.pop(key)


def _counting_pod(claim: Claim, seen: Mapping[str, Pod]) -> str:
    """Return the uid of the pod for which a claim is counted, "" if none of its pods is seen."""
    known = [uid for uid, _ in claim.pods if uid in seen]
    return next((uid for uid in known if seen[uid].hub), next(iter(known), ""))


def _holder(claim: Claim) -> str:
    """Return whose a claim is whose pod is not seen."""
    return next(
        (f"Pod {claim.namespace}/{pod}" for _, pod in claim.pods), f"ResourceClaim {claim.namespace}/{claim.name}"
    )
