"""Balances that are kept equal newly computed ones, and only changes are counted."""

from dataclasses import replace
from fractions import Fraction
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from lease_builders import NOW, a_lease, a_request

from gpuspawner.core.calendar import Per
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.queue.index import BudgetBalancesCache
from gpuspawner.core.quotas.budgets import BudgetBalances
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.rules import Account, Accounts, Budget, BudgetUnit, Quota, QuotaScope, Rate, Rules

HOUR = 3600.0
RULES = Rules(
    quotas=(
        Quota("each", QuotaScope.EACH_USER, budgets=(Budget(BudgetUnit.GPU_HOURS, Per.DAY, hard=Fraction(30)),)),
        Quota("vision", QuotaScope.TEAM, "vision", budgets=(Budget(BudgetUnit.COST, Per.WEEK, hard=Fraction(90)),)),
        Quota("all", QuotaScope.EVERYBODY, budgets=(Budget(BudgetUnit.GPU_HOURS, Per.MONTH, hard=Fraction(300)),)),
    )
)
USERS, TEAMS = ["alice", "bob"], ["", "vision"]
PHASES = [Phase.QUEUED, Phase.RESERVED, Phase.STARTING, Phase.RUNNING, Phase.STOPPING]


def holds(name, user="alice", team="", phase=Phase.RUNNING, gpus=1, hours=4):
    up = phase in {Phase.RUNNING, Phase.STOPPING}
    return a_lease(
        name, phase, user=user, key=Key("hub", f"{user} born", name),
        request=a_request(user, "a100", gpus, team=team, lifetime_seconds=int(hours * HOUR)), granted_at=NOW - HOUR,
        running_at=NOW - HOUR if up else None, deadline_at=NOW + hours * HOUR if up else None,
        rate=Rate(Fraction(gpus), Fraction(2 * gpus)),
    )  # fmt: skip


@st.composite
def steps(draw):
    """Draw the times of questions, the leases at each time, and the charges."""
    leases, now, charged, found = {}, NOW, {}, []
    for _ in range(draw(st.integers(1, 8))):
        for _ in range(draw(st.integers(0, 3))):
            name = draw(st.sampled_from("abcdef"))
            leases.pop(name, None)
            if draw(st.booleans()):
                some = (draw(st.sampled_from(values)) for values in (USERS, TEAMS, PHASES, [1, 2], [1, 7, 30]))
                leases[name] = holds(name, *some)
        now += draw(st.sampled_from([0.0, 0.0, 0.0, 2.0, 20 * HOUR, -5.0]))
        if draw(st.integers(0, 4)) == 0:
            charged = {(Account("", "alice born"), BudgetUnit.GPU_HOURS, Per.DAY): Fraction(draw(st.integers(0, 9)))}
        found.append((now, tuple(leases.values()), Accounts(charged)))
    return found


@given(steps())
def test_cached_balances_equal_recomputed_ones(line):
    kept = BudgetBalancesCache()
    for now, leases, accounts in line:
        ours, anew = kept.of(now, leases, RULES, accounts, ()), BudgetBalances(now, leases, RULES, accounts)
        for user in USERS:
            for team in TEAMS:
                asker = Requester(user, f"{user} born", team)
                assert ours.of(asker) == anew.of(asker)
                rate = Rate(Fraction(3), Fraction(5))
                assert ours.verdict(asker, rate, now, 40 * HOUR) == anew.verdict(asker, rate, now, 40 * HOUR)


def test_of_many_leases_those_alone_are_counted_that_changed():
    kept, accounts = BudgetBalancesCache(), Accounts()
    many = tuple(holds(f"{number:03}") for number in range(300))
    kept.of(NOW, many, RULES, accounts, ())
    with mock.patch.object(BudgetBalances, "add", autospec=True, side_effect=BudgetBalances.add) as counted:
        longer = replace(many[7], deadline_at=NOW + 9 * HOUR)
        kept.of(NOW + 0.5, (*many[:7], longer, *many[8:200], *many[201:], holds("new")), RULES, accounts, ())
        assert counted.call_count == 2, "one is longer, one came, and one is gone"
        kept.of(NOW + 1.5, many, RULES, accounts, ())
    assert counted.call_count == 302, "a second later each sets something else aside"
