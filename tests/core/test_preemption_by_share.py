"""Preemption by soft shares: only from users beyond their share to users within it, and never in turn."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.idle.policies import LifecyclePolicy, PreemptionPolicy
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.fair_share import ShareUsage, claim_account, over_share, room_requests
from gpuspawner.core.queue.preemption import Preemption, plan_preemption
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import (
    EndNotice,
    Limit,
    LimitedResource,
    MakeRoom,
    Quota,
    QuotaGrant,
    QuotaScope,
    Rules,
    WaitReason,
)

LATER = NOW + 4 * 3600.0
AFTER = 1800.0
ROOM = MakeRoom(AFTER)
POLICIES = {"default": LifecyclePolicy(preemption=PreemptionPolicy(protected_seconds=600.0))}


def share(soft, what=LimitedResource.GPUS, kind=""):
    return Limit(what, kind, soft=Fraction(soft))


def rules(*quotas, make_room=ROOM):
    return Rules(quotas=quotas, make_room=make_room)


EACH = Quota("each-user", QuotaScope.EACH_USER, limits=(share(2),))
VISION = Quota("vision", QuotaScope.TEAM, "vision", (share(3),))


def running(name, *gpus, user, team="", asked_at=NOW):
    request = a_request(user, count=len(gpus), team=team)
    return a_lease(name, Phase.RUNNING, asked_at=asked_at, held=slots(*gpus), user=user, request=request)


def waiting(name, user, count=1, team="", asked_at=NOW, **changes):
    request = a_request(user, count=count, team=team)
    return a_lease(name, Phase.PARKED, asked_at=asked_at, user=user, request=request, **changes)


def seen(leases, gpus=4, by=None, now=LATER, **changes):
    return Snapshot(
        now, KINDS, tuple(leases), fleet(*(gpu(x) for x in range(gpus))), policies=POLICIES, rules=by or rules(EACH),
        **changes,
    )  # fmt: skip


ALICE = [running(f"alice-{number}", f"a100-{number}", user="alice") for number in range(3)]


def test_use_is_divided_by_share_and_the_larger_counts():
    team = [running("x", "a100-0", "a100-1", user="alice", team="vision")]
    team += [running("y", "a100-2", user="bob", team="vision")]
    standings = ShareUsage(seen(team, by=rules(EACH, VISION)))
    assert [standings.used(x) for x in team] == [1, 1]
    more = [*team, running("z", "a100-3", user="carol", team="vision")]
    assert [ShareUsage(seen(more, by=rules(EACH, VISION))).used(x) for x in more] == [Fraction(4, 3)] * 3
    assert over_share(seen(more, by=rules(EACH, VISION))) == {"x", "y", "z"}
    assert over_share(seen(more, by=rules(EACH))) == frozenset()
    nobody = ShareUsage(seen(more, by=rules()))
    assert nobody.used(more[0]) is None
    none = Quota("none", QuotaScope.EACH_USER, limits=(share(0),))
    assert over_share(seen(more, by=rules(none))) == {"x", "y", "z"}


def test_a_kind_has_its_own_share_and_limits_for_everybody_are_no_users_limits():
    of_kind = Quota("each-user", QuotaScope.EACH_USER, limits=(share(1, LimitedResource.KIND, "a100"), share(8)))
    assert over_share(seen(ALICE, by=rules(of_kind))) == {x.id for x in ALICE}
    of_others = Quota(
        "each-user",
        QuotaScope.EACH_USER,
        limits=(share(1, LimitedResource.KIND, "t4"), share(1, LimitedResource.WORKSPACES)),
    )
    assert over_share(seen(ALICE, by=rules(of_others))) == frozenset()
    assert over_share(seen(ALICE, by=rules(Quota("all", QuotaScope.EVERYBODY, limits=(share(1),))))) == frozenset()


def test_a_grant_raises_the_share_while_it_lasts():
    more = QuotaGrant(
        "g", claim_account(seen([waiting("w", "alice")]).claims[0]), LimitedResource.GPUS, Fraction(1), NOW, LATER + 60
    )
    assert over_share(seen(ALICE, quota_grants=(more,))) == frozenset()
    assert over_share(seen(ALICE, quota_grants=(more,), now=LATER + 60)) == {x.id for x in ALICE}


def test_a_user_within_the_share_claims_the_excess_of_others():
    (wish,) = room_requests(seen([*ALICE, waiting("bob-1", "bob")], gpus=3), ())
    assert (wish.claim.id, len(wish.candidates)) == ("bob-1", 1), "with one less she is over her share no more"


@pytest.mark.parametrize(
    ("lease", "changes"),
    [
        (waiting("bob-1", "bob", asked_at=LATER - AFTER + 1), {}),
        (waiting("bob-1", "bob", count=3), {}),
        (waiting("alice-4", "alice"), {}),
        (waiting("bob-1", "bob", wait_reason=WaitReason("quota x", "Because.", LATER)), {}),
        (waiting("bob-1", "bob", not_before=LATER + 1), {}),
        (waiting("bob-1", "bob"), {"hub_answers": False}),
        (waiting("bob-1", "bob"), {"by": rules(EACH, make_room=None)}),
        (waiting("bob-1", "bob"), {"by": rules(Quota("x", QuotaScope.USER, "alice", (share(2),)))}),
        (waiting("bob-1", "bob"), {"by": rules(Quota("x", QuotaScope.EACH_USER, limits=(share(3),)))}),
    ],
    ids=["too soon", "beyond", "over", "held back", "backs off", "hub away", "off", "no share", "no user over"],
)
def test_users_who_may_not_preempt(lease, changes):
    assert list(room_requests(seen([*ALICE, lease], gpus=3, **changes), ())) == []


def test_once_is_enough():
    world = seen([*ALICE, waiting("bob-1", "bob")], gpus=3)
    assert list(room_requests(world, ["bob-1"])) == []


def test_a_workspace_already_giving_way_is_not_counted_again():
    notice = EndNotice("another", LATER + 300, "Because.", "root")
    given = [replace(ALICE[0], notice=notice), *ALICE[1:]]
    assert list(room_requests(seen([*given, waiting("bob-1", "bob")], gpus=3), ())) == []


@st.composite
def crowds(draw):
    """Some people and a team with shares, all of the GPUs in use, and everybody wants more."""
    people = draw(st.integers(2, 4))
    quotas = [Quota("each-user", QuotaScope.EACH_USER, limits=(share(draw(st.integers(1, 3))),))]
    if draw(st.booleans()):
        quotas.append(Quota("vision", QuotaScope.TEAM, "vision", (share(draw(st.integers(1, 4))),)))
    count, free, leases = draw(st.integers(2, 8)), 0, []
    while free < count:
        size = draw(st.integers(1, min(3, count - free)))
        user = f"user-{draw(st.integers(1, people))}"
        team = "vision" if draw(st.booleans()) else ""
        names = [f"a100-{free + number}" for number in range(size)]
        leases.append(running(f"runs-{len(leases)}", *names, user=user, team=team))
        free += size
    for number in range(draw(st.integers(1, 5))):
        user, team = f"user-{draw(st.integers(1, people))}", draw(st.sampled_from(["", "vision"]))
        leases.append(waiting(f"waits-{number}", user, draw(st.integers(1, 3)), team, asked_at=NOW + number))
    return leases, count, rules(*quotas)


@given(crowds())
@settings(max_examples=300)
def test_preemption_has_no_loop_and_stops_once_no_user_has_a_claim(crowd):
    """Each claimant gets the GPUs, each victim waits again; all of them have always waited long enough."""
    leases, count, by = crowd
    made = 0
    while True:
        world = seen(leases, gpus=count, by=by)
        step = next(_steps(world), None)
        if step is None:
            return
        claim, found = step
        before = ShareUsage(world)
        used_by_victims = [before.used(x) for x in found.victims]
        assert all(used > 1 for used in used_by_victims)
        assert before.with_claim(claim) < min(used_by_victims, default=2), "still below where each victim was"
        ended = {x.id for x in found.victims}
        leases = [_after(x, claim, found, ended) for x in leases]
        made += 1
        assert made <= len(leases), "no user is served twice, so it ends"


def _steps(world):
    for wish in room_requests(world, ()):
        asks = Preemption(
            "p", "", wish.claim.request.gpu, wish.claim.request.count, claim_account(wish.claim), "", "", world.now
        )
        found = plan_preemption(asks, world, over_share(world), wish.candidates)
        if found is not None:
            yield wish.claim, found


def _after(lease, claim, found, ended):
    if lease.id == claim.id:
        return replace(lease, phase=Phase.RUNNING, slots=found.slots, running_at=NOW, granted_at=NOW)
    if lease.id in ended:
        return replace(lease, phase=Phase.PARKED, slots=(), running_at=None, made_room_at=None)
    return lease
