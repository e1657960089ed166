"""Preemption: as few workspaces as needed end, no user is preempted twice, and no other plan is cheaper."""

from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import HostResources, Slot
from gpuspawner.core.idle.policies import LifecyclePolicy, PreemptionPolicy
from gpuspawner.core.idle.verdicts import Streak
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.preemption import (
    HOLD_SECONDS,
    Preemption,
    PreemptionState,
    advance_preemption,
    notice_end,
    plan_preemption,
    preempted_gpus,
    victims,
)
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import Account, EndNotice, Rules, Team

POLICIES = {
    "default": LifecyclePolicy(preemption=PreemptionPolicy(protected_seconds=1800.0, notice_seconds=300.0)),
    "long": LifecyclePolicy("long", preemption=PreemptionPolicy(protected_seconds=1800.0, notice_seconds=900.0)),
}
LATER = NOW + 4 * 3600.0


def claim(count=1, **changes):
    values = {
        "id": "claim",
        "key": "once",
        "kind": "a100",
        "account": None,
        "external": "train-77",
        "by": "root",
        "made_at": LATER,
    }
    return Preemption(count=count, **{**values, **changes})


def running(name, *gpus, user=None, idle=0.0, asked_at=NOW, share=1, **changes):
    changes.setdefault("streak", Streak(idle_seconds=idle))
    user = user or name
    request = changes.pop("request", a_request(user, count=len(gpus)))
    held = slots(*gpus, share=share)
    return a_lease(name, Phase.RUNNING, asked_at=asked_at, held=held, user=user, request=request, **changes)


def seen(leases, gpus, now=LATER, **changes):
    return Snapshot(now, KINDS, tuple(leases), fleet(*gpus), policies=POLICIES, **changes)


def names(found):
    return [lease.id for lease in found.victims]


def given_up(found):
    return sorted(slot.gpu for slot in found.slots)


def told(found, leases, of="claim"):
    """The leases with those under notice that were found."""
    notice = EndNotice(of, LATER + 300, "Because.", "root")
    return [replace(x, notice=notice) if x.id in names(found) else x for x in leases]


FOUR = [gpu(number) for number in range(4)]


def test_free_gpus_are_taken_before_anybody_ends():
    found = plan_preemption(claim(2), seen([running("one", "a100-0"), running("two", "a100-1")], FOUR), frozenset())
    assert (names(found), given_up(found)) == ([], ["a100-2", "a100-3"])


def test_a_stopping_workspace_frees_its_gpus_without_an_eviction():
    stopping = replace(running("one", "a100-0"), phase=Phase.STOPPING)
    found = plan_preemption(claim(1), seen([stopping, running("two", "a100-1")], FOUR[:2]), frozenset())
    assert (names(found), given_up(found)) == ([], ["a100-0"])


ORDER = [
    ({"made_room_at": LATER - 3600.0}, {}),
    ({}, {"over": True}),
    ({"idle": 100.0}, {"idle": 200.0}),
    ({"request": a_request("one", priority=1)}, {}),
    ({"gpus": ("a100-1", "a100-2")}, {"gpus": ("a100-0",)}),
    ({"asked_at": NOW}, {"asked_at": NOW + 60}),
    ({}, {}),
]


@pytest.mark.parametrize("at", range(len(ORDER)))
def test_order_of_eviction(at):
    """The first line in which two differ decides, whatever the lines after it say."""
    spared, given = ({}, {})
    for line in reversed(ORDER[at:]):
        spared, given = ({**one, **two} for one, two in zip((spared, given), line, strict=True))
    for line in ORDER[at + 1 :]:  # all that comes later speaks the other way
        spared, given = ({**one, **two} for one, two in zip((spared, given), reversed(line), strict=True))
    first, second = ({key: value for key, value in x.items() if key != "over"} for x in (given, spared))
    over = {name for name, x in (("a", given), ("b", spared)) if x.get("over")}
    one = running("a", *first.pop("gpus", ("a100-0",)), user="one", **first)
    two = running("b", *second.pop("gpus", ("a100-3",)), user="two", **second)
    assert [x.id for x in victims(claim(), seen([two, one], FOUR), over)] == ["a", "b"]


def test_a_teams_priority_counts_with_the_templates():
    rules = Rules(teams={"vision": Team("vision", priority=2)})
    of_team = running("a", "a100-0", request=a_request("a", team="vision"))
    other = running("b", "a100-1", request=a_request("b", priority=1))
    assert [x.id for x in victims(claim(), seen([of_team, other], FOUR, rules=rules), frozenset())] == ["b", "a"]


@pytest.mark.parametrize(
    "lease",
    [
        running("young", "a100-0", asked_at=LATER - 1799),
        replace(running("starting", "a100-0"), phase=Phase.STARTING),
        running("unknown", "a100-0", adopted=True, request=a_request("unknown", template="")),
        running("own", "a100-0", user="claimant"),
    ],
    ids=lambda x: x.id,
)
def test_workspaces_that_are_never_evicted(lease):
    mine = claim(account=Account("", "claimant born"))
    assert plan_preemption(mine, seen([lease], FOUR[:1]), frozenset()) is None


def test_protection_ends_to_the_second():
    assert names(
        plan_preemption(claim(), seen([running("one", "a100-0", asked_at=LATER - 1800)], FOUR[:1]), frozenset())
    ) == ["one"]


def test_several_gpus_come_from_one_node_where_one_workspace_needs_them():
    gpus = [gpu(0, node="n1"), gpu(1, node="n1"), gpu(2, node="n2"), gpu(3, node="n2")]
    leases = [running("a", "a100-0", idle=900), running("b", "a100-1"), running("c", "a100-2", idle=800)]
    leases += [running("d", "a100-3", idle=100)]
    assert names(plan_preemption(claim(2), seen(leases, gpus), frozenset())) == ["c", "d"]
    assert names(plan_preemption(claim(2, one_node=False), seen(leases, gpus), frozenset())) == ["a", "c"]
    assert plan_preemption(claim(3), seen(leases, gpus), frozenset()) is None
    twins = [gpu(0, node="n1", cluster="east"), gpu(1, node="n1", cluster="west")]
    assert plan_preemption(claim(2), seen(leases[:2], twins), frozenset()) is None, (
        "nodes of one name in two clusters are two"
    )


def test_halves_of_one_gpu_are_freed_together_where_a_whole_is_needed():
    leases = [
        running(name, at, share=Fraction(1, 2)) for name, at in (("b", "a100-0"), ("c", "a100-0"), ("a", "a100-1"))
    ]
    found = plan_preemption(claim(1), seen(leases, FOUR[:2]), frozenset())
    assert (names(found), given_up(found)) == (["a"], ["a100-1"])
    young = [leases[0], leases[1], replace(leases[2], running_at=LATER - 60)]
    assert names(plan_preemption(claim(1), seen(young, FOUR[:2]), frozenset())) == ["b", "c"]
    half = plan_preemption(claim(1, kind="half"), seen(leases[:2], FOUR[:1]), frozenset())
    assert (len(names(half)), half.slots) == (1, slots("a100-0", share=Fraction(1, 2)))


def test_one_workspace_ends_rather_than_two_where_nothing_else_tells_them_apart():
    leases = [running("a", "a100-0"), running("b", "a100-1"), running("c", "a100-2", "a100-3")]
    assert names(plan_preemption(claim(2), seen(leases, FOUR), frozenset())) == ["c"]
    assert names(plan_preemption(claim(1), seen(leases, FOUR), frozenset())) == ["a"]


def test_gpus_kept_for_another_claim_are_not_taken():
    other = claim(1, id="other", slots=slots("a100-1"))
    found = plan_preemption(
        claim(1), seen([running("one", "a100-0")], FOUR[:2], kept=(preempted_gpus(other),)), frozenset()
    )
    assert (names(found), given_up(found)) == (["one"], ["a100-0"])


def test_surplus_gpus_of_a_victim_serve_the_next_claim_without_a_victim():
    other = claim(1, id="other", slots=slots("a100-0"))
    both = running("one", "a100-0", "a100-1", notice=EndNotice("other", LATER + 300, "Because.", "root"))
    world = seen([both, running("two", "a100-2")], FOUR[:3], kept=(preempted_gpus(other),))
    found = plan_preemption(claim(1), world, frozenset())
    assert (names(found), given_up(found)) == ([], ["a100-1"])
    assert names(plan_preemption(claim(2), world, frozenset())) == ["two"]


def test_gpus_that_come_free_elsewhere_spare_who_is_under_notice():
    leases = [running("one", "a100-0"), running("two", "b-0")]
    gpus = [gpu(0), gpu(1, node="n2")]
    busy = running("two", "a100-1", asked_at=LATER - 60)
    first = plan_preemption(claim(1), seen([leases[0], busy], gpus), frozenset())
    assert names(first) == ["one"]
    again = plan_preemption(claim(1, slots=first.slots), seen(told(first, [leases[0]]), gpus), frozenset())
    assert (names(again), given_up(again)) == ([], ["a100-1"])


def test_all_end_at_once_after_the_longest_notice_and_not_before_they_are_needed():
    two = [running("one", "a100-0"), running("two", "a100-1", request=a_request("two", policy="long"))]
    world = seen(two, FOUR)
    assert notice_end(two[:1], world, None) == LATER + 300
    assert notice_end(two, world, None) == LATER + 900
    assert notice_end(two, world, LATER + 60) == LATER + 900, "the notice always wins"
    assert notice_end(two, world, LATER + 7200) == LATER + 7200


# The life of a claim


def test_claimed_gpus_are_held_once_all_are_free_and_expire():
    mine = claim(2, slots=slots("a100-0", "a100-1"), ends_at=LATER + 300)
    ends = replace(running("one", "a100-0"), phase=Phase.STOPPING)
    assert advance_preemption(mine, seen([ends], FOUR)).state is PreemptionState.COMING
    held = advance_preemption(mine, seen([], FOUR))
    assert (held.state, held.free_at, held.kept_until) == (PreemptionState.HELD, LATER, LATER + HOLD_SECONDS)
    assert advance_preemption(held, seen([], FOUR, now=LATER + HOLD_SECONDS - 1)) == held
    lapsed = advance_preemption(held, seen([], FOUR, now=LATER + HOLD_SECONDS))
    assert (lapsed.state, lapsed.over_at) == (PreemptionState.LAPSED, LATER + HOLD_SECONDS)
    until = advance_preemption(replace(held, hold_until=LATER + 60), seen([], FOUR, now=LATER + 60))
    assert until.state is PreemptionState.LAPSED


def test_it_keeps_nothing_without_a_bound_also_where_its_gpus_never_come_free():
    mine = claim(1, slots=slots("a100-0"), ends_at=LATER + 300)
    busy = running("one", "a100-0")
    assert advance_preemption(mine, seen([busy], FOUR, now=LATER + 299 + HOLD_SECONDS)).state is PreemptionState.COMING
    assert advance_preemption(mine, seen([busy], FOUR, now=LATER + 300 + HOLD_SECONDS)).state is PreemptionState.LAPSED


def test_an_outside_claimant_may_use_them_and_evicts_no_other():
    mine = claim(1, slots=slots("a100-0"))
    foreign = [replace(FOUR[0], foreign=True), FOUR[1]]
    leases = [running("one", "a100-1")]
    world = seen(leases, foreign, others=(Slot("a100-0"),))
    assert (names(plan_preemption(mine, world, frozenset())), given_up(plan_preemption(mine, world, frozenset()))) == (
        [],
        ["a100-0"],
    )
    assert advance_preemption(mine, world).state is PreemptionState.HELD


def test_granted_gpus_of_an_outside_account_count_no_more():
    mine = claim(2, account=Account("vision", ""), slots=slots("a100-0", "a100-1"))
    one = a_lease("x", Phase.STARTING, asked_at=LATER, held=slots("a100-0"), request=a_request(team="vision"))
    rest = advance_preemption(mine, seen([one], FOUR))
    assert (rest.count, rest.slots, rest.state) == (1, slots("a100-1"), PreemptionState.HELD)
    two = replace(one, id="y", slots=slots("a100-1"))
    assert advance_preemption(rest, seen([one, two], FOUR)).state is PreemptionState.CLAIMED
    earlier = replace(one, granted_at=LATER - 60)
    assert advance_preemption(mine, seen([earlier], FOUR)).count == 2, "it had that before"
    stranger = replace(one, request=a_request(team="speech"))
    assert advance_preemption(mine, seen([stranger], FOUR)).count == 2


# Properties

NODES = ("n1", "n2", "n3")


@st.composite
def worlds(draw):
    """Up to three nodes of up to four GPUs, whole and half workspaces on them, and who is over the share."""
    gpus, leases, number = [], [], 0
    for node in NODES[: draw(st.integers(1, 3))]:
        on_node = [gpu(number + i, node=node) for i in range(draw(st.integers(1, 4)))]
        number += len(on_node)
        gpus += on_node
        free = list(on_node)
        while free and draw(st.booleans()):
            size = draw(st.integers(1, len(free)))
            taken, free = free[:size], free[size:]
            shares = [Fraction(1)] if draw(st.booleans()) or size > 1 else [Fraction(1, 2)] * draw(st.integers(1, 2))
            for share in shares:
                name = f"lease-{len(leases):02}"
                leases.append(
                    running(
                        name,
                        *(x.id for x in taken),
                        share=share,
                        idle=draw(st.sampled_from([0.0, 0.0, 600.0, 1200.0])),
                        asked_at=draw(st.sampled_from([NOW, NOW + 60, LATER - 60])),
                    )
                )
    over = frozenset(x.id for x in leases if draw(st.booleans()))
    mine = claim(draw(st.integers(1, 4)), kind=draw(st.sampled_from(["a100", "half"])), one_node=draw(st.booleans()))
    return mine, seen(leases, gpus), over


def covered(mine, world, ended):
    """Return whether a claim can be served after these ends, by brute force."""
    share = world.kinds[mine.kind].share
    used = {}
    for lease in world.leases:
        for slot in lease.slots if lease.id not in ended else ():
            used[slot.gpu] = used.get(slot.gpu, 0) + slot.share
    fitting = [x for x in world.fleet.gpus if used.get(x.id, 0) + share <= 1]
    if not mine.one_node:
        return len(fitting) >= mine.count
    return any(sum(x.node == node for x in fitting) >= mine.count for node in NODES)


@given(worlds())
@settings(max_examples=300)
def test_no_set_of_workspaces_would_have_been_cheaper(case):
    mine, world, over = case
    ranked = [x.id for x in victims(mine, world, over)]
    sets = chain.from_iterable(combinations(range(len(ranked)), size) for size in range(len(ranked) + 1))
    costs = [sum(2**rank for rank in one) for one in sets if covered(mine, world, {ranked[rank] for rank in one})]
    found = plan_preemption(mine, world, over)
    assert (found is None) == (not costs)
    if found is not None:
        assert sum(2 ** ranked.index(name) for name in names(found)) == min(costs)
        assert len({slot.gpu for slot in found.slots}) == mine.count


@given(worlds())
@settings(max_examples=300)
def test_preemption_is_bounded_without_any_one_of_its_victims_it_would_not_be_covered(case):
    mine, world, over = case
    found = plan_preemption(mine, world, over)
    if found is None:
        return
    assert covered(mine, world, set(names(found)))
    for one in names(found):
        assert not covered(mine, world, set(names(found)) - {one})
    sizes = [sum(slot.share for slot in lease.slots) for lease in found.victims]
    share = world.kinds[mine.kind].share
    if all(lease.slots[0].share == 1 for lease in found.victims) and share == 1:
        assert sum(sizes) - max(sizes, default=0) < mine.count


@given(worlds(), st.data())
@settings(max_examples=300)
def test_preemption_is_stable_a_second_decision_evicts_no_other_workspace(case, data):
    mine, world, over = case
    found = plan_preemption(mine, world, over)
    if found is None:
        return
    mine = replace(mine, slots=found.slots)
    leases = told(found, world.leases)
    again = plan_preemption(mine, replace(world, leases=tuple(leases)), over)
    assert (again.slots, set(names(again))) == (found.slots, set(names(found)))
    # They end one by one, and meanwhile others turn idle, or grow old enough to be ended.
    for name in names(found):
        leases = [x for x in leases if x.id != name]
        leases = [
            replace(x, streak=Streak(idle_seconds=data.draw(st.sampled_from([0.0, 9000.0])))) if not x.notice else x
            for x in leases
        ]
        again = plan_preemption(mine, replace(world, leases=tuple(leases), now=LATER + 7200), over)
        assert set(names(again)) <= set(names(found)) - {name}


def test_others_who_waited_before_do_not_keep_what_is_kept_for_a_claimant():
    mine = claim(1, external="", account=Account("", "carol born"), user="carol", slots=slots("a100-0"), free_at=LATER)
    first, claimant = (
        a_lease(user, asked_at=NOW + number, user=user, request=a_request(user))
        for number, user in enumerate(("alice", "carol"))
    )
    decision = decide(seen([first, claimant], FOUR[:1], kept=(preempted_gpus(mine),)))
    assert [grant.claim.id for grant in decision.grants] == ["carol"]
    assert decision.wait_reasons["alice"].rule == "stronger claim"


def test_a_node_that_would_lack_cpu_for_the_request_is_taken_only_where_no_other_is():
    gpus = [gpu(0), gpu(1, node="node-2")]
    leases = [running("young", "a100-0", asked_at=NOW + 60), running("old", "a100-1")]
    waits = a_lease("waits", user="w", request=a_request("w", cpu_cores=8.0))
    small = {gpus[0].on: HostResources(4000, 2**40), gpus[1].on: HostResources(16000, 2**40)}

    def ended(host_resources):
        there = replace(fleet(*gpus), host_resources=host_resources)
        now = replace(seen([*leases, waits], gpus), fleet=there)
        return names(plan_preemption(claim(lease="waits"), now, frozenset()))

    assert ended({}) == ["young"]
    assert ended(small) == ["old"]
    assert ended({node: HostResources(4000, 2**40) for node in small}) == ["young"]
