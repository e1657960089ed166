"""Quotas and limits of a cluster's namespace. Quotas bind all its pods together, limits bind each workspace.

Amounts are whole numbers by resource: ``cpu`` in thousandths of a core, ``memory`` in bytes, and numbers of ``pods``,
GPUs and PersistentVolumeClaims. ``cpu`` and ``memory`` are the guaranteed amounts, which fill nodes. ``limits.cpu`` and
``limits.memory`` are the upper limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.request import Request
from gpuspawner.core.units import show_bytes, show_cpu

CPU, MEMORY, PODS, VOLUMES = "cpu", "memory", "pods", "persistentvolumeclaims"
LIMITS_CPU, LIMITS_MEMORY = "limits.cpu", "limits.memory"
LIMIT_OF_REQUEST = {CPU: LIMITS_CPU, MEMORY: LIMITS_MEMORY}
"""The resource that counts the whole request, for each guaranteed resource."""
COMMON_RESOURCES = frozenset({CPU, MEMORY, LIMITS_CPU, LIMITS_MEMORY, PODS})
"""The resources that each workspace takes."""

Amounts = Mapping[str, int]


@dataclass(frozen=True)
class NamespaceLimit:
    """The range of a resource for one workspace: a cluster's LimitRange. ``most`` None is no limit.

    ``added`` is the amount that the cluster gives to each container that does not ask for the resource. ``cluster`` has
    the namespace; "" is the hub's own.
    """

    name: str
    resource: str
    least: int = 0
    most: int | None = None
    cluster: str = ""
    added: int = 0


@dataclass(frozen=True)
class NamespaceQuota:
    """The maximum of a resource in the namespace and its present use: a cluster's ResourceQuota.

    ``cluster`` has the namespace; "" is the hub's own.
    """

    name: str
    resource: str
    hard: int
    used: int = 0
    cluster: str = ""


@dataclass(frozen=True)
class NodeSize:
    """The allocatable amounts of nodes with GPUs of these pools."""

    pools: frozenset[str]
    cpu: int
    memory: int


@dataclass(frozen=True)
class NamespaceBounds:
    """Limits, quotas and node sizes at one instant.

    ``counted`` are the ids of leases whose pods the quotas count already.
    """

    limits: tuple[NamespaceLimit, ...] = ()
    quotas: tuple[NamespaceQuota, ...] = ()
    counted: frozenset[str] = frozenset()
    nodes: frozenset[NodeSize] = frozenset()

    def of(self, cluster: str) -> NamespaceBounds:
        """Return the bounds of one cluster; "" is the hub's own."""
        limits = tuple(one for one in self.limits if one.cluster == cluster)
        return replace(self, limits=limits, quotas=tuple(one for one in self.quotas if one.cluster == cluster))


@dataclass(frozen=True)
class QuotaRemainder:
    """The rest of a quota."""

    quota: NamespaceQuota
    left: int


def pod_amounts(request: Request, gpus: Amounts) -> dict[str, int]:
    """Return the amounts of a request's pod. ``gpus`` are by the resource that counts them."""
    return {
        CPU: math.ceil(round(1000 * request.guaranteed_cpu_cores, 3)),
        MEMORY: request.guaranteed_memory_bytes,
        LIMITS_CPU: math.ceil(round(1000 * request.cpu_cores, 3)),
        LIMITS_MEMORY: request.memory_bytes,
        PODS: 1,
        **gpus,
    }


def check_namespace(asked: Amounts, room: NamespaceBounds) -> None:
    """Raise RequestRefused if a request exceeds the namespace even when it is empty.

    A request that only lacks what other pods use now waits instead.
    """
    for limit in room.limits:
        amount = asked.get(limit.resource)
        if amount is None:
            continue
        by = f"in one workspace, by the cluster's limit {limit.name}"
        if limit.most is not None and amount > limit.most:
            raise _refused(asked, limit.resource, f"at most {{}} {by}", limit.most)
        if amount < limit.least:
            raise _refused(asked, limit.resource, f"at least {{}} {by}", limit.least)
    for quota in room.quotas:
        if asked.get(quota.resource, 0) > quota.hard:
            bound = f"{{}} for all workspaces together, by the cluster's quota {quota.name}"
            raise _refused(asked, quota.resource, bound, quota.hard)


def check_nodes(asked: Amounts, pool: str, nodes: Iterable[NodeSize]) -> None:
    """Raise RequestRefused if no node with GPUs of a pool has enough CPU or memory, even when it is empty."""
    fitting = [node for node in nodes if pool in node.pools]
    if not fitting:
        return
    if asked[CPU] > (most := max(node.cpu for node in fitting)):
        raise _too_large(asked, CPU, most, "")
    most = max(node.memory for node in fitting if node.cpu >= asked[CPU])
    if asked[MEMORY] > most:
        with_cpu = f" with {show_resource(CPU, asked[CPU])}" if most < max(node.memory for node in fitting) else ""
        raise _too_large(asked, MEMORY, most, with_cpu)


def remaining_quotas(room: NamespaceBounds, held: Mapping[str, Amounts]) -> tuple[QuotaRemainder, ...]:
    """Return the rest of each quota. ``held`` has the amounts of leases by id.

    A lease whose pod does not exist yet is added to the use of the quota. The amounts of leases count in full, because
    the use of a quota is updated a moment after its pods.
    """
    found = []
    for quota in room.quotas:
        of_leases = sum(amounts.get(quota.resource, 0) for amounts in held.values())
        coming = sum(x.get(quota.resource, 0) for lease, x in held.items() if lease not in room.counted)
        found.append(QuotaRemainder(quota, max(0, quota.hard - max(of_leases, quota.used + coming))))
    return tuple(found)


def find_lacking_quota(asked: Amounts, left: Iterable[QuotaRemainder]) -> QuotaRemainder | None:
    """Return the first quota with too little left, or None."""
    return next((one for one in left if asked.get(one.quota.resource, 0) > one.left), None)


def quotas_after_grant(left: Iterable[QuotaRemainder], asked: Amounts) -> tuple[QuotaRemainder, ...]:
    """Return the rest of each quota after a grant."""
    return tuple(QuotaRemainder(one.quota, one.left - asked.get(one.quota.resource, 0)) for one in left)


def lacking_quota_sentence(one: QuotaRemainder, asked: Amounts) -> str:
    """Return a sentence with the lacking quota and both amounts."""
    resource = one.quota.resource
    left, hard, wanted = (show_resource(resource, x) for x in (one.left, one.quota.hard, asked[resource]))
    return f"The cluster's quota {one.quota.name} leaves {left} of {hard}, and this needs {wanted}."


def full_quota_text(left: Iterable[QuotaRemainder]) -> str:
    """Return a short text with a quota that is used up, or ""."""
    full = next((one.quota for one in left if one.left == 0), None)
    return "" if full is None else f"the cluster's quota {full.name} is full: {show_resource(full.resource, full.hard)}"


def full_volumes_words(room: NamespaceBounds) -> str:
    """Return a sentence about a quota that allows no further volume, or "". Volumes stay when workspaces end."""
    full = next((one for one in room.quotas if one.resource == VOLUMES and one.used >= one.hard), None)
    if full is None:
        return ""
    return f"The cluster's quota {full.name} allows no further volume: {full.used} of {full.hard} are in use."


def show_resource(resource: str, amount: int) -> str:
    """Return an amount for display: ``8 GiB memory``, ``2 CPU``, ``1 workspace``, ``4 nvidia.com/gpu``."""
    if resource in {MEMORY, LIMITS_MEMORY}:
        return f"{show_bytes(amount)} memory"
    if resource in {CPU, LIMITS_CPU}:
        return f"{show_cpu(amount / 1000)} CPU"
    if resource == PODS:
        return "1 workspace" if amount == 1 else f"{amount} workspaces"
    return f"{amount} {resource}"


def _refused(asked: Amounts, resource: str, bound: str, possible: int) -> RequestRefused:
    field = resource.removeprefix("limits.") if resource in COMMON_RESOURCES else "count"
    whole, could = _in_their_terms(asked, resource, possible) if asked[resource] else (0, possible)
    ask = f"Ask for {show_resource(resource, could)}" if possible else "Ask an administrator to raise it"
    remedy = f"{ask}, or ask an administrator to change it." if possible else f"{ask}."
    limit = bound.format(_guaranteed(asked, resource, possible))
    return RequestRefused(field, show_resource(resource, whole), limit, remedy, status=403)


def _too_large(asked: Amounts, resource: str, most: int, with_cpu: str) -> RequestRefused:
    bound = f"at most {_guaranteed(asked, resource, most)}{with_cpu} on any node with such GPUs"
    whole, could = _in_their_terms(asked, resource, most)
    remedy = f"Ask for less than {show_resource(resource, could)}, because the node needs some itself."
    return RequestRefused(resource, show_resource(resource, whole), bound, remedy, status=403)


def _in_their_terms(asked: Amounts, resource: str, bound: int) -> tuple[int, int]:
    whole = asked.get(LIMIT_OF_REQUEST.get(resource, resource), asked[resource])
    return whole, bound * whole // asked[resource]


def _guaranteed(asked: Amounts, resource: str, amount: int) -> str:
    in_part = asked.get(LIMIT_OF_REQUEST.get(resource, resource), asked[resource]) != asked[resource]
    return f"{show_resource(resource, amount)} guaranteed" if in_part else show_resource(resource, amount)
