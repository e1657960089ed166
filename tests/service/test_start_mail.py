"""The switch for messages about starts: on the inbox and on the page of a waiting workspace, for its user alone."""

from page_world import Browser, api, running, waiting, world_fixture

world = world_fixture(is_observed=False)


def test_it_is_switched_off_and_on_by_api_and_page(world, monkeypatch):
    assert api(world, "alice", "notifications").json() == {"start_mail": True, "reached": False}
    assert api(world, "alice", "notifications", "POST", {"start_mail": "x"}).status_code == 400
    assert "Turn off" not in Browser(world, "alice").look("inbox").text, "this hub sends no mail"
    monkeypatch.setattr(world.parts.notifier, "reaches", lambda _user: True)
    world.observe()
    world.save(running("others", "bob", gpus=(0, 1, 2, 3)))
    world.save(waiting("mine", "alice"))
    browser = Browser(world, "alice")
    assert "You get a mail or chat message too." in browser.look("workspaces/mine").text
    after = browser.submit("notifications", start_mail="0", workspace="mine")
    assert "You get no mail or chat message about starts." in after.text
    assert api(world, "alice", "notifications").json()["start_mail"] is False
    assert api(world, "bob", "notifications").json()["start_mail"] is True
    assert "You get a mail or chat message too." in browser.submit("notifications", start_mail="1").text
