"""Hours switch the policy that judges; what a workspace was granted by stays."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from lease_builders import a_lease, a_request

from gpuspawner.core.calendar import Window
from gpuspawner.core.idle.policies import (
    ExtendPolicy,
    IdlePolicy,
    KeepPolicy,
    LifecyclePolicy,
    effective_policy,
    policy_of_lease,
)
from gpuspawner.core.rules import Hours, Rules

ZURICH = ZoneInfo("Europe/Zurich")
DEFAULT = LifecyclePolicy()
NIGHT = LifecyclePolicy("night", idle=IdlePolicy(for_seconds=900.0), keep=KeepPolicy(1, 8 * 3600.0))
LUNCH = LifecyclePolicy("lunch")
POLICIES = {"default": DEFAULT, "night": NIGHT, "lunch": LUNCH}
WEEK = frozenset(range(5))
RULES = Rules(
    hours=(
        Hours(Window(WEEK, 20 * 60, 7 * 60), "night", "default"),
        Hours(Window(WEEK, 12 * 60, 13 * 60), "lunch", "default"),
    ),
    timezone="Europe/Zurich",
)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=ZURICH).timestamp()


@pytest.mark.parametrize(
    ("now", "policy", "until"),
    [
        ("2026-11-24 11:59", DEFAULT, "2026-11-24 12:00"),
        ("2026-11-24 12:00", LUNCH, "2026-11-24 13:00"),
        ("2026-11-24 13:00", DEFAULT, "2026-11-24 20:00"),
        ("2026-11-24 23:00", NIGHT, "2026-11-25 07:00"),
        ("2026-11-29 12:00", DEFAULT, "2026-11-30 12:00"),
    ],
)
def test_the_policy_of_the_hour_and_until_when(now, policy, until):
    found = effective_policy("default", POLICIES, RULES, at(now))
    assert (found.policy, found.until) == (policy, at(until))
    assert found.instead_of == ("" if policy is DEFAULT else "default")


def test_hours_leave_other_policies_alone():
    assert effective_policy("night", POLICIES, RULES, at("2026-11-24 12:30")) == (NIGHT, "", None)
    assert effective_policy("left the catalog", POLICIES, RULES, at("2026-11-24 12:30")).policy is LUNCH


def test_hours_that_never_close_tell_no_end():
    always = Rules(hours=(Hours(Window(frozenset(range(7)), 0, 0), "night", "default"),))
    assert effective_policy("default", POLICIES, always, 0.0) == (NIGHT, "default", None)


def test_of_two_that_are_open_the_first_written_counts_and_the_end_is_where_it_changes():
    both = replace(RULES, hours=(RULES.hours[1], Hours(Window(WEEK, 11 * 60, 14 * 60), "night", "default")))
    policies = [effective_policy("default", POLICIES, both, at(f"2026-11-24 {hour}:30")) for hour in (11, 12, 13)]
    assert [(x.policy.name, x.until) for x in policies] == [
        ("night", at("2026-11-24 12:00")),
        ("lunch", at("2026-11-24 13:00")),
        ("night", at("2026-11-24 14:00")),
    ]


def test_the_policy_of_the_grant_stays_and_the_rest_follows_the_hour():
    day, night = at("2026-11-24 18:00"), at("2026-11-24 22:00")
    lease = a_lease(request=a_request(), terms=DEFAULT.terms)
    assert policy_of_lease(lease, POLICIES, RULES, day) == DEFAULT
    judged = policy_of_lease(lease, POLICIES, RULES, night)
    assert (judged.idle, judged.keep) == (NIGHT.idle, DEFAULT.keep)
    reloaded = {
        **POLICIES,
        "default": replace(
            DEFAULT, extend=ExtendPolicy(1.0), preemption=replace(DEFAULT.preemption, notice_seconds=1.0)
        ),
    }
    assert policy_of_lease(lease, reloaded, RULES, day) == DEFAULT
    older = replace(lease, terms=None)
    assert policy_of_lease(older, POLICIES, RULES, night) == NIGHT
