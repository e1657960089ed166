"""The entries of ``quotas`` that bind a user, the usage that they count, and the amounts of grants."""

from fractions import Fraction

import pytest

from gpuspawner.core.quotas.limits import (
    accounts_bound_elsewhere,
    accounts_of,
    counted_account,
    entries_in_force,
    granted_amount,
)
from gpuspawner.core.rules import Account, BudgetUnit, LimitedResource, Quota, QuotaGrant, QuotaScope

QUOTAS = (
    Quota("each", QuotaScope.EACH_USER),
    Quota("each of vision", QuotaScope.EACH_OF_TEAM, "vision"),
    Quota("alice", QuotaScope.USER, "alice"),
    Quota("vision", QuotaScope.TEAM, "vision"),
    Quota("speech", QuotaScope.TEAM, "speech"),
    Quota("all", QuotaScope.EVERYBODY),
)
BORN = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("user", "team", "names"),
    [
        ("alice", "vision", ["alice", "vision", "all"]),
        ("alice", "", ["alice", "all"]),
        ("bob", "vision", ["each of vision", "vision", "all"]),
        ("bob", "speech", ["each", "speech", "all"]),
        ("bob", "", ["each", "all"]),
    ],
)
def test_the_most_specific_entry_for_users_is_in_force_and_all_others(user, team, names):
    assert [entry.name for entry in entries_in_force(QUOTAS, user, team)] == names


def test_two_entries_as_specific_are_both_in_force():
    two = (Quota("one", QuotaScope.EACH_USER), Quota("two", QuotaScope.EACH_USER))
    assert entries_in_force(two, "bob", "") == two


@pytest.mark.parametrize(
    ("entry", "account"),
    [
        (QUOTAS[0], Account("", BORN)),
        (QUOTAS[1], Account("vision", BORN)),
        (QUOTAS[2], Account("", BORN)),
        (QUOTAS[3], Account("vision")),
        (QUOTAS[5], Account()),
    ],
)
def test_an_entry_counts_what_it_is_about(entry, account):
    assert counted_account(entry, BORN, "vision") == account
    assert account in accounts_of(BORN, "vision")


def test_a_team_entry_does_not_count_for_each_user():
    assert accounts_bound_elsewhere(QUOTAS, QUOTAS[0], BORN) == (Account("vision", BORN),)
    assert [accounts_bound_elsewhere(QUOTAS, entry, BORN) for entry in QUOTAS[1:]] == [()] * 5


def test_a_request_without_a_team_counts_for_the_user_and_for_all():
    assert sorted(accounts_of(BORN, "")) == [Account(), Account("", BORN)]
    assert len(accounts_of(BORN, "vision")) == 4


@pytest.mark.parametrize(
    ("to", "raises"),
    [
        pytest.param(Account("", BORN), {Account("", BORN), Account("vision", BORN)}, id="a user, in any team"),
        pytest.param(Account("vision", BORN), {Account("vision", BORN)}, id="a user, in one team"),
        pytest.param(Account("vision"), {Account("vision")}, id="a team"),
        pytest.param(Account(), {Account()}, id="everybody"),
    ],
)
def test_a_grant_raises_the_entries_that_it_is_for(to, raises):
    grants = [QuotaGrant("one", to, LimitedResource.GPUS, Fraction(4), 10.0, 20.0)]
    known = {*accounts_of(BORN, "vision"), Account("", "another"), Account("speech")}
    assert {one for one in known if granted_amount(grants, one, LimitedResource.GPUS, 10.0)} == raises


@pytest.mark.parametrize(
    ("what", "kind", "at", "adds"),
    [
        (LimitedResource.GPUS, "", 10.0, 4),
        (LimitedResource.GPUS, "", 19.9, 4),
        (LimitedResource.GPUS, "", 9.9, 0),
        (LimitedResource.GPUS, "", 20.0, 0),
        (LimitedResource.WORKSPACES, "", 10.0, 0),
        (LimitedResource.KIND, "a100", 10.0, 5),
        (LimitedResource.KIND, "h100", 10.0, 0),
        (BudgetUnit.GPU_HOURS, "", 10.0, 0),
    ],
)
def test_a_grant_adds_while_it_is_in_force_to_what_it_names(what, kind, at, adds):
    account = Account("", BORN)
    grants = [
        QuotaGrant("one", account, LimitedResource.GPUS, Fraction(1), 10.0, 20.0),
        QuotaGrant("two", account, LimitedResource.GPUS, Fraction(3), 10.0, 20.0),
        QuotaGrant("three", account, LimitedResource.KIND, Fraction(5), 10.0, 20.0, "a100"),
    ]
    assert granted_amount(grants, account, what, at, kind) == adds
