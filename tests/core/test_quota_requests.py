"""Which requests for extra quota a rule approves at once."""

from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest

from gpuspawner.core.calendar import Per
from gpuspawner.core.quotas.quota_requests import is_approved_by_rule
from gpuspawner.core.rules import Account, ApprovalRule, BudgetUnit, LimitedResource, QuotaGrant

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
    assert is_approved_by_rule(RULE, asked, given, ZONE) is approved
    assert not is_approved_by_rule(None, asked, given, ZONE)
