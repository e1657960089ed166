"""Which kind of the catalog a cluster's GPUs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gpuspawner.backends.kubernetes.nodes import Model, says_shared, says_slice
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.vendors import GKE_PRODUCT, GKE_SHARED, GKE_SLICE


def cluster_kinds(kinds: Mapping[str, GpuKind]) -> dict[str, GpuKind]:
    """Return the kinds as a cluster has them: what it shares, it shares on nodes of its own.

    A share is served by nodes that divide the devices of its whole kind into as many replicas, each of them a device
    that is counted whole; never by a device that is not divided, and whole kinds never by one that is.
    """
    return {
        name: kind
        if kind.of is None
        else replace(kind, of=None, shares=1, replicas=kind.shares, match=kinds[kind.of].match)
        for name, kind in kinds.items()
    }


def kind_of(model: Model, resource: str, kinds: Sequence[GpuKind]) -> GpuKind | None:
    """Return the first kind that fits what a node advertises, or None if no kind fits.

    1. Devices that are counted for a kind with a ``claim`` are of that kind, wherever it stands in the catalog.
    2. A kind with a ``resource`` is counted by that resource alone.
    3. A kind of N replicas has devices that are divided into N.
    4. ``match`` fits the product. Slices and replicas are never taken for whole GPUs: unless the resource's own name
       (``nvidia.com/mig-1g.10gb``, ``nvidia.com/gpu.shared``) or replicas say so already, ``match`` must name them as
       the product does (``*-MIG-1g.10gb``, ``*-SHARED``).
    5. If devices are shared and no label tells by how many, a kind of N replicas must name their resource.
    6. Without labels there is no product: only a kind with a resource and without ``match`` fits.
    """
    claimed = (kind for kind in kinds if kind.claim is not None and kind.resource == resource)
    return next(claimed, None) or next((kind for kind in kinds if _fits(kind, model, resource)), None)


def absent_on_new_nodes(kind: GpuKind, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels that nodes of a kind never have, where those by which they are asked for name a GKE model.

    There nodes whose GPUs are sliced or shared have the model's label, too.
    """
    pattern = _plain(kind.match)
    if not pattern or GKE_PRODUCT not in labels:
        return ()
    told = {GKE_SLICE: _names_slice(pattern), GKE_SHARED: _names_replica(pattern)}
    return tuple(key for key, is_named in told.items() if not is_named and key not in labels)


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
