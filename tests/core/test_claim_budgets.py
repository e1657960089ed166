"""A request without budget reserves no GPUs, shows the reason, and starts in the next period."""

from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from lease_builders import A100, HALF, KINDS, a_lease, a_request, fleet, gpu

from gpuspawner.core.calendar import Per
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.core.quotas.budgets import ClaimBudgets
from gpuspawner.core.rules import Account, Accounts, Budget, BudgetUnit, Quota, QuotaScope, Rate, Rules

HOUR = 3600
ZURICH = ZoneInfo("Europe/Zurich")
MONDAY = datetime(2026, 11, 30, tzinfo=ZURICH).timestamp()
NOW = MONDAY - 2 * HOUR


def each(hard):
    return Quota(
        "each-user", QuotaScope.EACH_USER, budgets=(Budget(BudgetUnit.GPU_HOURS, Per.WEEK, hard=Fraction(hard)),)
    )


def waits(name, user, count=1, hours=8, gpu="a100"):
    return a_lease(name, user=user, asked_at=NOW, request=a_request(user, gpu, count, hours * HOUR))


def seen(*leases, hard=10, used=0, **changes):
    charged = {(Account("", "alice born"), BudgetUnit.GPU_HOURS, Per.WEEK): Fraction(used)}
    rules = Rules(quotas=(each(hard),), timezone="Europe/Zurich", contact="gpu@example.org")
    gpus = fleet(gpu(0), gpu(1))
    return Snapshot(NOW, KINDS, leases, gpus, rules=rules, accounts=Accounts(charged), **changes)


def given(snapshot):
    return [one.claim.id for one in decide(snapshot).grants]


def test_an_exhausted_budget_holds_its_user_back_and_blocks_no_other():
    snapshot = seen(waits("a", "alice", 2), waits("b", "bob", 2), used=10)
    decision = decide(snapshot)
    assert [one.claim.id for one in decision.grants] == ["b"]
    assert decision.wait_reasons["a"].rule == "budget each-user"
    assert decision.wait_reasons["a"].words == (
        "0 of your 10 GPU hours this week are left (10 used, 0 reserved by running workspaces). "
        "They reset Mon 30 Nov 00:00. Stop what you do not need, or ask gpu@example.org for more."
    )
    assert decision.reservations == ()


def test_grants_of_one_pass_are_set_aside_for_the_next_in_it():
    first, second = waits("a", "alice", hours=1), waits("b", "alice", hours=1)
    assert given(seen(first, second, hard=2)) == ["a", "b"]
    assert given(seen(first, second, hard=1)) == ["a"]
    assert given(seen(first, second, hard=1, used=1)) == []


def test_another_kind_that_the_budget_leaves_is_taken():
    asks = a_lease("a", user="alice", asked_at=NOW, request=a_request("alice", "a100", 1, 1800, substitutes=("half",)))
    snapshot = seen(asks, hard=10, used=Fraction(99, 10))  # six minutes of an A100, twelve of half of one
    (grant,) = decide(snapshot).grants
    assert grant.substitute == "half"


@pytest.mark.parametrize(("used", "hours", "held"), [(9.8, 8, False), (9.9, 8, True)], ids=["12 min", "6 min"])
def test_less_than_ten_minutes_is_too_little(used, hours, held):
    claim = claim_of(waits("a", "alice", hours=hours))
    assert (ClaimBudgets(seen(used=used)).wait_reason(claim, A100) is not None) is held
    assert ClaimBudgets(seen(used=used)).wait_reason(claim, HALF) is None


def test_a_short_request_needs_no_ten_minutes():
    claim = claim_of(a_lease("a", user="alice", request=a_request("alice", lifetime_seconds=300)))
    assert ClaimBudgets(seen(used=9.9)).wait_reason(claim, A100) is None


def test_it_is_estimated_to_start_when_the_period_renews():
    snapshot = seen(waits("a", "alice"), waits("b", "bob"), used=10)
    places = queue_positions(snapshot)
    assert MONDAY - NOW in {places["a"].likely_seconds, places["a"].unchanged_seconds}
    purse = ClaimBudgets(snapshot)
    assert purse.opens_at(claim_of(waits("a", "alice")), (A100,)) == MONDAY
    assert purse.opens_at(claim_of(waits("b", "bob")), (A100,)) == NOW
    assert purse.opens_at(claim_of(waits("b", "bob")), ()) == NOW


def test_without_budgets_nothing_is_counted():
    running = a_lease("r", Phase.RUNNING, rate=Rate(Fraction(1)))
    purse = ClaimBudgets(Snapshot(NOW, KINDS, (running,)))
    claim = claim_of(waits("a", "alice"))
    purse.take(claim, A100)
    assert purse.wait_reason(claim, A100) is None
