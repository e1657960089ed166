"""From leases to claims of the contract, and from the scheduler's answers to slots, places and offers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Kinds, Slot, catalog_kind_name
from gpuspawner.core.gpus.placement import accepted_kinds, is_grantable
from gpuspawner.core.gpus.topology import applicable_topology, shared_domain, smallest_sufficient_domain
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.decisions import BlockingRule
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS, Claim, claim_of
from gpuspawner.core.units import show_duration, show_money, show_time
from gpuspawner.schedulers.base import Offer
from gpuspawner.schedulers.http.models import ClaimPhase, Grant, Reason, State, Stock
from gpuspawner.schedulers.http.models import Offer as ContractOffer
from gpuspawner.schedulers.own_queue import use_slots

TTL_SECONDS = 3600.0
"""A waiting claim is released this long after our last contact. Arbitrary: longer than an upgrade of the hub."""
TENTHS_BITS = 35
"""Bits of a revision that hold tenths of a second, enough until the year 3058. The attempt is above them."""

Clock = Callable[[float], str]
"""Writes a time of the service's clock in the contract's format."""


@dataclass(frozen=True)
class ClusterNames:
    """Translates the catalog's kinds, one for each cluster, to the contract's kinds and clusters.

    ``home`` is the hub's own cluster, "" if the catalog names no cluster. Each cluster of the scheduler then fits.
    """

    kinds: Kinds
    home: str = ""

    def cluster_of(self, kind: str | None) -> str | None:
        """Return the cluster of a kind, None if the catalog names no cluster or has the kind no more."""
        found = self.kinds.get(kind or "")
        return None if found is None or not self.home else found.cluster or self.home

    def accepted(self, request: Request) -> list[dict[str, str]]:
        """Return where a request accepts which kind, [] if the catalog names no cluster."""
        kinds = accepted_kinds(request, self.kinds) if self.home else ()
        return [{"kind": catalog_kind_name(one.name), "cluster": one.cluster or self.home} for one in kinds]

    def find(self, request: Request, kind: str | None, cluster: str) -> GpuKind | None:
        """Return the catalog's kind of a grant or an offer, None if the request does not accept it there."""
        accepted = (one for one in accepted_kinds(request, self.kinds) if catalog_kind_name(one.name) == kind)
        return next((one for one in accepted if not self.home or (one.cluster or self.home) == cluster), None)


def natural_revision(claim: Claim) -> int:
    """Return a number that rises with each attempt and back-off of a claim, and is the same after a restart."""
    return max(1, (claim.attempt << TENTHS_BITS) | int(claim.not_before * 10))


def is_claimed(lease: Lease) -> bool:
    """Return whether the external scheduler decides about it. Our own queue serves workspaces without a GPU."""
    return lease.request.gpu is not None and lease.live


def is_up_to_date(lease: Lease, state: State | None, revision: int) -> bool:
    """Return whether the scheduler has what a lease holds, or the revision of a waiting lease."""
    if state is None:
        return False
    if lease.phase in WAITING:
        return state.revision == revision and state.state in {
            ClaimPhase.WAITING,
            ClaimPhase.GRANTED,
            ClaimPhase.REFUSED,
        }
    if lease.phase is Phase.RESERVED:  # The grant is confirmed when its start took it.
        return state.revision == revision and state.state in {
            ClaimPhase.GRANTED,
            ClaimPhase.RUNNING,
            ClaimPhase.PREEMPTING,
        }
    return state.state in {ClaimPhase.RUNNING, ClaimPhase.PREEMPTING}


def claim_body(claim: Claim, revision: int, write_time: Clock, names: ClusterNames) -> dict[str, Any]:
    """Return the body of a waiting claim."""
    request, accepted, asked = claim.request, names.accepted(claim.request), names.kinds.get(claim.request.gpu or "")
    topology = "" if asked is None else applicable_topology(request.topology, request.count, asked)
    kind = None if request.gpu is None else catalog_kind_name(request.gpu)
    substitutes = dict.fromkeys(map(catalog_kind_name, request.substitutes))
    return {
        "revision": revision,
        "want": "wait",
        "not_before": write_time(claim.not_before) if claim.not_before else None,
        "ttl_seconds": TTL_SECONDS,
        "user": request.user,
        "team": request.team or None,
        "kind": kind,
        "count": request.count,
        "substitutes": [one for one in substitutes if one != kind],
        **({"accepts": accepted} if accepted else {}),
        **({"topology": topology} if topology else {}),
        "cpu_cores": request.cpu_cores,
        "memory_bytes": request.memory_bytes,
        "lifetime_seconds": request.lifetime_seconds,
        "asked_at": write_time(claim.asked_at),
        "holds": None,
        "ends_at": None,
    }


def lease_body(
    lease: Lease,
    state: State | None,
    revision: int,
    fleet: Fleet,
    write_time: Clock,
    names: ClusterNames,
    *,
    counted: bool = False,
) -> dict[str, Any]:
    """Return the body of a lease's claim.

    Args:
        lease: the lease.
        state: the scheduler's last state of it.
        revision: the revision of its claim.
        fleet: the observed GPUs.
        write_time: writes times.
        names: translates kinds.
        counted: as in ``write_slots``.
    """
    body = claim_body(claim_of(lease), revision, write_time, names)
    granted = state is not None and state.state is ClaimPhase.GRANTED and is_up_to_date(lease, state, revision)
    if lease.phase not in HOLDING or (lease.phase is Phase.RESERVED and granted):
        return body
    grant = None if state is None else state.grant
    ends_at = lease.deadline_at
    return {
        **body,
        "want": "running" if lease.phase in UP or lease.running_at is not None else "hold",
        "holds": {
            "kind": None if lease.kind is None else catalog_kind_name(lease.kind),
            "cluster": names.cluster_of(lease.kind) or (None if grant is None else grant.cluster),
            "slots": write_slots(lease.slots, fleet, counted=counted),
        },
        "ends_at": None if ends_at is None else write_time(ends_at),
    }


def write_slots(slots: tuple[Slot, ...], fleet: Fleet, *, counted: bool = False) -> list[Mapping[str, Any]]:
    """Return slots by node: with names, or a number if GPUs have no names or the scheduler ``counted`` them."""
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


QUEUE_CODES = frozenset({"no_gpus_free", "behind_others", "not_before", "starting", "preempted", "expired"})
"""Reason codes of a usual wait. Other codes name a rule that holds the claim back."""

AT_ONCE_SECONDS = 5.0
"""Earliest starts within this time count as now, because two clocks differ. Arbitrary."""


def find_slots(
    grant: Grant, kind: GpuKind, fleet: Fleet, used: Mapping[str, Fraction], *, one_domain: bool = False
) -> tuple[Slot, ...] | None:
    """Return a grant as slots of observed free GPUs of one node, None if there are not enough.

    ``used`` is the used share of each GPU. With ``one_domain`` all are in one NVLink or NUMA domain.
    """
    if len({slot.node for slot in grant.slots}) > 1:
        return None
    found, used = list[Slot](), dict(used)
    for slot in grant.slots:
        here = [gpu for gpu in fleet.gpus if gpu.node_in_cluster == slot.node and gpu.cluster in {"", grant.cluster}]
        free = _free_gpus(here, kind, used)
        fitting = smallest_sufficient_domain(free, slot.count) if one_domain else free
        gpus = fitting if slot.gpus is None else _select(free, slot.gpus)
        if len(gpus) < slot.count:
            return None
        taken = [Slot(gpu.id, kind.share) for gpu in gpus[: slot.count]]
        use_slots(used, taken)
        found += taken
    if one_domain and not shared_domain([fleet.by_id[slot.gpu] for slot in found]):
        return None
    return tuple(found) or None


def _select(here: Iterable[Gpu], names: Iterable[str]) -> list[Gpu]:
    by_id = {gpu.id: gpu for gpu in here}
    return [by_id[name] for name in dict.fromkeys(names) if name in by_id]


def _free_gpus(here: Iterable[Gpu], kind: GpuKind, used: Mapping[str, Fraction]) -> list[Gpu]:
    fit = [
        gpu
        for gpu in here
        if gpu.pool == kind.pool and is_grantable(gpu) and used.get(gpu.id, Fraction(0)) + kind.share <= 1
    ]
    return sorted(fit, key=lambda gpu: (-used.get(gpu.id, Fraction(0)), gpu.index, gpu.id))


def held_by(reason: Reason | None) -> BlockingRule | None:
    """Return the rule that holds a claim back, in the scheduler's words. None for a usual wait."""
    return None if reason is None or reason.code in QUEUE_CODES else BlockingRule(reason.code, reason.words)


def to_place(state: State, name: str, as_of: float, ahead_seconds: float) -> QueuePosition:
    """Return the queue position of a waiting claim.

    Args:
        state: the scheduler's state.
        name: the scheduler's name.
        as_of: time of the answer, in seconds of the service's clock.
        ahead_seconds: how far the scheduler's clock is ahead of the service's.
    """
    told_at = state.as_of.timestamp() - ahead_seconds
    earliest, latest = (
        None if at is None else max(LEAST_WAIT_SECONDS, at.timestamp() - ahead_seconds - as_of)
        for at in (state.earliest_start, state.latest_start)
    )
    when = _describe_start(earliest, latest, as_of)
    reason = f" {state.reason.words}" if state.reason else ""
    says = (
        f"{name} says, as of {show_time(told_at, as_of)}: {_describe_position(state.position, state.of)}{when}.{reason}"
    )
    return QueuePosition(state.position, state.of, latest, earliest, says=says)


def to_offered_place(offer: ContractOffer, kind: str, name: str, now: float, ahead_seconds: float) -> QueuePosition:
    """Return the queue position that an offer of a kind of the catalog promises."""
    earliest, latest = (
        None if at is None else at.timestamp() - ahead_seconds - now
        for at in (offer.earliest_start, offer.latest_start)
    )
    if earliest is not None and earliest <= AT_ONCE_SECONDS and offer.position is None:
        return QueuePosition(1, 1, 0.0, 0.0, kind)
    earliest, latest = (None if x is None else max(LEAST_WAIT_SECONDS, x) for x in (earliest, latest))
    reason = f" {offer.reason.words}" if offer.reason else ""
    when = _describe_start(earliest, latest, now)
    says = f"{name} says: {_describe_position(offer.position, None)}{when}.{reason}"
    return QueuePosition(offer.position, None, latest, earliest, kind, says=says)


def _describe_position(position: int | None, of: int | None) -> str:
    if position is None:
        return "it waits, at an unknown position"
    return f"position {position}" + (f" of {of}" if of is not None else "")


def _describe_start(earliest: float | None, latest: float | None, now: float) -> str:
    if earliest is not None and latest is not None and latest > earliest:
        return f", to start between {show_time(now + earliest, now)} and {show_time(now + latest, now)}"
    if latest is not None:
        return f", to start by {show_time(now + latest, now)}"
    if earliest is not None:
        return f", to start at {show_time(now + earliest, now)} at the earliest"
    return ""


def describe_offer(offer: ContractOffer, name: str, currency: str = "") -> str:
    """Return cluster, price, reason and notice of an offer as sentences."""
    parts = [f"on {offer.cluster}"]
    if offer.cost_per_hour is not None:
        parts.append(f"for {show_money(offer.cost_per_hour, currency)} per hour")
    found = [f"{name} offers it {' '.join(parts)}."]
    if offer.reason is not None:
        found.append(offer.reason.words)
    if offer.notice_seconds is not None:
        found.append(f"It may be preempted, with {show_duration(offer.notice_seconds)} notice.")
    return " ".join(found)


def merge_stock(own: Iterable[Offer], stock: Sequence[Stock] | None, name: str, names: ClusterNames) -> list[Offer]:
    """Return the GPUs of each kind as the scheduler reports them. A missing number is unknown.

    ``own`` is what is observed here. It bounds the free GPUs, and has the size of nodes and the waiting requests.
    """

    def entries(offer: Offer) -> list[Stock]:
        kind, cluster = catalog_kind_name(offer.kind), names.cluster_of(offer.kind)
        return [x for x in stock or () if x.kind == kind and cluster in {None, x.cluster}]

    return [offer if offer.total is None else _merge(offer, entries(offer), name) for offer in own]


def _merge(offer: Offer, entries: Sequence[Stock], name: str) -> Offer:
    if not entries:
        return replace(offer, free=None, total=None, note=f"{name} does not report a number")
    waiting, free = _sum([x.waiting for x in entries]), _sum([x.free for x in entries])
    if free is not None and offer.free is not None:
        free = min(free, offer.free)  # The scheduler does not know about GPUs in use by others.
    return replace(
        offer,
        free=free,
        total=_sum([x.total for x in entries]),
        waiting=offer.waiting if waiting is None else waiting,
        away=0,
        note="",
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [x for x in numbers if x is not None]
    return sum(known) if len(known) == len(numbers) else None
