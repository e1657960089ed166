"""Preemption: which workspaces end for a request with precedence, and which GPUs are kept for it.

A workspace under notice for a claim counts as its own, so a second plan ends no other workspace. Whole workspaces end,
and no more than the claim needs. GPUs that are free, or come free without a stop, are taken first.

Workspaces end in this order:

1. workspaces under notice for this claim already;
2. workspaces of users who were not preempted within a day;
3. workspaces whose user or team is over the soft share;
4. workspaces that have been idle the longest;
5. workspaces of the lowest priority;
6. workspaces with the fewest GPUs beyond the need, and of these with the most GPUs, so that few users lose work;
7. workspaces that started last;
8. the smallest id.

Of two sets that cover the claim, the one whose last member comes earlier in this order is cheaper. If the last members
are the same, the rest decides. A node that would still lack CPU or memory is taken only if there is no other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import NamedTuple

from gpuspawner.core.gpus.fleet import Gpu, NodeName, Slot
from gpuspawner.core.gpus.placement import host_resources_of, is_grantable, used_shares
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.idle.policies import policy_of_lease
from gpuspawner.core.leases.lease import HOLDING, UP, Lease, Phase
from gpuspawner.core.leases.lifetimes import move_times_back
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import PreemptedGpus, Snapshot
from gpuspawner.core.rules import Account

SPARED_SECONDS = 86400.0
"""A user is preempted again within this time only if there is no other candidate."""
HOLD_SECONDS = 1800.0
"""GPUs are kept this long after they are free, unless the claim gives another time."""
ALL_NODES = NodeName("", "")


class PreemptionState(str, Enum):
    """The state of a claim. The first two are live."""

    COMING = "coming"
    HELD = "held"
    CLAIMED = "claimed"
    GIVEN_UP = "given up"
    LAPSED = "lapsed"


@dataclass(frozen=True)
class Preemption:
    """One claim with precedence. Times are seconds since the epoch.

    Args:
        id: identifies the claim.
        key: identifies repeated messages of one claim.
        kind: the kind of GPU.
        count: the number of GPUs that its account was not granted yet.
        account: the account that gets the GPUs, or None for a user outside gpuspawner.
        external: the user outside, in the claimant's words.
        by: the claimant.
        made_at: when it was made.
        one_node: whether all GPUs must be on one node, as those of one workspace.
        ends_at: when the workspaces under notice end, or None before the notice.
        hold_until: when the claim ends, or None for HOLD_SECONDS after the GPUs are free.
        slots: its GPUs, free or not.
        free_at: when all of them came free.
        over_at: when it was claimed, given up or lapsed.
        lease: the waiting request of a claim by ``make_room``, or "" for the claim of a person.
        asked: the number of claimed GPUs.
        user: the name of the user who gets the GPUs, if it is one user.
    """

    id: str
    key: str
    kind: str
    count: int
    account: Account | None
    external: str
    by: str
    made_at: float
    one_node: bool = True
    ends_at: float | None = None
    hold_until: float | None = None
    state: PreemptionState = PreemptionState.COMING
    slots: tuple[Slot, ...] = ()
    free_at: float | None = None
    over_at: float | None = None
    lease: str = ""
    asked: int = 0
    user: str = ""

    @property
    def live(self) -> bool:
        """Whether it still keeps GPUs, or waits for them."""
        return self.state in {PreemptionState.COMING, PreemptionState.HELD}

    @property
    def kept_until(self) -> float:
        """The end of the claim if it is not used. This applies also if its GPUs never come free."""
        if self.hold_until is not None:
            return self.hold_until
        since = self.free_at if self.free_at is not None else max(self.made_at, self.ends_at or 0.0)
        return since + HOLD_SECONDS

    def earlier(self, seconds: float) -> Preemption:
        """Return the claim with all times moved back by ``seconds``, as for leases, after the clock went back."""
        return move_times_back(self, ("made_at", "ends_at", "hold_until", "free_at", "over_at"), seconds)

    def is_for(self, lease: Lease) -> bool:
        """Return whether a workspace belongs to the account that gets the GPUs."""
        return self.account is not None and is_charged_to(lease, self.account)


def is_charged_to(lease: Lease, account: Account) -> bool:
    """Return whether a lease is charged to an account of a user, a team, or a user in a team."""
    of_user = account.user_created in {"", lease.key.user_created}
    return of_user and account.team in {"", lease.request.team} and account != Account()


def preempted_gpus(preemption: Preemption) -> PreemptedGpus:
    """Return the GPUs that a preemption keeps from others."""
    return PreemptedGpus(preemption.id, preemption.slots, preemption.account, preemption.kept_until)


class PreemptionPlan(NamedTuple):
    """The GPUs that a preemption takes, and the workspaces that end for it in their order."""

    slots: tuple[Slot, ...]
    victims: tuple[Lease, ...]


def plan_preemption(
    claim: Preemption, seen: Snapshot, over: Container[str], only: Container[str] | None = None
) -> PreemptionPlan | None:
    """Return the cheapest plan that covers a preemption, or None if no plan does.

    Args:
        claim: the claim, with the GPUs that it has already.
        seen: everything at one instant, with the GPUs of other claims.
        over: the ids of leases whose user or team is over the soft share.
        only: the ids of leases that may be ended, or None for all that run and are not protected.
    """
    kind, own = seen.kinds[claim.kind], {slot.gpu for slot in claim.slots}
    gpus = [x for x in seen.placement_fleet.gpus if x.pool == kind.pool and _may_be_had(x, own)]
    left = _left(claim, seen, gpus, own)
    ranked = victims(claim, seen, over, only)
    request = _request_of(claim, seen)
    one_domain = request is not None and requires_domain(request, kind)
    groups: dict[tuple[NodeName, str], list[Gpu]] = {}
    for gpu in gpus:
        for domain in gpu.domains if one_domain else ("",):
            groups.setdefault((gpu.on if claim.one_node else ALL_NODES, domain), []).append(gpu)
    found: list[tuple[tuple[object, ...], PreemptionPlan]] = []
    for name, group in groups.items():
        cover = _cheapest(claim.count, kind.share, {gpu.id: left[gpu.id] for gpu in group}, ranked)
        if cover is None:
            continue
        taken = _slots(claim.count, kind.share, group, cover, left, own)
        mine = sum(slot.gpu in own for slot in taken)
        ranks, ended = tuple(sorted(cover.ranks, reverse=True)), tuple(ranked[rank] for rank in cover.ranks)
        lacks = claim.one_node and _lacks(claim, group[0].on, ended, seen)
        found.append(((lacks, ranks, -mine, cover.usable, name), PreemptionPlan(taken, ended)))
    return min(found, key=lambda one: one[0])[1] if found else None


def victims(
    claim: Preemption, seen: Snapshot, over: Container[str], only: Container[str] | None = None
) -> Sequence[Lease]:
    """Return the workspaces that may be ended for a claim, in the order of this module's docstring.

    Workspaces that their policy still protects are left out. So are those of the account that gets the GPUs.
    """
    pool = seen.kinds[claim.kind].pool
    here = {gpu.id for gpu in seen.fleet.gpus if gpu.pool == pool}

    def may_end(lease: Lease) -> bool:
        if lease.phase not in UP or lease.unasked or not any(slot.gpu in here for slot in lease.slots):
            return False
        if lease.notice is not None:
            return lease.notice.preemption == claim.id
        return (only is None or lease.id in only) and not claim.is_for(lease) and not is_protected(lease, seen)

    def comes(lease: Lease) -> tuple[object, ...]:
        told = lease.notice is not None
        lately = lease.made_room_at is not None and seen.now - lease.made_room_at < SPARED_SECONDS
        size = sum((slot.share for slot in lease.slots), Fraction(0))
        beyond = max(Fraction(0), size - claim.count * seen.kinds[claim.kind].share)
        idle_seconds, since = lease.streak.idle_seconds, lease.running_at or 0.0
        priority = seen.priority_of(lease.request)
        return not told, lately, lease.id not in over, -idle_seconds, priority, beyond, -size, -since, lease.id

    return sorted(filter(may_end, seen.leases), key=comes)


def is_protected(lease: Lease, seen: Snapshot) -> bool:
    """Return whether a workspace has run for less time than its policy protects it."""
    policy = policy_of_lease(lease, seen.policies, seen.rules, seen.now)
    return lease.running_at is None or seen.now - lease.running_at < policy.preemption.protected_seconds


def notice_end(told: Iterable[Lease], seen: Snapshot, needed_at: float | None) -> float:
    """Return when the warned workspaces end: all at the same time, none before its notice is over."""
    notices = (policy_of_lease(lease, seen.policies, seen.rules, seen.now).preemption.notice_seconds for lease in told)
    return max(seen.now + max(notices, default=0.0), needed_at or 0.0)


def advance_preemption(claim: Preemption, seen: Snapshot) -> Preemption:
    """Return a live claim after the events since: grants to its account, freed GPUs, and its end.

    Free GPUs belong to the claim, even if a user outside begins to use them before the claim says so.
    """
    its = (x for x in seen.leases if x.phase in HOLDING and claim.is_for(x) and (x.granted_at or 0) >= claim.made_at)
    granted = {slot.gpu for lease in its for slot in lease.slots}
    rest = tuple(slot for slot in claim.slots if slot.gpu not in granted)
    claim = replace(claim, slots=rest, count=claim.count - (len(claim.slots) - len(rest)))
    if not claim.count:
        return replace(claim, state=PreemptionState.CLAIMED, over_at=seen.now)
    used = used_shares(seen.leases)  # a user outside gpuspawner may use them by now
    free = len(rest) == claim.count and all(used.get(slot.gpu, 0) + slot.share <= 1 for slot in rest)
    if free and claim.state is PreemptionState.COMING:
        claim = replace(claim, state=PreemptionState.HELD, free_at=seen.now)
    if claim.kept_until <= seen.now:
        return replace(claim, state=PreemptionState.LAPSED, over_at=seen.now)
    return claim


class _Cover(NamedTuple):
    """The ranks of a cheapest set of victims, and how many GPUs are usable once they have ended."""

    ranks: tuple[int, ...]
    usable: int
    left: Mapping[str, Fraction]


def _lacks(claim: Preemption, node: NodeName, ended: Iterable[Lease], seen: Snapshot) -> bool:
    """Return whether a node is known to lack CPU or memory for a waiting request, even when these leases have ended.

    The needs of a claim from outside are not known.
    """
    left, request = seen.host_resources_left.get(node), _request_of(claim, seen)
    if left is None or request is None:
        return False
    needs, back = host_resources_of(request), [host_resources_of(lease.request) for lease in ended]
    return left.cpu + sum(x.cpu for x in back) < needs.cpu or left.memory + sum(x.memory for x in back) < needs.memory


def _request_of(claim: Preemption, seen: Snapshot) -> Request | None:
    """Return the waiting request of a claim, or None for a claim from outside."""
    return next((lease.request for lease in seen.leases if claim.lease and lease.id == claim.lease), None)


def _may_be_had(gpu: Gpu, own: Container[str]) -> bool:
    return is_grantable(gpu) and not gpu.is_coming if gpu.id not in own else gpu.healthy and not gpu.closed


def _left(claim: Preemption, seen: Snapshot, gpus: Iterable[Gpu], own: Container[str]) -> dict[str, Fraction]:
    """Return the free share of each GPU for a preemption.

    A workspace that stops, or ends for another preemption, frees its whole share. GPUs that are kept for others are not
    free.
    """
    held = used_shares(seen.leases)
    left = {gpu.id: 1 - (held if gpu.id in own else seen.used).get(gpu.id, Fraction(0)) for gpu in gpus}
    for lease in seen.leases:
        if lease.phase is Phase.STOPPING or (lease.notice is not None and lease.notice.preemption != claim.id):
            for slot in lease.slots:
                if slot.gpu in left:
                    left[slot.gpu] += slot.share
    for kept in seen.kept:
        if kept.preemption != claim.id:
            for slot in kept.slots:
                if slot.gpu in left:
                    left[slot.gpu] -= slot.share
    return left


def _cheapest(count: int, share: Fraction, left: Mapping[str, Fraction], ranked: Sequence[Lease]) -> _Cover | None:
    """Return the cheapest set of victims that leaves ``count`` GPUs with ``share`` free, or None.

    The last in the order is left out first, if the others still cover the claim.
    """
    room = dict(left)
    here = [rank for rank, lease in enumerate(ranked) if any(slot.gpu in room for slot in lease.slots)]
    for rank in here:
        _change(room, ranked[rank], 1)
    usable = sum(one >= share for one in room.values())
    if usable < count:
        return None
    taken: list[int] = []
    for rank in reversed(here):
        lease = ranked[rank]
        mine = {slot.gpu for slot in lease.slots if slot.gpu in room}
        before = sum(room[gpu] >= share for gpu in mine)
        _change(room, lease, -1)
        lost = before - sum(room[gpu] >= share for gpu in mine)
        if usable - lost >= count:
            usable -= lost
            continue
        _change(room, lease, 1)
        taken.append(rank)
    return _Cover(tuple(reversed(taken)), usable, room)


def _change(room: dict[str, Fraction], lease: Lease, by: int) -> None:
    for slot in lease.slots:
        if slot.gpu in room:
            room[slot.gpu] += by * slot.share


def _slots(
    count: int,
    share: Fraction,
    group: Iterable[Gpu],
    cover: _Cover,
    left: Mapping[str, Fraction],
    own: Container[str],
) -> tuple[Slot, ...]:
    usable = [gpu for gpu in group if cover.left[gpu.id] >= share]
    usable.sort(key=lambda x: (x.id not in own, left[x.id] < share, left[x.id], x.node, x.index, x.id))
    return tuple(Slot(gpu.id, share) for gpu in usable[:count])
