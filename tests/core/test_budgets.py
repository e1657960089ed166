"""Budgets: what is left, until when a workspace may run, and that no start takes more than there is."""

from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import a_lease, a_request

from gpuspawner.core.calendar import Per, milliseconds, period_of
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.leases.transitions import stop
from gpuspawner.core.quotas.budgets import (
    BudgetBalances,
    budget_refusal,
    budget_text,
    decimal_text,
    gpu_hours_text,
    min_start_seconds,
    with_latest_end,
)
from gpuspawner.core.quotas.ledger import expected_end, ledger_lines_of_step, rate_of, sum_charges
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.rules import (
    Account,
    Accounts,
    Budget,
    BudgetUnit,
    LatestEnd,
    LimitedResource,
    LostInterval,
    Quota,
    QuotaGrant,
    QuotaScope,
    Rate,
    Rules,
)

ZURICH = "Europe/Zurich"
TUESDAY = datetime(2026, 11, 24, 12, tzinfo=ZoneInfo(ZURICH)).timestamp()
MONDAY = datetime(2026, 11, 30, tzinfo=ZoneInfo(ZURICH)).timestamp()
HOUR = 3600.0
ONE = Rate(Fraction(1))
ALICE, BOB = Requester("alice", "alice born"), Requester("bob", "bob born")
OF_ALICE = Account("", "alice born")


def rules(*entries, timezone=ZURICH):
    return Rules(quotas=tuple(entries), timezone=timezone)


def each(hard, per=Per.WEEK, what=BudgetUnit.GPU_HOURS, soft=None):
    return Quota("each-user", QuotaScope.EACH_USER, budgets=(Budget(what, per, soft, Fraction(hard)),))


def runs(start, end, *, user="alice", team="", rate=ONE, phase=Phase.RUNNING, **changes):
    return a_lease(
        f"{user} {start} {end}", phase, user=user, asked_at=start, deadline_at=end, rate=rate,
        request=a_request(user, team=team), **changes,
    )  # fmt: skip


def balances(entries, leases=(), *, now=TUESDAY, charged=0, grants=()):
    used = Accounts({(OF_ALICE, BudgetUnit.GPU_HOURS, Per.WEEK): Fraction(charged)})
    return BudgetBalances(now, leases, rules(*entries), used, grants)


def test_past_current_and_future_usage_are_shown_apart():
    week = balances(
        [each(40)],
        [
            runs(TUESDAY - 2 * HOUR, TUESDAY + 6 * HOUR),
            runs(TUESDAY - HOUR, TUESDAY + HOUR, user="bob"),
            a_lease("w", rate=ONE),
        ],
        charged=10,
    )
    (balance,) = week.of(ALICE)
    assert (balance.used, balance.reserved, balance.left, balance.rate) == (12, 6, 22, 1)
    assert balance.period.end == MONDAY
    assert balance.lasts_until(TUESDAY) == TUESDAY + 28 * HOUR
    assert (balance.renews(TUESDAY), balance.renews(MONDAY)) == ("Mon 30 Nov 00:00", "00:00")


def test_unused_budget_remains_until_it_renews():
    (balance,) = balances([each(40)]).of(ALICE)
    assert balance.lasts_until(TUESDAY) is None
    (balance,) = balances([each(400)], [runs(TUESDAY, MONDAY)]).of(ALICE)
    assert balance.lasts_until(TUESDAY) is None


def test_lost_time_is_not_counted_while_it_runs():
    lost = (LostInterval(TUESDAY - HOUR, None, "its node"),)
    (balance,) = balances([each(40)], [runs(TUESDAY - 3 * HOUR, TUESDAY, lost=lost)]).of(ALICE)
    assert balance.used == 2


@pytest.mark.parametrize(
    ("seconds", "ends"),
    [(1.5 * HOUR, None), (2 * HOUR, None), (3 * HOUR, TUESDAY + 2 * HOUR)],
    ids=["less", "all of it", "more"],
)
def test_a_start_may_run_until_its_budget_is_used_up(seconds, ends):
    verdict = balances([each(40)], [runs(TUESDAY - HOUR, TUESDAY + HOUR)], charged=36).verdict(
        ALICE, ONE, TUESDAY, seconds
    )
    assert (verdict.latest_end.at if verdict.latest_end else None) == ends
    assert verdict.seconds == min(seconds, 2 * HOUR)
    if ends:
        assert verdict.latest_end.rule == "budget"
        assert verdict.latest_end.name == "each-user"
        assert "when your 40 GPU hours this week are used up" in verdict.latest_end.words


def test_the_week_after_has_a_budget_of_its_own():
    start = MONDAY - HOUR
    across = balances([each(4)], now=start, charged=3).verdict(ALICE, ONE, start, 24 * HOUR)
    assert across.latest_end.at == MONDAY + 4 * HOUR  # one hour of the old week, four of the new one
    assert "your 4 GPU hours of the week from Mon 30 Nov 00:00 are" in across.latest_end.words
    set_aside = [runs(MONDAY - 2 * HOUR, MONDAY + 3 * HOUR)]
    less = balances([each(8)], set_aside, now=start, charged=3).verdict(ALICE, ONE, start, 24 * HOUR)
    assert less.latest_end.at == MONDAY + 5 * HOUR  # three of the new week's eight are reserved by running workspaces


def test_the_tightest_of_all_that_bind_decides():
    entries = [
        each(10),
        Quota("vision", QuotaScope.TEAM, "vision", budgets=(Budget(BudgetUnit.COST, Per.DAY, hard=Fraction(6)),)),
        Quota("all", QuotaScope.EVERYBODY, budgets=(Budget(BudgetUnit.GPU_HOURS, Per.MONTH, hard=Fraction(7)),)),
        Quota("soft", QuotaScope.EVERYBODY, budgets=(Budget(BudgetUnit.GPU_HOURS, Per.MONTH, soft=Fraction(1)),)),
    ]
    rate = Rate(Fraction(1), Fraction(2))
    of_all = balances(entries).verdict(BOB, rate, TUESDAY, 24 * HOUR)
    assert (of_all.latest_end.name, of_all.seconds) == ("all", 7 * HOUR)
    assert "everybody's 7 GPU hours this month" in of_all.latest_end.words
    of_team = balances(entries).verdict(Requester("bob", "bob born", "vision"), rate, TUESDAY, 24 * HOUR)
    assert (of_team.latest_end.name, of_team.seconds) == ("vision", 3 * HOUR)
    assert "vision's 6.00 today" in of_team.latest_end.words


def test_a_request_without_gpus_is_limited_by_no_budget():
    assert balances([each(0)]).verdict(ALICE, Rate(), TUESDAY, HOUR).latest_end is None
    money = balances([each(0, what=BudgetUnit.COST)]).verdict(ALICE, ONE, TUESDAY, HOUR)
    assert money.latest_end is None  # no price


def test_a_grant_adds_for_its_time():
    grant = QuotaGrant("g", OF_ALICE, BudgetUnit.GPU_HOURS, Fraction(20), TUESDAY, TUESDAY + HOUR)
    (balance,) = balances([each(40, soft=Fraction(10))], grants=[grant], charged=50).of(ALICE)
    assert (balance.hard, balance.soft, balance.left) == (60, 30, 10)
    (gone,) = balances([each(40)], grants=[grant], charged=50, now=TUESDAY + HOUR).of(ALICE)
    assert (gone.hard, gone.left, gone.soft) == (40, 0, None)  # and what was used under it ends nothing


def test_a_starting_workspace_has_its_whole_time_before_it():
    cut = LatestEnd(TUESDAY + HOUR, "budget", "ends")
    starting = runs(TUESDAY, None, phase=Phase.STARTING, latest_end=cut)
    assert expected_end(starting, TUESDAY + 600) == TUESDAY + 600 + HOUR
    held = LatestEnd(TUESDAY + HOUR, "hold", "ends")
    assert expected_end(runs(TUESDAY, None, phase=Phase.STARTING, latest_end=held), TUESDAY + 600) == TUESDAY + HOUR
    whole = a_lease(phase=Phase.RESERVED, request=a_request(lifetime_seconds=7200))
    assert expected_end(whole, TUESDAY) == TUESDAY + 7200


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.PARKED, Phase.STOPPING, Phase.ENDED])
def test_nothing_is_set_aside_for_what_holds_nothing(phase):
    (balance,) = balances([each(40)], [runs(TUESDAY - HOUR, TUESDAY + HOUR, phase=phase)]).of(ALICE)
    assert (balance.used, balance.reserved) == (0, 0)


def test_an_adopted_workspace_is_charged_and_reserves_no_hours():
    (balance,) = balances([each(40)], [runs(TUESDAY - HOUR, None)]).of(ALICE)
    assert (balance.used, balance.reserved) == (1, 0)


def test_the_earlier_bound_holds_and_the_other_is_kept():
    fixed, budget = LatestEnd(5.0, "hold", "h"), LatestEnd(4.0, "budget", "b")
    lease = a_lease(fixed_end=fixed)
    assert with_latest_end(lease, budget).latest_end == budget
    assert with_latest_end(with_latest_end(lease, budget), None).latest_end == fixed
    assert with_latest_end(a_lease(latest_end=budget), None).latest_end is None


PERS = st.sampled_from(Per)
ZONES = st.sampled_from(["UTC", ZURICH, "America/New_York", "Australia/Lord_Howe", "Asia/Beirut"])


@st.composite
def situations(draw):
    """Entries, who runs what, and who asks next for what."""
    subjects = {QuotaScope.TEAM: "vision", QuotaScope.USER: "alice", QuotaScope.EACH_OF_TEAM: "vision"}
    entries = [
        Quota(str(number), whom, subjects.get(whom, ""),
              budgets=(Budget(draw(st.sampled_from(BudgetUnit)), draw(PERS), hard=Fraction(draw(st.integers(0, 60)))),))
        for number, whom in enumerate(draw(st.lists(st.sampled_from(QuotaScope), min_size=1, max_size=4)))
    ]  # fmt: skip
    now = draw(st.integers(1_774_000_000, 1_793_000_000))  # from spring to autumn, with both time changes
    asks = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["alice", "bob"]),
                st.sampled_from(["", "vision"]),
                st.sampled_from([Rate(Fraction(1), Fraction(2)), Rate(Fraction(8), Fraction(1, 3))]),
                st.integers(1, 40 * 86400),
                st.integers(0, 7200),
            ),
            max_size=6,
        )
    )  # fmt: skip
    return entries, draw(ZONES), now, asks


@given(situations())
def test_no_period_exceeds_its_budget_and_no_grant_is_shortened_needlessly(situation):
    entries, zone, now, asks = situation
    whole, held, lines = rules(*entries, timezone=zone), [], []
    for number, (user, team, rate, seconds, passes) in enumerate(asks):
        now += passes
        for lease in [one for one in held if one.deadline_at <= now]:
            held.remove(lease)
            ended = stop(lease, ExitReason.EXPIRED, "gpuspawner", "", lease.deadline_at)
            lines += ledger_lines_of_step(lease, ended, ZoneInfo(zone))
        used = Accounts(sum_charges(lines, now, ZoneInfo(zone)))
        books = BudgetBalances(now, held, whole, used)
        asker = Requester(user, f"{user} born", team)
        verdict = books.verdict(asker, rate, now, seconds)
        if verdict.latest_end is not None:  # a little more would have been too much
            longer = runs(now, verdict.latest_end.at + 0.001, user=user, team=team, rate=rate)
            more = BudgetBalances(now, [*held, longer], whole, used)
            assert any(x.used + x.reserved > x.hard for x in more.of(asker, verdict.balance.period.start))
        if verdict.seconds > 0:
            another = {"id": str(number), "key": Key("hub", f"{user} born", str(number))}
            new = replace(runs(now, now + verdict.seconds, user=user, team=team, rate=rate), **another)
            held.append(new)
            books.add(new)
            again = BudgetBalances(now, held, whole, used)
            assert books.of(asker) == again.of(asker)  # what a pass adds is as if it had been there
        for name, which in [("alice", "vision"), ("alice", ""), ("bob", "vision"), ("bob", "")]:
            for day in range(0, 45, 3):
                for balance in books.of(Requester(name, f"{name} born", which), now + day * 86400):
                    assert balance.used + balance.reserved <= balance.hard


@given(
    st.integers(1_774_000_000, 1_793_000_000), st.integers(1, 80 * 86400), st.integers(0, 100), PERS, ZONES,
    st.sampled_from([Fraction(1), Fraction(1, 7), Fraction(8)]),
)  # fmt: skip
def test_used_and_set_aside_of_all_periods_is_the_whole_run(start, seconds, passed, per, zone, gpus):
    now = start + seconds * passed // 100
    lease = runs(start, start + seconds, rate=Rate(gpus))
    books = BudgetBalances(now, [lease], rules(each(0, per), timezone=zone), Accounts())
    at, used, aside = start, Fraction(0), Fraction(0)
    while at < start + seconds:
        (balance,) = books.of(ALICE, at)
        used, aside, at = used + balance.used, aside + balance.reserved, balance.period.end
        assert balance.period == period_of(milliseconds(balance.period.start), per, books.zone)
    assert used == gpus * (now - start) / 3600
    assert aside == gpus * (start + seconds - now) / 3600


@pytest.mark.parametrize(
    ("template", "asked", "fast", "least"),
    [(1800, 28800, 1, 1800), (60, 28800, 1, 600), (60, 300, 1, 300), (1, 480, 60, 10)],
)
def test_the_least_that_a_start_must_have(template, asked, fast, least):
    assert min_start_seconds(template, asked, fast) == least


def test_a_refusal_says_what_is_left_used_and_set_aside_and_when_it_renews():
    books = balances([each(40)], [runs(TUESDAY, TUESDAY + 2 * HOUR)], charged=38)
    verdict = books.verdict(ALICE, ONE, TUESDAY, HOUR)
    limit, remedy = budget_refusal(verdict, 0, "gpu@example.org", TUESDAY)
    assert limit == "0 of your 40 GPU hours this week are left (38 used, 2 reserved by running workspaces)"
    assert remedy.endswith("Stop what you do not need, or ask gpu@example.org for more.")
    assert remedy.startswith("They reset Mon 30 Nov 00:00. ")
    fewer = budget_refusal(verdict, 1, "", TUESDAY)[1]
    assert fewer.endswith("Ask for 1, stop what you do not need, or ask an administrator for more.")
    with pytest.raises(ValueError, match="nothing"):
        budget_refusal(books.verdict(ALICE, Rate(), TUESDAY, HOUR), 0, "", TUESDAY)


@pytest.mark.parametrize(
    ("value", "text"),
    [(Fraction(0), "0"), (Fraction(1, 100), "less than 0.1"), (Fraction(399, 10), "39.9"), (Fraction(40), "40")],
)
def test_a_little_is_never_shown_as_none(value, text):
    assert decimal_text(value) == text
    assert gpu_hours_text(value) == f"{text} GPU hours"


def test_a_kind_that_is_gone_takes_nothing_and_unlimited_budgets_have_no_left():
    assert rate_of(None, 3) == Rate()
    soft = Quota("each-user", QuotaScope.EACH_USER, budgets=(Budget(BudgetUnit.GPU_HOURS, Per.WEEK, soft=Fraction(3)),))
    (balance,) = balances([soft]).of(ALICE)
    assert (balance.hard, balance.left, balance.lasts_until(TUESDAY)) == (None, None, None)
    assert budget_text(balance, TUESDAY) == "your 0 GPU hours this week"
    assert LimitedResource.GPUS.value == "gpus"
