"""The replay of the queue leaves out what can change nothing, and tells what it tells with all of it."""

from dataclasses import replace
from fractions import Fraction
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import Beside
from gpuspawner.core.idle.idleness import Streak
from gpuspawner.core.idle.policy import LifecyclePolicy, Mode, QueuePolicy
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.queue.forecast.lasting import NOTHING_LASTED, Lasted
from gpuspawner.core.queue.forecast.serving import Likely, Replay
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import KeptGpus, Snapshot
from gpuspawner.core.rules import Limit, Quota, Rules, Team, What, Whom

USERS, LASTED = ["alice", "bob", "carol"], Lasted([number / 30 for number in range(30)])
GPUS = [gpu(i, pool, f"{pool}-node-{i // 3}") for pool in ("a100", "t4") for i in range(6)]


class Plain(Replay):
    """One that tries whoever waits at each end."""

    def _waits_still(self, pool):
        del pool
        return False


def some_rules(some):
    soft, hard = some.randint(1, 4), some.randint(4, 8)
    each = Quota("each", Whom.EACH_USER, limits=(Limit(What.GPUS, soft=Fraction(soft), hard=Fraction(hard)),))
    team = Quota("vision", Whom.TEAM, "vision", (Limit(What.GPUS, soft=Fraction(2), hard=Fraction(hard)),))
    quotas = tuple(one for one in (each, team) if (some.random() < 0.5))
    return Rules(teams={"vision": Team("vision", priority=some.randint(0, 1))}, quotas=quotas)


def a_request_of(some, user):
    kind = some.choice(["a100", "a100", "half", "t4", None])
    substitutes = some.choice([(), (), ("a100",), ("t4", "half")])
    return a_request(
        user, kind, some.randint(1, 3), some.choice([600, 1800, 3600]),
        team=some.choice(["", "vision"]), substitutes=substitutes if kind else (),
    )  # fmt: skip


def a_queue(some):
    """Return a full cluster, and those who wait."""
    leases = []
    for one in GPUS:
        user, half = some.choice(USERS), one.pool == "a100" and (some.random() < 0.5)
        phase = some.choice([Phase.RUNNING, Phase.RUNNING, Phase.STOPPING, Phase.RECLAIMING])
        leases.append(
            a_lease(
                f"h {one.id}", phase, user=user, held=slots(one.id, share=Fraction(1, 2) if half else 1),
                request=a_request(user, "half" if half else one.pool, team=some.choice(["", "vision"])),
                deadline_at=NOW + some.randint(1, 60) * 60, running_at=NOW - 60,
                streak=Streak(countdown_seconds=some.choice([None, 90.0]), mode=Mode.ENFORCE),
            )
        )  # fmt: skip
    for number in range(some.randint(1, 10)):
        user = some.choice(USERS)
        asked_at = NOW - some.choice([10, 400, 700]) + number
        leases.append(
            a_lease(f"w{number}", asked_at=asked_at, user=user, key=Key("hub", f"{user} born", f"w{number}"),
                    request=a_request_of(some, user), not_before=NOW + some.choice([-1, -1, 100]))
        )  # fmt: skip
    there = replace(fleet(*GPUS), beside={GPUS[0].on: Beside(3000, 2**40)} if (some.random() < 0.5) else {})
    kept = (KeptGpus("p", slots("a100-5"), None, NOW + 500),) if (some.random() < 0.5) else ()
    policies = {"default": LifecyclePolicy(queue=QueuePolicy(longest_wait_seconds=600.0))}
    return Snapshot(NOW, KINDS, tuple(leases), there, rules=some_rules(some), policies=policies, kept=kept)


def told(replay):
    replay.run()
    return {claim.id: (replay.wait(claim.id), replay.kind_of(claim.id)) for claim in replay.in_order()}


@settings(max_examples=100)
@given(st.integers())
@example(1032)
@example(614)
@example(100)  # a claim that was put back into a line after its pool was settled
@example(504)  # somebody was granted something after a pool was settled
def test_who_is_not_tried_again_could_not_have_been_served(seed):
    seen = a_queue(Random(seed))
    index = Index(seen)
    likely = [None, Likely(LASTED, 0), Likely(NOTHING_LASTED, 0)][seed % 3]
    one, all_of_it = (kind(seen, index, seen.claims, likely) for kind in (Replay, Plain))
    assert list(told(one).items()) == list(told(all_of_it).items())


@settings(max_examples=100)
@given(st.integers())
def test_where_nothing_is_known_and_no_grace_runs_the_likely_ends_are_the_latest(seed):
    seen = a_queue(Random(seed))
    index = Index(seen)
    if not any(ends.counts_grace for ends in index.ends.values()):
        latest, likely = (Replay(seen, index, seen.claims, x) for x in (None, Likely(NOTHING_LASTED, 0)))
        assert list(told(latest).items()) == list(told(likely).items())
