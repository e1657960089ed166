"""The dialogs of acts as pages without JavaScript: filled in, previewed, done and refused."""

import pytest
from page_world import GPUS, Browser, running, world_fixture

from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.administration.dialogs import DIALOGS
from gpuspawner.service.store.audit_log import AuditFilter

NODE = GPUS[0].node


world = world_fixture(running("runs", "alice", gpus=(0,)), running("other", "bob", gpus=(1,)))


def test_a_chosen_action_is_shown_reviewed_and_then_done(world):
    browser = Browser(world, "admin")
    address = "console/act/stop?ids=runs&ids=other&back=console/workspaces"
    assert "alice / default workspace" in browser.look(address).text
    fields = {"ids": ["runs", "other"], "reason": "Maintenance", "now": "1", "back": "console/workspaces"}
    looked = browser.submit("console/act/stop", **fields, step="look")
    assert "2 workspaces would be stopped. Nothing was done." in looked.text
    assert 'value="Maintenance"' in looked.text
    assert world.lease("runs").phase is Phase.RUNNING
    done = browser.submit("console/act/stop", **fields, step="do")
    assert done.url == f"{world.home}console/workspaces"
    assert "from the console, as administrator: Maintenance" in world.lease("runs").message


@pytest.mark.parametrize(
    "back", ["https://evil.example", "//evil.example", "console/../../x", "console/%2e%2e/%2E%2E/x", "hub/logout", ""]
)
def test_a_dialog_leads_back_to_pages_of_ours_alone(world, back):
    done = Browser(world, "admin").submit("console/act/pause", reason="x", kind="a100", back=back, step="do")
    assert done.url == f"{world.home}console/restrictions"


def test_an_impossible_action_is_reported_at_its_field_and_the_form_is_kept(world):
    browser = Browser(world, "admin")
    page = browser.submit("console/act/drain", 400, node="nowhere", reason="dust", step="do")
    assert "Nothing was changed." in page.text
    assert 'id="act-node-wrong"' in page.text
    assert 'value="dust"' in page.text
    many = browser.submit("console/act/reserve", 400, kind="a100", count="9" * 5000, user="bob", until="2h", reason="x")
    assert "1 to 4, as many as there are" in many.text
    conflict = browser.submit("console/act/extend", 409, ids="runs", until="1h", reason="x", step="look")
    assert "Name a later time" in conflict.text


def test_a_gpu_is_named_by_its_node_and_number_as_the_console_shows_it(world):
    listed = Browser(world, "admin").submit("console/act/quarantine", gpu=f"{NODE}/2", reason="ECC", step="do")
    assert f'<th scope="row">{NODE}/2</th>' in listed.text
    refused = Browser(world, "admin").submit("console/act/quarantine", 400, gpu=f"{NODE}/99", reason="ECC", step="do")
    assert "Nothing was changed." in refused.text


def test_a_restriction_is_made_listed_and_ended(world):
    browser = Browser(world, "admin")
    listed = browser.submit("console/act/drain", node=NODE, reason="dust", until="2h", step="do")
    assert "No new workspace starts there" in listed.text
    (one,) = world.call(world.parts.restrictions.in_force)
    assert f"No new workspace starts on {NODE} until" in browser.look(f"console/act/lift?restriction={one.id}").text
    assert "Say why" in browser.submit("console/act/lift", 400, restriction=one.id, reason="").text
    ended = browser.submit("console/act/lift", restriction=one.id, reason="clean")
    assert "No restriction is in force or coming." in ended.text
    assert "clean" in ended.text
    assert world.call(world.parts.restrictions.in_force) == ()
    browser.submit("console/act/lift", 404, restriction="none", reason="x")


def test_a_drained_node_offers_its_end_with_the_reason_and_leads_back(world):
    browser, drain = Browser(world, "admin"), f"console/act/drain?node={NODE}"
    assert drain in browser.look("console/gpus").text
    page = browser.submit("console/act/drain", node=NODE, reason="dust & fans", back="console/gpus", step="do").text
    (one,) = world.call(world.parts.restrictions.in_force)
    assert drain not in page
    assert "by admin: dust &amp; fans" in page
    assert f"console/act/lift?restriction={one.id}" in page
    lifted = browser.submit("console/act/lift", restriction=one.id, reason="clean", back="console/gpus")
    assert lifted.url == f"{world.home}console/gpus"
    assert drain in lifted.text


OF_QUOTAS = ("grant", "move-hours", "take-back", "correct", "approve", "change-request", "decline", "forget")
REASONS = {"message": "text", "announce": "text", **dict.fromkeys(OF_QUOTAS, "why")}


@pytest.mark.parametrize("name", list(DIALOGS))
def test_each_act_has_its_form_for_administrators_alone_and_a_get_does_nothing(world, name):
    page = Browser(world, "admin").look(f"console/act/{name}?ids=runs")
    assert f'name="{REASONS.get(name, "reason")}"' in page.text
    assert world.call(world.parts.restrictions.in_force) == ()
    other = Browser(world, "alice")
    other.look(f"console/act/{name}?ids=runs", 403)
    other.submit(f"console/act/{name}", 403, ids="runs", reason="x", step="do")
    stale = Browser(world, "admin").post(f"{world.home}console/act/{name}", data={"reason": "x", "step": "do"})
    assert stale.status_code == 403


def test_a_message_reaches_the_users_of_the_selection_once_each_and_is_audited(world):
    world.save(running("second", "bob", gpus=(2,), server="two"))
    browser = Browser(world, "admin")
    fields = {"ids": ["runs", "other", "second"], "text": "Node-1 gets new GPUs", "until": "2h"}
    looked = browser.submit("console/act/message", **fields, step="look")
    assert "2 people will read it until" in looked.text
    assert world.parts.announcements.all() == []
    assert "has no text" in browser.submit("console/act/message", 400, **{**fields, "text": " "}, step="do").text
    browser.submit("console/act/message", **fields, step="do")
    assert "Node-1 gets new GPUs" in Browser(world, "alice").look("").text
    assert "Node-1 gets new GPUs" not in Browser(world, "robot").look("").text
    lines = world.call(world.parts.store.audit_log.search, AuditFilter(actions=("message sent",)), None, 9)
    assert [(x.line.user, x.line.actor, x.line.where) for x in lines] == [
        ("bob", "admin", "the console, as administrator"),
        ("alice", "admin", "the console, as administrator"),
    ]


def test_an_announcement_is_previewed_sent_and_ended(world):
    browser = Browser(world, "admin")
    fields = {"whom": "user", "name": "bob", "text": "Friday", "until": "2h"}
    assert "1 person will read it until" in browser.submit("console/act/announce", **fields, step="look").text
    assert world.parts.announcements.all() == []
    unknown = browser.submit("console/act/announce", 400, **{**fields, "name": "nobody"}, step="do").text
    assert 'id="act-name-wrong"' in unknown
    page = browser.submit("console/act/announce", **fields, step="do").text
    (sent,) = world.parts.announcements.all()
    assert f"console/announcements/{sent.id}/withdraw" in page
    page = browser.submit(f"console/announcements/{sent.id}/withdraw").text
    assert "Ended in the last 30 days (1)" in page
    browser.submit(f"console/announcements/{sent.id}/withdraw")  # a second click
    browser.submit("console/announcements/none/withdraw", 404)
    Browser(world, "alice").submit(f"console/announcements/{sent.id}/withdraw", 403)
