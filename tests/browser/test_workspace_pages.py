"""The service's pages in a real Chromium: axe in both schemes and widths, numbers that change in place, forms."""

import base64
import re
from dataclasses import replace

import pytest
from playwright.sync_api import expect
from service_pages import open_page, pages

from gpuspawner.catalog import load_catalog
from gpuspawner.core.events import Extended, WarnedIdle
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.leases.transitions import dispute

NOW = pages.NOW


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = pages.World(tmp_path, monkeypatch)
    made.observe()
    made.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    yield made
    made.close()


def seed(world):
    """A workspace in each state that a page shows."""
    measured = [60.0] * 20 + [None] * 4 + [80.0] * 10 + ["gap"] * 5 + [1.0] * 12
    two = pages.running("busy", gpus=(0, 1), minutes=90, streak=pages.idle_streak(12))
    world.save(two, [(NOW - 3000, "alice", Extended(4 * 3600.0))], pages.readings(two, measured))
    warned = pages.in_grace("warned", server="second", gpus=(2,))
    line = (NOW - 240, "gpuspawner", WarnedIdle(1, 1800.0, peak_percent=1.0))
    busy = {"kernel": {"active": True, "words": "kernel train.ipynb busy"}}
    rows = pages.readings(warned, [70.0] * 20 + [1.0] * 34)
    rows = [replace(row, soft=busy if row.at < NOW - 1500 else {}) for row in rows]
    world.save(warned, [line], rows)
    world.save(replace(pages.waiting("waits", user="alice"), key=Key("hub-1", "alice born", "third")))
    world.save(pages.waiting("carols", user="carol", count=2))
    failing = pages.running("failing", server="fourth", gpus=(3,), unhealthy=("GPU-3",))
    world.save(failing, readings=pages.readings(failing, [80.0] * 10))
    gone = pages.reclaimed("gone", key=Key("hub-1", "alice born", "fifth"))
    rows = pages.readings(gone, [80.0] * 30 + [1.0] * 41, until=NOW - 600, kept=True)
    world.save(gone, pages.reclaimed_audit(), rows)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "workspaces/busy",
        pytest.param("workspaces/warned", marks=pytest.mark.slow),
        "workspaces/waits",
        pytest.param("workspaces/failing", marks=pytest.mark.slow),
        "workspaces/gone",
        pytest.param("workspaces/none", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_wrong(browser, world, assert_accessible, path):
    seed(world)
    page = open_page(browser, world, path)
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert_accessible(page, phone=path in {"", "workspaces/busy"})
    assert [p for p in page.problems if "404" not in p] == []


def test_an_end_is_called_wrong_by_keyboard_and_without_javascript(browser, world):
    seed(world)
    page = open_page(browser, world, "workspaces/gone", java_script_enabled=False)
    page.get_by_label("This was wrong. What was running?").fill("It read data.")
    page.get_by_role("button", name="Send report").press("Enter")
    expect(page.get_by_role("heading", name="Your report")).to_be_visible()
    assert world.lease("gone").dispute.sentence == "It read data."


def test_a_dispute_is_accessible_where_it_is_answered_and_where_it_is_listed(browser, world, assert_accessible):
    seed(world)
    world.save(dispute(world.lease("gone"), "It read data.", NOW - 3000, NOW))
    world.signing_in = "admin"
    page = open_page(browser, world, "console/")
    expect(page.get_by_text("1 stop was reported as wrong.")).to_be_visible()
    assert_accessible(page)
    page = open_page(browser, world, "workspaces/gone")
    expect(page.get_by_label("Your answer, which alice reads on this page")).to_be_visible()
    assert_accessible(page)


def test_the_chart_says_in_words_what_it_shows(browser, world):
    seed(world)
    page = open_page(browser, world, "workspaces/busy")
    chart = page.get_by_role("img", name=re.compile("^GPU 0, "))
    expect(chart).to_have_accessible_name(re.compile(r"highest 80 %; known for 42 min of 1 h 30 min"))
    page.locator("#numbers-fold summary").click()
    numbers = page.get_by_role("region", name="Table: readings")
    expect(numbers).to_contain_text("Not measured, GPU 0 can't be read ([N/A])")


def test_the_chart_of_a_gpu_that_something_else_used_says_so_and_never_calls_it_this_workspaces(browser, world):
    lease = pages.running("mine")
    rows = [
        replace(row, kind="idle", shared=True) if row.utilization_percent == 60.0 else row
        for row in pages.readings(lease, [60.0] * 10 + [1.0] * 10)
    ]
    world.save(lease, readings=rows)
    page = open_page(browser, world, "workspaces/mine")
    chart = page.get_by_role("img", name=re.compile("^GPU 0, "))
    expect(chart).to_have_accessible_name(re.compile("highest 1 %; known for 20 min"))
    expect(chart.locator(".gs-others")).to_have_count(1)
    expect(page.get_by_text("Not counted as yours")).to_be_visible()
    woken = pages.running("woken", server="third", gpus=(2,))
    world.save(woken, readings=[replace(row, lease=woken.id, gpu=woken.slots[0].gpu, shared=False) for row in rows])
    page = open_page(browser, world, "workspaces/woken")
    expect(page.get_by_role("img", name=re.compile("highest 60 %; known for 20 min"))).to_be_visible()
    other = pages.running("other", server="second", gpus=(1,))
    world.save(other, readings=pages.readings(other, [60.0] * 10))
    page = open_page(browser, world, "workspaces/other")
    expect(page.get_by_role("img", name=re.compile("highest 60 %"))).to_be_visible()
    expect(page.get_by_text("Not counted as yours")).to_have_count(0)


@pytest.mark.parametrize("policy", ["default", "kernels"])
def test_use_outside_the_gpu_is_reported_as_ignored_under_a_policy_without_it(browser, world, policy):
    lease = pages.running("mine")
    busy = {"kernel": {"active": True, "words": "kernel train.ipynb busy"}}
    rows = [replace(row, soft=busy) for row in pages.readings(lease, [1.0] * 20)]
    world.save(replace(lease, request=replace(lease.request, policy=policy)), readings=rows)
    page = open_page(browser, world, "workspaces/mine")
    lane = page.locator(".gs-lane")
    expect(lane).to_contain_text("Activity")
    expect(lane).to_contain_text("does not count" if policy == "default" else "counts as use")
    use, strip = page.locator(".gs-of-gpu").bounding_box(), lane.locator("rect").bounding_box()
    assert strip["y"] > use["y"] + use["height"], "it is no utilization: below the line of 0 %"


def test_numbers_change_in_place_and_open_details_and_focus_stay(browser, world):
    lease = world.save(pages.running("mine"), readings=pages.readings(pages.running("mine"), [80.0] * 10))
    page = open_page(browser, world, "workspaces/mine")
    page.locator("#numbers-fold summary").click()
    page.get_by_role("button", name="Extend by 4 h").focus()
    page.evaluate("window.sameDocument = true")
    world.clock.at += 60
    world.save(replace(lease, sampled_at=NOW + 50), readings=pages.readings(lease, [33.0], until=NOW + 50))
    expect(page.locator("#stats")).to_contain_text("33 %", timeout=12_000)
    assert page.evaluate("window.sameDocument")
    expect(page.get_by_role("region", name="Table: readings")).to_contain_text("33 %")
    expect(page.get_by_role("button", name="Extend by 4 h")).to_be_focused()
    assert page.problems == []


def test_a_warning_appears_by_itself_and_one_key_press_keeps_it(browser, world):
    world.save(pages.running("mine"))
    page = open_page(browser, world, "workspaces/mine")
    expect(page.get_by_role("heading", name="default workspace Active")).to_be_visible()
    world.save(pages.in_grace("mine"))
    expect(page.get_by_role("alert")).to_contain_text("The GPU has been idle for 34 min", timeout=12_000)
    page.get_by_role("button", name="Keep for 2 h").first.press("Enter")
    expect(page.locator("#judged-panel")).to_contain_text("Kept until")
    assert world.lease("mine").phase is Phase.RUNNING


def test_a_warning_leads_to_going_on_without_a_gpu_which_says_what_is_lost_before(browser, world):
    world.save(pages.in_grace("mine"))
    page = open_page(browser, world, "workspaces/mine")
    dialog = page.get_by_role("dialog", name="Restart without GPU?")
    expect(dialog).to_be_hidden()
    page.get_by_role("alert").get_by_role("button", name="Restart without GPU").click()
    expect(dialog).to_contain_text("You lose running kernels and what they hold in memory, so save first.")
    expect(dialog).to_contain_text("The GPU goes to the next in line.")
    dialog.get_by_role("button", name="Restart without GPU").click()
    expect(page.get_by_role("heading", name="Restarting without a GPU")).to_be_visible()
    assert world.lease("mine").goes_on.with_gpu["gpu"] == "a100"
    assert page.problems == []


def test_a_change_of_size_is_previewed_in_a_dialog_waits_and_is_withdrawn(browser, world, assert_accessible):
    world.save(pages.running("mine"))
    world.save(pages.running("others", "bob", gpus=(1, 2, 3)))
    page = open_page(browser, world, "workspaces/mine")
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("link", name="Change size").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("GPUs").fill("2")
    dialog.get_by_label("CPU").fill("99")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Nothing was changed. CPU cores: You asked for '99'.")
    dialog.get_by_label("CPU").fill("4")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_contain_text("2 A100 80 GB, 4 cores, 8 GiB memory")
    expect(dialog.get_by_role("status")).to_contain_text("This workspace runs on with 1 A100 80 GB until then.")
    assert_accessible(page, ".gs-dialog[open]", phone=True)
    dialog.get_by_role("button", name="Change as soon as it is free").click()
    expect(page.locator("#state")).to_contain_text("Changes to 2 A100 80 GB, 4 cores, 8 GiB memory.")
    assert_accessible(page, phone=True)
    page.get_by_role("button", name="Withdraw").click()
    expect(page.locator("#state")).not_to_contain_text("Changes to")
    assert world.lease("mine").size_change is None
    assert all("400" in one for one in page.problems), "only the refused preview"


RED = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path fill="#f00" d="M0 0h16v16H0z"/></svg>'
MIDDLE = """async (data) => {
  const image = new Image();
  image.src = `data:image/png;base64,${data}`;
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'), {width: image.width, height: image.height});
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  return [...context.getImageData(image.width / 2, image.height / 2, 1, 1).data];
}"""


def test_a_template_is_shown_by_a_picture_of_its_own(browser, tmp_path, monkeypatch):
    templates = {"pytorch": {**pages.CATALOG["templates"]["pytorch"], "icon": f"data:image/svg+xml;base64,{b64(RED)}"}}
    world = pages.World(tmp_path, monkeypatch, load_catalog({**pages.CATALOG, "templates": templates}))
    try:
        page = open_page(browser, world, "")
        first = page.locator(".gs-choice .gs-tile").first.screenshot()
        world.observe()
        world.save(pages.running("mine"))
        page.reload()
        card = page.locator(".gs-ws .gs-tile").screenshot()
        assert [page.evaluate(MIDDLE, b64(one)) for one in (first, card)] == [[255, 0, 0, 255]] * 2
        assert page.content().count("data:image/svg+xml") == 1
        assert page.problems == []
    finally:
        world.close()


def b64(data):
    return base64.b64encode(data).decode()


def test_promise_5_a_clicked_home_page_warns_all_the_same(browser, world):
    world.save(pages.running("mine"))
    world.save(pages.running("second", server="second", gpus=(1,)))
    page = open_page(browser, world, "")
    page.get_by_role("link", name="second", exact=True).focus()
    assert page.evaluate("document.getElementById('mine').contains(document.activeElement)")
    focused = page.evaluate_handle("document.activeElement")
    world.save(pages.in_grace("mine"))
    expect(page.get_by_role("alert")).to_contain_text("The GPU has been idle for 34 min", timeout=12_000)
    assert page.evaluate("box => document.activeElement === box", focused)
    with page.context.expect_page():
        page.get_by_role("link", name="second", exact=True).click(modifiers=["Control"])
    world.save(pages.in_grace("second", server="second", gpus=(1,)))
    page.bring_to_front()
    expect(page.get_by_role("alert")).to_have_count(2, timeout=12_000)
    assert page.problems == []


def test_a_focus_never_slips_to_another_workspace(browser, world):
    world.save(pages.running("first"))
    world.save(pages.running("second", server="second", gpus=(1,)))
    page = open_page(browser, world, "")
    cards = page.locator("#mine li h2 a")
    first = cards.first
    going = first.get_attribute("href").rpartition("/")[2]
    first.focus()
    world.save(pages.reclaimed(going))
    expect(cards).to_have_count(1, timeout=12_000)
    assert page.evaluate("document.activeElement === document.body")
    assert page.problems == []


@pytest.mark.parametrize("path", ["workspaces/mine", ""])
def test_a_warning_is_read_aloud_once_while_numbers_next_to_it_change(browser, world, path):
    world.save(pages.running("mine", deadline_at=NOW + 540, warned_seconds=(3600.0, 600.0)))
    page = open_page(browser, world, path)
    alert = page.get_by_role("alert")
    expect(page.locator("#main")).to_contain_text("9 min")
    page.evaluate("alert => (window.alert_before = alert)", alert.element_handle())
    world.clock.at += 65
    expect(page.locator("#main")).to_contain_text("7 min 55 s", timeout=12_000)
    assert page.evaluate("alert => window.alert_before === alert", alert.element_handle())


def test_a_changed_queue_position_is_shown_in_the_existing_live_region(browser, world):
    world.save(pages.running("a", user="carol", gpus=(0, 1, 2, 3), deadline_at=NOW + 1200))
    world.save(pages.waiting("mine", user="alice", count=1))
    page = open_page(browser, world, "workspaces/mine")
    live = page.locator("#waiting [role=status]")
    page.evaluate("live => (window.live_before = live)", live.element_handle())
    expect(live).to_contain_text("You are 1st of 1 in line")
    world.save(pages.waiting("bobs", user="bob", count=1, asked_at=NOW - 900))
    expect(live).to_contain_text("You are 2nd of 2 in line", timeout=12_000)
    assert page.evaluate("live => window.live_before === live", live.element_handle())


def test_the_list_of_workspaces_asks_before_it_stops_one(browser, world):
    world.save(pages.running("mine"))
    page = open_page(browser, world, "")
    page.get_by_role("button", name="More for default workspace").click()
    page.get_by_role("link", name="Stop…").click()
    dialog = page.get_by_role("dialog", name="Stop default workspace?")
    expect(dialog).to_contain_text("Your files stay.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="More for default workspace").click()
    page.get_by_role("link", name="Stop…").click()
    dialog.get_by_role("button", name="Stop workspace").click()
    expect(page.locator("#card-mine")).to_contain_text("Stopping")
    expect(page).to_have_url(world.home)
    assert page.problems == []


def test_stopping_asks_once_and_says_what_becomes_of_it(browser, world):
    world.save(pages.running("mine"))
    page = open_page(browser, world, "workspaces/mine")
    dialog = page.get_by_role("dialog", name="Stop default workspace?")
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("button", name="Stop…").click()
    expect(dialog).to_contain_text("Its GPU goes to the next in line.")
    expect(dialog).to_contain_text("Your files stay.")
    dialog.get_by_role("button", name="Stop workspace").click()
    expect(page.get_by_role("heading", name="default workspace Stopping")).to_be_visible()
    expect(page.get_by_role("heading", name="You stopped it.")).to_be_visible()
    world.call(world.parts.engine.drive, "mine")
    expect(page.get_by_role("heading", name=re.compile("^You stopped it at "))).to_be_visible(timeout=12_000)
    expect(page.get_by_role("link", name="Start again")).to_be_visible()


def test_reading_why_it_was_stopped_marks_it_read(browser, world):
    seed(world)
    page = open_page(browser, world, "workspaces/gone")
    expect(page.get_by_role("heading", name=re.compile("because its GPU was idle for 40 min"))).to_be_visible()
    expect(page.locator("#seen")).to_have_count(0)
    assert world.lease("gone").seen_by_user
    page.get_by_role("link", name="Start without GPU").click()
    assert page.url.startswith(f"{world.url}/hub/spawn/alice/fifth?opt-template=pytorch&opt-gpu=none&")


def test_all_of_it_works_without_javascript(browser, world):
    seed(world)
    page = open_page(browser, world, "", java_script_enabled=False)
    page.get_by_role("link", name="second", exact=True).click()
    page.get_by_role("button", name="Keep for 2 h").first.click()
    expect(page.locator("#judged-panel")).to_contain_text("Kept until")
    page.get_by_role("button", name="Extend by 4 h").first.click()
    expect(page.locator("#stats")).to_contain_text("11 h")
    page.goto(f"{world.home}workspaces/waits")
    page.get_by_role("button", name="Withdraw request").click()
    expect(page.get_by_text(re.compile("^You withdrew the request at "))).to_be_visible()
    page.goto(f"{world.home}workspaces/gone")
    page.get_by_role("button", name="Mark as read").click()
    expect(page.get_by_role("button", name="Mark as read")).to_have_count(0)


def test_the_service_going_away_is_said_and_the_numbers_stay(browser, world):
    world.save(pages.running("mine"))
    page = open_page(browser, world, "workspaces/mine")
    page.route("**/workspaces/mine", lambda route: route.abort())
    world.save(pages.running("mine", kept_until=NOW + 3600))
    expect(page.locator("#stale")).to_contain_text("the service does not answer", timeout=12_000)
    page.set_viewport_size({"width": 390, "height": 400})
    expect(page.locator("#stale")).to_be_in_viewport()  # wherever the page is scrolled to
    expect(page.get_by_role("heading", name="default workspace Active")).to_be_visible()
    page.unroute("**/workspaces/mine")
    expect(page.locator("#stale")).to_be_empty(timeout=12_000)


def test_a_page_that_can_not_be_told_of_changes_asks_twice_a_minute(browser, world):
    world.save(pages.running("mine"))
    page = open_page(browser, world, "workspaces/mine")
    page.clock.install()
    page.route("**/api/v1/events*", lambda route: route.abort())
    page.reload()
    world.save(pages.running("mine", kept_until=NOW + 3600))
    with page.expect_response("**/workspaces/mine"):
        page.clock.run_for(36_000)
    expect(page.locator("#main")).to_contain_text("Kept until")


def test_a_user_signed_in_to_a_real_hub_is_shown_in(page, hub):
    page.goto(f"{hub.url}/services/gpu/")
    expect(page.get_by_role("heading", name="Workspaces", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="Start your first workspace")).to_be_visible()
    page.get_by_role("link", name="Something else").click()
    expect(page).to_have_url(re.compile("/hub/spawn"))


def test_a_signed_out_user_reads_it_at_the_top_with_the_way_back(browser, world):
    world.save(pages.running("mine"))
    page = open_page(browser, world, "workspaces/mine")
    page.route("**/workspaces/mine", lambda route: route.fulfill(status=403, body="no"))
    note = page.locator("#signed-out")
    world.save(pages.running("mine", kept_until=NOW + 3600))
    expect(note).to_contain_text("You are signed out. These numbers are from", timeout=12_000)
    assert note.get_by_role("link", name="Sign in again").get_attribute("href").endswith("workspaces/mine")
    assert page.locator("main > *").first.get_attribute("id") == "signed-out"
    page.unroute("**/workspaces/mine")
    world.save(pages.running("mine", kept_until=NOW + 7200))
    expect(note).to_have_count(0, timeout=40_000)


def test_notification_settings_are_apart_from_start(browser, world):
    seed(world)
    page = open_page(browser, world, "")
    told = page.locator("#ready")
    expect(told).to_contain_text("This browser blocks notifications from this site")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        start, below = (one.bounding_box() for one in (page.get_by_role("link", name="Start a workspace"), told))
        assert below["y"] - start["y"] - start["height"] >= 16, width
