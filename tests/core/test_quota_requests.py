"""Requests for extra quota, and amounts as people write them."""

from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.calendar import Per
from gpuspawner.core.quotas.ledger import QuotaAmount, parse_correction, parse_grant_amount, show_grant_amount
from gpuspawner.core.quotas.quota_requests import REMIND_SECONDS, QuotaRequest, RequestOutcome, is_approved_by_rule
from gpuspawner.core.rules import Account, ApprovalRule, BudgetUnit, LimitedResource, QuotaGrant
from gpuspawner.core.units import BadValue

ZONE = ZoneInfo("Europe/Zurich")
RULE = ApprovalRule(Fraction(8), Per.WEEK)
DAY = 86400.0
MONDAY = datetime(2026, 11, 30, tzinfo=ZONE).timestamp()
ASKED = QuotaGrant("", Account("", "born"), BudgetUnit.GPU_HOURS, Fraction(4), MONDAY + DAY, MONDAY + 2 * DAY)
FULL = replace(ASKED, amount=Fraction(5))


@pytest.mark.parametrize(
    ("asked", "given", "approved"),
    [
        pytest.param(ASKED, [], True, id="within"),
        pytest.param(replace(ASKED, amount=Fraction(8)), [], True, id="exactly"),
        pytest.param(replace(ASKED, amount=Fraction(801, 100)), [], False, id="above"),
        pytest.param(ASKED, [replace(ASKED, since=MONDAY + 5 * DAY, until=MONDAY + 6 * DAY)], True, id="together"),
        pytest.param(ASKED, [replace(FULL, since=MONDAY + 5 * DAY, until=MONDAY + 6 * DAY)], False, id="same week"),
        pytest.param(ASKED, [replace(FULL, since=MONDAY - DAY, until=MONDAY)], True, id="week before"),
        pytest.param(ASKED, [replace(FULL, since=MONDAY + 7 * DAY, until=MONDAY + 8 * DAY)], True, id="week after"),
        pytest.param(ASKED, [replace(FULL, since=MONDAY - DAY, until=MONDAY + 1)], False, id="reaches into it"),
        pytest.param(ASKED, [replace(FULL, taken_back_at=MONDAY)], True, id="taken back"),
        pytest.param(replace(ASKED, what=LimitedResource.GPUS), [], False, id="GPUs"),
        pytest.param(replace(ASKED, account=Account("vision")), [], False, id="a team"),
    ],
)
def test_a_rule_approves_up_to_its_amount_in_each_period(asked, given, approved):
    assert is_approved_by_rule(RULE, asked, given, lambda _: Per.MONTH, ZONE) is approved
    assert not is_approved_by_rule(None, asked, given, lambda _: Per.MONTH, ZONE)


@pytest.mark.parametrize(
    ("until", "given", "approved"),
    [
        pytest.param(MONDAY + 2 * DAY, [], True, id="one day"),
        pytest.param(MONDAY + 3 * DAY, [], True, id="two days"),
        pytest.param(MONDAY + 3 * DAY + 1, [], False, id="three days"),
        pytest.param(MONDAY + 3 * DAY, [replace(ASKED, amount=Fraction(1))], False, id="two days and one given"),
        pytest.param(MONDAY + 3 * DAY, [replace(FULL, since=MONDAY - DAY, until=MONDAY)], True, id="week before"),
    ],
)
def test_a_rule_counts_extra_quota_in_each_day_for_which_it_raises_a_budget(until, given, approved):
    assert is_approved_by_rule(RULE, replace(ASKED, until=until), given, lambda _: Per.DAY, ZONE) is approved


def test_a_request_is_open_until_its_end_and_its_people_are_reminded_once():
    asked = QuotaRequest(
        "one", "hub", "born", "alice", Account("", "born"), QuotaAmount(BudgetUnit.GPU_HOURS, "", Fraction(4)), None,
        MONDAY + 5 * DAY, "A paper", MONDAY,
    )  # fmt: skip
    assert (asked.words, asked.is_for_team, asked.is_open(MONDAY)) == ("4 GPU h", False, True)
    due = MONDAY + REMIND_SECONDS
    assert [asked.is_reminder_due(at) for at in (due - 1, due)] == [False, True]
    assert not replace(asked, reminded_at=MONDAY).is_reminder_due(due)
    assert asked.state(MONDAY + 5 * DAY) is RequestOutcome.EXPIRED
    answered = asked.close(RequestOutcome.APPROVED, due, "admin", grant="g")
    assert (answered.is_answered, answered.is_by_rule, answered.is_open(due)) == (True, False, False)
    assert asked.close(RequestOutcome.APPROVED, due, "").is_by_rule
    grant = asked.grant_of(since=due)
    assert (grant.amount, grant.since, grant.until, grant.user) == (4, due, MONDAY + 5 * DAY, "alice")
    team = replace(asked, account=Account("vision"))
    assert (team.is_for_team, team.grant_of().user) == (True, "")


# --- amounts as people write them


KINDS = ("a100", "h100")


@pytest.mark.parametrize(
    ("text", "what", "kind", "number", "shown"),
    [
        ("4 GPUs", LimitedResource.GPUS, "", "4", "4 GPUs"),
        ("+1 GPU", LimitedResource.GPUS, "", "1", "1 GPU"),
        ("0.5 gpus", LimitedResource.GPUS, "", "0.5", "0.5 GPUs"),
        ("2 h100", LimitedResource.KIND, "h100", "2", "2 h100"),
        ("+20 h", BudgetUnit.GPU_HOURS, "", "20", "20 GPU h"),
        ("20 GPU h", BudgetUnit.GPU_HOURS, "", "20", "20 GPU h"),
        ("3 workspaces", LimitedResource.WORKSPACES, "", "3", "3 workspaces"),
        ("1 workspace", LimitedResource.WORKSPACES, "", "1", "1 workspace"),
        ("16 CPU", LimitedResource.CPU, "", "16", "16 CPU cores"),
        ("64GiB", LimitedResource.MEMORY, "", str(64 * 2**30), "64 GiB"),
        ("100 cost", BudgetUnit.COST, "", "100", "100 of cost"),
    ],
)
def test_an_amount_is_read_and_told_again(text, what, kind, number, shown):
    amount = parse_grant_amount(text, KINDS)
    assert amount == QuotaAmount(what, kind, Fraction(number))
    assert show_grant_amount(amount) == shown


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "not an amount"),
        (None, "not an amount"),
        ("4", "not an amount"),
        ("0 GPUs", "adds nothing"),
        ("-4 GPUs", "adds nothing"),
        ("4 bananas", "is not a known unit.*the catalog's kinds are a100, h100"),
        ("1e9 GPUs", "is not a known unit"),
        ("4 " + "x" * 50, "not an amount"),
    ],
)
def test_an_amount_of_zero_is_refused(text, wrong):
    with pytest.raises(BadValue, match=wrong):
        parse_grant_amount(text, KINDS)


def test_a_correction_charges_or_gives_back():
    assert parse_correction("-3 GPU h") == QuotaAmount(BudgetUnit.GPU_HOURS, "", Fraction(-3))
    assert parse_correction("+2.5 cost") == QuotaAmount(BudgetUnit.COST, "", Fraction(5, 2))
    for text in ("4 GPUs", "0 h", "64GiB", "3"):
        with pytest.raises(BadValue):
            parse_correction(text)


@given(st.one_of(st.text(max_size=50), st.integers(), st.none()))
def test_any_value_at_all_is_read_or_refused(value):
    for parse in (lambda x: parse_grant_amount(x, KINDS), parse_correction):
        try:
            parse(value)
        except BadValue:
            continue
