"""Why GPUs that are free are not given: kept for a request that goes first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.decisions import ReservedForOthers, decide, reserved_for_others
from gpuspawner.core.queue.snapshot import Snapshot

NODE = [gpu(index) for index in range(4)]


def seen(*leases, gpus=NODE):
    return Snapshot(NOW, KINDS, tuple(leases), fleet(*gpus))


def runs(name, *gpus, ends_at=NOW + 4000):
    request = a_request(name, count=len(gpus))
    return a_lease(name, Phase.RUNNING, user=name, held=slots(*gpus), request=request, deadline_at=ends_at)


def waits(name, after, count=1, hours=8):
    return a_lease(
        name, asked_at=NOW + after, user=name, request=a_request(name, count=count, lifetime_seconds=3600 * hours)
    )


def kept_of(name, snapshot):
    claim = next(one for one in snapshot.claims if one.id == name)
    return reserved_for_others(claim, snapshot, decide(snapshot).reservations)


TWO = runs("holder", "a100-0", "a100-1")


def test_free_gpus_are_reserved_for_the_first_request_with_their_end_time():
    assert kept_of("small", seen(TWO, waits("large", 0, 4), waits("small", 1))) == ReservedForOthers(2, 4, NOW + 4000)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param((TWO, waits("large", 0, 4), waits("small", 1, 3)), id="too few are free in any case"),
        pytest.param((TWO, waits("small", 0, 3)), id="it goes first itself"),
        pytest.param(
            (runs("holder", "a100-0", "a100-1", "a100-2", "a100-3"), waits("large", 0, 2), waits("small", 1)),
            id="no GPU is free",
        ),
        pytest.param((TWO, waits("small", 1)), id="no request goes first"),
    ],
)
def test_nothing_is_said_to_be_kept_that_it_would_not_have_or_has(line):
    assert kept_of("small", seen(*line)) is None


def test_where_no_end_is_known_it_is_not_said_who_may_pass():
    forever = replace(TWO, deadline_at=None)
    assert kept_of("small", seen(forever, waits("large", 0, 4), waits("small", 1))) == ReservedForOthers(2, 4, None)


@given(taken=st.integers(1, 3), first=st.integers(1, 4), count=st.integers(1, 3), ends=st.integers(600, 90_000))
def test_a_workspace_that_ends_before_what_is_told_starts_now(taken, first, count, ends):
    gpus = [one.id for one in NODE[:taken]]
    line = [runs("holder", *gpus, ends_at=NOW + ends), waits("large", 0, first), waits("small", 1, count, hours=48)]
    before = seen(*line)
    granted = {one.claim.id for one in decide(before).grants}
    kept = None if "small" in granted or "large" in granted else kept_of("small", before)
    if kept is None or kept.until is None:
        return
    short = replace(line[-1], request=replace(line[-1].request, lifetime_seconds=int(kept.until - NOW)))
    assert "small" in {one.claim.id for one in decide(seen(*line[:-1], short)).grants}
