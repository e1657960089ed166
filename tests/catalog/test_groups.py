"""The hub's groups that a catalog names, and those that a request needs."""

import pytest

from gpuspawner.catalog import load_text
from gpuspawner.catalog.requests.visibility import lost_group, missing_groups, named_groups, prices, team_title

CATALOG = load_text("""
version: 1
timezone: Europe/Zurich
gpus:
  a100: {match: A100, memory: 80GiB, price: 2.10}
  h100: {match: H100, memory: 80GiB, price: 4.00, groups: [leads]}
  t4: {match: T4, memory: 16GiB}
templates:
  lab: {gpus: {a100: 1, h100: 1, t4: 1}}
  node: {gpus: {a100: 8}, groups: [leads, staff]}
teams: {vision: {title: Vision lab}}
quotas:
  all: {group: speech, gpus: {hard: 4}}
  each: {each: user, group: ml, gpus: {hard: 2}}
  mine: {user: anna, gpus: {hard: 2}}
holds:
  - {group: cs231, gpu: t4, count: 1, when: Thu 09:00-11:00}
""")


def test_every_group_is_found_with_the_entry_that_names_it():
    assert named_groups(CATALOG) == {
        "leads": ("gpus", "h100", "groups"),
        "staff": ("templates", "node", "groups"),
        "vision": ("teams", "vision"),
        "speech": ("quotas", "all", "group"),
        "ml": ("quotas", "each", "group"),
        "cs231": ("holds", 0, "group"),
    }
    assert list(missing_groups(CATALOG, frozenset({"leads", "vision", "ml", "cs231", "other"}))) == ["staff", "speech"]
    assert named_groups(load_text("version: 1\ntemplates: {lab: {}}")) == {}


@pytest.mark.parametrize(
    ("template", "kind", "team", "groups", "lost"),
    [
        ("lab", "a100", "", {"x"}, ""),
        ("lab", None, "vision", {"vision"}, ""),
        ("lab", None, "vision", {"leads"}, "Vision lab"),
        ("lab", None, "speech", set(), "speech"),
        ("node", "a100", "", {"staff"}, ""),
        ("node", "a100", "vision", {"vision"}, "leads or staff"),
        ("lab", "h100", "", {"staff"}, "leads"),
        ("gone", "gone", "", set(), ""),
    ],
)
def test_the_group_that_a_request_needs_and_its_user_has_left(template, kind, team, groups, lost):
    assert lost_group(CATALOG, template, kind, team, frozenset(groups)) == lost


def test_a_team_without_a_title_has_its_name_as_title():
    assert [team_title(CATALOG, team) for team in ("vision", "speech", "")] == ["Vision lab", "speech", ""]


@pytest.mark.parametrize(
    ("asked", "given", "words"),
    [
        ("a100", "h100", "4.00 instead of 2.10 per hour"),
        ("t4", "a100", "2.10 per hour"),
        ("a100", "t4", ""),
        ("a100", "a100", ""),
        ("gone", "gone", ""),
    ],
)
def test_the_price_of_one_kind_instead_of_another(asked, given, words):
    assert prices(CATALOG, asked, given) == words
