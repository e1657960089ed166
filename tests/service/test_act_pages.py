"""The dialog of an act as a page, without JavaScript: asked, shown, done, refused; and restrictions with their lift."""

import pytest
from page_world import GPUS, Browser, running

from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.administration.pages import ACTS
from gpuspawner.service.store.audit_log import AuditFilter

NODE = GPUS[0].node


@pytest.fixture
def world(make_web_world):
    made = make_web_world()
    made.observe()
    made.save(running("runs", "alice", gpus=(0,)))
    made.save(running("other", "bob", gpus=(1,)))
    return made


def test_what_is_chosen_is_shown_looked_at_and_then_done(world):
    browser = Browser(world, "admin")
    address = "console/act/stop?ids=runs&ids=other&back=console/workspaces"
    assert "alice: default workspace" in browser.look(address).text
    fields = {"ids": ["runs", "other"], "reason": "Maintenance", "now": "1", "back": "console/workspaces"}
    looked = browser.submit("console/act/stop", **fields, step="look")
    assert "2 workspaces would be stopped. Nothing was done." in looked.text
    assert 'value="Maintenance"' in looked.text
    assert world.lease("runs").phase is Phase.RUNNING
    done = browser.submit("console/act/stop", **fields, step="do")
    assert done.url == f"{world.home}console/workspaces"
    assert "from the console: Maintenance" in world.lease("runs").message


@pytest.mark.parametrize("back", ["https://evil.example", "//evil.example", "console/../../x", "hub/logout", ""])
def test_a_dialog_leads_back_to_pages_of_ours_alone(world, back):
    done = Browser(world, "admin").submit("console/act/pause", reason="x", kind="a100", back=back, step="do")
    assert done.url == f"{world.home}console/restrictions"


def test_what_can_not_be_done_is_told_beside_its_field_and_the_form_is_kept(world):
    browser = Browser(world, "admin")
    page = browser.submit("console/act/drain", 400, node="nowhere", reason="dust", step="do")
    assert "Nothing was done." in page.text
    assert 'id="act-node-error"' in page.text
    assert 'value="dust"' in page.text
    many = browser.submit("console/act/reserve", 400, kind="a100", count="9" * 5000, user="bob", until="2h", reason="x")
    assert "1 to 4, as many as there are" in many.text
    conflict = browser.submit("console/act/extend", 409, ids="runs", until="1h", reason="x", step="look")
    assert "Name a later time" in conflict.text


def test_a_gpu_is_named_by_its_node_and_number_as_the_console_shows_it(world):
    listed = Browser(world, "admin").submit("console/act/quarantine", gpu=f"{NODE}/2", reason="ECC", step="do")
    assert f"The GPU {NODE}/2 is given to nobody new" in listed.text
    refused = Browser(world, "admin").submit("console/act/quarantine", 400, gpu=f"{NODE}/99", reason="ECC", step="do")
    assert "Nothing was done." in refused.text


def test_a_restriction_is_made_listed_and_lifted(world):
    browser = Browser(world, "admin")
    listed = browser.submit("console/act/drain", node=NODE, reason="dust", until="2h", step="do")
    assert f"Nothing new starts on {NODE}" in listed.text
    (one,) = world.call(world.parts.restrictions.in_force)
    assert "reason" in browser.submit(f"console/restrictions/{one.id}/lift", 400, reason="").text
    lifted = browser.submit(f"console/restrictions/{one.id}/lift", reason="clean")
    assert "Nothing is restricted now." in lifted.text
    assert "clean" in lifted.text
    assert browser.look(f"console/restrictions/{one.id}/lift").url == f"{world.home}console/restrictions"


def test_on_a_node_that_is_drained_its_end_is_offered_with_the_reason_and_leads_back(world):
    browser, drain = Browser(world, "admin"), f'Drain…<span class="gs-hidden"> {NODE}'
    assert drain in browser.look("console/").text
    page = browser.submit("console/act/drain", node=NODE, reason="dust & fans", back="console", step="do").text
    (one,) = world.call(world.parts.restrictions.in_force)
    assert drain not in page
    assert f"Nothing new starts on {NODE}: dust &amp; fans" in page
    assert f"console/restrictions/{one.id}/lift" in page
    lifted = browser.submit(f"console/restrictions/{one.id}/lift", reason="clean", back="console")
    assert lifted.url.startswith(f"{world.home}console")
    assert "restrictions" not in lifted.url
    assert drain in lifted.text


@pytest.mark.parametrize("name", list(ACTS))
def test_each_act_has_its_form_for_administrators_alone_and_a_get_does_nothing(world, name):
    page = Browser(world, "admin").look(f"console/act/{name}?ids=runs")
    assert f'name="{"text" if name == "message" else "reason"}"' in page.text
    assert world.call(world.parts.restrictions.in_force) == ()
    other = Browser(world, "alice")
    other.look(f"console/act/{name}?ids=runs", 403)
    other.submit(f"console/act/{name}", 403, ids="runs", reason="x", step="do")
    stale = Browser(world, "admin").post(f"{world.home}console/act/{name}", data={"reason": "x", "step": "do"})
    assert stale.status_code == 403


def test_a_message_reaches_the_users_of_what_is_chosen_once_each_and_stands_in_the_audit(world):
    world.save(running("second", "bob", gpus=(2,), server="two"))
    browser = Browser(world, "admin")
    fields = {"ids": ["runs", "other", "second"], "text": "Node-1 gets new GPUs", "until": "2h"}
    looked = browser.submit("console/act/message", **fields, step="look")
    assert "It reaches 2 people: alice, bob, until" in looked.text
    assert world.parts.announcements.all() == []
    assert "says nothing" in browser.submit("console/act/message", 400, **{**fields, "text": " "}, step="do").text
    browser.submit("console/act/message", **fields, step="do")
    assert "Node-1 gets new GPUs" in Browser(world, "alice").look("").text
    assert "Node-1 gets new GPUs" not in Browser(world, "robot").look("").text
    lines = world.call(world.parts.store.audit_log.search, AuditFilter(actions=("message sent",)), None, 9)
    assert [(x.line.user, x.line.actor, x.line.where) for x in lines] == [
        ("bob", "admin", "the console"),
        ("alice", "admin", "the console"),
    ]
