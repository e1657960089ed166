"""Changes of a running workspace's size: whether its new size could start now, as if the workspace had ended.

A change keeps the GPUs that the workspace has, and waits in the queue only for those that it has not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.gpus.placement import host_resources_of, place, used_shares
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.decisions import ClusterLimits, Decision, decide
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.rules import LatestEnd


@dataclass(frozen=True)
class SizeDecision:
    """The answer to a change of size.

    Attributes:
        slots: the GPUs with which it could start now, None if it waits.
        latest_end: the bound of its end if it started now.
        seen: the snapshot without the workspace.
        index: the index of ``seen``.
        decision: the decision about all requests in ``seen``, with the change among them.
    """

    slots: tuple[Slot, ...] | None
    latest_end: LatestEnd | None
    seen: Snapshot
    index: Index
    decision: Decision


def decide_size(seen: Snapshot, claim: Claim, limits: ClusterLimits | None = None) -> SizeDecision:
    """Decide whether the lease ``claim.replaces`` could change to the size of ``claim`` now.

    Args:
        seen: the queue and the cluster now, with that lease.
        claim: the new size, with the time at which its user asked for it.
        limits: the cluster's limits on other resources.
    """
    lease = next((one for one in seen.leases if one.id == claim.replaces), None)
    rest = replace(seen, leases=tuple(one for one in seen.leases if one is not lease))
    index = Index(rest)
    decision = decide(rest, limits, claim, index)
    kept = _keep_own(seen, rest, index, lease, claim, limits) if lease is not None and seen.processes_known else None
    if kept is not None:
        return SizeDecision(kept, None, rest, index, decision)
    given = next((one for one in decision.grants if one.claim.id == claim.id), None)
    if given is None or not _has_host_resources(given.slots, rest, claim):
        return SizeDecision(None, None, rest, index, decision)
    return SizeDecision(given.slots, given.latest_end, rest, index, decision)


def _keep_own(
    seen: Snapshot, rest: Snapshot, index: Index, lease: Lease, claim: Claim, limits: ClusterLimits | None
) -> tuple[Slot, ...] | None:
    """Return the workspace's own GPUs with those that it lacks on its node, None if they are not to be had now."""
    kind, count = seen.kinds.get(claim.request.gpu or ""), claim.request.count
    if kind is None or kind.name != lease.kind or QuotaTally(rest, index.holdings).bar(claim, kind) is not None:
        return None
    if limits is not None and _grows(claim, lease) and limits.wait_reason(claim, lease.slots) is not None:
        return None
    own, fleet = lease.slots[:count], rest.placement_fleet
    names = {slot.gpu for slot in own}
    mine = tuple(gpu for gpu in fleet.gpus if gpu.id in names)
    kept = (slot for one in seen.kept for slot in one.slots)
    used = used_shares((), [*(Slot(gpu, share) for gpu, share in rest.used.items()), *kept])
    if place(kind, len(own), replace(fleet, gpus=mine), used) is None or not _has_host_resources(own, rest, claim):
        return None  # a GPU of its own failed, or its node has too little CPU or memory
    lacking = count - len(own)
    if lacking <= 0:
        return own
    more = claim._replace(request=replace(claim.request, count=lacking))
    if all(one.claim.id != claim.id for one in decide(seen, limits, more).grants):
        return None
    nodes = {gpu.on for gpu in mine}
    others = tuple(gpu for gpu in fleet.gpus if gpu.on in nodes and gpu.id not in names)
    found = place(kind, lacking, replace(fleet, gpus=others), used)
    return None if found is None else (*own, *found)


def _grows(claim: Claim, lease: Lease) -> bool:
    """Return whether a new size needs more of anything than the workspace has."""
    new, old = claim.request, lease.request
    return new.count > old.count or new.cpu_cores > old.cpu_cores or new.memory_bytes > old.memory_bytes


def _has_host_resources(slots: tuple[Slot, ...], rest: Snapshot, claim: Claim) -> bool:
    """Return whether the node of these GPUs has the CPU and memory of the new size, or is not known to lack them."""
    node = next((gpu.on for gpu in rest.placement_fleet.gpus if slots and gpu.id == slots[0].gpu), None)
    left = rest.host_resources_left.get(node) if node is not None else None
    needs = host_resources_of(claim.request)
    return left is None or (needs.cpu <= left.cpu and needs.memory <= left.memory)
