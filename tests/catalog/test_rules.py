"""Teams, quotas, budgets, hours and class holds of the catalog become the rules of core."""

from datetime import date
from fractions import Fraction

import pytest

from gpuspawner.catalog import charging_teams, load_text, scaled, teams_of
from gpuspawner.catalog.checks import most_gpus
from gpuspawner.core.calendar import Per, Window
from gpuspawner.core.idle.policies import PreemptionPolicy, QueuePolicy
from gpuspawner.core.rules import (
    ApprovalRule,
    Budget,
    BudgetUnit,
    ClassHold,
    Hours,
    Limit,
    LimitedResource,
    MakeRoom,
    Quota,
    QuotaScope,
    Rules,
    Team,
)

GIB = 2**30
MONDAY_TO_FRIDAY = frozenset(range(5))

RULES = """\
version: 1
timezone: Europe/Zurich
contact: gpu-help@example.org
gpus:
  a100: {match: A100, memory: 80GiB, compute: 8.0, price: 2, counts: 2, groups: [vision, Speech Lab]}
  half: {of: a100, shares: 2}
  open-half: {of: a100, shares: 2, groups: [], counts: 0.25}
  slice: {resource: nvidia.com/mig-1g.10gb, memory: 10GiB}
  slices: {match: NVIDIA H100*MIG 3g.40gb, memory: 40GiB, counts: 1/2}
  product: {match: NVIDIA-A100-SXM4-80GB-MIG-3g.40gb, memory: 40GiB}
  product-half: {of: product, shares: 2}
  all-of-it: {resource: nvidia.com/mig-7g.80gb, memory: 80GiB}
  t4: {match: T4, memory: 16GiB}
templates:
  lab: {gpus: {a100: 1-4, t4: 1}, priority: 5, groups: [vision]}
  heir: {extends: lab, gpus: {t4: 1}}
policies:
  default:
    queue: {wait: 6h}
    preemption: {protected: 20m, grace: 2m, back_in_queue: false}
    extend: {others_wait: refuse}
  night: {extends: default, preemption: {grace: 1m}}
  holiday: {extends: night, ready_at: false}
teams:
  vision: {title: Vision, weight: 2.5, priority: 3}
  Speech Lab:
quotas:
  each: {each: user, gpus: {soft: 2, hard: 4.5}, workspaces: {hard: 3}, gpu_hours: {per: week, soft: 40, hard: 120}}
  of-vision: {each: user, group: vision, types: {a100: {soft: 1}}, cpu: {hard: 64}, memory: {hard: 512GiB}}
  eve: {user: eve, gpus: {hard: 0}}
  vision: {group: vision, gpus: {soft: 16, hard: 32}, cost: {per: month, hard: 1500.50}, full: refuse}
  robots: {group: robots, gpus: {hard: 8}}
  all: {everybody: true, gpus: {hard: 40}}
hours:
  - {when: Mon-Fri 20:00-07:00, policy: night, instead_of: default}
  - {when: "2026-12-25,2026-12-24", policy: holiday, instead_of: default}
  - {when: 2027-01-01, policy: holiday, instead_of: default}
holds:
  - {group: cs231, gpu: t4, count: 8, when: Thu 09:00-11:00, until: 2027-02-01}
  - {group: cs231, gpu: t4, count: 2, when: "Sat,Sun 0:00-24:00"}
make_room: {after: 30m}
approve: {below: 8 GPU h, each: week}
"""


@pytest.fixture(scope="module")
def catalog():
    return load_text(RULES)


def test_quotas_have_their_limits_and_budgets(catalog):
    four = Fraction(9, 2)
    assert catalog.rules.quotas == (
        Quota(
            "each",
            QuotaScope.EACH_USER,
            limits=(
                Limit(LimitedResource.GPUS, "", Fraction(2), four),
                Limit(LimitedResource.WORKSPACES, hard=Fraction(3)),
            ),
            budgets=(Budget(BudgetUnit.GPU_HOURS, Per.WEEK, Fraction(40), Fraction(120)),),
        ),
        Quota(
            "of-vision",
            QuotaScope.EACH_OF_TEAM,
            "vision",
            (
                Limit(LimitedResource.KIND, "a100", Fraction(1)),
                Limit(LimitedResource.CPU, hard=Fraction(64)),
                Limit(LimitedResource.MEMORY, hard=Fraction(512 * GIB)),
            ),
        ),
        Quota("eve", QuotaScope.USER, "eve", (Limit(LimitedResource.GPUS, hard=Fraction(0)),)),
        Quota(
            "vision",
            QuotaScope.TEAM,
            "vision",
            (Limit(LimitedResource.GPUS, "", Fraction(16), Fraction(32)),),
            (Budget(BudgetUnit.COST, Per.MONTH, hard=Fraction(3001, 2)),),
            full_waits=False,
        ),
        Quota("robots", QuotaScope.TEAM, "robots", (Limit(LimitedResource.GPUS, hard=Fraction(8)),)),
        Quota("all", QuotaScope.EVERYBODY, "", (Limit(LimitedResource.GPUS, hard=Fraction(40)),)),
    )


def test_teams_hours_holds_and_the_rest(catalog):
    rules = catalog.rules
    assert rules.teams == {
        "vision": Team("vision", "Vision", Fraction(5, 2), 3),
        "Speech Lab": Team("Speech Lab", "Speech Lab"),
    }
    christmas, new_year = frozenset({date(2026, 12, 24), date(2026, 12, 25)}), frozenset({date(2027, 1, 1)})
    assert rules.hours == (
        Hours(Window(MONDAY_TO_FRIDAY, 20 * 60, 7 * 60), "night", "default"),
        Hours(Window(frozenset(), 0, 0, christmas), "holiday", "default"),
        Hours(Window(frozenset(), 0, 0, new_year), "holiday", "default"),
    )
    assert [catalog.policies[name].ready_at for name in ("night", "holiday")] == [True, False]
    assert rules.holds == (
        # That day is the last: until the midnight after it, in the catalog's zone.
        ClassHold("cs231", "t4", 8, Window(frozenset({3}), 9 * 60, 11 * 60), until=1801522800.0),
        ClassHold("cs231", "t4", 2, Window(frozenset({5, 6}), 0, 0)),
    )
    assert rules.approve == ApprovalRule(Fraction(8), Per.WEEK)
    assert (rules.make_room, rules.timezone, rules.contact) == (MakeRoom(1800), "Europe/Zurich", "gpu-help@example.org")


def test_charged_teams_are_those_with_an_entry_or_a_quota(catalog):
    assert charging_teams(catalog.rules) == ("vision", "Speech Lab", "robots")
    assert teams_of(catalog.rules, {"robots", "vision", "staff"}) == ("vision", "robots")
    assert teams_of(catalog.rules, set()) == ()
    assert teams_of(catalog.rules, None) == charging_teams(catalog.rules)


def test_a_share_counts_as_its_part_and_mig_by_its_slices_unless_counts_is_written(catalog):
    both = frozenset({"vision", "Speech Lab"})
    assert {name: (kind.groups, kind.counts) for name, kind in catalog.gpus.items()} == {
        "a100": (both, Fraction(2)),
        "half": (both, Fraction(1)),
        "open-half": (frozenset(), Fraction(1, 4)),
        "slice": (frozenset(), Fraction(1, 7)),
        "slices": (frozenset(), Fraction(1, 2)),
        "product": (frozenset(), Fraction(3, 7)),
        "product-half": (frozenset(), Fraction(3, 14)),
        "all-of-it": (frozenset(), None),
        "t4": (frozenset(), None),
    }


def test_templates_inherit_groups_and_priority(catalog):
    assert {name: (t.groups, t.priority) for name, t in catalog.templates.items()} == {
        "lab": (frozenset({"vision"}), 5),
        "heir": (frozenset({"vision"}), 5),
    }


def test_policies_of_queue_and_preemption(catalog):
    default, night = catalog.policies["default"], catalog.policies["night"]
    assert default.queue == night.queue == QueuePolicy(21600)
    assert default.preemption == PreemptionPolicy(1200, 120, back_in_queue=False)
    assert night.preemption == PreemptionPolicy(1200, 60, back_in_queue=False)
    assert default.extend.others_wait is False


def test_scaled_divides_the_times_of_the_rules_but_no_hour_of_the_day(catalog):
    fast = scaled(catalog, 30)
    policy = fast.policies["default"]
    assert (policy.queue, policy.preemption) == (QueuePolicy(720), PreemptionPolicy(40, 4, back_in_queue=False))
    assert fast.rules.make_room == MakeRoom(60)
    assert (fast.rules.hours, fast.rules.holds, fast.rules.quotas) == (
        catalog.rules.hours,
        catalog.rules.holds,
        catalog.rules.quotas,
    )


@pytest.mark.parametrize(
    ("written", "most"),
    [
        ("", None),
        ("a: {each: user, gpus: {hard: 4}}", 4),
        ("a: {each: user, gpus: {soft: 4}}", None),
        ("a: {each: user, gpus: {hard: 4}}, b: {each: user, group: x, gpus: {hard: 8}}", 8),
        ("a: {each: user, gpus: {hard: 4}}, b: {user: eve, gpus: {hard: 0}}", 4),
        ("a: {each: user, gpus: {hard: 4}}, b: {user: eve, workspaces: {hard: 1}}", None),
        ("b: {user: eve, gpus: {hard: 2}}", None),
        ("a: {each: user, gpus: {hard: 4}}, c: {everybody: true, gpus: {hard: 3}}", 3),
        ("a: {group: x, gpus: {hard: 4}}", None),
    ],
)
def test_the_most_gpus_that_any_user_may_hold(written, most):
    text = f"version: 1\ngpus: {{t4: {{match: T4, memory: 16GiB}}}}\ntemplates: {{lab:}}\nquotas: {{{written}}}\n"
    assert most_gpus(load_text(text).rules.quotas) == most


def test_a_catalog_without_rules():
    assert load_text("version: 1\ntemplates: {lab:}\nquotas:\nhours:\nholds:\nteams:\n").rules == Rules()
