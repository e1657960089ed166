"""A forecast tells when requests start: by the decisions that grants follow, in bounded time."""

from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.calendar import Per
from gpuspawner.core.gpus.fleet import HostResources
from gpuspawner.core.idle.policies import LifecyclePolicy, Mode, QueuePolicy
from gpuspawner.core.idle.verdicts import Streak
from gpuspawner.core.leases.lease import HOLDING, Key, Phase
from gpuspawner.core.queue import forecasts
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.forecasts import Future, PredictedStart, forecast_each
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.run_times import PastRun, RunTimes
from gpuspawner.core.queue.snapshot import PreemptedGpus, Snapshot, end_at
from gpuspawner.core.quotas.ledger import decayed_gpu_seconds, ledger_lines_until, rate_of
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.rules import (
    Account,
    Accounts,
    Budget,
    BudgetUnit,
    Limit,
    LimitedResource,
    Quota,
    QuotaScope,
    Rate,
    Rules,
    Team,
)

UTC = ZoneInfo("UTC")
USERS = ["alice", "bob", "carol"]
RUN_TIMES = RunTimes(PastRun("somebody", 120.0 * number, 3600.0) for number in range(30))
GPUS = [gpu(i, pool, f"{pool}-node-{i // 3}") for pool in ("a100", "t4") for i in range(6)]


def some_rules(some):
    soft, hard = some.randint(1, 4), some.randint(4, 8)
    each = Quota(
        "each", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, soft=Fraction(soft), hard=Fraction(hard)),)
    )
    team = Quota(
        "vision", QuotaScope.TEAM, "vision", (Limit(LimitedResource.GPUS, soft=Fraction(2), hard=Fraction(hard)),)
    )
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
        kind = "half" if half else one.pool
        phase = some.choice([Phase.RUNNING, Phase.RUNNING, Phase.STOPPING, Phase.RECLAIMING])
        leases.append(
            a_lease(
                f"h {one.id}", phase, user=user, held=slots(one.id, share=Fraction(1, 2) if half else 1),
                request=a_request(user, kind, team=some.choice(["", "vision"])), rate=rate_of(KINDS[kind], 1),
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
    there = replace(
        fleet(*GPUS), host_resources={GPUS[0].on: HostResources(3000, 2**40)} if (some.random() < 0.5) else {}
    )
    kept = (PreemptedGpus("p", slots("a100-5"), None, NOW + 500),) if (some.random() < 0.5) else ()
    policies = {"default": LifecyclePolicy(queue=QueuePolicy(longest_wait_seconds=600.0))}
    return Snapshot(NOW, KINDS, tuple(leases), there, rules=some_rules(some), policies=policies, kept=kept)


def play(seen, end_of):
    """Return the starts if every workspace ends as ``end_of`` says, by decisions on snapshots of their own."""
    leases, starts, lines = {lease.id: lease for lease in seen.leases}, {}, []
    ends = {lease.id: end_of(lease, NOW) for lease in seen.leases if lease.phase in HOLDING}
    # The moments at which something changes. In between, usage grows and decays, and may change the order of requests.
    changes = {nextafter(NOW + 600 - claim.waited_seconds(NOW), inf) for claim in seen.claims}
    changes |= {claim.not_before for claim in seen.claims} | {one.until for one in seen.kept}
    at = NOW
    while at < inf:
        for name in [name for name, end in ends.items() if end <= at]:
            lines += ledger_lines_until(leases.pop(name), ends.pop(name), UTC)
        kept = tuple(one for one in seen.kept if one.until > at)
        then = replace(seen, now=at, leases=tuple(leases.values()), kept=kept, accounts=accounts_by(lines, at))
        for one in decide(then).grants:
            starts[one.claim.id] = PredictedStart(at, one.kind or "")
            lease, request = leases[one.claim.id], one.claim.request
            bound = inf if one.latest_end is None else one.latest_end.at
            leases[lease.id] = replace(
                lease, phase=Phase.RUNNING, slots=one.slots, given=one.substitute, running_at=at,
                rate=rate_of(KINDS.get(one.kind), request.count), deadline_at=min(at + request.lifetime_seconds, bound),
            )  # fmt: skip
            ends[lease.id] = max(at + 1, end_of(leases[lease.id], at))
        following = {*ends.values(), *changes}
        at = min((one for one in following if one > at), default=inf)
    return starts


def accounts_by(lines, now):
    """Return the usage of ended workspaces by their lines."""
    used = {}
    for line in lines:
        for account in accounts_of(line.account.user_created, line.account.team):
            used[account] = used.get(account, 0.0) + decayed_gpu_seconds([line], now)
    return Accounts(decayed_gpu_seconds=used)


def likely_end(lease, now):
    return RUN_TIMES.end_at(lease, now, 0)


@settings(max_examples=150)
@given(st.integers(), st.sampled_from([end_at, likely_end]))
@example(1032, end_at)
@example(614, likely_end)
@example(2055, likely_end)
def test_a_forecast_equals_the_decisions_that_follow_if_every_workspace_ends_as_predicted(seed, end_of):
    seen = a_queue(Random(seed))
    assert list(forecast_each(seen, Index(seen), seen.claims, [Future(end_of)])[0].items()) == list(
        play(seen, end_of).items()
    )


def test_a_forecast_leaves_the_index_as_it_was():
    seen = a_queue(Random(7))
    index = Index(seen)
    before = decide(seen, index=index), dict(index.claims), dict(index.pools.used)
    assert forecast_each(seen, index, seen.claims, [Future(end_at)])[0]
    assert (decide(seen, index=index), dict(index.claims), dict(index.pools.used)) == before


def full(count, seconds, **more):
    """Return workspaces on this many GPUs. Each ends this many seconds after the one before it."""
    return [
        a_lease(f"h{i:03}", Phase.RUNNING, user=f"h{i}", held=slots(f"a100-{i}"), running_at=NOW,
                deadline_at=NOW + seconds * (i + 1), rate=Rate(Fraction(1)), **more)
        for i in range(count)
    ]  # fmt: skip


def waiting(count, gpu="a100"):
    """Return requests of as many users for one GPU each, in the order of their names."""
    return [
        a_lease(f"{gpu} {i:03}", asked_at=NOW - 500 + i, user=f"u{i}", request=a_request(f"u{i}", gpu))
        for i in range(count)
    ]


def test_behind_the_first_hundred_the_line_goes_on_at_the_same_pace():
    leases = [*full(150, 10), *waiting(120)]
    there = fleet(*(gpu(i, node=f"node-{i:03}") for i in range(150)))
    places = queue_positions(Snapshot(NOW, KINDS, tuple(leases), there))
    line = [places[f"a100 {i:03}"] for i in range(120)]
    assert [place.number for place in line] == list(range(1, 121))
    assert [place.unchanged_seconds for place in line[:100]] == [10.0 * (i + 1) for i in range(100)]
    assert {place.unchanged_seconds for place in line[100:]} == {None}, "only the forecast knows a latest time"
    assert [place.likely_seconds for place in line[100:]] == pytest.approx([10.0 * (i + 1) for i in range(100, 120)])


def test_a_long_line_for_one_kind_takes_no_forecast_from_the_first_of_another():
    last = replace(waiting(1, "t4")[0], asked_at=NOW)
    leases = [*full(1, 10), *waiting(150), last]
    t4 = a_lease("t", Phase.RUNNING, user="t", held=slots("t4-0"), request=a_request("t", "t4"), deadline_at=NOW + 60)
    there = fleet(gpu(0), gpu(0, "t4", "node-2"))
    places = queue_positions(Snapshot(NOW, KINDS, (*leases, t4), there))
    assert places["t4 000"].unchanged_seconds == 60


def test_an_impossible_request_has_no_forecast_behind_the_first_hundred():
    large = a_lease("large", user="large", request=a_request("large", count=2))
    leases = (*full(1, 10), *waiting(110), large)
    places = queue_positions(Snapshot(NOW, KINDS, leases, fleet(gpu(0))))
    assert places["a100 105"].likely_seconds
    assert places["large"].likely_seconds is None


def test_past_use_of_a_workspace_stays_charged_to_its_budget_in_the_forecast():
    budget = Budget(BudgetUnit.GPU_HOURS, Per.WEEK, hard=Fraction(1))
    rules = Rules(quotas=(Quota("hours", QuotaScope.EACH_USER, budgets=(budget,)),))
    monday = 4 * 86400.0  # NOW is on Thursday, 1 January 1970
    (wants,) = waiting(1)
    wants = replace(wants, key=Key("hub", "u0 born", "w"))

    def told(seconds):
        runs = full(1, seconds, key=Key("hub", "u0 born", "other"))
        seen = Snapshot(NOW, KINDS, (*runs, wants), fleet(gpu(0)), rules=rules)
        return queue_positions(seen)["a100 000"].unchanged_seconds

    assert told(1800) == 1800, "half an hour is left of one"
    assert told(3300) == monday - NOW, "five minutes are left, too little to start"


def test_two_requests_of_one_budget_start_in_two_periods():
    budget = Budget(BudgetUnit.GPU_HOURS, Per.DAY, hard=Fraction(1))
    rules = Rules(quotas=(Quota("hours", QuotaScope.EACH_USER, budgets=(budget,)),))
    used = {(Account("", "u0 born"), BudgetUnit.GPU_HOURS, Per.DAY): Fraction(1)}
    line = tuple(replace(one, key=Key("hub", "u0 born", one.id)) for one in waiting(2))
    ends = a_lease("t", Phase.RUNNING, user="t", held=slots("t4-0"), request=a_request("t", "t4"),
                   deadline_at=NOW + 2.5 * 86400)  # fmt: skip
    there = fleet(gpu(0), gpu(1), gpu(0, "t4", "node-2"))
    seen = Snapshot(NOW, KINDS, (*line, ends), there, rules=rules, accounts=Accounts(used))
    first, second = (queue_positions(seen)[one.id].unchanged_seconds for one in line)
    assert first == 86400 - NOW
    assert second == 2.5 * 86400, "on the third day, at the next moment at which the queue decides"


def test_the_number_of_decisions_is_bounded(monkeypatch):
    decisions = []
    monkeypatch.setattr(forecasts, "decide", lambda *args, **kept: decisions.append(1) or decide(*args, **kept))
    large = a_lease("large", user="large", request=a_request("large", count=2))
    leases = (*full(1500, 50), large)
    seen = Snapshot(NOW, KINDS, leases, fleet(*(gpu(i, node=f"node-{i:04}") for i in range(1500))))
    assert forecast_each(seen, Index(seen), seen.claims, [Future(end_at)])[0] == {}
    assert len(decisions) < 300


def test_a_forecast_is_made_before_it_is_known_what_runs_and_while_the_hub_is_away():
    parked = a_lease("parked", Phase.PARKED, request=a_request())
    seen = Snapshot(NOW, KINDS, (*full(1, 10), parked), fleet(gpu(0)), processes_known=False, hub_answers=False)
    assert forecast_each(seen, Index(seen), seen.claims, [Future(end_at)])[0] == {
        "parked": PredictedStart(NOW + 10, "a100")
    }
