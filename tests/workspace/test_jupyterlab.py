"""JupyterLab in a real Chromium: the meter, the warning, Keep by mouse and keyboard, and what happens when parts go.

One page for the whole file: JupyterLab takes seconds to load. Each test says what the service answers from then on.
"""

import re
import time

import pytest
from playwright.sync_api import expect

TOKEN = "workspace-token-that-nobody-else-may-see"
SET_HIDDEN = """hidden => {
    Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event('visibilitychange'));
}"""


@pytest.fixture(scope="module")
def lab_page(lab, running_service, browser):
    running_service.reset()
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.seen, page.problems = [], []
    page.on("response", lambda response: page.seen.append(response))  # noqa: PLW0108 - playwright takes no builtin
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(f"{lab.url}lab?token={lab.token}")
    page.locator(".gpuspawner-meter").wait_for(timeout=30_000)
    yield page
    assert page.problems == []
    page.close()


@pytest.fixture
def page(lab_page, service):
    """Give the page a fresh look at a workspace that is busy and warned of nothing."""
    look_again_and_show(lab_page)
    expect(lab_page.locator(".gpuspawner-text")).to_have_text("")
    expect(lab_page.locator(".gpuspawner-meter")).to_contain_text("78 %")
    return lab_page


def look_again(page):
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def look_again_and_show(page):
    """Have the page ask once more, and wait until it has shown the answer."""
    with page.expect_response("**/gpuspawner/state") as answer:
        look_again(page)
    answer.value.finished()
    page.evaluate("new Promise(requestAnimationFrame)")


def warn(page, service, workspace, warning):
    service.document = workspace(warning=warning)
    look_again(page)
    expect(page.get_by_role("alert")).to_have_text(warning["text"])


def button(page, name):
    return page.locator(".gpuspawner-warning").get_by_role("button", name=name)


def test_the_meter_shows_use_and_the_time_left_and_says_simulated(page):
    meter = page.locator(".gpuspawner-meter")
    expect(meter).to_have_text(re.compile(r"^A100 80 GB78 %simulated3 of 80 GiB(4 h|3 h 59 min) left$"))
    look_again_and_show(page)
    expect(page.locator(".gpuspawner-spark path")).to_have_count(2)
    look_again_and_show(page)
    expect(page.locator(".gpuspawner-gpus")).to_have_text("78 %")
    assert "3.0 of 80.0 GiB used" in meter.get_attribute("title")
    assert meter.get_attribute("href").endswith("/services/gpu/workspaces/lease-7")
    expect(page.locator(".gpuspawner-warning")).to_be_hidden()


def test_unknown_is_said_and_never_shown_as_zero(page, service, workspace):
    gpus = service.document["gpus"]
    unknown = {**gpus[0], "index": 1, "utilization_percent": None, "problem": "nvidia-smi timed out"}
    service.document = workspace(gpus=[*gpus, unknown])
    look_again(page)
    expect(page.locator(".gpuspawner-gpus")).to_have_text("0:78 %1:not measured")
    assert "nvidia-smi timed out" in page.locator(".gpuspawner-meter").get_attribute("title")


def test_idle_time_counts_up_in_the_meter(page, service, workspace):
    service.document = workspace(
        idle={"state": "idle", "idle_seconds": 40, "for_seconds": 60, "because": "GPU 0 at 1 %"}
    )
    look_again(page)
    expect(page.locator(".gpuspawner-idle")).to_have_text("Idle 40 s of 1 min")


def test_a_workspace_without_a_gpu_says_so(page, service, workspace):
    service.document = workspace(gpus=[], simulated=False)
    look_again(page)
    expect(page.locator(".gpuspawner-meter")).to_have_text(re.compile(r"^No GPU.* left$"))


def test_it_links_to_where_one_goes_on_without_a_gpu_from_the_bar_and_the_warning(
    page, service, workspace, idle_warning
):
    can = {"action": "without-gpu", "words": "It stops. Running kernels are lost.", "why": None}
    warning = idle_warning(120, actions=["keep", "without-gpu"])
    service.document = workspace(warning=warning, going_on=can)
    look_again(page)
    for name in ("Without a GPU…", "Restart without GPU…"):
        link = page.get_by_role("link", name=name, exact=True)
        expect(link).to_have_attribute("href", re.compile("/services/gpu/workspaces/lease-7#go-on$"))
    assert "kernels are lost" in page.get_by_role("link", name="Without a GPU…", exact=True).get_attribute("title")
    service.document = workspace(gpus=[], going_on={**can, "action": "with-gpu"})
    look_again(page)
    expect(page.get_by_role("link", name="With a GPU…")).to_be_visible()
    service.document = workspace(going_on={**can, "why": "It is offered no more."})
    look_again(page)
    expect(page.get_by_role("link", name="GPU…")).to_have_count(0)


def test_a_restart_with_a_new_size_is_not_called_an_end(page, service, workspace, idle_warning):
    text = "Your new size is free: 2 A100 80 GB. This workspace restarts at 15:50. Save your work."
    warning = {**idle_warning(300, actions=["size-now", "size-withdraw"]), "kind": "size", "text": text}
    service.document = workspace(warning=warning)
    look_again(page)
    expect(page.get_by_role("alert")).to_contain_text("Your new size is free")
    expect(page.locator(".gpuspawner-countdown")).to_have_text(re.compile(r"^Restarts in 4 min 5\d s$"))
    expect(page.locator(".gpuspawner-warned")).to_have_text(re.compile(r"^Restarts in 4 min"))
    expect(page.get_by_role("link", name="Details")).to_be_visible()


def test_keep_by_mouse_reaches_the_service_and_says_what_it_brought(page, service, workspace, idle_warning):
    warn(page, service, workspace, idle_warning(120))
    countdown = page.locator(".gpuspawner-countdown")
    expect(countdown).to_have_text(re.compile(r"^Ends in 1 min 5\d s$"))
    first = countdown.text_content()
    expect(countdown).not_to_have_text(first)
    expect(page.locator(".gpuspawner-keeps")).to_have_text("2 keeps left")
    button(page, "Keep for 2 h").click()
    expect(page.locator(".gpuspawner-result")).to_have_text("Kept for 2 h; 1 left.")
    expect(page.get_by_role("alert")).to_have_text("")
    assert service.posts() == [("POST", "/keep", f"token {TOKEN}")]


def test_the_warning_is_reached_and_answered_by_keyboard_alone(page, service, workspace, idle_warning):
    warn(page, service, workspace, idle_warning(actions=("keep", "extend")))
    page.locator(".jp-LauncherCard").first.focus()
    page.keyboard.press("Alt+Shift+G")
    expect(button(page, "Keep for 2 h")).to_be_focused()
    page.keyboard.press("Tab")
    expect(button(page, "Extend by 4 h")).to_be_focused()
    look_again_and_show(page)
    expect(button(page, "Extend by 4 h")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".gpuspawner-result")).to_have_text("Extended: ends in 8 h.")
    assert service.posts() == [("POST", "/extend", f"token {TOKEN}")]
    expect(page.locator(".jp-LauncherCard").first).to_be_focused()


def test_a_refused_keep_says_why_and_the_warning_stays(page, service, workspace, idle_warning):
    warn(page, service, workspace, idle_warning())
    page.route("**/gpuspawner/keep", lambda route: refuse(route, service))
    button(page, re.compile("^Keep")).click()
    expect(page.locator(".gpuspawner-result")).to_have_text("Not kept: 0 of 3 Keeps are left.")
    expect(page.get_by_role("alert")).to_be_visible()
    page.unroute("**/gpuspawner/keep")


def refuse(route, service):
    """Let the service refuse this one call: the reply still comes from the real server extension."""
    service.answer = (409, b'{"error": {"message": "0 of 3 Keeps are left."}}')
    response = route.fetch()
    service.answer = None
    route.fulfill(response=response)


def test_another_workspace_of_theirs_that_came_is_told_with_the_way_to_it(page, service, workspace):
    told = {
        "id": "other",
        "text": "Another workspace of yours, train, came.",
        "page": "/services/gpu/x",
        "ends_at": 9.0,
    }
    service.document = {**workspace(), "elsewhere": [told]}
    look_again(page)
    expect(page.get_by_role("alert")).to_have_text(told["text"])
    more = page.locator(".gpuspawner-warning").get_by_role("link", name="Details", exact=True)
    assert more.get_attribute("href").endswith("/services/gpu/x")
    service.document = workspace()
    look_again(page)
    result_seconds = 8  # the result of Keep from the last test may be shown for this time
    expect(page.locator(".gpuspawner-warning")).to_be_hidden(timeout=2000 * result_seconds)


def test_close_hides_this_warning_until_half_of_its_time_has_passed(page, service, workspace, idle_warning):
    warn(page, service, workspace, idle_warning(8))
    button(page, "Close").click()
    banner = page.locator(".gpuspawner-warning")
    expect(banner).to_be_hidden()
    expect(page.locator(".gpuspawner-warned")).to_have_text(re.compile(r"^Stops in [678] s$"))
    expect(banner).to_be_visible(timeout=6_000)
    button(page, "Close").click()
    service.document = workspace(warning={**idle_warning(3600, actions=["extend"]), "kind": "expiry"})
    look_again(page)
    expect(button(page, "Extend by 4 h")).to_be_visible()


def test_text_from_the_service_is_never_markup(page, service, workspace, idle_warning):
    evil = '<img src=x onerror="window.evil = 1">'
    warn(page, service, lambda **parts: workspace(page="javascript:window.evil = 1", **parts), idle_warning(text=evil))
    assert page.locator(".gpuspawner-warning img").count() == 0
    assert page.locator(".gpuspawner-meter").get_attribute("href") is None
    expect(page.get_by_role("link", name="Details")).to_have_count(0)


def test_hidden_it_asks_nothing_and_shown_again_at_once(page, service):
    page.evaluate(SET_HIDDEN, arg=True)
    time.sleep(0.2)
    service.received.clear()
    time.sleep(2.5)
    assert service.received == []
    page.evaluate(SET_HIDDEN, arg=False)
    time.sleep(0.5)
    assert len(service.received) == 1


def test_the_service_away_is_said_and_passes(page, running_service, lab, workspace, idle_warning):
    warn(page, running_service, workspace, idle_warning())
    running_service.close()
    try:
        look_again(page)
        expect(page.locator(".gpuspawner-meter")).to_have_text("GPU service away")
        expect(page.locator(".gpuspawner-countdown")).to_have_text(re.compile("time left is not known"))
        button(page, re.compile("^Keep")).click()
        expect(page.locator(".gpuspawner-result")).to_have_text("Not kept: the GPU service is away. Try again.")
    finally:
        running_service.listen()
    expect(page.locator(".gpuspawner-meter")).to_contain_text("78 %")
    assert "Traceback" not in lab.log()


@pytest.mark.parametrize("status", [500, 502])
def test_a_hub_away_is_no_end(page, service, workspace, idle_warning, status):
    """The answer of a workspace's own server when the hub cannot identify the user, from JupyterHub's HubAuth."""
    warn(page, service, workspace, idle_warning())
    told = {"message": "Failed to connect to Hub API"}
    page.route("**/gpuspawner/state", lambda route: route.fulfill(status=status, json=told))
    look_again(page)
    meter = page.locator(".gpuspawner-meter")
    expect(meter).to_have_text("Hub away")
    assert "This workspace runs on." in meter.get_attribute("title")
    expect(page.locator(".gpuspawner-countdown")).to_have_text(re.compile("time left is not known"))
    expect(page.get_by_role("alert")).not_to_have_text(re.compile("ended"))
    page.unroute("**/gpuspawner/state")
    look_again(page)
    expect(meter).to_contain_text("78 %")


def test_a_proxy_that_finds_no_server_is_no_hub_away(page):
    """Traefik's answer for a dead server, until the hub removes its route."""
    page.route("**/gpuspawner/state", lambda route: route.fulfill(status=502, body="Bad Gateway"))
    look_again(page)
    expect(page.locator(".gpuspawner-meter")).to_have_text("Workspace ended")
    page.unroute("**/gpuspawner/state")
    look_again(page)
    expect(page.locator(".gpuspawner-meter")).to_contain_text("78 %")


def test_no_answer_at_all_is_no_end(page, service, workspace, idle_warning):
    """As of a computer that is not online, or a proxy that starts again."""
    warn(page, service, workspace, idle_warning())
    page.route("**/gpuspawner/state", lambda route: route.abort("connectionrefused"))
    meter = page.locator(".gpuspawner-meter")
    look_again(page)
    expect(meter).to_have_text("No answer", timeout=60_000)  # the second time: one question may get lost
    assert "A workspace runs on without its page." in meter.get_attribute("title")
    expect(page.locator(".gpuspawner-countdown")).to_have_text(re.compile("time left is not known"))
    expect(page.get_by_role("alert")).not_to_have_text(re.compile("ended"))
    page.unroute("**/gpuspawner/state")
    look_again(page)
    expect(meter).to_contain_text("78 %")


def test_the_workspaces_end_is_said(page):
    """The hub's answer for a stopped server. Only the open page is left of the workspace."""
    page.route("**/gpuspawner/state", lambda route: route.fulfill(status=424, json={"message": "no longer running"}))
    look_again(page)
    expect(page.get_by_role("alert")).to_have_text(re.compile("^This workspace has ended"))
    expect(page.locator(".gpuspawner-meter")).to_have_text("Workspace ended")
    expect(page.get_by_role("link", name="Details")).to_be_visible()
    expect(button(page, re.compile("^Keep"))).to_be_hidden()
    page.unroute("**/gpuspawner/state")


WHY = (
    "It was idle. The GPU has been idle for 30 min. Its highest use was 1 %. "
    "Nobody kept it in the 15 min after the warning."
)


@pytest.fixture
def stopped_page(page, lab):
    """The page of a workspace that was stopped: the hub answers for its server, and the service says why it ended."""
    asked = []

    def service_answers(route):
        asked.append(route.request.headers.get("authorization"))
        route.fulfill(json={"end": {"why": WHY}})

    page.route("**/gpuspawner/state", lambda route: route.fulfill(status=424, json={"message": "no longer running"}))
    page.route("**/hub/gpuspawner/ticket", lambda route: route.fulfill(json={"ticket": "alices-ticket"}))
    page.route("**/services/gpu/api/v1/workspaces/lease-7", service_answers)
    page.asked = asked
    yield page
    page.unroute_all()


def test_why_it_was_stopped_is_read_over_whatever_jupyterlab_says(stopped_page):
    page = stopped_page
    # JupyterLab's own dialog, as its hub extension opens it: a node over the page, which takes the focus.
    page.evaluate("""() => {
        const dialog = document.createElement('div');
        dialog.className = 'lm-Widget jp-Dialog';
        dialog.innerHTML = '<div class="jp-Dialog-content"><button id="restart">Restart</button></div>';
        document.body.append(dialog);
    }""")
    look_again(page)
    ours = page.get_by_role("dialog", name="This workspace was stopped")
    expect(ours).to_contain_text(WHY)
    expect(page.locator(".gpuspawner-warning")).to_be_hidden()  # one says it, not both
    expect(ours.get_by_role("link")).to_have_attribute("href", re.compile("/services/gpu/workspaces/lease-7$"))
    assert page.asked == ["ticket alices-ticket"]
    on_top = "() => document.elementFromPoint(innerWidth / 2, innerHeight / 2).closest('dialog')?.className"
    assert page.evaluate(on_top) == "gpuspawner-ended"
    page.evaluate("document.getElementById('restart').focus()")
    assert page.evaluate("document.activeElement.id") != "restart"
    page.keyboard.press("Escape")
    expect(ours).to_be_hidden()
    expect(page.get_by_role("alert")).to_have_text(WHY)
    look_again_and_show(page)
    expect(ours).to_be_hidden()  # told once
    page.evaluate("document.querySelector('.jp-Dialog').remove()")


def test_the_dialog_of_an_ended_workspace_goes_when_it_runs_again(stopped_page):
    page = stopped_page
    look_again(page)
    ours = page.get_by_role("dialog", name="This workspace was stopped")
    expect(ours).to_be_visible()
    page.unroute_all()
    look_again(page)
    expect(ours).to_be_hidden()
    expect(page.locator(".gpuspawner-meter")).to_contain_text("78 %")


def test_the_meter_is_seen_on_a_phone(page):
    expect(page.locator(".gpuspawner-meter")).to_contain_text("78 %")
    wide = page.viewport_size
    try:
        page.set_viewport_size({"width": 390, "height": 844})
        expect(page.locator(".gpuspawner-left")).to_be_in_viewport(ratio=1)
        expect(page.locator(".gpuspawner-value").first).to_be_in_viewport(ratio=1)
    finally:
        page.set_viewport_size(wide)


def test_the_token_is_in_no_page_no_answer_and_no_log(page, lab):
    own = [response for response in page.seen if response.url.startswith(lab.url) and response.status == 200]
    asked = [response for response in own if "/gpuspawner/" in response.url]
    assert len(asked) > 10
    for response in [own[0], *asked]:
        assert TOKEN not in response.text()
        assert TOKEN not in str(response.all_headers())
    assert TOKEN not in page.content()
    assert TOKEN not in lab.log()


def test_where_there_is_no_gpu_service_nothing_shows_and_it_asks_once(plain_lab, browser):
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/gpuspawner/state" in request.url else None)
    page.goto(f"{plain_lab.url}lab?token={plain_lab.token}")
    page.locator(".jp-Launcher").wait_for(timeout=30_000)
    time.sleep(1.5)
    assert len(asked) == 1
    assert page.locator(".gpuspawner-meter").count() == 0
    page.close()


def test_a_message_of_an_administrator_is_plain_text_and_stays_until_it_is_closed(page, service, workspace):
    said = {"id": "m1", "text": "Maintenance on <b>Friday</b>.", "by": "admin", "until_words": "Fri 18:00"}
    service.document = workspace(messages=[said])
    look_again(page)
    told = page.locator(".gpuspawner-message")
    expect(told).to_contain_text("Maintenance on <b>Friday</b>. admin, until Fri 18:00")
    expect(told.locator("b")).to_have_count(0)
    told.get_by_role("button", name="Close the message from admin").press("Enter")
    expect(told).to_have_count(0)
    look_again_and_show(page)
    expect(told).to_have_count(0)
    service.document = workspace(messages=[said, {**said, "id": "m2", "text": "It is over."}])
    look_again(page)
    expect(told).to_contain_text("It is over.")
    service.document = workspace(messages=[])  # read on a page, withdrawn, or over
    look_again(page)
    expect(told).to_have_count(0)


def test_steps_skipped_at_the_start_are_shown_until_closed(lab, service, browser):
    told = "~/.gpuspawner/env, line 2: LD_PRELOAD is refused: names that begin LD_ are the workspace's."
    answers = [{"busy": "Cloning work into your home…", "notes": []}, {"busy": "", "notes": [told]}]
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.route("**/gpuspawner/home", lambda route: route.fulfill(json=answers[0] if answers[1:] else answers[-1]))
    page.goto(f"{lab.url}lab?token={lab.token}")
    notes = page.get_by_role("region", name="Start of this workspace")
    expect(notes.get_by_role("status")).to_have_text(answers[0]["busy"], timeout=30_000)
    answers.pop(0)
    expect(notes.get_by_role("listitem")).to_have_text(told, timeout=30_000)  # it asks every 3 s
    notes.get_by_role("button", name="Close").click()
    expect(notes).to_have_count(0)
    page.close()


def test_missing_packages_are_offered_and_installed_after_confirmation(lab, service, browser):
    asked = {
        "text": "In your last session you had installed, and this image does not have: x 1.0.",
        "packages": ["x 1.0"],
    }
    answers = [{"busy": "", "notes": [], "ask": asked}, {"busy": "", "notes": ["Installed again: x 1.0."], "ask": None}]
    sent = []

    def home(route):
        if route.request.method == "POST":
            sent.append(route.request.post_data_json)
            answers.pop(0)
        route.fulfill(json=answers[0])

    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.route("**/gpuspawner/home", home)
    page.goto(f"{lab.url}lab?token={lab.token}")
    notes = page.get_by_role("region", name="Start of this workspace")
    expect(notes.get_by_text(asked["text"])).to_be_visible(timeout=60_000)
    notes.get_by_role("button", name="Always").click()
    expect(notes.get_by_role("listitem")).to_have_text("Installed again: x 1.0.")
    expect(notes.get_by_role("button")).to_have_text(["Close"])
    assert sent == [{"install": "always"}]
    page.close()
