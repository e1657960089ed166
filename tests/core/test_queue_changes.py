"""Changes of requests: another size, and another place in the queue."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import GIB, KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import HostResources
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.leases.request import Next, SizeChange
from gpuspawner.core.leases.successors import LEAST_RUN_SECONDS, begin_size_change
from gpuspawner.core.queue.changes import competing_requests, decide_size, in_order, plan_move
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.rules import Limit, LimitedResource, Quota, QuotaScope, Rules

FOUR = fleet(gpu(0), gpu(1), gpu(2, node="node-2"), gpu(3, node="node-2"), gpu(0, "t4", "node-3"))


def size(seen, **request):
    """Return the GPUs with which the workspace "one" could run at another size now, by name."""
    asked = a_request(**request)
    claim = Claim("next", "alice born", asked, NOW, attended=False, user="alice", waiting_since=NOW, replaces="one")
    found = decide_size(seen, claim).slots
    return None if found is None else tuple(slot.gpu for slot in found)


def running(*held, name="one", **changes):
    return a_lease(name, Phase.RUNNING, held=slots(*held), request=a_request(count=len(held) or 1), **changes)


def seen_with(*leases, gpus=FOUR):
    return Snapshot(NOW, KINDS, leases, gpus)


def test_it_keeps_its_own_gpus_and_gets_the_free_one_of_its_node():
    seen = seen_with(running("a100-0"))
    assert size(seen, count=2) == ("a100-0", "a100-1")
    assert size(seen, count=1, cpu_cores=8.0) == ("a100-0",)
    assert size(seen_with(running("a100-0", "a100-1")), count=1) == ("a100-0",)


def test_it_waits_for_the_gpus_that_it_lacks_or_moves_to_a_node_with_all_of_them():
    other = running("a100-1", name="other", user="bob")
    assert size(seen_with(running("a100-0"), other), count=2) == ("a100-2", "a100-3")
    third = running("a100-2", name="third", user="carol")
    assert size(seen_with(running("a100-0"), other, third), count=2) is None
    assert size(seen_with(running("a100-0")), count=3) is None, "no node has three"


def test_another_kind_is_placed_as_any_request():
    seen = seen_with(running("a100-0"))
    assert size(seen, gpu="t4") == ("t4-0",)
    taken = a_lease("other", Phase.RUNNING, held=slots("t4-0"), user="bob", request=a_request(gpu="t4"))
    assert size(seen_with(running("a100-0"), taken), gpu="t4") is None


def test_with_a_gpu_that_failed_it_gets_others():
    gpus = fleet(gpu(0, healthy=False), gpu(1), gpu(2, node="node-2"), gpu(3, node="node-2"))
    assert size(seen_with(running("a100-0"), gpus=gpus), count=2) == ("a100-2", "a100-3")


@pytest.mark.parametrize(("memory", "found"), [(8 * GIB, ("a100-0",)), (9 * GIB, ("a100-2",)), (17 * GIB, None)])
def test_cpu_and_memory_of_a_node_count_without_those_that_it_has_itself(memory, found):
    hosts = {gpu(0).on: HostResources(8000, 8 * GIB), gpu(0, node="node-2").on: HostResources(8000, 16 * GIB)}
    gpus = replace(FOUR, host_resources=hosts)
    assert size(seen_with(running("a100-0"), gpus=gpus), count=1, memory_bytes=memory) == found


def test_before_the_processes_are_known_nothing_changes():
    seen = replace(seen_with(running("a100-0")), processes_known=False)
    assert size(seen, count=2) is None


def test_what_others_asked_for_earlier_goes_first():
    waits = a_lease("waits", asked_at=NOW - 60, user="bob", request=a_request("bob", count=2))
    holds = running("a100-2", name="third", user="carol")
    assert size(seen_with(running("a100-0"), waits, holds), count=2) == ("a100-0", "a100-1"), "bob could not use it"
    small = replace(waits, request=a_request("bob"))
    assert size(seen_with(running("a100-0"), small, holds, running("a100-3", name="x")), count=2) is None
    assert size(seen_with(running("a100-0"), waits), count=2) == ("a100-0", "a100-1"), "bob gets the other node"


@pytest.mark.parametrize(("left_seconds", "runs_seconds"), [(3600.0, 3600), (60.0, LEAST_RUN_SECONDS)])
def test_the_new_size_runs_until_the_present_end_and_holds_what_it_needs(left_seconds, runs_seconds):
    after = Next(a_request(count=2, lifetime_seconds=7200), {"count": 2})
    change = SizeChange(after, NOW - 5, "alice", "the page")
    lease = running("a100-0", deadline_at=NOW + left_seconds, size_change=change)
    begun = begin_size_change(lease, slots("a100-0", "a100-1"), NOW)
    assert begun.goes_on is not None
    assert (begun.goes_on.request.lifetime_seconds, begun.goes_on.asked_at) == (runs_seconds, NOW - 5)
    assert [slot.gpu for slot in begun.slots] == ["a100-0", "a100-1"]


# --- another place in the queue


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
