"""The fleet, counted from nodes and pods, and the catalog's kind of each GPU. Pure.

Kubernetes reports how many GPUs of a resource a node has and how many are requested, but not which pod has which. So
each GPU is virtual: ``NODE/RESOURCE/INDEX`` of the group ``NODE/RESOURCE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpuspawner.backends.kubernetes.nodes import ZONE, Model, Node, Taint, says_shared, says_slice
from gpuspawner.backends.kubernetes.pods import Pod
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Group, HostResources
from gpuspawner.core.gpus.vendors import GKE_PRODUCT, GKE_SHARED, GKE_SLICE, SPOT, TAINTS


def cluster_kinds(kinds: Mapping[str, GpuKind]) -> dict[str, GpuKind]:
    """Return the kinds as a cluster has them: a share has nodes of its own.

    Nodes of a share divide each device of the whole kind into that many replicas. Each replica counts as a whole
    device. A share never gets an undivided device, and a whole kind never gets a replica.
    """
    return {
        name: kind
        if kind.of is None
        else replace(kind, of=None, shares=1, replicas=kind.shares, match=kinds[kind.of].match)
        for name, kind in kinds.items()
    }


def kind_of(model: Model, resource: str, kinds: Sequence[GpuKind]) -> GpuKind | None:
    """Return the first kind that fits the GPUs of a node, or None.

    1. Devices counted for a kind with a ``claim`` are of that kind, wherever it is in the catalog.
    2. A kind with a ``resource`` has only GPUs of that resource.
    3. A kind of N replicas has devices that are divided into N.
    4. ``match`` fits the product. Slices and replicas never count as whole GPUs. Unless the resource's name
       (``nvidia.com/mig-1g.10gb``, ``nvidia.com/gpu.shared``) or the replicas tell, ``match`` must name them as the
       product does (``*-MIG-1g.10gb``, ``*-SHARED``).
    5. If devices are shared and no label has the number, a kind of N replicas must name their resource.
    6. Without labels there is no product. Then only a kind with a resource and without ``match`` fits.

    Whether the node's driver is new enough is not checked here.
    """
    claimed = (kind for kind in kinds if kind.claim is not None and kind.resource == resource)
    return next(claimed, None) or next((kind for kind in kinds if _fits(kind, model, resource)), None)


def absent_on_new_nodes(kind: GpuKind, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels that nodes of a kind never have, if the kind is requested by a GKE model label.

    GKE nodes with sliced or shared GPUs have the model's label, too.
    """
    pattern = _plain(kind.match)
    if not pattern or GKE_PRODUCT not in labels:
        return ()
    named = {GKE_SLICE: _names_slice(pattern), GKE_SHARED: _names_replica(pattern)}
    return tuple(key for key, is_named in named.items() if not is_named and key not in labels)


def _fits(kind: GpuKind, model: Model, resource: str) -> bool:
    if kind.resource and kind.resource != resource:
        return False
    replicas = model.replicas or (kind.replicas if kind.resource else 0)
    if not kind.match:
        return bool(kind.resource) and kind.replicas in {1, replicas}
    if not model.name:
        return False
    pattern = _plain(kind.match)
    if kind.replicas > 1:
        return kind.replicas == replicas and _matches(pattern, replace(model, replicas=1))
    named = replace(
        model,
        replicas=1 if says_shared(kind.resource) else model.replicas,
        profile="" if says_slice(kind.resource) else model.profile,
    )
    return _matches(pattern, named) or _matches(pattern, model)


def _matches(pattern: str, model: Model) -> bool:
    if _names_slice(pattern) != bool(model.profile) or _names_replica(pattern) != model.is_divided:
        return False
    return fnmatchcase(_plain(model.title), pattern)


def _names_slice(pattern: str) -> bool:
    return "-mig-" in pattern


def _names_replica(pattern: str) -> bool:
    return pattern.rstrip("*").endswith("-shared")


def _plain(text: str) -> str:
    return text.replace(" ", "-").replace("_", "-").casefold()


@dataclass(frozen=True)
class Toleration:
    """A taint that workspaces tolerate. An ``effect`` of "" means any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def fits(self, taint: Taint) -> bool:
        """Return whether it lets pods onto a node with this taint."""
        if self.effect not in {"", taint.effect} or (self.key != taint.key and (self.key or self.operator == "Equal")):
            return False
        return self.operator == "Exists" or self.value == taint.value


GPU_TOLERATIONS = tuple(Toleration(key, "Exists") for key in TAINTS)
"""Taints of GPU nodes. Each workspace with GPUs tolerates all of them, because a node's taint may have another name
than its resource."""
SPOT_TOLERATIONS = tuple(Toleration(key, value=value, effect="NoSchedule") for key, value in SPOT.items())
"""Taints of spot nodes. Each workspace with spot GPUs tolerates all of them."""


def gpus_of_node(
    node: Node, pods: Iterable[Pod], kinds: Sequence[GpuKind], hub: str, tolerations: Sequence[Toleration]
) -> tuple[Gpu, ...]:
    """Return the GPUs of a node, with the ones in use by other pods marked.

    The last GPUs of each resource are marked, foreign ones first and then unhealthy ones. Leases get the first GPUs.
    """
    if not node.capacity:
        return ()
    away, kinds = why_unusable(node, tolerations), [kind for kind in kinds if kind.spot == node.spot]
    foreign: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.hub != hub and not pod.ended:
            for resource in pod.requests:
                foreign.setdefault(resource, []).append(pod)
    gpus: list[Gpu] = []
    for resource, total in sorted(node.capacity.items()):
        gpus += _gpus(node, resource, total, kinds, foreign.get(resource, ()), away)
    return tuple(gpus)


def host_resources_of_node(node: Node, pods: Iterable[Pod], hub: str) -> HostResources | None:
    """Return the CPU and memory that a node has for leases with GPUs, None if unknown.

    Only workspaces and pods with GPUs are known, so the node may have less.
    """
    if not (node.cpu and node.memory_bytes):
        return None
    others = [pod.host_resources for pod in pods if not pod.ended and not (pod.hub == hub and pod.requests)]
    return HostResources(node.cpu - sum(x.cpu for x in others), node.memory_bytes - sum(x.memory for x in others))


def why_unusable(node: Node, tolerations: Iterable[Toleration]) -> str:
    """Return why no workspace with GPUs can run on a node, "" if one can."""
    if not node.ready:
        return f"{node.name} is not ready"
    if node.cordoned:
        return f"{node.name} is cordoned"
    tolerated = (*GPU_TOLERATIONS, *(SPOT_TOLERATIONS if node.spot else ()), *tolerations)
    for taint in node.taints:
        if not any(toleration.fits(taint) for toleration in tolerated):
            return f"{node.name} is tainted {taint.key}"
    return ""


def _gpus(
    node: Node, resource: str, total: int, kinds: Sequence[GpuKind], users: Sequence[Pod], away: str
) -> list[Gpu]:
    model = node.model(resource)
    kind = kind_of(model, resource, [one for one in kinds if one.claim or one.fits_driver(*node.driver)])
    no_kind = "" if kind else _why_no_kind(node, model, resource, kinds)
    namespaces = ", ".join(sorted({pod.namespace for pod in users}))
    # A pod that names its node may request more than the node has, until the kubelet refuses it.
    holders = sorted(pod.holder for pod in users for _ in range(min(pod.requests[resource], total)))
    sick = total - node.allocatable.get(resource, 0)
    group = Group(node.name, resource)
    gpus = []
    for index, domains in enumerate(node.domains(resource)):
        is_foreign = index >= total - len(holders)
        is_sick = not is_foreign and index >= total - len(holders) - sick
        note = away or no_kind
        if is_foreign:
            note = f"used by namespace {namespaces}"
        elif is_sick:
            why = f"tainted {node.taints_of[resource]}" if resource in node.taints_of else "reported unhealthy"
            note = f"{sick} of {total} on {node.name} are {why}"
        gpus.append(
            Gpu(
                id=group.gpu(index),
                pool=kind.name if kind else "",
                node=node.name,
                index=index,
                model=model.title or resource,
                memory_bytes=model.memory_bytes or (kind.memory_bytes if kind else 0),
                healthy=not is_sick and not away,
                foreign=is_foreign,
                note=note,
                group=group,
                zone=node.labels.get(ZONE, ""),
                reachable=node.ready,
                spot=node.spot,
                holder=holders[total - 1 - index] if is_foreign else "",
                domains=domains,
            )
        )
    return gpus


def _why_no_kind(node: Node, model: Model, resource: str, kinds: Sequence[GpuKind]) -> str:
    named = f"match: {model.title}" if model.name else f"resource: {resource}"
    if (kind := kind_of(model, resource, kinds)) is not None:
        return kind.old_driver_words(*node.driver)
    if node.spot:
        return f"add a kind with {named} and spot: true to the catalog: its node is spot"
    if not model.replicas:
        return f"no label says how many share it: to offer it, add a kind with {named} to the catalog"
    return ""
