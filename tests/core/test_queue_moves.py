"""An administrator moves a waiting request: the others keep their order, and every one that is passed is named."""

from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu

from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.queue.changes import competing_requests, in_order, plan_move
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import Limit, LimitedResource, Quota, QuotaScope, Rules

SHARE = Quota("each", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, soft=Fraction(1)),))


def waits(number, user="alice", kind="a100", priority=0, substitutes=(), move=0):
    request = replace(a_request(user, kind), priority=priority, substitutes=substitutes)
    key = Key("hub", f"{user} born", str(number))
    return a_lease(
        f"r{number}", Phase.QUEUED, user=user, key=key, request=request, asked_at=NOW - 100 + number, queue_move=move
    )


def seen_by(leases):
    return Snapshot(NOW, KINDS, leases=tuple(leases), fleet=fleet(gpu(0)), rules=Rules(quotas=(SHARE,)))


def order_of(seen):
    return in_order(seen.claims, seen)


def moved(leases, name, to):
    seen = seen_by(leases)
    plan = plan_move(seen, name, to)
    return plan, [replace(one, queue_move=plan.values.get(one.id, one.queue_move)) for one in leases]


REQUESTS = st.tuples(
    st.sampled_from(["alice", "bob", "carol"]),
    st.sampled_from(["a100", "t4"]),
    st.integers(0, 2),
    st.sampled_from([(), ("t4",)]),
    st.integers(0, 3),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=8), st.data())
def test_a_move_changes_the_place_of_one_request_and_names_each_that_it_passes(requests, data):
    leases = [waits(number, *one) for number, one in enumerate(requests)]
    name, to = f"r{data.draw(st.integers(0, len(leases) - 1))}", data.draw(st.integers(1, len(leases) + 1))
    before = order_of(seen_by(leases))
    plan, after_leases = moved(leases, name, to)
    after = order_of(seen_by(after_leases))
    old = [one.id for one in competing_requests(before, name, KINDS)]
    new = [one.id for one in competing_requests(after, name, KINDS)]
    assert (old.index(name) + 1, new.index(name) + 1) == (plan.place, plan.to)
    assert plan.to == min(to, len(old))
    assert [one for one in new if one != name] == [one for one in old if one != name]
    assert (plan.values == {}) == (after == before)
    places = {one.id: number for number, one in enumerate(before)}
    for number, one in enumerate(after):
        theirs = {other.id for other in competing_requests(after, one.id, KINDS)}
        is_passed = any(other.id in theirs and places[other.id] > places[one.id] for other in after[:number])
        assert is_passed == (one.id in plan.passed)


def test_a_request_that_is_moved_up_goes_before_a_higher_priority_and_later_requests():
    leases = [waits(0, "bob", priority=5), waits(1, "carol")]
    plan, leases = moved(leases, "r1", 1)
    assert (plan.place, plan.to, plan.of, plan.passed) == (2, 1, 2, ("r0",))
    seen = seen_by([*leases, waits(2, "dave", priority=9)])
    assert [one.id for one in order_of(seen)] == ["r1", "r2", "r0"]
    assert [grant.claim.id for grant in decide(seen).grants] == ["r1"]
    positions = queue_positions(seen)
    assert sorted(positions, key=lambda name: positions[name].number) == ["r1", "r2", "r0"]
    assert positions["r2"].why == "Another request goes first, because an administrator moved it."


def test_requests_ahead_of_the_new_place_stay_ahead():
    plan, leases = moved([waits(0), waits(1, "bob"), waits(2, "carol")], "r2", 2)
    assert (plan.values, plan.passed) == ({"r2": 1, "r0": 2}, ("r1",))
    assert [one.id for one in order_of(seen_by(leases))] == ["r0", "r2", "r1"]


def test_a_request_that_is_moved_down_does_not_wait_for_later_requests():
    plan, leases = moved([waits(0), waits(1, "bob")], "r0", 9)
    assert (plan.to, plan.values, plan.passed) == (2, {"r1": 1}, ("r0",))
    assert [one.id for one in order_of(seen_by([*leases, waits(5, "dave")]))] == ["r1", "r0", "r5"]
