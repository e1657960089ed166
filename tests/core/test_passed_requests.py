"""Earlier requests that a grant passes, with the reason, and the rank of workspaces that come back."""

from dataclasses import replace

import pytest
from lease_builders import A100, GIB, HALF, KINDS, NOW, a_lease, a_request, fleet, gpu

from gpuspawner.core.gpus.placement import SHARED_MEMORY_NOTE, describe_memory
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.successors import is_by_share
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.order import MOST_PASSED, QueueOrder, longest_waiting, passed_requests
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.rules import EndNotice, WaitReason
from gpuspawner.core.units import show_wait


def waits(name, asked_at, priority=0, **changes):
    request = a_request(name, changes.pop("gpu", "a100"), priority=priority)
    return a_lease(name, changes.pop("phase", Phase.QUEUED), asked_at=asked_at, user=name, request=request, **changes)


def passed(granted, *others, **more):
    seen = Snapshot(NOW + 100, KINDS, [granted, *others], fleet(gpu(0)), **more)
    tally = QuotaTally(seen)
    standing, claim = QueueOrder(seen, tally, FairShareUsage(seen)), claim_of(granted)
    return list(passed_requests(claim, longest_waiting(seen, [claim]), seen, standing))


def test_an_earlier_request_that_is_passed_reads_why():
    (told,) = passed(waits("late", NOW + 10, 1), waits("early", NOW), waits("later", NOW + 20))
    assert told == ("early", "Another request goes first, because it has priority 1 and yours has 0.")
    assert passed(waits("late", NOW + 10), waits("early", NOW)) == [], "both were granted"
    assert passed(waits("first", NOW), waits("late", NOW + 1)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"wait_reason": WaitReason("quota x", "Because.", NOW)},
        {"impossible_since": NOW},
        {"not_before": NOW + 1000},
        {"phase": Phase.PARKED},
        {"phase": Phase.RESERVED},
        {"gpu": "t4"},
    ],
    ids=["held back", "impossible", "backs off", "parked while the hub is away", "granted", "another pool"],
)
def test_an_ungrantable_request_is_not_passed(changes):
    assert passed(waits("late", NOW + 10, 1), waits("early", NOW, **changes), hub_answers=False) == []


def test_of_many_those_are_told_that_have_waited_longest():
    told = passed(waits("late", NOW + 90, 1), *(waits(f"w{number:02}", NOW + number) for number in range(20)))
    assert [name for name, _ in told] == [f"w{number:02}" for number in range(MOST_PASSED)]
    assert longest_waiting(Snapshot(NOW, KINDS, [waits("one", NOW)]), []) == {}


def test_a_preemption_by_share_is_reported_before_and_after_the_end():
    lease, notice = a_lease("a", Phase.RUNNING), EndNotice("claim", NOW, "Because.", "gpuspawner")
    assert not is_by_share(lease)
    assert is_by_share(replace(lease, notice=notice))
    assert not is_by_share(replace(lease, notice=replace(notice, by="root")))
    assert not is_by_share(replace(lease, notice=replace(notice, preemption="")))
    ended = a_lease("a", Phase.ENDED, reason=ExitReason.MADE_ROOM, ended_by="gpuspawner", notice=notice)
    assert is_by_share(ended)
    assert not is_by_share(replace(ended, reason=ExitReason.IDLE))


def test_memory_that_nothing_enforces_is_called_so():
    assert list(describe_memory(A100)) == ["80 GiB each"]
    assert list(describe_memory(HALF)) == ["40 GiB each (not enforced)", SHARED_MEMORY_NOTE]
    assert list(describe_memory(replace(HALF, memory_enforced=True))) == ["40 GiB each"]
    assert (A100.own_memory_bytes, HALF.own_memory_bytes) == (80 * GIB, 0)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "5 s"), (42, "40 s"), (1530, "26 min"), (42240, "11 h 40 min"), (42000, "11 h 40 min")]
)
def test_a_wait_is_rounded_alike_everywhere(seconds, words):
    assert show_wait(seconds) == words
