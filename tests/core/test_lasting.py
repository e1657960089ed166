"""How long workspaces lasted so far tells when those that run likely end, and who waits likely starts."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.forecast.estimates import queue_places
from gpuspawner.core.queue.forecast.lasting import LEAST_KNOWN, MOST_KNOWN, NOTHING_LASTED, Lasted
from gpuspawner.core.queue.snapshot import Snapshot

HALF_OF_IT = Lasted([0.5] * LEAST_KNOWN)
RUNS = a_lease("x", Phase.RUNNING, held=slots("a100-0"), asked_at=NOW - 600)


def likely(*leases, lasted):
    seen = Snapshot(NOW, KINDS, (*leases, a_lease("w", asked_at=NOW)), fleet(gpu(0)))
    place = queue_places(seen, lasted=lasted)["w"]
    return place.likely_seconds, place.unchanged_seconds


def test_who_waits_is_likely_to_start_when_what_runs_would_end_as_others_did():
    assert likely(RUNS, lasted=NOTHING_LASTED) == (3000, 3000), "nothing is known: as long as they may"
    assert likely(RUNS, lasted=HALF_OF_IT) == (1200, 3000), "half an hour of an hour, of which ten minutes are over"
    longer = replace(RUNS, running_at=NOW - 2400, deadline_at=NOW + 1200)
    assert likely(longer, lasted=HALF_OF_IT) == (1200, 1200), "none of the past ran for as long: to its deadline"
    behind = a_lease("v", asked_at=NOW - 1, request=a_request(lifetime_seconds=1000))
    assert likely(RUNS, behind, lasted=HALF_OF_IT) == (1700, 4000), "who goes before is taken to run as long too"


def test_what_has_ended_is_learnt_and_the_oldest_forgotten():
    ended = replace(RUNS, running_at=NOW - 900)
    assert HALF_OF_IT.and_of([], NOW) is HALF_OF_IT
    assert HALF_OF_IT.and_of([replace(RUNS, running_at=None)], NOW) is HALF_OF_IT, "what never ran tells nothing"
    assert not Lasted().and_of([ended] * (LEAST_KNOWN - 1), NOW).is_known
    assert likely(RUNS, lasted=Lasted().and_of([ended] * LEAST_KNOWN, NOW)) == (300, 3000)
    assert likely(RUNS, lasted=HALF_OF_IT.and_of([ended] * MOST_KNOWN, NOW)) == (300, 3000)


@given(st.lists(st.floats(0, 1), min_size=LEAST_KNOWN, max_size=60), st.floats(0, 1.2), st.text(max_size=5))
def test_one_is_taken_to_run_for_as_long_as_one_that_ran_as_long_and_always_the_same(shares, ran, name):
    lasted = Lasted(shares)
    share = lasted.share(name, ran, 1)
    assert share == lasted.share(name, ran, 1)
    assert share == 1.0 if ran >= max(shares) else share in shares and share > ran


def test_many_are_spread_as_those_of_the_past():
    lasted = Lasted([number / 100 for number in range(100)])
    drawn = sorted(lasted.share(f"lease {number}", 0.5, 0) for number in range(1000))
    assert abs(drawn[500] - 0.75) < 0.05
    assert drawn[0] < 0.53
    assert drawn[-1] > 0.97
