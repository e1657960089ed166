"""The part of a pod's manifest that gives it the GPUs of its lease. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuspawner.backends.kubernetes.dra.models import claim_spec
from gpuspawner.backends.kubernetes.fleet import GPU_TOLERATIONS, SPOT_TOLERATIONS, Toleration, absent_on_new_nodes
from gpuspawner.backends.kubernetes.nodes import HOSTNAME, Node, Selector
from gpuspawner.core.gpus.fleet import Gpu, GpuKind, Group, Slot
from gpuspawner.core.gpus.vendors import CUDA_VERSION, DRIVER_VERSION, KARPENTER, SPOT, spot_labels

WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
"""CUDA images show each GPU of the node unless told otherwise. With GPUs the device plugin sets the variables."""
WITH_GPUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA and nvidia-smi then number GPUs alike."""
PREFERRED, REQUIRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("preferred", "required"))


def pod_patch(
    slots: Sequence[Slot],
    nodes: Mapping[str, Node],
    fleet: Iterable[Gpu],
    kinds: Mapping[str, GpuKind],
    tolerations: Iterable[Toleration],
    *,
    must_be_there: bool,
    instead: Sequence[GpuKind] = (),
    alike: str = "",
) -> dict[str, Any]:
    """Return the ``pod`` part of a patch (see ``backends.base``), {} for a workspace without GPUs.

    The pod requests its number of GPUs of each resource, on nodes with GPUs of its kind only. It prefers the granted
    node, or requires it with ``must_be_there``. A node that does not exist yet is requested by its future labels. A
    spot node is requested by the labels of a spot kind only. ``claim`` is the spec of a ResourceClaim for claimed GPUs,
    which all have the same value of the attribute ``alike``, unless it is "".
    """
    fleet = tuple(fleet)
    counts = Counter(slot.group for slot in slots if slot.group)
    if not counts:
        return {}
    first = next(iter(counts))
    resources = {group.resource: str(count) for group, count in sorted(counts.items())}
    node = nodes.get(first.node, Node(first.node))
    here = _in(HOSTNAME, [node.labels.get(HOSTNAME, first.node)])
    affinity: dict[str, Any] = {}
    kind = kinds.get(first.coming_kind or next((gpu.pool for gpu in fleet if gpu.group in counts), ""))
    if must_be_there and not first.is_coming:
        terms = [{"matchExpressions": [here]}]
    else:
        own = frozenset(resources)
        found = _coming(kind, own, nodes, fleet) if first.is_coming else _alike(frozenset(counts), nodes, fleet, kind)
        terms = _off_spot(found, kind, nodes, kinds, is_coming=first.is_coming)
    if not (must_be_there or first.is_coming):
        affinity[PREFERRED] = [{"weight": 100, "preference": {"matchExpressions": [here]}}]
    if terms:
        affinity[REQUIRED] = {"nodeSelectorTerms": terms}
    tolerated = (*tolerations, *(SPOT_TOLERATIONS if kind and kind.spot else ()))
    spec = {"tolerations": tolerations_json(tolerated), "affinity": {"nodeAffinity": affinity}}
    claimed = [kind for kind in kinds.values() if kind.claim is not None and kind.resource in resources]
    if claimed:
        return {"claim": claim_spec([*claimed, *instead], sum(counts.values()), alike), "spec": spec}
    return {"container": {"resources": {"requests": resources, "limits": dict(resources)}}, "spec": spec}


def keep_off(patch: dict[str, Any], nodes: Iterable[str]) -> dict[str, Any]:
    """Return a patch that keeps its pod off these nodes."""
    names = sorted(set(nodes))
    if not names or not patch.get("pod"):
        return patch
    pod, spec = patch["pod"], patch["pod"]["spec"]
    affinity = spec["affinity"]["nodeAffinity"]
    terms = affinity.get(REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    off = {"key": "metadata.name", "operator": "NotIn", "values": names}
    required = {"nodeSelectorTerms": [{**term, "matchFields": [off]} for term in terms]}
    return {**patch, "pod": {**pod, "spec": {**spec, "affinity": {"nodeAffinity": {**affinity, REQUIRED: required}}}}}


def _off_spot(
    terms: list[dict[str, Any]],
    kind: GpuKind | None,
    nodes: Mapping[str, Node],
    kinds: Mapping[str, GpuKind],
    *,
    is_coming: bool,
) -> list[dict[str, Any]]:
    """Return terms that exclude spot nodes by their known labels, unless the kind is spot.

    Karpenter may start a spot node for a pod without these terms.
    """
    if kind is not None and kind.spot:
        return terms
    keys = {key for node in nodes.values() for key in node.labels}
    keys |= {key for one in kinds.values() if one.spot and one.autoscale for key, _ in one.autoscale.labels}
    keys |= {KARPENTER} if is_coming else set()
    off = [{"key": key, "operator": "NotIn", "values": [SPOT[key]]} for key in SPOT if key in keys]
    if not off:
        return terms
    return [{**term, "matchExpressions": [*term.get("matchExpressions", ()), *off]} for term in terms or [{}]]


def _coming(
    kind: GpuKind | None, resources: frozenset[str], nodes: Mapping[str, Node], fleet: Sequence[Gpu]
) -> list[dict[str, Any]]:
    """Return the terms of a node that is started and of existing nodes. A free existing node comes first.

    If no node is ever started, the pod waits for GPUs of existing nodes.
    """
    if kind is not None and kind.autoscale is None:
        there = frozenset(gpu.group for gpu in fleet if gpu.group and gpu.pool == kind.pool)
        return _alike(there, nodes, fleet, kind)
    if kind is None or kind.autoscale is None or not kind.autoscale.labels:
        return []
    labels = kind.autoscale.labels
    absent = absent_on_new_nodes(kind, dict(labels))
    term = {"matchExpressions": [*(_in(key, [value]) for key, value in labels), *(_without(key) for key in absent)]}
    known = frozenset(gpu.group for gpu in fleet if gpu.group and gpu.pool == kind.pool)
    alike = _terms(known, resources, nodes, kind)
    return [term, *(other for other in alike if other != term)]


def _alike(
    groups: frozenset[Group], nodes: Mapping[str, Node], fleet: Sequence[Gpu], kind: GpuKind | None
) -> list[dict[str, Any]]:
    """Return the terms that only nodes with GPUs of the same kind meet.

    A kind with a resource of its own needs no terms: the resource finds its nodes.
    """
    pool = next((gpu.pool for gpu in fleet if gpu.group in groups), "")
    resources = frozenset(group.resource for group in groups)
    if not pool:  # The node is gone or has no kind now, so no other GPUs are alike.
        return _terms(groups, resources, nodes, kind)
    others = frozenset(gpu.group for gpu in fleet if gpu.group and gpu.pool != pool)
    if kind and kind.claim is not None and not kind.spot:
        return []  # a claim finds its nodes
    if (
        kind
        and kind.resource
        and not (kind.match or kind.spot or kind.driver or kind.cuda)
        and not any(group.resource in resources for group in others)
    ):
        return []
    known = frozenset(gpu.group for gpu in fleet if gpu.group and gpu.pool == pool) | groups
    return _terms(known, resources, nodes, kind)


def _terms(
    known: frozenset[Group], resources: frozenset[str], nodes: Mapping[str, Node], kind: GpuKind | None
) -> list[dict[str, Any]]:
    """Return a term for each set of labels on the nodes of these groups, with the driver if the kind asks for one."""
    versions = (DRIVER_VERSION, CUDA_VERSION) if kind and (kind.driver or kind.cuda) else ()
    selectors: set[Selector] = set()
    unlabelled: list[str] = []
    for group in sorted(known):
        name, resource, _ = group
        if resource not in resources:
            continue
        node = nodes.get(name, Node(name))
        if selector := node.model(resource).selector:
            spot = ((key, (value,)) for key, value in spot_labels(node.labels).items())
            driver = ((key, (node.labels[key],)) for key in versions if key in node.labels)
            selectors.add((*selector, *spot, *driver))
        else:
            unlabelled.append(node.labels.get(HOSTNAME, name))
    terms = [
        {"matchExpressions": [_in(key, list(values)) if values else _without(key) for key, values in selector]}
        for selector in sorted(selectors)
    ]
    if unlabelled:
        terms.append({"matchExpressions": [_in(HOSTNAME, sorted(set(unlabelled)))]})
    return terms


def _in(key: str, values: list[str]) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": values}


def _without(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "DoesNotExist"}


def tolerations_json(tolerations: Iterable[Toleration]) -> list[dict[str, str]]:
    """Return the tolerations of pods with GPUs as JSON: the taints of GPU nodes, and these."""
    return [_as_json(toleration) for toleration in (*GPU_TOLERATIONS, *tolerations)]


def _as_json(toleration: Toleration) -> dict[str, str]:
    fields = {"key": toleration.key, "operator": toleration.operator, "effect": toleration.effect}
    if toleration.operator != "Exists":
        fields["value"] = toleration.value
    return {name: value for name, value in fields.items() if value or name == "value"}
