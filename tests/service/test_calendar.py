"""The calendar: who sees what of reservations and maintenance, as API, pages and commands."""

import re
from html import unescape
from urllib.parse import parse_qsl, urlsplit

from page_world import CATALOG, GPUS, NOW, Browser, api, running, world_fixture

from gpuspawner.catalog import load_catalog
from gpuspawner.core.calendar import Opening
from gpuspawner.service.calendar.picture import Lane, LaneChoice, TimeAxis, Use, spans_of

HOUR, DAY = 3600.0, 86400.0
NODE = GPUS[0].node


holds = [{"group": "cs101", "gpu": "a100", "count": 1, "when": "Mon-Sun 23:00-23:30"}]
world = world_fixture(catalog=load_catalog({**CATALOG, "teams": {"vision": {}}, "holds": holds}))


def restrict(world, what, **body):
    return api(
        world, "admin", "admin/restrictions", "POST", {"what": what, "reason": "final projects", **body}, status=201
    ).json()["restrictions"][0]


def planned(world, name, **query):
    path = "calendar?" + "&".join(f"{key}={value}" for key, value in query.items())
    return api(world, name, path).json()["entries"]


def filled(world):
    world.groups["carol"], world.created["carol"] = {"cs231"}, "carol born"
    restrict(world, "reserve", kind="a100", count=1, user="bob", begins="2h", until="4h")
    restrict(world, "reserve", kind="a100", count=2, group="cs231", every="Mon-Sun 09:00-11:00", until="3d")
    restrict(world, "drain", node=NODE, begins="2d", until="3d")


def test_the_calendar_hides_users_and_nodes_from_other_users(world):
    filled(world)
    seen = {name: [one for one in planned(world, name) if one["id"]] for name in ("alice", "bob", "otto", "admin")}
    assert {one["for"] for one in seen["alice"]} == {"Another user", "Class cs231", "Maintenance"}
    assert {one["for"] for one in seen["bob"]} == {"You", "Class cs231", "Maintenance"}
    assert {one["for"] for one in seen["otto"]} == {"bob", "Class cs231", "Maintenance"}
    text = str(seen["alice"])
    assert all(word not in text for word in ("bob", NODE, "admin"))
    mine = next(one for one in seen["bob"] if one["for"] == "You")
    assert (mine["yours"], mine["begins_at"], mine["until"]) == (True, NOW + 2 * HOUR, NOW + 4 * HOUR)
    maintenance = next(one for one in seen["admin"] if one["what"] == "maintenance")
    assert (maintenance["node"], maintenance["by"], maintenance["gpus"]) == (NODE, "admin", f"{NODE}, 4 × A100 80 GB")


def test_a_weekly_rule_has_an_entry_for_each_time_also_one_of_the_catalog(world):
    filled(world)
    entries = planned(world, "alice")
    classes = [one for one in entries if one["for"] == "Class cs231"]
    assert len(classes) in {3, 4}
    assert all((one["until"] - one["begins_at"], one["counts"]) == (2 * HOUR, {"a100": 2}) for one in classes[1:-1])
    assert classes[0]["repeats"].startswith("every day 09:00-11:00 until ")
    assert len([one for one in entries if (one["for"], one["id"]) == ("Class cs101", "")]) == 7
    assert entries == sorted(entries, key=lambda one: one["begins_at"])


def test_days_may_be_chosen_and_wrong_ones_are_refused(world):
    filled(world)
    assert all(one["for"] == "Class cs101" for one in planned(world, "alice", since="2027-03-01", days=28))
    refused = api(world, "alice", "calendar?since=never", status=400).json()["error"]["message"]
    assert refused == "Begin: You asked for 'never'. Allowed: a day like 2026-12-24, or today. 'never' is not a day."
    for query, status in (("since=never", 400), ("days=29", 400), ("days=0", 400), ("since=0001-01-01", 400)):
        assert api(world, "alice", f"calendar?{query}").status_code == status, query
    assert "custom:gpu:use" in api(world, "mallory", "calendar").json()["error"]["message"]


def test_the_console_draws_nodes_and_lists_what_is_planned(world):
    filled(world)
    world.save(running("runs", "alice", gpus=(0, 1)))
    restrict(world, "quarantine", gpu=f"{NODE}/3")
    page = Browser(world, "admin").get(f"{world.home}console/calendar").text
    assert page.count('class="gs-span gs-s-care"') == 1
    assert f"Maintenance of {NODE}, 4 × A100 80 GB, " in page
    assert "alice / default workspace, 2 GPUs until " in page
    assert "GPU 3 is quarantined" in page
    assert page.count('<th scope="row">Class cs231</th>') >= 2
    assert "Cancel…" in page
    without = Browser(world, "admin").get(f"{world.home}console/calendar?running=0&kind=a100&days=28").text
    assert "alice / default workspace" not in without
    odd = Browser(world, "admin").get(f"{world.home}console/calendar?since=%00&days=x&kind=none")
    assert odd.status_code == 200
    audits = Browser(world, "otto").get(f"{world.home}console/calendar").text
    assert "Reserve GPUs</a>" not in audits
    operates = Browser(world, "vera").get(f"{world.home}console/calendar").text
    assert ("Plan maintenance" in operates, "Reserve GPUs</a>" in operates) == (True, False)
    assert Browser(world, "alice").get(f"{world.home}console/calendar").status_code == 403


def test_a_user_sees_kinds_and_their_own_workspaces_only(world):
    filled(world)
    world.save(running("runs", "alice", gpus=(0,), server="train"))
    world.save(running("other", "bob", gpus=(1,), server="secret"))
    page = Browser(world, "alice").get(f"{world.home}calendar").text
    assert "train, 1 GPU until " in page
    assert "Another user" in page
    main = re.sub(r"(?s).*<main", "", page)
    assert all(word not in main for word in ("secret", "bob", NODE, "By</th>"))
    as_admin = Browser(world, "admin").get(f"{world.home}calendar").text
    assert NODE not in re.sub(r"(?s).*<main", "", as_admin)


def test_a_choice_that_fits_is_what_the_dialog_then_reserves(world):
    restrict(world, "reserve", kind="a100", count=3, user="bob", begins="2h", until="4h")
    browser = Browser(world, "admin")
    typed = {"kind": "a100", "count": "3", "user": "alice", "begins": "1h", "until": "6h", "reason": "demo"}
    looked = browser.submit("console/act/reserve", step="look", back="console/calendar", **typed).text
    assert "<h3>1 conflict</h3>" in looked
    fits = re.findall(r'name="fit" value="([^"]+)"', looked)
    assert fits == [f"3 {NOW + 4 * HOUR} {NOW + 6 * HOUR}", f"1 {NOW + HOUR} {NOW + 6 * HOUR}"]
    browser.submit("console/act/reserve", 200, step="do", back="console/calendar", fit=fits[0], **typed)
    (_, made) = world.call(world.parts.restrictions.live)
    assert (made.count, made.begins_at, made.until) == (3, NOW + 4 * HOUR, NOW + 6 * HOUR)


def test_a_reservation_is_changed_in_one_step_by_its_button(world):
    filled(world)
    browser = Browser(world, "admin")
    page = browser.get(f"{world.home}console/calendar").text
    links = [unescape(x) for x in re.findall(r'href="([^"]+)" data-act aria-label="Change: ', page)]
    fields = [dict(parse_qsl(urlsplit(link).query)) for link in links]
    (theirs,) = {one["replaces"]: one for one in fields if one.get("user") == "bob"}.values()
    (of_class,) = {one["replaces"]: one for one in fields if one.get("group") == "cs231"}.values()
    assert (theirs["kind"], theirs["count"]) == ("a100", "1")
    assert of_class["every"] == "Mon,Tue,Wed,Thu,Fri,Sat,Sun 09:00-11:00"
    typed = {**theirs, "count": "4", "back": "console/calendar"}
    looked = browser.submit("console/act/reserve", step="look", **typed).text
    assert "Instead of: 1 A100 80 GB is reserved for bob from " in looked
    assert "1 conflict" in looked, "with the class; not with what it replaces"
    browser.submit("console/act/reserve", 200, step="do", fit="", **{**typed, "count": "2"})
    live = {one.id: one for one in world.call(world.parts.restrictions.live)}
    assert theirs["replaces"] not in live
    (now,) = [one for one in live.values() if one.whom == "bob"]
    old = world.call(world.parts.restrictions.get, theirs["replaces"])
    assert (now.count, now.begins_at, old.lifted_by) == (2, NOW + 2 * HOUR, "admin")
    again = browser.submit("console/act/reserve", 400, step="do", **typed).text
    assert "It may have ended." in again
    world.call(world.parts.restrictions.load)
    assert set(live) == {one.id for one in world.call(world.parts.restrictions.live)}


def test_a_node_may_have_maintenance_at_several_times_and_not_twice_at_one(world):
    restrict(world, "drain", node=NODE, begins="2d", until="3d")
    restrict(world, "drain", node=NODE, begins="5d", until="6d")
    body = {"what": "drain", "reason": "x", "node": NODE, "begins": "60h", "until": "4d"}
    assert api(world, "admin", "admin/restrictions", "POST", body).status_code == 409


def test_spans_are_in_per_cent_one_for_each_run_of_lanes_with_a_label_where_there_is_room():
    axis = TimeAxis(0, 100, 10)
    uses = [
        Use("busy", Opening(5, 50), [0, 1, 3], "alice", "alice until 50"),
        Use("plan", Opening(60, 62), [2], "CS231", "for CS231"),
        Use("plan", Opening(95, 97), [2], "CS231", "for CS231"),
        Use("care", Opening(9, 200), [4], "Firmware", "until 200"),
        Use("care", Opening(100, 200), [4], "later", "later"),
    ]
    found = spans_of(uses, axis)
    assert [(one.left, one.width, one.first, one.lanes, one.side) for one in found] == [
        (5.0, 45.0, 0, 2, ""), (5.0, 45.0, 3, 1, ""), (9.0, 91.0, 4, 1, ""), (60.0, 2.0, 2, 1, "after"),
        (95.0, 2.0, 2, 1, "before"),
    ]  # fmt: skip
    assert found[2].pad == 1.1, "the label begins behind the present time"
    beside = spans_of([Use("plan", Opening(at, at + 1), [0], "for CS231", "") for at in (60, 63, 80)], axis)
    assert [one.label for one in beside] == ["", "for CS231", "for CS231"], "a label would lie over the next span"


def test_a_reservation_for_any_node_is_drawn_on_one_node_that_is_free_then():
    choice = LaneChoice(Lane(node, number, "a100") for node in ("n-1", "n-2") for number in range(4))
    assert len(choice.take_row("n-1", Opening(0, 10))) == 4
    assert {lane.row for lane in choice.take("a100", 3, "", Opening(5, 15))} == {"n-2"}
    assert {lane.row for lane in choice.take("a100", 3, "", Opening(10, 20))} == {"n-1"}
    assert len(choice.take("a100", 3, "", Opening(5, 15))) == 1, "there are no more"
    assert choice.take("t4", 1, "", Opening(0, 1)) == []


def test_a_user_does_not_see_reservations_of_kinds_that_they_may_not_have(make_web_world):
    catalog = {**CATALOG, "gpus": {**CATALOG["gpus"], "a100": {**CATALOG["gpus"]["a100"], "groups": ["vision"]}}}
    world = make_web_world(load_catalog({**catalog, "teams": {"vision": {}}}))
    world.observe()
    world.groups["bob"] = {"vision"}
    restrict(world, "reserve", kind="a100", count=1, user="bob", begins="2h", until="4h")
    assert [len(planned(world, name)) for name in ("alice", "bob", "admin")] == [0, 1, 1]


def test_a_restriction_that_began_earlier_is_in_the_calendar(world):
    made = restrict(world, "drain", node=NODE)
    world.call(world.parts.restrictions.load)
    (entry,) = [one for one in planned(world, "admin") if one["id"] == made["id"]]
    assert (entry["until"], entry["begins_at"]) == (None, NOW)


def test_the_form_names_coming_reservations_and_what_would_run_as_long_as_asked(world):
    restrict(world, "reserve", kind="a100", count=3, user="bob", begins="2h", until="4h")
    restrict(world, "drain", node=NODE, begins="10h", until="11h")
    restrict(world, "reserve", kind="a100", count=1, user="bob", begins="9d", until="10d")

    def note(name):
        return next(one["note"] for one in api(world, name, "offers").json()["offers"] if one["kind"] == "a100")

    assert re.search(r"(^|, )3 are reserved for another user \d\d:\d\d to \d\d:\d\d", note("alice"))
    assert re.search(r", 4 have maintenance \d\d:\d\d to \d\d:\d\d", note("alice"))
    assert "reserved for another" not in note("bob")
    assert "bob" not in note("alice")
    asked = {"gpu": "a100", "count": 2, "lifetime": "8h"}
    told = api(world, "alice", "check", "POST", asked).json()
    assert "when 3 A100 80 GB are reserved for bob." in told["sentence"]
    assert told["sentence"].count("To run 8 h, choose 1 A100 80 GB.") == 1, told["sentence"]
    assert told["ends_at"] == NOW + 2 * HOUR
    assert "To run" not in api(world, "alice", "check", "POST", {**asked, "count": 1}).json()["sentence"]
    assert "To run" not in api(world, "bob", "check", "POST", asked).json()["sentence"]
    long = api(world, "alice", "check", "POST", {**asked, "count": 1, "lifetime": "23h"}).json()["sentence"]
    assert f"when {NODE} has maintenance." in long
    fewer = api(world, "alice", "check", "POST", {**asked, "lifetime": "23h"}).json()["sentence"]
    assert "To run" not in fewer, "one GPU would not run as long either"
