"""Sums of any days are what was used on them, whether they are read by day or by month."""

import pytest

from gpuspawner.service.store import Store
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart, _spans

USED = ["2026-09-30", "2026-10-01", "2026-10-31", "2026-11-01", "2026-11-24", "2026-11-25"]
DAYS = ["2026-09-01", *USED, "2026-11-26", "2026-11-30", "2026-12-01"]


@pytest.fixture
def sums(tmp_path):
    store = Store(f"sqlite:///{tmp_path / 's.sqlite'}")
    store.open()
    parts = [
        UsagePart(day, "anna born", "anna", "", "a100", "lab", "n1", UsageAmounts(charged=2.0**n))
        for n, day in enumerate(USED)
    ]
    with store.usage_sums._transaction(writes=True) as connection:
        store.usage_sums.write(connection, parts)
    yield store.usage_sums
    store.close()


def test_any_days_have_what_was_used_on_them(sums):
    for first in DAYS:
        for last in (day for day in DAYS if day >= first):
            of_days = {day: 2.0**n for n, day in enumerate(USED) if first <= day <= last}
            found = sums.of_days("user", first, last)
            assert sum(one.amounts.charged for one in found) == sum(of_days.values()), (first, last)
            by_day = sums.of_days("user", first, last, daily=True)
            assert {one.day: one.amounts.charged for one in by_day} == of_days


def test_a_month_up_to_today_is_read_as_a_month():
    assert _spans("2026-11-01", "2026-11-25", "2026-11-25") == ["2026-11"]
    assert _spans("2026-11-01", "2026-11-25", "2026-11-26")[0] == "2026-11-01", "there is use of a later day in it"
    assert _spans("2026-09-30", "2026-11-25", "2026-11-25") == ["2026-10", "2026-11", "2026-09-30"]


def test_a_users_workspaces_are_summed_each_by_itself(sums):
    def used(created, lease, day, active):
        return UsagePart(day, created, "anna", "", "a100", "lab", "n1", UsageAmounts(active=active), lease=lease)

    with sums._transaction(writes=True) as connection:
        sums.write(
            connection, [used("anna born", "one", "2026-11-01", 1.0), used("anna born", "one", "2026-11-02", 2.0)]
        )
        sums.write(
            connection, [used("anna born", "two", "2026-11-02", 4.0), used("anna born later", "x", "2026-11-02", 8.0)]
        )
    found = sums.of_workspaces("anna born", "2026-11-02", "2026-11-30")
    assert {name: amounts.active for name, amounts in found.items()} == {"one": 2.0, "two": 4.0}
    assert set(sums.of_workspaces("anna born", "2026-11-01", "2026-11-01")) == {"one"}


def test_the_last_owner_of_a_name_is_found_by_name(sums):
    def use(created, user, day):
        return UsagePart(day, created, user, "", "a100", "lab", "n1", UsageAmounts(charged=1.0))

    with sums._transaction(writes=True) as connection:
        sums.write(connection, [use("bob born", "bob", "2026-10-02"), use("bob born", "robert", "2026-11-02")])
        sums.write(connection, [use("other born", "bob", "2026-11-03")])
    assert (sums.users_named("bob"), sums.users_named("robert"), sums.users_named("nobody")) == (
        ["other born"],
        ["bob born"],
        [],
    )
    assert sums.latest_names() == {"anna born": "anna", "bob born": "robert", "other born": "bob"}
