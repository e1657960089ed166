"""The form's HTML, without a browser: what it holds, what it repeats, what it fills in."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from zoneinfo import ZoneInfo

import pytest

from gpuspawner.catalog import from_form, load_catalog, load_text, resolve, resolve_all
from gpuspawner.catalog.requests.profile_options import Menu, MenuOption, Unlisted
from gpuspawner.spawner.web import form
from gpuspawner.spawner.web.pages import TEMPLATES, LiveAnswers, PageView, ServiceView, of_server

CATALOG = load_text("""
version: 1
gpus:
  a100: {title: A100 & more, match: A100, memory: 80GiB, price: 2.10}
  t4: {title: T4, match: T4, memory: 16GiB}
  unused: {title: Offered by nobody, match: X, memory: 16GiB}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-4, t4: 2}
    bounds: {cpu: 1-8, memory: 1GiB-64GiB, lifetime: 30m-24h}
    default: {gpu: a100, count: 1, cpu: 2, memory: 8GiB, lifetime: 90m}
  plain: {title: Plain, gpus: {t4: 1}}
policies: {default: {mode: warn}}
quotas: {each-user: {each: user, gpus: {hard: 4}}}
""")
HOSTILE = '"><script>alert(1)</script>{{ 7 * 7 }}'


class Inputs(HTMLParser):
    """The fields that a browser without JavaScript sends."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sent: dict[str, list[str]] = {}
        self.seen: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        name = attributes.get("name")
        if tag == "input" and name:
            self.seen.append((name, attributes.get("value", "")))
            if attributes.get("type") not in {"radio", "checkbox"} or "checked" in attributes:
                self.sent.setdefault(name, []).append(attributes.get("value", ""))
        if tag == "select":
            self.select = name
        if tag == "option" and "selected" in attributes:
            self.sent.setdefault(self.select, []).append(attributes["value"])


def rendered(*, catalog=CATALOG, chosen=None, notes=(), live=None, user="alice", server="", own=True, teams=()):
    return form.FormView(
        catalog,
        user=user,
        server=server,
        ticket="t",
        service_prefix="/services/gpu/",
        chosen=chosen or {},
        notes=notes,
        live=live,
        own=own,
        teams=teams,
    ).render()


def offer(kind, free, total=4, waiting=0, note=""):
    return {
        "kind": kind,
        "free": free,
        "total": total,
        "waiting": waiting,
        "simulated": True,
        "note": note,
        "measured": "",
    }


def workspace(server="", end=None, user="alice"):
    return {"id": "w", "user": user, "server": server, "end": end, "page": "/w"}


def live(*offers, sentence="Starts now.", refused=False, **known):
    return LiveAnswers({one["kind"]: one for one in offers}, sentence, refused, **known)


def test_a_picture_of_a_template_is_held_once_and_shown():
    picture = "data:image/png;base64,iVBORw0KGgo="
    templates = {**CATALOG.templates, "lab": replace(CATALOG.templates["lab"], icon=picture)}
    html = rendered(catalog=replace(CATALOG, templates=templates))
    assert html.count(picture) == 1
    assert re.search(rf'<symbol id="i-template-lab"[^>]*><image href="{re.escape(picture)}"', html)
    assert '<use href="#i-template-lab"/>' in html


def test_an_untouched_form_requests_the_defaults():
    sent = Inputs(rendered()).sent
    request = resolve(CATALOG, from_form(CATALOG, sent), "alice")
    assert request == resolve(CATALOG, None, "alice")


IMAGE = MenuOption("image", "Image & more", {"old": "PyTorch 1", "new": "PyTorch 2"}, "new", Unlisted("Another image"))
MENUS = {
    "lab": Menu("torch", (IMAGE,)),
    "plain": Menu("small", (MenuOption("site", "Site", {"a": "A", "b": "B"}, "a"),)),
}
WITH_MENUS = replace(CATALOG, menus=MENUS)


@pytest.mark.parametrize(
    ("chosen", "sent"),
    [
        ({}, {"template": "lab"}),
        ({"template": "lab", "image": "old"}, {"template": "lab", "image": "old"}),
        ({"template": "lab", "image": "new"}, {"template": "lab"}),
        ({"template": "plain", "site": "b"}, {"template": "plain", "site": "b"}),
        ({"image--unlisted-choice": "own:1"}, {"template": "lab", "image--unlisted-choice": "own:1"}),
    ],
)
def test_choices_of_a_profile_are_shown_and_sent_again(chosen, sent):
    options = from_form(WITH_MENUS, Inputs(rendered(catalog=WITH_MENUS, chosen=chosen)).sent)
    resolve(WITH_MENUS, options, "alice")
    assert {key: value for key, value in options.items() if key in {"template", "image", "site", *sent}} == sent


def test_a_link_fills_in_no_script_environment_image_or_repository():
    brought = {"repository": "https://h.org/a", "own_image": "r.org/a", "tools": "nlp"}
    harmful = {**brought, "env": "A=1", "script": "x", "team": "vision"}
    sizes = {"template": "lab", "gpu": "t4", "count": "2", "cpu": "1", "memory": "2GB", "lifetime": "1h"}
    arguments = {f"opt-{key}": [value.encode()] for key, value in {**harmful, **sizes}.items()}
    assert form.prefill_from_query(arguments) == sizes


def test_a_template_with_own_images_has_their_field_and_names_what_is_lost():
    catalog = load_catalog({"version": 1, "templates": {"lab": {"own_images": "r.example.org/ml/*"}, "plain": {}}})
    html = rendered(catalog=catalog, chosen={"template": "plain", "own_image": HOSTILE})
    assert '<div class="gs-field" id="gs-own-image" hidden>' in html
    assert "<script>alert" not in html
    assert "If it lacks gpuspawner[workspace]" in html
    assert "own_image" not in Inputs(rendered()).sent


def test_the_tools_of_each_template_are_ticked_and_a_refused_form_keeps_the_ticks():
    catalog = load_catalog(
        {"version": 1, "templates": {"lab": {"tools": {"nlp": ["a"], "cv": ["b"]}}, "plain": {"tools": {"nlp": ["c"]}}}}
    )
    posted = {"template": ["lab"], "gpu": ["none"], "tools": ["nlp", "cv"]}
    again = rendered(catalog=catalog, chosen=form.prefill_from_post(catalog, posted))
    assert Inputs(again).sent["tools"] == ["nlp", "cv"]
    assert from_form(catalog, Inputs(again).sent)["tools"] == "nlp,cv"
    assert [value for name, value in Inputs(again).seen if name == "tools"] == ["nlp", "cv", "nlp"]
    assert "tools" not in Inputs(rendered(catalog=catalog)).sent
    assert "gs-tools" not in rendered()


def test_a_link_never_chooses_an_image_and_a_refused_form_keeps_what_was_typed():
    assert form.prefill_from_query({"opt-image": ["old"], "opt-template": ["lab"]}) == {"template": "lab"}
    posted = {"profile-option-torch--image--unlisted-choice": [HOSTILE], "profile-option-small--site": ["b"]}
    again = form.prefill_from_post(WITH_MENUS, posted)
    assert again == {"image--unlisted-choice": HOSTILE}
    assert "<script>alert" not in rendered(catalog=WITH_MENUS, chosen=again)


def test_a_choice_that_the_profile_no_longer_has_is_not_filled_in_again():
    remembered = {"template": "lab", "image": "older", "size": "x", "cpu": "4"}
    left = resolve_all(WITH_MENUS, remembered, "alice").accepted
    assert left == {"template": "lab", "cpu": "4"}


def test_guarantees_of_a_size_are_next_to_its_limits():
    shared = {"bounds": {"cpu": "1-8", "memory": "1GiB-64GiB"}, "guarantee": {"cpu": "12.5%"}}
    html = rendered(catalog=load_catalog({"version": 1, "templates": {"lab": shared}}))
    assert re.findall(r'-hint">(1 .*?)</p>', html) == ["1 to 8, 12.5 % of it guaranteed", "1 GiB to 64 GiB"]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param({"template": "plain"}, id="another template"),
        pytest.param({"template": "lab", "gpu": "t4", "count": 2}, id="another kind"),
        pytest.param({"gpu": "none"}, id="without a GPU"),
        pytest.param({"cpu": "4", "memory": 8 * 2**30 + 2**20, "lifetime": "5401s"}, id="values that no unit fits"),
    ],
)
def test_chosen_values_are_sent_again(chosen):
    sent = Inputs(rendered(chosen=chosen)).sent
    assert resolve(CATALOG, from_form(CATALOG, sent), "alice") == resolve(CATALOG, chosen, "alice")


def test_the_form_shows_the_measurement_of_unreadable_gpus_before_start():
    kinds = {"mi300": {"title": "MI300", "resource": "amd.com/gpu", "memory": "192GiB"}}
    catalog = load_catalog({"version": 1, "gpus": kinds, "templates": {"lab": {"title": "Lab", "gpus": {"mi300": 1}}}})
    words = "Measured by amd-smi or rocm-smi if the image has it, otherwise never stopped as idle."
    assert words in rendered(catalog=catalog), "by the catalog while the service is away"
    assert words in rendered(catalog=CATALOG, live=live({**offer("a100", 1), "measured": words}))
    assert "Measured by" not in rendered(catalog=CATALOG)


def test_only_fields_of_a_request_and_offered_kinds_are_sent():
    seen = Inputs(rendered()).seen
    own = {"repository"}  # no template takes an image of a user's own
    assert {name for name, _ in seen} == {"template", "gpu", "gpu_memory", "count", "cpu", "memory", "lifetime"} | own
    assert [value for name, value in seen if name == "gpu"] == ["", "a100", "t4", "any", "none"]


@pytest.mark.parametrize("where", ["user", "server", "memory", "template", "sentence"])
def test_no_user_text_becomes_html(where):
    if where in {"user", "server"}:
        html = rendered(**{where: HOSTILE})
    elif where == "sentence":
        html = rendered(live=live(sentence=HOSTILE))
    else:
        html = rendered(chosen={where: HOSTILE})
    assert "<script>alert" not in html
    assert "49" not in re.sub(r"<style>.*?</style>|<script.*?</script>", "", html, flags=re.DOTALL)
    assert "A100 &amp; more" in html


@pytest.mark.parametrize(
    ("free", "words", "note"),
    [
        pytest.param(offer("a100", 3), "3 of 4 free", "", id="some"),
        pytest.param(offer("a100", 0, waiting=2), "None free", "2 waiting", id="none, and a queue"),
        pytest.param(offer("a100", None, None), "Not known", "", id="unknown is never 0"),
        pytest.param(offer("a100", 0, waiting=1, note="full"), "None free", "1 waiting, full", id="and why"),
        pytest.param(offer("a100", 2, note="2 kept for others"), "2 of 4 free", "2 kept for others", id="not for all"),
    ],
)
def test_free_gpus_are_next_to_each_kind(free, words, note):
    html = rendered(live=live(free))
    assert f"data-free>{words}</span><small data-note>{note}</small>" in html
    assert "80 GiB each, 2.10 per hour" in html


def test_the_quota_belongs_to_its_user_for_every_reader():
    lines = ("3 of 4 GPUs", "31 of 40 GPU h this week")
    own, others = (rendered(live=live(quota=lines), own=own) for own in (True, False))
    told = [re.search(r'id="gs-quota".*?</ul>', html, re.DOTALL)[0] for html in (own, others)]
    assert [re.findall("<p>(.*?)</p>", one) for one in told] == [[*lines], [*lines]]
    assert 'aria-label="Your quota"' in own
    assert 'aria-label="Quota of alice"' in others
    assert all("quota/request" in html for html in (own, others))
    assert re.search(r'id="gs-quota"[^>]*hidden>\s*</ul>', rendered()), "what is not known is not told"
    assert "quota/request" not in rendered()


@pytest.mark.parametrize(
    ("end", "told"),
    [
        pytest.param({"seen": False, "by": "gpuspawner"}, True, id="unread"),
        pytest.param({"seen": True, "by": "gpuspawner"}, False, id="read"),
        pytest.param({"seen": False, "by": "alice"}, False, id="their own doing"),
        pytest.param({"seen": False, "by": "gpuspawner", "dispute": {"answer": "Yes."}}, False, id="called wrong"),
    ],
)
def test_the_end_of_the_last_workspace_is_shown_once(end, told):
    view = PageView("alice", "/services/gpu/", None, ServiceView("", "t", b"s"), ZoneInfo("UTC"))
    over = {"end": {"dispute": None, **end}}
    assert view.unread(({"end": None}, over)) == (over if told else None)
    assert view.unread(None) is None


def test_without_the_service_the_form_reports_it_and_wrong_values():
    assert form.AWAY in rendered().replace("&#39;", "'")
    assert "data-simulated hidden>simulated<" in rendered()  # this catalog has real GPUs
    html = rendered(chosen={"memory": "1PiB"})
    assert "Memory: You asked for &#39;1PiB&#39;. Allowed: 1 GiB to 64 GiB." in html


@pytest.mark.parametrize("devices", [False, True])
def test_without_the_service_simulated_gpus_are_still_marked(monkeypatch, devices):
    monkeypatch.setattr(form, "has_devices", lambda: devices)
    text = """
version: 1
gpus:
  a100: {title: A100, match: A100, memory: 80GiB}
  half: {title: Half an A100, of: a100, shares: 2}
  t4: {title: T4, match: T4, memory: 16GiB}
simulated: {a100: 2}
templates: {lab: {gpus: {a100: 1, half: 1, t4: 1}}}
"""
    html = form.FormView(
        load_text(text), user="alice", server="", ticket="t", service_prefix="/services/gpu/", chosen={}
    ).render()
    badges = re.findall(r"<b>([^<]*) <span class=\"gs-tag\" data-simulated (hidden)?>", html)
    shown = [title for title, hidden in badges if not hidden]
    assert shown == ([] if devices else ["A100", "Half an A100"])


@pytest.mark.parametrize(
    ("arguments", "filled"),
    [
        pytest.param({"opt-gpu": [b"t4"], "opt-count": [b"2"]}, {"gpu": "t4", "count": "2"}, id="prefixed"),
        pytest.param({"gpu": [b"t4"]}, {"gpu": "t4"}, id="bare"),
        pytest.param({"opt-gpu": [b"t4"], "count": [b"2"]}, {"gpu": "t4"}, id="prefixed ones win"),
        pytest.param({"next": [b"/x"], "_xsrf": [b"x"], "opt-nope": [b"1"]}, {}, id="what is no option"),
        pytest.param({"opt-gpu": [b"a100", b"t4"], "opt-cpu": [b""]}, {"gpu": "a100"}, id="the first of several"),
        pytest.param({"opt-memory": [b"\xff" * 900]}, {"memory": "\N{REPLACEMENT CHARACTER}" * 200}, id="no text"),
    ],
)
def test_a_link_fills_in(arguments, filled):
    assert form.prefill_from_query(arguments) == filled


GO_ON = "is chosen instead: choose another, or go on with it."


@pytest.mark.parametrize(
    ("link", "kept", "notes"),
    [
        pytest.param({"template": "plain", "gpu": "t4"}, {"template": "plain", "gpu": "t4"}, [], id="all offered"),
        pytest.param({"template": "plain", "gpu": "none"}, {"template": "plain", "gpu": "none"}, [], id="no GPU"),
        pytest.param(
            {"gpu": "v100", "cpu": "4"},
            {"cpu": "4"},
            [f"The link asks for the GPU 'v100', which Lab does not offer. A100 & more {GO_ON}"],
            id="an unknown kind",
        ),
        pytest.param(
            {"template": "plain", "gpu": "a100"},
            {"template": "plain"},
            [f"The link asks for the GPU A100 & more, which Plain does not offer. T4 {GO_ON}"],
            id="another template's kind",
        ),
        pytest.param(
            {"template": "nope", "gpu": "t4"},
            {"gpu": "t4"},
            [f"The link asks for the workspace 'nope', which is not offered. Lab {GO_ON}"],
            id="an unknown template",
        ),
    ],
)
def test_unavailable_choices_of_a_link_are_reported(link, kept, notes):
    assert form.offered(CATALOG, link) == (kept, notes)


def test_a_note_is_an_alert_and_no_html():
    html = rendered(notes=form.offered(CATALOG, {"gpu": HOSTILE})[1])
    assert html.count('<p class="gs-note gs-warn" role="alert">The link asks for the GPU') == 1
    assert "<script>alert" not in html


def test_a_refused_form_fills_in_only_texts():
    posted = {"memory": ["64GiB"], "cpu": [""], "gpu": [], "_xsrf": ["x"], "count": [{"filename": "x"}]}
    assert form.prefill_from_post(CATALOG, posted) == {"memory": "64GiB"}


def test_the_workspace_of_a_server_is_the_live_one_else_the_last_that_ended():
    ended, older, other = workspace(end={"n": 1}), workspace(end={"n": 2}), workspace("other")
    running = workspace()
    assert of_server((running, ended), "") is running
    assert of_server((other, ended, older), "") is ended
    assert of_server((other,), "") is None
    assert of_server(None, "") is None


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("gpuspawner/*.[jc]s*")), ids=lambda path: path.name)
def test_scripts_and_styles_hold_nothing_that_jinja_or_html_would_read(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\{\{|\{%|\{#|</(script|style)", text)


@pytest.mark.parametrize(
    ("remembered", "left"),
    [
        pytest.param({"lifetime": "960s", "count": "2"}, {"count": "2"}, id="a bound moved"),
        pytest.param({"template": "gone", "count": "2"}, {"count": "2"}, id="the template is gone"),
        pytest.param({"count": "2"}, {"count": "2"}, id="still allowed"),
        pytest.param({"odd": 1}, {}, id="an unknown option"),
        pytest.param(None, {}, id="nothing"),
    ],
)
def test_choices_no_longer_in_the_catalog_are_not_filled_in(remembered, left):
    assert resolve_all(CATALOG, remembered, "alice").accepted == left
