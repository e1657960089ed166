"""The entries that a user may use, and the team that is charged for the usage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.catalog import Defaults, load_text, resolve, to_options, visible, without_defaults
from gpuspawner.core.errors import RequestRefused

CATALOG = load_text("""\
version: 1
contact: gpu-help@example.org
gpus:
  h100: {match: H100, memory: 80GiB, groups: [vision, leads]}
  t4: {match: T4, memory: 16GiB}
  half: {of: h100, shares: 2}
simulated: {h100: 2, t4: 1}
templates:
  lab: {gpus: {h100: 1-4, t4: 1}, default: {count: 3}, substitutes: {t4: [h100, half]}}
  whole: {gpus: {h100: 4}}
  leads: {groups: [leads]}
teams: {vision: {}, speech: {}}
quotas: {robots: {group: robots, gpus: {hard: 8}}}
""")
GROUPS = ["vision", "speech", "robots", "leads", "staff"]


def test_users_without_groups_see_everything_for_everybody():
    seen = visible(CATALOG, frozenset())
    assert (list(seen.gpus), list(seen.templates), seen.simulated) == (["t4"], ["lab"], {"t4": 1})
    lab = seen.templates["lab"]
    assert (lab.gpus, lab.substitutes) == ({"t4": (1, 1)}, {"t4": ()})
    usual = CATALOG.templates["lab"].default
    assert lab.default == Defaults("t4", 1, usual.cpu_cores, usual.memory_bytes, usual.lifetime_seconds)


def test_members_and_who_asks_for_no_check_see_it_all():
    assert visible(CATALOG, {"leads"}) == CATALOG
    assert list(visible(CATALOG, {"vision", "speech"}).templates) == ["lab", "whole"]
    assert visible(CATALOG, None) is CATALOG


def refused(options, groups=frozenset(), **more):
    with pytest.raises(RequestRefused) as caught:
        resolve(CATALOG, options, "alice", groups=groups, **more)
    return caught.value


@pytest.mark.parametrize(
    ("field", "hidden"), [("template", "leads"), ("template", "whole"), ("gpu", "h100"), ("substitutes", "half")]
)
def test_a_hidden_entry_answers_as_an_unknown_name(field, hidden):
    told, unknown = refused({field: hidden, **({"gpu": "t4"} if field == "substitutes" else {})}), "xyz"
    same = refused({field: unknown, **({"gpu": "t4"} if field == "substitutes" else {})})
    assert str(told).replace(hidden, unknown) == str(same)
    assert hidden not in told.limit


def test_nothing_is_left_to_offer():
    only = load_text("version: 1\ncontact: the desk\ntemplates: {lab: {groups: [leads]}}\n")
    for options in ({}, {"template": "lab"}):
        with pytest.raises(RequestRefused, match="No workspace is offered to you: ask the desk") as caught:
            resolve(only, options, "alice")
        assert caught.value.status == 403


@pytest.mark.parametrize(
    ("options", "groups", "last", "team"),
    [
        pytest.param({}, [], "", "", id="in none"),
        pytest.param({}, ["staff", "leads"], "", "", id="in none that is charged"),
        pytest.param({}, ["staff", "vision"], "", "vision", id="the only one"),
        pytest.param({}, ["robots"], "", "robots", id="one that has a quota alone"),
        pytest.param({}, ["vision", "speech"], "speech", "speech", id="the last"),
        pytest.param({}, ["vision", "staff"], "speech", "vision", id="the last has been left"),
        pytest.param({"team": "vision"}, ["vision", "speech"], "speech", "vision", id="the one asked for"),
        pytest.param({"team": ""}, ["vision"], "", "vision", id="none said"),
        pytest.param({"team": "speech"}, None, "", "speech", id="checked elsewhere"),
    ],
)
def test_the_team(options, groups, last, team):
    groups = None if groups is None else frozenset(groups)
    request = resolve(CATALOG, options, "alice", groups=groups, last_team=last)
    assert request.team == team
    assert to_options(request).get("team", "") == team
    assert resolve(CATALOG, to_options(request), "alice", groups=groups) == request


def test_members_of_several_teams_must_choose_one():
    several = refused({}, {"vision", "speech"}, last_team="robots")
    assert str(several) == "Team: Nothing was given. Allowed: vision, speech. Say for which of them it is."
    foreign = refused({"team": "robots"}, {"vision", "speech"})
    assert str(foreign) == "Team: You asked for 'robots'. Allowed: vision, speech. Choose one of them."
    nobody = refused({"team": "vision"}, {"staff"})
    assert str(nobody) == "Team: You asked for 'vision'. Allowed: none. Leave it out: you are in no team."


def test_a_team_that_was_chosen_stays_a_choice():
    options = {"template": "lab", "gpu": "h100", "team": "vision"}
    kept = without_defaults(CATALOG, options, "alice", groups={"vision", "speech"}, last_team="vision")
    assert kept == {"template": "lab", "team": "vision"}


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "template": st.sampled_from(["lab", "whole", "leads"]),
        "gpu": st.sampled_from(["h100", "t4", "half", "any", "none"]),
        "team": st.sampled_from(GROUPS),
        "substitutes": st.lists(st.sampled_from(["h100", "half"])),
    },
)


@given(OPTIONS, st.frozensets(st.sampled_from(GROUPS)), st.sampled_from(["", *GROUPS]))
def test_whatever_resolves_is_visible_and_charged_to_an_own_team(options, groups, last):
    seen = visible(CATALOG, groups)
    assert visible(seen, groups) == seen
    try:
        request = resolve(CATALOG, options, "alice", groups=groups, last_team=last)
    except RequestRefused:
        return
    assert request.template in seen.templates
    assert {request.gpu or "t4", *request.substitutes} <= set(seen.gpus)
    assert request.team in (groups & {"vision", "speech", "robots"} or {""})
    assert resolve(seen, options, "alice", groups=groups, last_team=last) == request
