"""Several GPUs of one workspace in one NVLink or NUMA domain: placed, waited for, reserved and made room for."""

from dataclasses import replace
from fractions import Fraction

import pytest
from lease_builders import A100, HALF, KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.placement import largest_fit, place
from gpuspawner.core.gpus.pools import Pools
from gpuspawner.core.gpus.topology import PREFER, REQUIRE, shared_domain
from gpuspawner.core.idle.policies import LifecyclePolicy, PreemptionPolicy
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.preemption import Preemption, plan_preemption
from gpuspawner.core.queue.snapshot import Snapshot

MACHINE = tuple(gpu(number, domains=(f"NUMA {number // 4}",)) for number in range(8))
"""Two NUMA nodes with four GPUs each."""
BRIDGED = tuple(gpu(number, domains=(f"NVLink {number // 2}", f"NUMA {number // 4}")) for number in range(8))
"""The same, with a bridge of NVLink between each two."""
UNKNOWN = tuple(gpu(number, node="node-0") for number in range(8))


def used(*numbers):
    return {f"a100-{number}": Fraction(1) for number in numbers}


@pytest.mark.parametrize(
    ("gpus", "taken", "count", "topology", "given"),
    [
        pytest.param(MACHINE, (0, 1, 2), 2, "", (3, 4), id="without it, the first GPUs"),
        pytest.param(MACHINE, (0, 1, 2), 2, PREFER, (4, 5), id="preferred: one domain"),
        pytest.param(MACHINE, (0, 1, 2), 2, REQUIRE, (4, 5), id="required: one domain"),
        pytest.param(MACHINE, (4, 5), 2, REQUIRE, (6, 7), id="the domain with fewer free GPUs"),
        pytest.param(MACHINE, (0, 1, 2, 4, 5, 6), 2, PREFER, (3, 7), id="preferred: better apart than never"),
        pytest.param(MACHINE, (0, 1, 2, 4, 5, 6), 2, REQUIRE, None, id="required: better never than apart"),
        pytest.param(MACHINE, (), 8, REQUIRE, None, id="more than a domain has"),
        pytest.param(BRIDGED, (0, 2), 2, REQUIRE, (4, 5), id="a bridge before a NUMA node"),
        pytest.param(BRIDGED, (0, 2, 4, 6), 2, REQUIRE, (1, 3), id="a NUMA node without a free bridge"),
        pytest.param(UNKNOWN, (), 2, REQUIRE, None, id="an unknown domain is none"),
        pytest.param(UNKNOWN, (), 2, PREFER, (0, 1), id="preferred: an unknown domain is taken"),
    ],
)
def test_the_gpus_share_a_domain(gpus, taken, count, topology, given):
    expected = None if given is None else slots(*(f"a100-{number}" for number in given))
    assert place(A100, count, fleet(*gpus), used(*taken), topology=topology) == expected
    assert Pools(fleet(*gpus), used(*taken)).find(A100, count, topology=topology) == expected


def test_a_node_with_a_known_domain_is_preferred():
    both = fleet(*UNKNOWN, *(replace(one, id=f"{one.id}-known", node="node-9") for one in MACHINE))
    assert [slot.gpu for slot in place(A100, 2, both, {}, topology=PREFER)] == ["a100-0-known", "a100-1-known"]
    assert [slot.gpu for slot in place(A100, 2, both, {})] == ["a100-0", "a100-1"]


def test_the_largest_request_is_as_large_as_a_domain():
    assert largest_fit(A100, fleet(*MACHINE)) == 8
    assert largest_fit(A100, fleet(*MACHINE), one_domain=True) == 4
    assert Pools(fleet(*MACHINE), {}).largest("a100", one_domain=True) == 4
    assert largest_fit(A100, fleet(*UNKNOWN), one_domain=True) == 0


def test_a_domain_is_shared_by_all_or_not_at_all():
    assert shared_domain(BRIDGED[:2]) == "NVLink 0"
    assert shared_domain(BRIDGED[:4]) == "NUMA 0"
    assert shared_domain(BRIDGED[3:5]) == ""


def waiting(count=2, topology=REQUIRE, gpu="a100"):
    return a_lease("waits", request=a_request(count=count, topology=topology, gpu=gpu))


def holding(name, *numbers, **changes):
    request, held = a_request(name, count=len(numbers)), slots(*(f"a100-{number}" for number in numbers))
    return a_lease(name, Phase.RUNNING, held=held, user=name, request=request, **changes)


def test_a_request_waits_for_a_domain_and_its_gpus_are_reserved_there():
    long, soon = holding("long", 0, 1, 2), holding("soon", 4, 5, 6, deadline_at=NOW + 600)
    found = decide(Snapshot(NOW, KINDS, (long, soon, waiting()), fleet(*MACHINE)))
    assert not found.grants, "GPU 3 and GPU 7 are free, in two domains"
    (reservation,) = found.reservations
    assert {slot.gpu for slot in reservation.slots} < {"a100-4", "a100-5", "a100-6", "a100-7"}
    assert decide(Snapshot(NOW, KINDS, (long, soon, waiting(topology=PREFER)), fleet(*MACHINE))).grants


def test_shares_and_single_gpus_need_no_domain():
    for lease in (waiting(gpu=HALF.name), waiting(count=1)):
        assert decide(Snapshot(NOW, KINDS, (lease,), fleet(*UNKNOWN))).grants


def test_a_request_larger_than_each_domain_keeps_nothing_from_others():
    other = a_lease("other", asked_at=NOW + 1, user="bob", request=a_request("bob", count=8))
    found = decide(Snapshot(NOW, KINDS, (waiting(count=5), other), fleet(*MACHINE)))
    assert [grant.claim.id for grant in found.grants] == ["other"]


def test_a_request_that_waits_for_a_domain_lets_others_have_gpus_apart():
    held = [holding(f"user{number}", number) for number in (0, 1, 2, 4, 5, 6)]
    other = a_lease("other", asked_at=NOW + 1, user="bob", request=a_request("bob", count=2, lifetime_seconds=60))
    found = decide(Snapshot(NOW, KINDS, (*held, waiting(), other), fleet(*MACHINE)))
    assert [grant.claim.id for grant in found.grants] == ["other"]


def test_room_is_made_in_one_domain():
    held = [holding(f"user{number}", number) for number in (0, 1, 2, 4, 5, 6)]
    policies = {"default": LifecyclePolicy(preemption=PreemptionPolicy(protected_seconds=1800.0))}
    seen = Snapshot(NOW + 7200, KINDS, (*held, waiting()), fleet(*MACHINE), policies=policies)
    claim = Preemption("one", "one", "a100", 2, None, "", "make_room", NOW + 7200, lease="waits")
    plan = plan_preemption(claim, seen, ())
    assert len(plan.victims) == 1, "a neighbour of one of the free GPUs"
    assert shared_domain([seen.fleet.by_id[slot.gpu] for slot in plan.slots])
    assert not plan_preemption(replace(claim, lease=""), seen, ()).victims, "a claim from outside has no topology"
