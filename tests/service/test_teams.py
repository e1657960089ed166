"""Teams, hidden templates and kinds, and consent to other GPUs, by every way into the service."""

from dataclasses import replace

import pytest
from page_world import CATALOG as PLAIN
from page_world import NOW, Browser, api, request, running, spawner, waiting

from gpuspawner.backends.fake import fake_gpus
from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.hub_state import GROUPS_KNOWN_SECONDS
from gpuspawner.service.notifications.messages import message_of

CATALOG = {
    **PLAIN,
    "gpus": {
        **PLAIN["gpus"],
        "h100": {"title": "H100", "match": "*H100*", "memory": "80GiB", "price": 4.00},
        "b200": {"title": "B200", "match": "*B200*", "memory": "180GiB", "groups": ["leads"]},
    },
    "templates": {
        "pytorch": {
            **PLAIN["templates"]["pytorch"],
            "gpus": {"a100": "1-4", "t4": 1, "h100": "1-4", "b200": 1},
            "substitutes": {"a100": ["h100", "b200"]},
        },
        "node": {"title": "Whole node", "gpus": {"a100": 4}, "groups": ["leads"]},
    },
    "teams": {"vision": {"title": "Vision lab"}, "speech": {}},
}
THERE = {"a100": 4, "t4": 1, "h100": 1, "b200": 1}
HIDDEN = [({"template": "node"}, "node"), ({"gpu": "b200"}, "b200"), ({"team": "speech"}, "speech")]


@pytest.fixture
def world(make_web_world):
    world = make_web_world(load_catalog(CATALOG))
    world.backend.gpus = tuple(gpu for kind, count in THERE.items() for gpu in fake_gpus(kind, count))
    world.observe()
    world.groups = {"alice": {"vision"}, "bob": {"vision", "speech"}, "admin": {"leads"}}
    return world


def check(world, name="alice", status=200, **options):
    return api(world, name, "check", "POST", options, status=status).json()


def acquire(world, name="alice", status=200, start_id="s1", server="", **options):
    key = {"hub": "hub-1", "user_created": f"{name} born", "server": server}
    body = {**key, "user": name, "options": options, "start_id": start_id, "boot_id": "b"}
    answer = spawner(world, "acquire", body)
    assert answer.status_code == status, answer.text
    return answer.json()


def as_of_no_name(document, name):
    """Return an answer with the name replaced."""
    return repr(document).replace(name, "NAME")


@pytest.mark.parametrize(("options", "name"), HIDDEN)
def test_a_template_for_others_answers_as_an_unknown_name(world, options, name):
    unknown = dict.fromkeys(options, "nothing")
    for ask in (check, acquire):
        hidden, none = (ask(world, status=400, **asked) for asked in (options, unknown))
        assert as_of_no_name(hidden, name) == as_of_no_name(none, "nothing")
        assert "leads" not in repr(hidden)


def test_a_template_for_others_is_in_no_list_and_members_see_it_everywhere(world):
    world.save(replace(waiting("theirs", "carol"), request=request("carol", "b200")))
    for name, sees in (("alice", False), ("admin", True)):
        offers, queue = (api(world, name, path).json() for path in ("offers", "queue"))
        assert ("b200" in [offer["kind"] for offer in offers["offers"]]) is sees
        assert ([one["gpu"] for one in queue["queue"]] == ["b200"]) is sees
        assert ("B200" in Browser(world, name).home.text) is sees
    assert check(world, "admin", template="node")["asked"] == "4 simulated A100 80 GB"


def test_a_change_in_the_hub_holds_for_the_next_request(world):
    check(world, status=400, template="node")
    acquire(world, status=400, template="node")
    world.groups["alice"] = {"leads"}
    assert acquire(world, template="node")["lease"]["request"]["template"] == "node", "at once"
    world.clock.at += GROUPS_KNOWN_SECONDS
    check(world, template="node")


def test_while_the_hub_does_not_say_who_is_in_which_group_nothing_is_guessed(world):
    check(world)
    world.created["alice"] = "error"
    assert "hub" in acquire(world, status=503)["error"]["message"]
    world.clock.at += GROUPS_KNOWN_SECONDS
    check(world, status=503)
    shown = [offer["kind"] for offer in api(world, "alice", "offers").json()["offers"]]
    assert shown == ["a100", "t4", "h100"], "what everybody may have is shown"


def test_a_catalog_without_groups_asks_the_hub_for_none(make_web_world):
    world = make_web_world()
    world.observe()
    world.created["alice"] = "error"
    assert acquire(world)["lease"]["phase"] == "reserved"


def test_a_former_owner_of_the_name_is_in_no_group(world):
    world.groups["alice"], world.created["alice"] = {"leads"}, "somebody else born"
    acquire(world, status=400, template="node")


def test_the_team_is_the_named_one_else_the_last_one_else_the_only_one(world):
    assert check(world)["team"] == "vision"
    refused = check(world, "bob", 400)["error"]
    assert (refused["field"], refused["limit"]) == ("team", "vision, speech")
    assert acquire(world, "bob", status=400)["error"]["limit"] == "vision, speech"
    asked = acquire(world, "bob", team="speech")["lease"]
    assert (asked["request"]["team"], asked["request"]["team_title"]) == ("speech", "speech")
    assert check(world, "bob", server="two")["team"] == "speech"
    root = api(world, "bob", "").json()
    assert root["teams"] == [{"name": "vision", "title": "Vision lab"}, {"name": "speech", "title": "speech"}]
    assert root["team"] == "speech"
    world.groups["bob"] = {"vision", "other"}
    world.clock.at += GROUPS_KNOWN_SECONDS
    assert check(world, "bob", server="two")["team"] == "vision", "the last one is not theirs any more"
    assert check(world, "admin")["team"] is None, "who is in no team is charged to none"


@pytest.mark.parametrize(
    ("lost", "group", "left"),
    [
        ({"team": "vision"}, "Vision lab", {"leads"}),
        ({"template": "node"}, "leads", {"vision"}),
        ({"gpu": "b200"}, "leads", {"vision"}),
    ],
)
@pytest.mark.parametrize("step", ["acquire", "acknowledge"])
def test_a_membership_that_is_lost_while_waiting_ends_the_request_when_it_comes_to_it(world, lost, group, left, step):
    world.groups["alice"] = {"vision", "leads"}
    given = acquire(world, **lost)
    name = given["lease"]["id"]
    world.groups["alice"] = left
    if step == "acquire":
        answer = acquire(world, status=410, start_id="s2", **lost)
    else:
        attempt = given["attempt"]
        answer = spawner(world, f"leases/{name}/acknowledge?attempt={attempt}").json()
    assert answer["error"]["message"].startswith(f"You are no longer in {group}.")
    ended = world.lease(name)
    assert (ended.phase, ended.reason, ended.seen_by_user) == (Phase.ENDED, ExitReason.NOT_ALLOWED, False)
    assert "No longer allowed" in Browser(world, "alice").home.text, "its user is told"


def test_leaving_a_team_ends_nothing_that_runs(world):
    lease = running()
    world.save(replace(lease, request=replace(lease.request, team="vision")))
    world.groups["alice"] = set()
    world.call(world.parts.engine.round)
    world.call(world.parts.engine.close)
    assert world.lease(lease.id).phase is Phase.RUNNING


def take_all(world, *kinds):
    """bob and others hold all GPUs of these kinds."""
    for kind in kinds:
        slots = tuple(Slot(gpu.id) for gpu in world.backend.gpus if gpu.pool == kind)
        lease = replace(running(f"full-{kind}", "bob", server=kind), slots=slots)
        world.save(replace(lease, request=request("bob", kind, len(slots))))


def queued(world, **options):
    """alice waits for an A100: all are held, and so are those that could be given instead."""
    take_all(world, "a100", "h100", "b200")
    lease = acquire(world, **options)["lease"]
    assert lease["phase"] == "queued"
    return lease


def consent(world, lease, *kinds, status=200, name="alice"):
    return api(
        world, name, f"workspaces/{lease['id']}/consent", "POST", {"substitutes": list(kinds)}, status=status
    ).json()


def consented(document):
    return {one["kind"]: one["consented"] for one in document["request"]["substitutes"]}


def test_promise_7_consent_is_given_and_withdrawn_while_one_waits_and_the_place_stays(world):
    lease = queued(world)
    assert consented(lease) == {"h100": False}, "of what is for others only what was consented to"
    world.clock.at += 60
    given = consent(world, lease, "h100")
    assert (consented(given), given["asked_at"]) == ({"h100": True}, lease["asked_at"])
    again = acquire(world)["lease"]
    assert (again["id"], consented(again)) == (lease["id"], {"h100": True}), "a start that asks again takes none back"
    withdrawn = consent(world, lease)
    assert (consented(withdrawn), withdrawn["asked_at"]) == ({"h100": False}, lease["asked_at"])
    said = [line["why"] for line in api(world, "alice", f"workspaces/{lease['id']}/audit").json()["audit"]]
    assert said[:2] == ["none but the one asked for", "h100"]
    refused = consent(world, lease, "b200", status=400)["error"]
    assert (refused["field"], refused["limit"]) == ("substitutes", "h100")
    consent(world, lease, "h100", status=404, name="bob")


def test_consent_counts_for_the_owner_of_the_request(world):
    lease = queued(world)
    assert consented(consent(world, lease, "h100", name="admin")) == {"h100": True}
    consent(world, lease, "b200", status=400, name="admin"), "alice may not have it"
    world.groups["alice"].add("leads")
    assert consented(consent(world, lease, "b200")) == {"b200": True, "h100": False}


def test_granted_values_cannot_be_changed(world):
    world.save(running())
    assert "given its GPU already" in consent(world, {"id": "runs"}, "h100", status=409)["error"]["message"]


def test_the_waiting_page_gives_and_withdraws_consent_by_one_click(world):
    lease = queued(world)
    browser = Browser(world, "alice")
    page = f"workspaces/{lease['id']}"
    assert "Accept H100" in browser.look(page).text
    text = browser.submit(f"{page}/consent", substitutes="h100").text
    assert "Do not take H100" in text
    assert "or instead H100" in text
    assert "Vision lab" in text
    assert "Accept H100" in browser.submit(f"{page}/consent").text


def test_consents_are_remembered_for_each_template(world):
    acquire(world, template="pytorch", substitutes=["h100"])
    assert api(world, "alice", "offers").json()["consents"] == {"pytorch": ["h100"]}


def test_offers_are_answered_while_the_store_does_not(world, monkeypatch):
    acquire(world, "bob", team="speech", substitutes=["h100"])

    def away(*_which):
        raise Unavailable("The store does not answer.")

    monkeypatch.setattr(world.parts.store.leases, "ended", away)
    answer = api(world, "bob", "offers").json()
    assert (answer["team"], answer["consents"]) == ("speech", {"pytorch": ["h100"]}), "as far as it lives"
    assert api(world, "alice", "offers").json()["consents"] == {}


def test_limits_of_the_asking_user_are_returned_with_offers_and_checks(make_web_world):
    quotas = {
        "each": {"each": "user", "gpus": {"soft": 1, "hard": 5}},
        "vision": {"group": "vision", "gpus": {"hard": 8}},
        "speech": {"group": "speech", "gpus": {"hard": 4}},
    }
    world = make_web_world(load_catalog({**CATALOG, "quotas": quotas}))
    world.observe()
    world.groups = {"bob": {"vision", "speech"}}
    acquire(world, "bob", team="vision")
    each, vision, speech = "1 of 5 GPUs used, share 1", "team vision: 1 of 8 GPUs used", "team speech: 0 of 4 GPUs used"
    lines = api(world, "bob", "offers").json()["quota"]
    assert [line["words"] for line in lines] == [each, vision, speech]
    known = {"entry": "each", "limit": "gpus", "kind": None, "used": 1.0, "soft": 1.0, "hard": 5.0}
    assert known.items() <= lines[0].items()
    told = check(world, "bob", server="two", team="speech")
    assert [line["words"] for line in told["quota"]] == [each, speech]
    assert "This is your 2nd GPU. Your share is 1." in told["sentence"]


def test_a_check_tells_what_another_gpu_would_bring(world):
    assert [one["words"] for one in check(world)["substitutes"]] == ["not needed now, 4.00 instead of 2.10 per hour"]
    take_all(world, "a100")
    assert [one["words"] for one in check(world)["substitutes"]] == ["about 7 h sooner, 4.00 instead of 2.10 per hour"]
    assert check(world, gpu="t4")["substitutes"] == []


def test_promise_7_a_substitute_is_named_before_start_and_told_after(world):
    take_all(world, "a100")
    told = check(world, substitutes=["h100"])
    given = "You get H100 instead of A100 80 GB, as you allowed: 4.00 instead of 2.10 per hour."
    assert told["sentence"].startswith("Starts now on 1 simulated H100 (1 free).")
    assert given in told["sentence"]
    lease = acquire(world, substitutes=["h100"])["lease"]
    assert (lease["phase"], lease["gpu"], lease["request"]["gpu"]) == ("reserved", "h100", "a100")
    line = next(line for line in world.parts.store.audit_log.latest(lease["id"]) if line.event.name == "substituted")
    assert message_of(world.parts, world.lease(lease["id"]), line) is None, "who waits on its page reads it there"
    told = message_of(world.parts, replace(world.lease(lease["id"]), unattended=True), line)
    assert told.text.startswith(given)


def test_a_waiting_request_reads_the_limit_of_its_substitute(make_web_world):
    limit = {"each": "user", "types": {"h100": {"hard": 1}}}
    world = make_web_world(load_catalog({**CATALOG, "quotas": {"each-user": limit}}))
    world.backend.gpus = tuple(gpu for kind, count in THERE.items() for gpu in fake_gpus(kind, count))
    world.observe()
    take_all(world, "a100")
    acquire(world, gpu="h100", server="first", start_id="s0")
    waits = acquire(world, substitutes=["h100"])["lease"]["id"]
    told = api(world, "alice", f"workspaces/{waits}").json()["queue"]["why"]
    assert "H100, which you take instead: You asked for 1 H100. You have 1 of 1 in use." in told


def with_money(make_web_world, hard):
    each = {"each": "user", "cost": {"per": "month", "hard": hard}}
    gpus = {**CATALOG["gpus"], "t4": {**CATALOG["gpus"]["t4"], "price": 0.35}}
    pytorch = {**CATALOG["templates"]["pytorch"], "substitutes": {"a100": ["h100", "t4"]}}
    changed = {"gpus": gpus, "templates": {"pytorch": pytorch}, "quotas": {"each-user": each}}
    world = make_web_world(load_catalog({**CATALOG, **changed}))
    world.backend.gpus = tuple(gpu for kind, count in THERE.items() for gpu in fake_gpus(kind, count))
    world.observe()
    return world


def test_the_end_that_a_budget_sets_is_told_by_the_price_of_what_is_given(make_web_world):
    world = with_money(make_web_world, 8)
    take_all(world, "a100")
    told = check(world, substitutes=["h100"])
    given = acquire(world, substitutes=["h100"])["lease"]
    assert (given["gpu"], given["latest_end"]["at"] - world.clock.at) == ("h100", 2 * 3600), "4.00 per hour of 8.00"
    assert told["ends_at"] == given["latest_end"]["at"]


def test_a_request_that_a_cheaper_substitute_would_satisfy_is_not_refused(make_web_world):
    world = with_money(make_web_world, "0.3")
    assert "0.30 of your 0.30 this month are left" in check(world, status=403)["error"]["message"]
    told = check(world, substitutes=["t4"])
    assert told["sentence"].startswith("Starts now on 1 simulated T4")
    assert acquire(world, substitutes=["t4"])["lease"]["gpu"] == "t4"


def test_the_workspace_reads_which_gpu_it_got_and_which_was_asked_for(world):
    given = acquire(world, substitutes="h100")
    lease, attempt = given["lease"], given["attempt"]
    world.call(world.parts.registry.save, replace(world.lease(lease["id"]), given="h100"))
    answer = spawner(world, f"leases/{lease['id']}/acknowledge?attempt={attempt}").json()
    environment = answer["patch"]["environment"]
    assert (environment["GPUSPAWNER_GPU_KIND"], environment["GPUSPAWNER_GPU_ASKED"]) == ("h100", "a100")
    assert environment["GPUSPAWNER_NOTICE"] == ".gpuspawner/notice.json", "and where it is told of its end"
    words = (
        "Starting on 1 simulated H100 instead of simulated A100 80 GB, as you allowed: 4.00 instead of 2.10 per hour"
    )
    assert answer["lease"]["words"] == words
    assert (
        "H100 instead of A100 80 GB, as you allowed" in Browser(world, "alice").look(f"workspaces/{lease['id']}").text
    )


def test_administrators_see_which_groups_the_hub_does_not_have(world):
    answer = api(world, "admin", "groups").json()
    assert answer["groups"] == ["leads", "speech", "vision"]
    assert answer["missing"] == []
    world.groups = {"alice": {"vision"}}
    missing = api(world, "admin", "groups").json()["missing"]
    assert [line.partition(",")[0] for line in missing] == ["The hub has no group leads", "The hub has no group speech"]
    assert missing[0] in Browser(world, "admin").look("console/").text.replace("&#39;", "'")
    assert api(world, "alice", "groups").status_code == 403
    assert world.clock.at == NOW
