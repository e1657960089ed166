"""The order of the queue, and requests that others pass."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import A100, GIB, HALF, KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.calendar import Per
from gpuspawner.core.gpus.fleet import HostResources
from gpuspawner.core.gpus.placement import SHARED_MEMORY_NOTE, describe_memory, meets_needs
from gpuspawner.core.idle.policies import LifecyclePolicy, QueuePolicy
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import WAITING, Key, Phase
from gpuspawner.core.leases.successors import is_by_share
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.fair_share import FairShareUsage
from gpuspawner.core.queue.order import MOST_PASSED, QueueLine, QueueOrder, longest_waiting, passed_requests
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.core.quotas.ledger import HALF_LIFE_SECONDS
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.rules import (
    Account,
    Accounts,
    Budget,
    BudgetUnit,
    EndNotice,
    Limit,
    LimitedResource,
    Quota,
    QuotaScope,
    Rules,
    Team,
    WaitReason,
)
from gpuspawner.core.units import show_duration, show_wait

TEAMS = {"vision": Team("vision", weight=Fraction(2), priority=1), "speech": Team("speech")}
EACH2 = Quota("each", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, soft=Fraction(2)),))
OF_TEAM = Quota("vision", QuotaScope.TEAM, "vision", (Limit(LimitedResource.GPUS, soft=Fraction(3)),))
POLICIES = {"default": LifecyclePolicy(queue=QueuePolicy(longest_wait_seconds=500.0))}


def of(name, user="alice", team="", gpu_="a100", count=1, phase=Phase.QUEUED, **changes):
    asked = {
        key: changes.pop(key)
        for key in ("priority", "lifetime_seconds", "substitutes", "needs_memory_bytes")
        if key in changes
    }
    request = a_request(user, gpu_, count, team=team, **asked)
    return a_lease(name, phase, user=user, key=Key("hub", f"{user} born", name), request=request, **changes)


def standing_of(seen):
    tally, uses = QuotaTally(seen), FairShareUsage(seen)
    return QueueOrder(seen, tally, uses), tally, uses


def seen_by(*leases, gpus=4, **more):
    rules = more.pop("rules", Rules(teams=TEAMS, quotas=(EACH2, OF_TEAM)))
    there = more.pop("fleet", fleet(*(gpu(i) for i in range(gpus))))
    return Snapshot(more.pop("now", NOW), KINDS, leases, there, rules=rules, policies=POLICIES, **more)


def names(seen):
    standing, *_ = standing_of(seen)
    return [claim.id for claim in sorted(seen.claims, key=standing.rank)]


@st.composite
def queues(draw):
    leases = []
    for number in range(draw(st.integers(1, 9))):
        team = draw(st.sampled_from(["", "vision", "speech"]))
        leases.append(
            of(
                f"w{number}", draw(st.sampled_from(["a", "b", "c"])), team, draw(st.sampled_from(["a100", "half"])),
                draw(st.integers(1, 2)), asked_at=NOW - draw(st.sampled_from([0, 10, 1000])),
                priority=draw(st.sampled_from([0, 0, 1])),
            )
        )  # fmt: skip
    held = [
        of(f"h{i}", draw(st.sampled_from(["a", "b", "c"])), draw(st.sampled_from(["", "vision"])), phase=Phase.RUNNING,
           held=slots(f"a100-{i}"), deadline_at=NOW + draw(st.sampled_from([100, 900])))
        for i in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    used = {Account("", "a born"): 1e5, Account("vision", ""): draw(st.sampled_from([0.0, 5e4]))}
    return seen_by(*leases, *held, accounts=Accounts(decayed_gpu_seconds=used))


@given(queues())
def test_the_order_is_total_and_transitive(seen):
    standing, *_ = standing_of(seen)
    ranks = [standing.rank(claim) for claim in seen.claims]
    for one in ranks:
        for other in ranks:
            assert (one < other) + (other < one) + (one == other) == 1
            assert (one == other) == (one.id == other.id)
            for third in ranks:
                assert not (one < other < third) or one < third


@given(queues(), st.data())
def test_the_queue_order_is_computed_again_after_each_grant(seen, data):
    standing, tally, uses = standing_of(seen)
    left = list(seen.claims)
    line = QueueLine(left, standing)
    while left:
        first = min(left, key=standing.rank)
        assert line.pop() == first
        left.remove(first)
        if data.draw(st.booleans()):
            kind = KINDS[first.request.gpu]
            tally.take(first, kind)
            uses.charge(first, kind)
    assert line.pop() is None


def test_each_key_of_the_order_decides_where_those_before_it_are_equal():
    late = {"asked_at": NOW - 1}
    assert names(seen_by(of("a", **late), of("b", priority=1))) == ["b", "a"], "1: the template's priority"
    assert names(seen_by(of("a", priority=0, **late), of("b", team="vision"))) == ["b", "a"], "1: the team's"
    assert names(seen_by(of("b", team="vision"), of("a", priority=2))) == ["a", "b"], "1: both together"
    overdue, young = of("z", count=3, asked_at=NOW - 501), of("a", "b", asked_at=NOW - 400)
    assert names(seen_by(young, overdue)) == ["z", "a"], "2: who waited longer than the policy's bound"
    assert names(seen_by(young, replace(overdue, asked_at=NOW - 500))) == ["a", "z"], "2: and no sooner"
    assert names(seen_by(of("a", count=3, **late), of("b", "b", count=2))) == ["b", "a"], "3: within the share"
    used = Accounts(decayed_gpu_seconds={Account("", "alice born"): 5.0})
    beyond = [of("a", count=3, **late), of("b", "b", count=3)]
    assert names(seen_by(*beyond, accounts=used)) == ["b", "a"], "4: less used"
    within = [of("a", count=2, **late), of("b", "b", count=2)]
    assert names(seen_by(*within, accounts=used)) == ["a", "b"], "4 counts beyond the share alone"
    assert names(seen_by(of("a"), of("b", **late))) == ["b", "a"], "5: asked earlier"
    assert names(seen_by(of("b"), of("a"))) == ["a", "b"], "6: the id"


def test_a_teams_use_is_divided_by_its_weight_and_goes_before_its_users():
    teams = {"vision": Team("vision", weight=Fraction(2)), "speech": Team("speech")}
    used = {Account("vision", ""): 10.0, Account("speech", ""): 6.0, Account("speech", "b born"): 1.0}
    line = [of("a", "a", "vision"), of("b", "b", "speech"), of("c", "c", "speech")]
    seen = seen_by(*line, rules=Rules(teams=teams), accounts=Accounts(decayed_gpu_seconds=used))
    assert names(seen) == ["a", "c", "b"]


def test_use_is_halved_each_week_and_a_grant_is_charged_until_its_end():
    running = of("x", phase=Phase.RUNNING, held=slots("a100-0"), count=2, running_at=NOW, deadline_at=NOW + 100)
    _, _, uses = standing_of(seen_by(running))
    assert uses.of_user(seen_by(of("w")).claims[0]) == 200
    week = replace(running, running_at=NOW, deadline_at=NOW + HALF_LIFE_SECONDS)
    _, _, uses = standing_of(seen_by(week, now=NOW + HALF_LIFE_SECONDS, rules=Rules()))
    there = uses.of_user(seen_by(of("w")).claims[0]) / (2 * HALF_LIFE_SECONDS)
    assert 0.72 < there < 0.73, "half of a week's use, decayed as it went"


def ends_as_declared(leases, at):
    return [x for x in leases if x.phase in WAITING or x.deadline_at > at]


def run(seen, leases, until, step):
    """Let time pass, with full lifetimes. Return the grants in order with their times."""
    now, told, used = NOW, [], {}
    while now <= until:
        for lease in (x for x in leases if x not in ends_as_declared(leases, now)):
            for account in accounts_of(lease.key.user_created, lease.request.team):
                used[account] = used.get(account, 0.0) + lease.request.lifetime_seconds
        leases = ends_as_declared(leases, now)
        accounts = Accounts(decayed_gpu_seconds=used)
        decision = decide(replace(seen, now=now, leases=tuple(leases), accounts=accounts))
        of_id = {one.claim.id: one for one in decision.grants}
        told += ((now, name) for name in of_id)
        leases = [
            replace(x, phase=Phase.RUNNING, slots=of_id[x.id].slots, running_at=now,
                    deadline_at=now + x.request.lifetime_seconds, latest_end=of_id[x.id].latest_end)
            if x.id in of_id else x
            for x in leases
        ]  # fmt: skip
        now += step
    return told


@settings(max_examples=15)
@given(st.data())
def test_nobody_starves(data):
    """Somebody who has used much asks for a whole node, while others ask for one GPU again and again."""
    large = of("large", "much", count=2, lifetime_seconds=100, asked_at=NOW)
    used = Accounts(decayed_gpu_seconds={Account("", "much born"): 1e12})
    seen = seen_by(gpus=2, rules=Rules(), accounts=used)
    leases, now = [large], NOW
    for turn in range(40):
        for number in range(data.draw(st.integers(1, 3))):
            user = f"{data.draw(st.sampled_from('abc'))}{turn if data.draw(st.booleans()) else ''}"
            leases.append(of(f"s{turn:02}-{number}", user, lifetime_seconds=60, asked_at=now))
        leases = ends_as_declared(leases, now)
        granted = {one.claim.id: one for one in decide(replace(seen, now=now, leases=tuple(leases))).grants}
        if "large" in granted:
            assert now - NOW <= 500 + 100 + 60, "the policy's bound, and what ran then"
            return
        leases = [
            replace(x, phase=Phase.RUNNING, slots=granted[x.id].slots, running_at=now, deadline_at=now + 60)
            if x.id in granted
            else x
            for x in leases
        ]
        now += 30
    raise AssertionError


@given(st.data())
def test_backfill_delays_no_request_beyond_its_reserved_time(data):
    """A request that passes another leaves its GPUs in time, and cannot be extended."""
    nodes = fleet(*(gpu(i, node=f"node-{i // 2}") for i in range(4)))
    held = [
        of(
            f"h{i}",
            "h",
            phase=Phase.RUNNING,
            held=slots(f"a100-{i}"),
            deadline_at=NOW + data.draw(st.integers(10, 300)),
        )
        for i in range(4)
        if data.draw(st.booleans())
    ]
    line = [
        of(f"w{i}", f"u{i}", count=data.draw(st.integers(1, 2)), asked_at=NOW - 9 + i,
           lifetime_seconds=data.draw(st.integers(5, 200)))
        for i in range(data.draw(st.integers(1, 6)))
    ]  # fmt: skip
    seen = seen_by(rules=Rules(), fleet=nodes)
    first = decide(replace(seen, leases=(*held, *line)))
    kept = next((one for one in first.reservations), None)
    if kept is None:
        return
    (name,) = kept.claim_ids
    for one in first.grants:
        shared = {s.gpu for s in one.slots} & {s.gpu for s in kept.slots}
        before = seen.now + one.claim.request.lifetime_seconds <= kept.at
        if shared and one.latest_end is not None:
            assert before
            assert one.latest_end.at <= kept.at
    when = {who: at for at, who in run(seen, [*held, *line], kept.at + 1, 1.0)}
    assert when[name] <= kept.at + 1, "the clock of this test ticks by the second"


def test_a_request_that_ends_before_it_is_needed_passes_and_its_end_is_fixed():
    held = of("h", "h", phase=Phase.RUNNING, held=slots("a100-0"), deadline_at=NOW + 600)
    large, short = of("large", "b", count=2, asked_at=NOW - 9), of("short", "c", lifetime_seconds=500)
    long = of("long", "d", lifetime_seconds=700, asked_at=NOW - 1)
    decision = decide(seen_by(held, large, short, long, gpus=2, rules=Rules()))
    assert [(one.claim.id, one.latest_end.at, one.latest_end.rule) for one in decision.grants] == [
        ("short", NOW + 600, "backfill")
    ]
    endless = replace(held, deadline_at=None)
    assert not decide(seen_by(endless, large, short, gpus=2, rules=Rules())).grants, "no end is known: only by others"


def test_a_waiting_user_reads_why_another_request_goes_first():
    def why(*line, **more):
        seen = seen_by(*line, **{"rules": Rules(teams=TEAMS, quotas=(EACH2,)), **more})
        return queue_positions(seen)["w"].why

    first = {"asked_at": NOW - 60}
    assert why(of("w")) == "", "no request is before it"
    assert (
        why(of("w"), of("v", team="vision"))
        == "A request of team vision goes first, because it has priority 1 and yours has 0."
    )
    waited = why(of("w"), of("v", "b", asked_at=NOW - 501))
    assert waited == f"A request that has waited longer than {show_duration(500.0)} goes first."
    beyond = of("w", count=3)
    assert why(beyond, of("v", "b")) == "A request within its guaranteed share goes first. Yours is beyond its share."
    used = Accounts(decayed_gpu_seconds={Account("", "alice born"): 131.0, Account("", "b born"): 100.0})
    assert (
        why(beyond, of("v", "b", count=3), accounts=used)
        == "Another request goes first, because you used 31 % more lately."
    )
    teams = {Account("speech", ""): 262.0, Account("", "b born"): 200.0}
    mine = of("w", team="speech", count=3)
    assert why(mine, of("v", "b", count=3), accounts=Accounts(decayed_gpu_seconds=teams)) == (
        "Another request goes first, because your team used 31 % more for its weight lately."
    )
    members = Accounts(decayed_gpu_seconds={Account("speech", "alice born"): 9.0})
    assert why(mine, of("v", "b", "speech", count=3), accounts=members) == (
        "A colleague's request goes first, because you used much more of the team's GPU hours lately."
    )
    assert why(of("w"), of("v", "b", **first)) == "A request that was made 1 min earlier goes first."


@given(st.data())
def test_substitutes_are_never_below_needs(data):
    needs = data.draw(st.sampled_from([0, 30 * 2**30, 60 * 2**30, 90 * 2**30]))
    asked = data.draw(st.sampled_from(["a100", "t4", "half"]))
    consents = tuple(data.draw(st.lists(st.sampled_from(["a100", "t4", "half"]), unique=True)))
    lease = of("w", gpu_=asked, substitutes=consents, needs_memory_bytes=needs)
    there = fleet(*(gpu(i, data.draw(st.sampled_from(["a100", "t4"]))) for i in range(2)))
    for one in decide(seen_by(lease, fleet=there, rules=Rules())).grants:
        assert one.kind == asked or (one.kind in consents and meets_needs(KINDS[one.kind], lease.request))


def test_the_first_kind_that_is_free_is_given_and_one_alone_is_reserved_where_it_starts_first():
    there = fleet(gpu(0), gpu(0, "t4"))
    wants = of("w", "b", substitutes=("t4",))
    held = of("h", "h", phase=Phase.RUNNING, held=slots("a100-0"), deadline_at=NOW + 600)
    both = of("i", "h", gpu_="t4", phase=Phase.RUNNING, held=slots("t4-0"), deadline_at=NOW + 300)
    (one,) = decide(seen_by(wants, fleet=there, rules=Rules())).grants
    assert (one.kind, one.substitute) == ("a100", "")
    (one,) = decide(seen_by(wants, held, fleet=there, rules=Rules())).grants
    assert (one.kind, one.substitute) == ("t4", "t4")
    (kept,) = decide(seen_by(wants, held, both, fleet=there, rules=Rules())).reservations
    assert (kept.at, [slot.gpu for slot in kept.slots]) == (NOW + 300, ["t4-0"])
    place = queue_positions(seen_by(wants, held, both, fleet=there, rules=Rules()))["w"]
    assert (place.number, place.of, place.unchanged_seconds, place.kind) == (1, 1, 300, "t4")


@settings(max_examples=30)
@given(st.data())
def test_positions_equal_the_order_of_grants_when_all_ends_happen_as_declared(data):
    """One GPU each, so that nothing passes: who is said to come at a time comes then, and in that order."""
    hard = Quota(
        "team", QuotaScope.TEAM, "vision", (Limit(LimitedResource.GPUS, hard=Fraction(data.draw(st.integers(1, 3)))),)
    )
    rules = Rules(quotas=(hard,) if data.draw(st.booleans()) else ())
    gpus = data.draw(st.integers(1, 3))
    held = [
        of(f"h{i}", f"h{i}", data.draw(st.sampled_from(["", "vision"])), phase=Phase.RUNNING, held=slots(f"a100-{i}"),
           running_at=NOW, deadline_at=NOW + data.draw(st.integers(1, 9)) * 10)
        for i in range(gpus)
    ]  # fmt: skip
    line = [
        of(
            f"w{i}",
            f"u{i}",
            data.draw(st.sampled_from(["", "vision"])),
            lifetime_seconds=1000 + 10 * i,
            asked_at=NOW - 9 + i,
        )
        for i in range(data.draw(st.integers(1, 6)))
    ]
    seen = replace(seen_by(gpus=gpus, rules=rules), policies={})
    places = queue_positions(replace(seen, leases=(*held, *line)))
    told = run(seen, [*held, *line], NOW + 4500, 10.0)
    assert {who: at - NOW for at, who in told} == {
        name: place.unchanged_seconds for name, place in places.items() if (place.unchanged_seconds or 0) <= 4500
    }
    assert sorted(places, key=lambda name: places[name].number)[: len(told)] == [who for _, who in told]


def test_an_insufficient_budget_takes_another_kind_or_waits_and_blocks_no_other():
    budget = Budget(BudgetUnit.GPU_HOURS, Per.WEEK, hard=Fraction(1, 2))
    rules = Rules(quotas=(Quota("hours", QuotaScope.USER, "poor", budgets=(budget,)),))
    used = {(Account("", "poor born"), BudgetUnit.GPU_HOURS, Per.WEEK): Fraction(1, 2)}
    accounts = Accounts(charged=used, decayed_gpu_seconds={Account("", "b born"): 1.0})
    poor, rich = of("poor", "poor"), of("rich", "b")
    decision = decide(seen_by(poor, rich, gpus=1, rules=rules, accounts=accounts))
    assert [one.claim.id for one in decision.grants] == ["rich"]
    assert decision.wait_reasons["poor"].rule == "budget hours"
    assert decision.wait_reasons["poor"].words.startswith("0 of your 0.5 GPU hours this week are left")
    two = [replace(of(name, "poor", lifetime_seconds=1800), asked_at=NOW) for name in ("one", "two")]
    fresh = decide(seen_by(*two, gpus=2, rules=rules))
    assert [one.claim.id for one in fresh.grants] == ["one"], "the first sets all of it aside"


def test_gpus_are_reserved_on_the_node_that_has_cpu_for_the_request_first_too():
    gpus = [gpu(0), gpu(1, node="node-2")]
    sooner = of("h0", "b", phase=Phase.RUNNING, held=slots("a100-0"), deadline_at=NOW + 100)
    later = of("h1", "b", phase=Phase.RUNNING, held=slots("a100-1"), deadline_at=NOW + 900)
    wants = of("w")
    wants = replace(wants, request=replace(wants.request, cpu_cores=8.0))

    def told(host_resources):
        there = replace(fleet(*gpus), host_resources=host_resources)
        now = seen_by(sooner, later, wants, fleet=there, rules=Rules())
        (kept,) = decide(now).reservations
        return kept.slots[0].gpu, queue_positions(now)["w"].unchanged_seconds

    assert told({}) == ("a100-0", 100)
    assert told({gpus[0].on: HostResources(4000, 2**40)}) == ("a100-1", 100), (
        "as it is granted, where only GPUs are short"
    )


# --- requests that others pass


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
    assert list(describe_memory(HALF)) == ["40 GiB each", SHARED_MEMORY_NOTE]
    assert list(describe_memory(replace(HALF, memory_enforced=True))) == ["40 GiB each"]
    assert (A100.own_memory_bytes, HALF.own_memory_bytes) == (80 * GIB, 0)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "5 s"), (42, "40 s"), (1530, "26 min"), (42240, "11 h 40 min"), (42000, "11 h 40 min")]
)
def test_a_wait_is_rounded_alike_everywhere(seconds, words):
    assert show_wait(seconds) == words
