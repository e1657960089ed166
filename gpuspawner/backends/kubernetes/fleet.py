"""The fleet, counted from nodes and pods. Pure.

Kubernetes tells how many GPUs of a resource a node has and how many are asked for, never which pod has which. So each
is a virtual one, ``NODE/RESOURCE/INDEX``, of the group ``NODE/RESOURCE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuspawner.backends.kubernetes.kinds import kind_of
from gpuspawner.backends.kubernetes.reading.models import ZONE, Model
from gpuspawner.backends.kubernetes.reading.objects import Node, Pod, Taint
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Group, HostResources
from gpuspawner.core.gpus.vendors import SPOT, TAINTS


@dataclass(frozen=True)
class Toleration:
    """A taint that workspaces tolerate, as Kubernetes reads it; ``effect`` "" is any."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def fits(self, taint: Taint) -> bool:
        """Whether it lets pods onto a node with this taint."""
        if self.effect not in {"", taint.effect} or (self.key != taint.key and (self.key or self.operator == "Equal")):
            return False
        return self.operator == "Exists" or self.value == taint.value


GPU_TOLERATIONS = tuple(Toleration(key, "Exists") for key in TAINTS)
"""Of taints that keep pods without GPUs off a node: whoever asks for GPUs has all of them, as a node's resources may
have other names than its taint."""
SPOT_TOLERATIONS = tuple(Toleration(key, value=value, effect="NoSchedule") for key, value in SPOT.items())
"""Of taints that keep pods off spot nodes: whoever asks for GPUs there has all of them."""


def gpus_of_node(
    node: Node, pods: Iterable[Pod], kinds: Sequence[GpuKind], hub: str, tolerations: Sequence[Toleration]
) -> tuple[Gpu, ...]:
    """Return the GPUs that one node advertises, with what its pods take of them.

    Of each resource the last ones are marked: foreign ones first, then the unhealthy; leases are given the first.
    """
    if not node.capacity:
        return ()
    away, kinds = why_not(node, tolerations), [kind for kind in kinds if kind.spot == node.spot]
    foreign: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.hub != hub and not pod.ended:
            for resource in pod.requests:
                foreign.setdefault(resource, []).append(pod)
    gpus: list[Gpu] = []
    for resource, total in sorted(node.capacity.items()):
        model = node.model(resource)
        gpus += _gpus(node, resource, total, model, kind_of(model, resource, kinds), foreign.get(resource, ()), away)
    return tuple(gpus)


def beside_on_node(node: Node, pods: Iterable[Pod], hub: str) -> HostResources | None:
    """Return the CPU and memory that a node has for leases with GPUs, None where it does not tell.

    Of other pods only those are known that ask for GPUs, and workspaces: the node may have less.
    """
    if not (node.cpu and node.memory_bytes):
        return None
    others = [pod.host_resources for pod in pods if not pod.ended and not (pod.hub == hub and pod.requests)]
    return HostResources(node.cpu - sum(x.cpu for x in others), node.memory_bytes - sum(x.memory for x in others))


def why_not(node: Node, tolerations: Iterable[Toleration]) -> str:
    """Return why no workspace with GPUs can be placed on a node, "" where one can."""
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
    node: Node, resource: str, total: int, model: Model, kind: GpuKind | None, users: Sequence[Pod], away: str
) -> list[Gpu]:
    namespaces = ", ".join(sorted({pod.namespace for pod in users}))
    # A pod that names its node itself may ask for more than that has, until its kubelet refuses it.
    holders = sorted(pod.holder for pod in users for _ in range(min(pod.requests[resource], total)))
    sick = total - node.allocatable.get(resource, 0)
    group = Group(node.name, resource)
    unnamed, named = "", f"match: {model.title}" if model.name else f"resource: {resource}"
    if kind is None and node.spot:
        unnamed = f"add a kind with {named} and spot: true to the catalog: its node is spot"
    elif kind is None and not model.replicas:
        unnamed = f"no label says how many share it: to offer it, add a kind with {named} to the catalog"
    gpus = []
    for index in range(total):
        is_foreign = index >= total - len(holders)
        is_sick = not is_foreign and index >= total - len(holders) - sick
        note = away or unnamed
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
            )
        )
    return gpus
