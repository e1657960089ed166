"""Amounts of grants and corrections as people write them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.quotas.ledger import QuotaAmount, parse_correction, parse_grant_amount, show_grant_amount
from gpuspawner.core.rules import BudgetUnit, LimitedResource
from gpuspawner.core.units import BadValue

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
