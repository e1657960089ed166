"""What the scheduler is told of a lease: what it wants, at which revision, and what it holds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuspawner.core.gpus.fleet import Fleet, Slot
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.queue.snapshot import Claim, claim_of
from gpuspawner.schedulers.http.models import Stands, State

TTL_SECONDS = 3600.0
"""What waits is released so long after we were last heard. Arbitrary: an upgrade of the hub takes less."""
TENTHS_BITS = 35
"""Of a revision: tenths of a second until the year 3058 in the lower bits, attempts above them."""

Clock = Callable[[float], str]
"""Writes a moment of the service's clock as the contract has it."""


def natural_revision(claim: Claim) -> int:
    """Return a number that rises with each attempt and each lapse of a claim, the same after a restart of ours."""
    return max(1, (claim.attempt << TENTHS_BITS) | int(claim.not_before * 10))


def is_told(lease: Lease) -> bool:
    """Whether the scheduler decides about it: what takes no GPU is ours."""
    return lease.request.gpu is not None and lease.live


def is_kept(lease: Lease, state: State | None, revision: int) -> bool:
    """Whether the scheduler's side has what a lease holds; of one that waits, whether it has heard the revision."""
    if state is None:
        return False
    if lease.phase in WAITING:
        return state.revision == revision and state.state in {Stands.WAITING, Stands.GRANTED, Stands.REFUSED}
    if lease.phase is Phase.RESERVED:  # to be taken once its start has: until then the grant stands by itself
        return state.revision == revision and state.state in {Stands.GRANTED, Stands.RUNNING, Stands.PREEMPTING}
    return state.state in {Stands.RUNNING, Stands.PREEMPTING}


def asked(claim: Claim, revision: int, written: Clock) -> dict[str, Any]:
    """Return what a claim asks for, as the contract has it: it waits."""
    request = claim.request
    return {
        "revision": revision,
        "want": "wait",
        "not_before": written(claim.not_before) if claim.not_before else None,
        "ttl_seconds": TTL_SECONDS,
        "user": request.user,
        "team": request.team or None,
        "kind": request.gpu,
        "count": request.count,
        "substitutes": list(request.substitutes),
        "cpu_cores": request.cpu_cores,
        "memory_bytes": request.memory_bytes,
        "lifetime_seconds": request.lifetime_seconds,
        "asked_at": written(claim.asked_at),
        "holds": None,
        "ends_at": None,
    }


def wanted(
    lease: Lease, state: State | None, revision: int, fleet: Fleet, written: Clock, *, counted: bool = False
) -> dict[str, Any]:
    """Return what a lease wants of the scheduler. ``state`` is what it said of it last, ``counted`` as in ``held``."""
    body = asked(claim_of(lease), revision, written)
    granted = state is not None and state.state is Stands.GRANTED and is_kept(lease, state, revision)
    if lease.phase not in HOLDING or (lease.phase is Phase.RESERVED and granted):
        return body
    grant = None if state is None else state.grant
    ends_at = lease.deadline_at
    return {
        **body,
        "want": "running" if lease.phase in UP or lease.running_at is not None else "hold",
        "holds": {
            "kind": lease.kind,
            "cluster": None if grant is None else grant.cluster,
            "slots": held(lease.slots, fleet, counted=counted),
        },
        "ends_at": None if ends_at is None else written(ends_at),
    }


def held(slots: tuple[Slot, ...], fleet: Fleet, *, counted: bool = False) -> list[Mapping[str, Any]]:
    """Return slots by node: by name, or by how many where GPUs have none, or the scheduler ``counted`` them."""
    by_node: dict[str, list[Slot]] = {}
    for slot in slots:
        group = slot.group
        by_node.setdefault(group.node if group else fleet.node_of(slot.gpu) or "unknown", []).append(slot)
    return [
        {
            "node": node,
            "gpus": None if counted or any(slot.group for slot in on_node) else [slot.gpu for slot in on_node],
            "count": len(on_node),
        }
        for node, on_node in by_node.items()
    ]
