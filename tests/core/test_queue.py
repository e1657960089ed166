"""First come, first served: who gets GPUs now, who is passed over, and what people are told of their place."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import A100, KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.gpus.fleet import Group
from gpuspawner.core.gpus.placement import pool_of, used_shares
from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.idle.verdicts import Streak
from gpuspawner.core.leases.lease import HOLDING, WAITING, Phase
from gpuspawner.core.queue import forecasts
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS, Snapshot, claim_of

TWO = fleet(gpu(0), gpu(1))


def waits(name, asked_at, gpu="a100", count=1, **changes):
    return a_lease(name, asked_at=asked_at, request=a_request(gpu=gpu, count=count), **changes)


def holds(name, *gpus, ends_in=600.0, share=1, **changes):
    return a_lease(
        name, Phase.RUNNING, held=slots(*gpus, share=share), request=a_request(count=len(gpus)),
        **{"deadline_at": NOW + ends_in, **changes},
    )  # fmt: skip


def granted(leases, seen=TWO, **conditions):
    return {
        one.claim.id: [s.gpu for s in one.slots]
        for one in decide(Snapshot(NOW, KINDS, tuple(leases), seen, **conditions)).grants
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            [waits("b", 2), waits("a", 1), waits("c", 3)], {"a": ["a100-0"], "b": ["a100-1"]}, id="the earliest first"
        ),
        pytest.param([waits("b", 1), waits("a", 1)], {"a": ["a100-0"], "b": ["a100-1"]}, id="a tie goes by id"),
        pytest.param([holds("x", "a100-0"), waits("a", 1, count=2), waits("b", 2)], {}, id="no request passes"),
        pytest.param(
            [waits("a", 1, count=2), waits("b", 2), waits("n", 3, gpu=None)],
            {"a": ["a100-0", "a100-1"], "n": []},
            id="who asks for no GPU waits for none",
        ),
        pytest.param(
            [waits("a", 1, count=3), waits("b", 2)], {"b": ["a100-0"]}, id="an impossible request blocks no other"
        ),
        pytest.param([waits("a", 1, gpu="gone"), waits("b", 2)], {"b": ["a100-0"]}, id="nor does a kind that is gone"),
        pytest.param([waits("a", 1, gpu="t4"), waits("b", 2)], {"b": ["a100-0"]}, id="nor does another pool"),
        pytest.param(
            [waits("a", 1, count=2, not_before=NOW + 1), waits("b", 2)],
            {"b": ["a100-0"]},
            id="nor does one backing off",
        ),
        pytest.param([waits("a", 1, not_before=NOW)], {"a": ["a100-0"]}, id="a back-off ends"),
        pytest.param(
            [waits("a", 1, gpu="half"), waits("b", 2, gpu="half"), waits("c", 3)],
            {"a": ["a100-0"], "b": ["a100-0"], "c": ["a100-1"]},
            id="shares of a pool compete with whole GPUs",
        ),
        pytest.param(
            [holds("x", "a100-0"), waits("a", 1, count=2), waits("b", 2, gpu="half")], {}, id="and wait behind them"
        ),
    ],
)
def test_grants_of_a_decision(line, expected):
    assert granted(line) == expected


def test_parked_leases_wait_while_the_hub_does_not_answer_and_others_pass():
    line = [waits("a", 1, count=2, phase=Phase.PARKED), waits("b", 2)]
    assert granted(line, hub_answers=False) == {"b": ["a100-0"]}
    assert granted(line) == {"a": ["a100-0", "a100-1"]}


@pytest.mark.parametrize(("most", "expected"), [(1, []), (2, ["a"]), (0, []), (9, ["a", "b", "n"])])
def test_no_more_starts_than_allowed_at_once(most, expected):
    line = [a_lease("s", Phase.STARTING), waits("a", 1), waits("b", 2), waits("n", 3, gpu=None)]
    assert list(granted(line, most_starts=most)) == expected


def of(user, lease):
    return replace(lease, key=replace(lease.key, user_created=user))


def test_one_user_leaves_starts_to_the_others_and_loses_no_gpu_to_those_behind():
    mine = [of("me", x) for x in (waits("a", 1, gpu=None), waits("b", 2), waits("n", 4, gpu=None))]
    other = [of("you", x) for x in (waits("c", 3), waits("d", 5), waits("m", 6, gpu=None))]
    assert granted([*mine, *other], most_starts_each=1) == {"a": [], "c": ["a100-1"]}, "a100-0 is kept for b"
    running = [of("me", replace(mine[0], phase=Phase.RUNNING)), *mine[1:], *other]
    assert granted(running, most_starts_each=1) == {"b": ["a100-0"], "c": ["a100-1"]}


@pytest.mark.parametrize("phase", [Phase.RESERVED, Phase.STARTING])
@pytest.mark.parametrize("limit", ["most_starts", "most_starts_each"])
def test_a_start_is_under_way_from_its_grant_until_it_runs(phase, limit):
    line = [of("me", x) for x in (a_lease("s", phase, held=slots("a100-0")), waits("a", 1), waits("n", 2, gpu=None))]
    assert granted(line, **{limit: 1}) == {}
    assert list(granted(line, **{limit: 2})) == ["a"]


@pytest.mark.parametrize("limit", ["most_starts", "most_starts_each"])
def test_a_start_that_waits_for_a_new_node_blocks_no_other_start(limit):
    coming = of("me", a_lease("s", Phase.STARTING, held=slots("~t4-0/nvidia.com/gpu/0")))
    assert list(granted([coming, of("me", waits("a", 1)), of("me", waits("n", 2, gpu=None))], **{limit: 1})) == ["a"]
    scaled = fleet(
        gpu(0), replace(gpu(1), id="~a100-0/nvidia.com/gpu/0", node="~a100-0", group=Group("~a100-0", "nvidia.com/gpu"))
    )
    line = [of("me", waits(name, at)) for at, name in enumerate("ab")]
    line.append(of("me", waits("n", 9, gpu=None)))
    told = granted(line, scaled, **{limit: 2})
    assert told == {"a": ["a100-0"], "b": ["~a100-0/nvidia.com/gpu/0"], "n": []}, "nor in the same moment"


def test_an_unleased_gpu_is_not_granted():
    assert granted([waits("a", 1), waits("b", 2)], others=slots("a100-0")) == {"a": ["a100-1"]}


def test_nothing_is_given_before_the_fleet_was_seen_whole():
    assert granted([waits("a", 1), waits("n", 2, gpu=None)], fleet(gpu(0), complete=False)) == {"n": []}


def test_a_kind_that_left_the_catalog_is_its_own_pool():
    assert [pool_of(waits("a", 1, gpu=name), KINDS) for name in ("a100", "half", "gone", None)] == [
        "a100", "a100", "gone", None
    ]  # fmt: skip


def place(lease, leases, seen=TWO, others=()):
    return queue_positions(Snapshot(NOW, KINDS, tuple(leases), seen, tuple(others)), claim_of(lease))[lease.id]


def estimate(lease, leases, seen=TWO, others=()):
    there = place(lease, leases, seen, others)
    return there.unchanged_seconds, there.likely_seconds


FULL = [holds("x", "a100-0", ends_in=600), holds("y", "a100-1", ends_in=900)]


def test_places_count_those_who_wait_for_the_same_gpus():
    line = [waits("a", 1), waits("b", 2, gpu="half"), waits("c", 3, gpu="t4"), waits("d", 4)]
    places = {x.id: place(x, line) for x in line}
    assert {name: (p.number, p.of) for name, p in places.items()} == {
        "a": (1, 3),
        "b": (2, 3),
        "c": (1, 1),
        "d": (3, 3),
    }


def test_an_imagined_lease_stands_where_it_would():
    assert place(waits("new", 9), [waits("a", 1), *FULL]).number == 2


@pytest.mark.parametrize(
    ("lease", "leases", "expected"),
    [
        pytest.param(waits("a", 1), [], (0, 0), id="now"),
        pytest.param(waits("a", 1), FULL, (600, 600), id="the first deadline"),
        pytest.param(waits("a", 1, count=2), FULL, (900, 900), id="both deadlines"),
        pytest.param(waits("b", 2), [waits("a", 1), *FULL], (900, 900), id="behind another"),
        pytest.param(
            waits("c", 3), [waits("a", 1), waits("b", 2), *FULL], (600 + 3600,) * 2, id="after those ahead have used it"
        ),
        pytest.param(waits("a", 1), [holds("x", "a100-0", "a100-1", deadline_at=None)], (None, None), id="no deadline"),
        pytest.param(
            waits("a", 1),
            [holds("x", "a100-0", "a100-1", phase_since=NOW, streak=Streak())],
            (600, 600),
            id="running, not idle",
        ),
        pytest.param(waits("a", 1, count=3), FULL, (None, None), id="more than there is"),
        pytest.param(waits("b", 2), [waits("a", 1, count=3), *FULL], (600, 600), id="behind more than there is"),
        pytest.param(waits("b", 2), [waits("a", 1, gpu="gone"), *FULL], (600, 600), id="a kind that is gone"),
        pytest.param(waits("a", 1, gpu="gone"), FULL, (None, None), id="for a kind that is gone"),
        pytest.param(
            waits("b", 2), [waits("a", 1, count=2, not_before=NOW + 60)], (0, 0), id="past one that backs off"
        ),
        pytest.param(
            waits("b", 2), [waits("a", 1, not_before=NOW + 60), *FULL], (900, 900), id="behind it, once it is back"
        ),
        pytest.param(waits("a", 1, not_before=NOW + 60), [], (60, 60), id="backing off"),
        pytest.param(waits("n", 1, gpu=None), FULL, (0, 0), id="no GPU"),
        pytest.param(waits("n", 1, gpu=None, not_before=NOW + 9), FULL, (9, 9), id="no GPU, backing off"),
        pytest.param(
            waits("a", 1), [a_lease("x", Phase.STARTING, held=slots("a100-0", "a100-1"))], (3600, 3600), id="starting"
        ),
        pytest.param(waits("a", 1), [holds("x", "a100-0", ends_in=-5), FULL[1]], (1, 1), id="a deadline that passed"),
        pytest.param(
            waits("a", 1), [a_lease("x", Phase.STOPPING, held=slots("a100-0", "a100-1"))], (1, 1), id="stopping"
        ),
    ],
)
def test_an_estimate_replays_the_ends_that_are_known(lease, leases, expected):
    assert estimate(lease, leases) == expected


def test_a_running_grace_makes_it_likely_sooner():
    streak = Streak(countdown_seconds=90.0, mode=Mode.ENFORCE)
    warned = a_lease("x", Phase.RECLAIMING, held=slots("a100-0", "a100-1"), deadline_at=NOW + 600, streak=streak)
    assert estimate(waits("a", 1), [warned]) == (600, 90)


def test_shares_are_counted_exactly():
    halves = [holds(name, "a100-0", share="1/2", ends_in=end) for name, end in (("x", 100), ("y", 200))]
    one = fleet(gpu(0))
    assert estimate(waits("a", 1, gpu="half"), halves, one) == (100, 100)
    assert estimate(waits("a", 1), halves, one) == (200, 200)
    assert estimate(waits("b", 2), [waits("a", 1, gpu="half"), *halves], one) == (3700, 3700)


def test_the_tightest_node_is_taken_in_a_replay_too():
    nodes = fleet(gpu(0), gpu(1, node="node-2"), gpu(2, node="node-2"))
    line = [waits("a", 1), waits("b", 2, count=2)]
    assert estimate(line[1], line, nodes) == (0, 0)


def test_an_unleased_gpu_has_no_end():
    assert estimate(waits("a", 1), [], fleet(gpu(0)), slots("a100-0")) == (None, None)


def test_an_unavailable_gpu_helps_no_claim():
    assert estimate(waits("a", 1), FULL, fleet(gpu(0, healthy=False), gpu(1))) == (900, 900)


def test_nothing_is_estimated_of_a_fleet_that_was_not_seen_whole():
    assert estimate(waits("a", 1), [], fleet(gpu(0), complete=False)) == (None, None)


KIND_COUNTS = st.sampled_from([("a100", 1), ("a100", 2), ("a100", 3), ("half", 1), ("half", 2), (None, 0), ("gone", 1)])


@st.composite
def worlds(draw):
    """A line of those who wait, and holders that fit the fleet."""
    line = [
        waits(
            f"w{i}", draw(st.integers(0, 3)), *draw(KIND_COUNTS), phase=draw(st.sampled_from(sorted(WAITING))),
            not_before=draw(st.sampled_from([0.0, NOW, NOW + 30])),
        )
        for i in range(draw(st.integers(1, 5)))
    ]  # fmt: skip
    holders = [
        holds(f"h{i}", f"a100-{i}", share=draw(st.sampled_from([1, "1/2"])), ends_in=draw(st.integers(-10, 500)))
        for i in range(4)
        if draw(st.booleans())
    ]
    return (
        line,
        holders,
        fleet(gpu(0), gpu(1), gpu(2, node="node-2"), gpu(3, node="node-2", healthy=draw(st.booleans()))),
    )


@given(worlds(), st.booleans())
def test_grants_fit_keep_the_order_and_agree_with_what_people_were_told(world, hub_answers):
    line, holders, seen = world
    decision = decide(Snapshot(NOW, KINDS, (*holders, *line), seen, hub_answers=hub_answers))
    given_to = {one.claim.id for one in decision.grants}
    named = {lease.id: lease for lease in line}
    reserved = [replace(named[one.claim.id], phase=Phase.RESERVED, slots=one.slots) for one in decision.grants]
    assert all(share <= 1 for share in used_shares([*holders, *reserved]).values())
    order = [lease.id for lease in sorted(line, key=lambda x: (x.asked_at, x.id))]
    for claim, got, *_ in decision.grants:
        assert len({slot.gpu for slot in got}) == claim.request.count
        assert len({g.node for g in seen.gpus if g.id in {slot.gpu for slot in got}}) <= 1
        for kept in decision.reservations:  # later requests get it only if they end before it is needed
            behind = all(order.index(claim.id) > order.index(name) for name in kept.claim_ids)
            behind = behind and (kept.at is None or NOW + claim.request.lifetime_seconds > kept.at)
            on_both = used_shares((), (*got, *kept.slots)) if behind else {}
            assert all(share <= 1 for share in on_both.values())
    # If a request of a pool is neither granted nor passed, GPUs are reserved for the first such request.
    kept_for = {name for kept in decision.reservations for name in kept.claim_ids}
    waiting = set()
    for lease in sorted(line, key=lambda x: (x.asked_at, x.id)):
        pool = pool_of(lease, KINDS)
        passed = (
            lease.not_before > NOW
            or (lease.phase is Phase.PARKED and not hub_answers)
            or lease.request.gpu == "gone"
            or (pool == "a100" and lease.request.count > 2)
        )
        if lease.id not in given_to and not passed:
            assert (lease.id in kept_for) == (pool not in waiting)
            waiting.add(pool)
    numbers = {}
    places = queue_positions(Snapshot(NOW, KINDS, (*holders, *line), seen))
    for lease in line:
        there = places[lease.id]
        assert there == place(lease, [*holders, *line], seen)
        numbers.setdefault(pool_of(lease, KINDS), []).append(there)
        for seconds in (there.unchanged_seconds, there.likely_seconds):
            assert seconds is None or seconds == 0 or seconds >= LEAST_WAIT_SECONDS
        if there.unchanged_seconds is not None:
            assert there.likely_seconds <= there.unchanged_seconds
        if hub_answers and there.unchanged_seconds == 0:
            assert lease.id in given_to
    for stand in numbers.values():
        assert sorted(there.number for there in stand) == list(range(1, len(stand) + 1))
        assert {there.of for there in stand} == {len(stand)}


def test_every_phase_that_holds_is_counted_and_every_kind_has_a_share():
    for phase in HOLDING:
        assert used_shares([a_lease(phase=phase, held=slots("a100-0"))]) == {"a100-0": Fraction(1)}
    assert (A100.pool, KINDS["half"].pool, KINDS["half"].share) == ("a100", "a100", Fraction(1, 2))


def test_one_pass_answers_for_everybody_and_grows_with_the_queue_alone(monkeypatch):
    decisions = []
    monkeypatch.setattr(forecasts, "decide", lambda *args, **kept: decisions.append(1) or decide(*args, **kept))

    def asked(waiting):
        """Return the number of decisions for a queue of this length on as many GPUs."""
        held = [holds(f"x{i:03}", f"a100-{i}", ends_in=60 * i) for i in range(waiting)]
        line = [waits(f"w{i:03}", i, gpu=("a100", "half")[i % 2]) for i in range(waiting)]
        seen = fleet(*(gpu(i) for i in range(waiting)))
        decisions.clear()
        places = queue_positions(Snapshot(NOW, KINDS, (*held, *line), seen))
        count = len(decisions)
        assert [places[x.id] for x in line[::7]] == [place(x, [*held, *line], seen) for x in line[::7]]
        return count

    assert asked(80) < 2.5 * asked(40)
