"""The form's teams, what it offers instead of the GPU that is asked for, and any GPU that is large enough."""

import re

import pytest
from test_form import Inputs, live, offer, rendered

from gpuspawner.catalog import from_form, load_text, resolve, visible
from gpuspawner.spawner.web import form

CATALOG = load_text("""
version: 1
gpus:
  a100: {title: A100, match: A100, memory: 80GiB, price: 2.10}
  h100: {title: H100, match: H100, memory: 80GiB, price: 4.00}
  b200: {title: B200, match: B200, memory: 180GiB, groups: [leads]}
  t4: {title: T4, match: T4, memory: 16GiB}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-4, t4: 2, h100: 1-2, b200: 1}
    default: {gpu: a100, count: 1}
    substitutes: {a100: [h100, b200]}
  small: {title: Small, gpus: {t4: 1}}
  node: {title: Whole node, gpus: {a100: 8}, groups: [leads]}
teams: {vision: {title: Vision & more}, speech: {}}
contact: gpu@example.org
""")
TEAMS = (("vision", "Vision & more"), ("speech", "speech"))
OURS = visible(CATALOG, {"vision", "speech"})


def sent(**which):
    return from_form(OURS, Inputs(rendered(catalog=OURS, teams=TEAMS, **which)).sent)


def test_a_template_of_other_groups_is_not_in_the_form():
    html = rendered(catalog=OURS, teams=TEAMS, live=live(offer("b200", 1)))
    assert not re.search("b200|B200|Whole node|leads", html)
    assert "B200" in rendered(catalog=visible(CATALOG, {"leads"}))


def test_a_link_to_a_template_of_other_groups_is_reported_like_an_unknown_one():
    hidden, nothing = (form.offered(OURS, {"template": name}) for name in ("node", "nope"))
    assert (hidden[0], hidden[1][0].replace("node", "nope")) == (nothing[0], nothing[1][0])
    hidden, nothing = (form.offered(OURS, {"gpu": name}) for name in ("b200", "nope"))
    assert (hidden[0], hidden[1][0].replace("b200", "nope")) == (nothing[0], nothing[1][0])


def test_users_without_any_offer_see_the_contact():
    only_leads = load_text("version: 1\ntemplates: {node: {groups: [leads]}}\ncontact: gpu@example.org")
    html = rendered(catalog=visible(only_leads, set()))
    assert "gpu@example.org" in html
    assert "node" not in html
    assert form.offered(visible(only_leads, set()), {"template": "node"}) == ({}, [])


@pytest.mark.parametrize(
    ("known", "team"),
    [
        pytest.param({}, None, id="unknown"),
        pytest.param({"live": live(team="speech")}, "speech", id="the last one"),
        pytest.param({"live": live(team="speech"), "chosen": {"team": "vision"}}, "vision", id="what was sent"),
        pytest.param({"live": live(team="gone"), "chosen": {"team": "none"}}, None, id="no team of theirs"),
    ],
)
def test_members_of_several_teams_choose_one_for_each_workspace(known, team):
    html = rendered(catalog=OURS, teams=TEAMS, **known)
    assert sent(**known).get("team") == team
    assert html.count('name="team" required') == 1, "the browser asks for it"
    assert "Vision &amp; more" in html


def test_members_of_one_team_see_it_and_choose_nothing():
    html = rendered(catalog=OURS, teams=TEAMS[:1])
    assert '<p class="gs-set">Vision &amp; more</p>' in html
    assert 'name="team"' not in html
    assert 'id="gs-team"' not in rendered(catalog=OURS)


@pytest.mark.parametrize(
    ("known", "ticked"),
    [
        pytest.param({}, None, id="off by default"),
        pytest.param({"chosen": {"substitutes": "h100", "gpu": "t4"}}, None, id="of another GPU"),
        pytest.param({"chosen": {"substitutes": "h100"}}, "h100", id="as it was sent"),
    ],
)
def test_promise_7_a_substitute_is_accepted_only_if_it_is_ticked(known, ticked):
    options = sent(**known)
    assert options.get("substitutes") == ticked
    if ticked:
        asked = resolve(OURS, {**options, "gpu": "a100"}, "alice", groups={"vision"})
        assert asked.substitutes == (ticked,)


def test_a_substitute_is_offered_with_its_price_and_its_effect():
    text = re.sub(r"<[^>]*>|\s+", " ", rendered(catalog=OURS))
    assert re.search("Also accept +H100 +instead of A100 *: 4.00 instead of 2.10 per hour", text)
    told = live(substitutes={"h100": "about 25 min sooner, 4.00 instead of 2.10 per hour"})
    assert "about 25 min sooner, 4.00 instead of 2.10 per hour" in rendered(catalog=OURS, live=told)


def test_any_gpu_of_sufficient_memory_can_be_requested():
    options = sent(chosen={"gpu": "any", "gpu_memory": "40 GiB"})
    assert (options["gpu"], options["gpu_memory"]) == ("any", "40 GiB")
    request = resolve(OURS, options, "alice", groups={"vision"})
    assert (request.gpu, request.substitutes, request.needs_memory_bytes) == ("a100", ("h100",), 40 * 2**30)
    one = load_text("version: 1\ngpus: {t4: {match: T4, memory: 16GiB}}\ntemplates: {lab: {gpus: {t4: 1}}}")
    assert 'value="any"' not in rendered(catalog=one), "where there is one kind alone, there is nothing to choose"
    assert "gpu_memory" not in Inputs(rendered(catalog=one)).sent


def test_a_link_fills_in_neither_team_nor_substitutes():
    link = {"opt-team": ["vision"], "opt-substitutes": ["h100"], "opt-gpu": ["any"], "opt-gpu_memory": ["40GiB"]}
    assert form.prefill_from_query(link) == {"gpu": "any", "gpu_memory": "40GiB"}
    assert form.offered(OURS, {"gpu": "any"}) == ({"gpu": "any"}, [])


def test_a_refused_form_keeps_every_tick():
    posted = form.prefill_from_post(OURS, {"substitutes": ["h100", "t4"], "team": ["vision"], "cpu": [b"no text"]})
    assert posted == {"substitutes": "h100,t4", "team": "vision"}
