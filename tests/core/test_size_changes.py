"""A change of size keeps the GPUs that the workspace has, and waits only for those that it lacks."""

from dataclasses import replace

import pytest
from lease_builders import GIB, KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import HostResources
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.request import Next, SizeChange
from gpuspawner.core.leases.successors import LEAST_RUN_SECONDS, begin_size_change
from gpuspawner.core.queue.changes import decide_size
from gpuspawner.core.queue.snapshot import Claim, Snapshot

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
