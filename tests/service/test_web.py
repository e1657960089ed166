"""The service's pages over HTTP: who sees what, what a form does, what an error says."""

import builtins
import re
import time
from dataclasses import replace

import page_world
import pytest
import requests
from page_world import NOW, Browser, world_fixture

from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Group, Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.request import Next, SizeChange
from gpuspawner.core.queue.calibration import Form, ShownStart
from gpuspawner.service.web import base

world = world_fixture(is_observed=False)


def test_an_empty_home_says_what_to_do_next(world):
    text = Browser(world, "alice").home.text
    assert "Start your first workspace" in text
    assert 'href="/hub/spawn?opt-template=pytorch"' in text
    assert "PyTorch on 1 × A100 80 GB" in text
    assert 'href="/hub/spawn"' in text
    assert "Not known" in text  # the fleet was never seen: no number is made up
    assert "0 of" not in text


@pytest.mark.parametrize(
    ("mode", "keeps", "says"),
    [
        ("observe", 3, "GPU idle? Nothing stops your workspace for it. Stop it when you are done."),
        ("warn", 3, "GPU idle for 30 min? You get a warning."),
        ("enforce", 3, "GPU idle for 30 min? You get a warning. It stops 10 min later unless you keep it."),
        ("enforce", 0, "GPU idle for 30 min? You get a warning. It stops 10 min later."),
    ],
)
def test_an_empty_home_promises_only_what_the_policy_does(make_web_world, mode, keeps, says):
    default = {**page_world.CATALOG["policies"]["default"], "mode": mode, "keep": {"times": keeps}}
    world = make_web_world(load_catalog({**page_world.CATALOG, "policies": {"default": default}}))
    words = re.sub(r"<[^>]+>", "", Browser(world, "alice").home.text)
    assert re.search(r"GPU idle.*", words)[0] == says


@pytest.mark.parametrize("name", ["%00", "gs.css%00", "a/%00/b", "x" * 5000, "%2e%2e/base.py", "%ff", ""])
def test_a_garbage_name_of_a_static_file_is_never_a_500(world, name):
    assert requests.get(f"{world.home}static/{name}", timeout=20).status_code in {400, 403, 404}


def test_home_shows_ones_own_workspaces_and_how_many_wait_without_names(world):
    world.observe()
    world.save(page_world.running(user="alice", gpus=(0, 1, 2)))
    world.save(page_world.running("bobs", user="bob", gpus=(3,), server="other"))
    world.save(page_world.waiting("carols", user="carol", count=2))
    world.save(page_world.reclaimed("mine"))
    text = Browser(world, "alice").home.text
    assert "3 \N{MULTIPLICATION SIGN} A100 80 GB · PyTorch" in text
    assert "1 running" in text
    assert "None free" in text
    assert "1 request waiting" in text
    assert "carol" not in text
    assert "bob" not in text
    assert "Stopped: its GPU was idle for 40 min" in text
    assert "Simulated GPUs" in text


def test_the_page_of_a_waiting_request_shows_the_line_and_names_to_administrators_alone(world):
    world.observe()
    world.save(page_world.running("bobs", user="bob", gpus=(0, 1, 2, 3)))
    world.save(page_world.waiting("carols", user="carol", count=2, asked_at=NOW - 400))
    world.save(page_world.waiting("mine", user="alice", count=1))
    text = Browser(world, "alice").look("workspaces/mine").text
    assert "You are 2nd of 2 in line" in text
    assert "Someone, 2 simulated A100 80 GB" in text
    assert "<b>You</b>, 1 simulated A100 80 GB" in text
    assert "carol" not in text
    assert "Full queue" not in text
    told = Browser(world, "admin").look("workspaces/mine").text
    assert "carol, 2 simulated A100 80 GB" in told
    assert "Full queue" in told
    assert "2nd of 2 in line" in told
    assert not re.search(r"\bYou (are|need)\b|your place", told)
    assert "Your place is kept" in text


@pytest.mark.parametrize(
    ("nodes", "held", "offered"),
    [(("a",) * 4, 3, 1), (("a", "a", "b", "b"), 0, 2), (("a", "a", "b", "b"), 1, 2), (("a",) * 4, 4, None)],
    ids=["one is free", "two nodes", "three are free on two nodes", "none is free"],
)
def test_a_start_with_fewer_gpus_is_offered_for_as_many_as_are_free_on_one_node(world, nodes, held, offered):
    for gpu, node in zip(page_world.GPUS, nodes, strict=True):
        world.backend.change_gpu(gpu.id, node=node)
    world.observe()
    if held:
        world.save(page_world.running("bobs", user="bob", gpus=range(held)))
    world.save(page_world.waiting("mine", user="alice", count=4 if len(set(nodes)) == 1 else 3))
    standing = page_world.api(world, "alice", "workspaces/mine").json()["queue"]
    assert standing["startable_count"] == offered


@pytest.mark.parametrize(("to_seconds", "is_range"), [(901.0, False), (1900.0, True)])
def test_a_range_within_a_minute_has_its_end_alone(world, monkeypatch, to_seconds, is_range):
    world.observe()
    world.save(page_world.running("bobs", user="bob", gpus=range(4)))
    world.save(page_world.waiting("mine", user="alice"))
    shown = ShownStart(Form.HOUR, None, 900.0, to_seconds)
    monkeypatch.setattr(world.parts.allocator.estimator, "shown", lambda _: shown)
    alice = Browser(world, "alice")
    for page in (alice.home.text, alice.look("workspaces/mine").text):
        assert ("<dt>From</dt>" in page, "<dt>By</dt>" in page) == (is_range, True)


def test_a_home_page_is_complete_while_another_page_reads_the_store(world, monkeypatch):
    world.observe()
    world.save(page_world.waiting("bobs", user="bob"))
    store = world.parts.store
    read = store.read

    async def slow(function, *arguments):
        found = await read(function, *arguments)
        if function == store.leases.ended and world.parts.registry.get("carols") is None:
            await world.parts.registry.save(page_world.waiting("carols", user="carol", asked_at=NOW - 10))
        return found

    world.call(monkeypatch.setattr, store, "read", slow)
    assert Browser(world, "alice").home.status_code == 200
    assert Browser(world, "bob").home.status_code == 200


def test_administrators_alone_find_the_console(world):
    assert 'href="/services/gpu/console/"' in Browser(world, "admin").home.text
    assert 'href="/services/gpu/console/"' not in Browser(world, "alice").home.text


def test_a_workspaces_page_tells_which_gpus_those_are_that_are_only_counted(world):
    world.observe()
    counted = Group("one", "gpu.nvidia.com/a100").gpu(0)
    world.save(page_world.running("claimed", slots=(Slot(counted),), uuids=("GPU-b",)))
    world.save(page_world.running("named", server="other", gpus=(1,)))
    alice = Browser(world, "alice")
    assert 'title="GPU-b"' in alice.look("workspaces/claimed").text
    own = page_world.GPUS[1].id
    assert alice.look("workspaces/named").text.count(f'title="{own}"') == 1
    assert f"<code>{own}</code>" in Browser(world, "admin").look("workspaces/named").text


def test_another_persons_workspace_does_not_exist(world):
    world.save(page_world.running(user="bob"))
    alice = Browser(world, "alice")
    assert "You have no workspace with the id runs." in alice.look("workspaces/runs", 404).text
    alice.submit("workspaces/runs/stop", 404)
    assert world.lease("runs").phase is Phase.RUNNING


@pytest.mark.parametrize(
    "path",
    ["workspaces/%0d%0aSet-Cookie:%20a=b", "workspaces/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "workspaces/ü", "x"],
)
def test_a_missing_page_is_a_proper_page_for_every_address(world, path):
    response = Browser(world, "alice").look(path, 404)
    assert "Not found" in response.text
    assert "<script>alert" not in response.text
    assert "a=b" not in response.headers.get("Set-Cookie", "")
    assert "Traceback" not in response.text


def test_an_unknown_address_tells_who_looks_and_its_script_may_listen(world):
    page = Browser(world, "alice").look("nothing/here", 404)
    assert "There is nothing at this address." in page.text
    assert "<b>alice</b>" in page.text
    assert 'data-version=""' not in page.text
    nobody = requests.get(f"{world.home}nothing/here")
    assert (nobody.status_code, "Log out" in nobody.text, "workspace.js" in nobody.text) == (404, False, False)


def test_an_unknown_address_of_the_api_answers_json(world):
    response = requests.get(f"{world.home}api/v1/nothing")
    assert (response.status_code, response.json()) == (404, {"error": {"message": "There is nothing at this address."}})


def test_every_page_is_protected_by_its_headers(world):
    alice = Browser(world, "alice")
    for response in (alice.home, alice.look("nothing", 404)):
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy.replace("style-src-attr 'unsafe-inline'", ""), "only the width of a bar is inline"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"
    assert not re.search(r"\son\w+=|<script>|<style", alice.home.text)
    assert not re.search(r'\sstyle="(?!(width|left|--\w+):[\d.]+%?")', alice.home.text), "only lengths of bars"


def test_keep_extend_and_stop_by_form(world):
    world.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    world.save(page_world.in_grace("mine"))
    alice = Browser(world, "alice")
    page = alice.look("workspaces/mine").text
    assert "Keep for 2 h</button>" in page
    assert "3 keeps left" in page
    kept = alice.submit("workspaces/mine/keep")
    assert kept.url == f"{world.home}workspaces/mine"
    assert "Kept until" in kept.text
    assert world.lease("mine").phase is Phase.RUNNING
    before = world.lease("mine").deadline_at
    alice.submit("workspaces/mine/extend")
    assert world.lease("mine").deadline_at == before + 4 * 3600
    alice.submit("workspaces/mine/stop")
    lease = world.lease("mine")
    assert (lease.phase, lease.reason, lease.ended_by) == (Phase.STOPPING, ExitReason.STOPPED, "alice")
    assert world.servers == {}


def test_a_workspace_on_a_gpu_that_failed_offers_to_move_it_with_one_click(world):
    world.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    world.save(page_world.running("mine", unhealthy=("GPU-0",)))
    alice = Browser(world, "alice")
    text = alice.look("workspaces/mine").text
    assert "We are told that its GPU is unhealthy" in text
    assert 'action="/services/gpu/workspaces/mine/move"' in text
    alice.submit("workspaces/mine/move")
    lease = world.lease("mine")
    assert (lease.phase, lease.reason, lease.ended_by) == (Phase.STOPPING, ExitReason.MOVED, "alice")
    assert "You moved it to other GPUs" in alice.look("workspaces/mine").text
    again = alice.submit("workspaces/mine/move")  # from another tab
    assert 'role="alert"' not in again.text
    ended = world.save(replace(lease, phase=Phase.ENDED, ended_at=NOW))
    assert 'role="alert"' not in alice.submit("workspaces/mine/move").text
    assert world.lease("mine") == ended


def test_a_move_of_what_stops_for_another_reason_says_that_it_stops(world):
    stopping = {"phase": Phase.STOPPING, "reason": ExitReason.STOPPED, "ended_by": "alice", "message": "Stopped."}
    world.save(page_world.running("mine", unhealthy=("GPU-0",), **stopping))
    assert "This workspace is stopping already." in Browser(world, "alice").submit("workspaces/mine/move", 409).text


def test_an_impossible_action_is_reported_on_the_page_with_the_reason(world):
    world.save(page_world.running("mine", keeps_used=3))
    page = Browser(world, "alice").submit("workspaces/mine/keep", 409)
    assert "Keep: You asked for one more. 3 of 3 are used." in page.text
    assert "Time left" in page.text


@pytest.mark.parametrize("action", ["keep", "extend", "move", "stop", "seen", "dispute", "answer"])
def test_a_get_request_changes_nothing(world, action):
    before = world.save(page_world.in_grace("mine"))
    ended = world.save(page_world.reclaimed("gone"))
    alice = Browser(world, "alice")
    for lease in ("mine", "gone"):
        assert alice.look(f"workspaces/{lease}/{action}").url == f"{world.home}workspaces/{lease}"
    assert (world.lease("mine"), world.lease("gone")) == (before, ended)


@pytest.mark.parametrize("token", ["", "forged"])
def test_a_forged_form_changes_nothing(world, token):
    before = world.save(page_world.in_grace("mine"))
    alice = Browser(world, "alice")
    response = alice.post(f"{world.home}workspaces/mine/stop", data={"_xsrf": token})
    assert response.status_code == 403
    assert "Nothing was done." in response.text
    assert world.lease("mine") == before


def test_a_waiting_workspace_shows_its_place_and_can_be_withdrawn(world):
    world.observe()
    world.save(page_world.running("bobs", user="bob", gpus=(0, 1, 2)))
    world.save(page_world.waiting("mine", user="alice", count=2))
    alice = Browser(world, "alice")
    text = alice.look("workspaces/mine").text
    assert "1 of 4 simulated A100 80 GB are free, and you need 2." in text
    assert "You are 1st of 1 in line" in text
    assert "You are 1st in line." not in text, "its position is said once"
    assert "Work without a GPU meanwhile" not in text, "its default workspace is the one that waits"
    alice.submit("workspaces/mine/stop")
    lease = world.lease("mine")
    assert (lease.phase, lease.reason) == (Phase.ENDED, ExitReason.CANCELLED)
    text = alice.look("workspaces/mine").text
    assert "You withdrew the request at " in text
    assert "Nothing was lost." in text


def test_a_user_whose_default_workspace_is_free_may_work_there_without_a_gpu_meanwhile(world):
    world.observe()
    named = page_world.waiting("mine", user="alice")
    world.save(replace(named, key=replace(named.key, server="big")))
    text = Browser(world, "alice").look("workspaces/mine").text
    link = re.search(r'href="([^"]+)"[^>]*>Start without GPU', text)[1].replace("&amp;", "&")
    assert link.startswith("/hub/spawn/alice?opt-template=pytorch&opt-gpu=none")
    world.save(page_world.running("runs", gpus=()))
    assert "Start without GPU" not in Browser(world, "alice").look("workspaces/mine").text


def test_the_page_of_an_end_says_the_reason_the_loss_and_the_way_back(world):
    at = NOW - 600
    lease = page_world.reclaimed("gone")
    rows = page_world.readings(lease, [80] * 30 + [1] * 41, until=at, kept=True)
    world.save(lease, page_world.reclaimed_audit(at), rows)
    text = Browser(world, "alice").look("workspaces/gone").text
    for words in (
        f"We stopped it at {time.strftime('%H:%M', time.localtime(at))} because its GPU was idle for 40 min.",
        "Its highest use in that time was 1 %. Nobody kept it",
        "<b>Running kernels</b> and their variables",
        "<b>3 GiB</b> of GPU memory that they held",
        "<b>All files</b> in your home folder, as last saved",
        "This decided",
        "Idle for 41 min",
        time.strftime("%Z", time.localtime(at)),
        "Requested: pytorch, 1 a100, 8 h",
    ):
        assert words in text
    again = re.search(r'href="([^"]+)"[^>]*><svg[^>]*><use[^>]*></svg>Start again', text)[1].replace("&amp;", "&")
    assert again.startswith("/hub/spawn/alice?opt-template=pytorch&opt-gpu=a100&")
    assert "opt-lifetime=28800s" in again
    without = re.search(r'href="([^"]+)"[^>]*><svg[^>]*><use[^>]*></svg>Start without GPU', text)[1]
    assert "opt-gpu=none" in without
    assert "opt-count" not in without


@pytest.mark.parametrize(
    ("names", "lost", "page", "asks"),
    [
        pytest.param(
            ("a.ipynb",),
            ["<b>1 running kernel</b> a.ipynb, with its variables", "<b>3 GiB</b> of GPU memory that it held"],
            "<dt>Kernels</dt><dd>a.ipynb</dd>",
            "You lose 1 running kernel, terminals and 3 GiB of GPU memory.",
            id="one",
        ),
        pytest.param(
            ("<b>", "c", "d", "e", "f"),
            ["<b>5 running kernels</b> &lt;b&gt;, c, d and 2 more, with their variables"],
            "<dt>Kernels</dt><dd>&lt;b&gt;, c, d, e, f</dd>",
            "You lose 5 running kernels, terminals and 3 GiB of GPU memory.",
            id="many",
        ),
        pytest.param(
            (),
            ["<b>3 GiB</b> of GPU memory that programs held"],
            "<dt>Kernels</dt><dd>No kernel runs</dd>",
            "You lose terminals and 3 GiB of GPU memory.",
            id="none",
        ),
    ],
)
def test_pages_name_the_kernels_that_run_and_those_that_were_lost(world, names, lost, page, asks):
    for lease in (page_world.running("runs", kernels=names), page_world.reclaimed("gone", kernels=names)):
        world.save(lease, readings=page_world.readings(lease, [1] * 5, until=lease.sampled_at))
    alice = Browser(world, "alice")
    running, ended = (alice.look(f"workspaces/{name}").text for name in ("runs", "gone"))
    assert page in running
    assert asks in running
    assert all(words in ended for words in lost)
    assert ("running kernel" in ended) is bool(names)


@pytest.mark.parametrize(("step", "stops"), [("at once", True), ("withdraw", False)])
def test_the_notice_of_a_new_size_restarts_it_now_or_keeps_it(world, step, stops):
    world.observe()
    after = Next(page_world.request(count=2), {"template": "pytorch", "gpu": "a100", "count": 2})
    change = SizeChange(after, NOW - 900, "alice", "its page", NOW + 480)
    world.save(page_world.running("runs", size_change=change, assigned=(Slot(page_world.GPUS[1].id),)))
    alice = Browser(world, "alice")
    for page in ("", "workspaces/runs"):
        text = alice.look(page).text
        at = time.strftime("%H:%M:%S", time.localtime(NOW + 480))
        assert f"This workspace restarts at {at}, in 8 min. Save your work." in text
        assert "We tell you before it restarts" not in text
        assert [words for words in ("Restart now", "Not now") if words in text] == ["Restart now", "Not now"]
    alice.submit("workspaces/runs/size", step=step)
    lease = world.lease("runs")
    assert (lease.size_change, lease.assigned) == (None, ())
    assert lease.reason is (ExitReason.CHANGED if stops else None)


def test_only_its_user_marks_an_end_as_read(world):
    world.save(page_world.reclaimed("gone"))
    admin = Browser(world, "admin")
    assert "Mark as read" not in admin.look("workspaces/gone").text
    admin.submit("workspaces/gone/seen", 403)
    assert not world.lease("gone").seen_by_user
    alice = Browser(world, "alice")
    assert 'title="Unread"' in alice.home.text
    assert "Mark as read" in alice.look("workspaces/gone").text
    alice.submit("workspaces/gone/seen")
    assert world.lease("gone").seen_by_user
    assert "Mark as read" not in alice.look("workspaces/gone").text
    assert 'title="Unread"' not in alice.look("").text


@pytest.mark.parametrize(
    ("phase", "words"),
    [(Phase.RUNNING, "It runs again."), (Phase.PARKED, "It is waiting again."), (Phase.STOPPING, "")],
)
def test_the_page_of_an_end_leads_to_the_workspace_that_came_after_it(world, phase, words):
    world.save(page_world.reclaimed("gone"))
    alice = Browser(world, "alice")
    world.save(page_world.running("other", server="other", gpus=(1,)))
    assert "Start again</a>" in alice.look("workspaces/gone").text
    world.save(page_world.running("next", phase=phase, reason=None if words else ExitReason.STOPPED))
    text = alice.look("workspaces/gone").text
    assert (f'{words} <a href="/services/gpu/workspaces/next">Go to the new one</a>' in text) == bool(words)
    assert ("Start again</a>" in text) == (not words)
    assert "Mark as read" in text


def test_readings_thinned_since_are_not_drawn_as_gaps(world):
    at = NOW - 3 * 86400
    lease = page_world.reclaimed("gone", at=at, reason=ExitReason.STOPPED, ended_by="alice", message="It was stopped.")
    world.save(lease, page_world.reclaimed_audit(at), page_world.readings(lease, [1] * 10, until=at))
    text = Browser(world, "alice").look("workspaces/gone").text
    assert "we keep only the highest of every ten minutes" in text
    assert 'class="gs-chart"' not in text


def test_the_tab_tells_the_state_and_the_navigation_where_one_is(world):
    assert "gpu.svg" in icon(Browser(world, "alice").home.text)
    world.save(page_world.waiting("mine", user="alice"))
    alice = Browser(world, "alice")
    assert "gpu-waiting.svg" in icon(alice.home.text)
    assert re.search(r'<a href="/services/gpu/quota" aria-current="page">.*Usage</a>', alice.look("quota").text)
    assert "console" not in re.search(r"<header.*</header>", alice.home.text, re.DOTALL)[0]
    assert re.search(r'<a id="logout" href="/hub/logout">.*Log out</a>', alice.home.text)
    world.save(page_world.in_grace("warned", server="train"))
    assert "gpu-warned.svg" in icon(alice.look("").text)


def icon(text):
    return re.search(r'<link rel="icon"[^>]*>', text)[0]


def test_text_of_people_and_errors_is_escaped(world):
    world.save(page_world.reclaimed("gone", message="<img src=x onerror=alert(1)>", ended_by="<b>eve</b>"))
    text = Browser(world, "alice").look("workspaces/gone").text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<img src=x" not in text


def test_an_adopted_server_is_shown_for_what_is_known_of_it(world):
    lease = page_world.running("old", gpus=(), deadline_at=None, adopted=True)
    world.save(replace(lease, request=replace(lease.request, template="")))
    text = Browser(world, "alice").look("workspaces/old").text
    assert "Started without the GPU service" in text
    assert "No set end" in text


def test_the_store_away_is_a_503_with_the_reason(world, monkeypatch):
    alice = Browser(world, "alice")

    def fail(*_):
        raise Unavailable("The store does not answer (locked).")

    monkeypatch.setattr(world.parts.store.leases, "ended", fail)
    assert "The store does not answer (locked)." in alice.look("", 503).text


def test_promise_5_a_second_click_on_extend_takes_no_second_step(world):
    world.save(page_world.running("mine"))
    alice = Browser(world, "alice")

    def left(page):
        return re.search(r'name="left" value="([^"]+)"', page.text)[1]

    seen = alice.look("workspaces/mine")
    once = alice.submit("workspaces/mine/extend", left=left(seen))
    ends_at = world.lease("mine").deadline_at
    alice.submit("workspaces/mine/extend", left=left(seen))
    assert world.lease("mine").deadline_at == ends_at
    alice.submit("workspaces/mine/extend", left=left(once))
    assert world.lease("mine").deadline_at > ends_at


def test_home_tells_of_each_stopped_server_and_how_to_start_it_again(world):
    def ended(name, server, ago):
        gone = page_world.reclaimed(name, at=NOW - ago)
        world.save(replace(gone, key=replace(gone.key, server=server), seen_by_user=True))

    for number in range(8):
        ended(f"often-{number}", "train", 600 + number)
    ended("old", "nightly", 9000)
    ended("ran", "", 9001)
    world.save(page_world.running("now"))
    text = Browser(world, "alice").home.text
    again = re.findall(r'aria-label="Start again: ([^"]*)"', text)
    assert again == ["train", "nightly"]  # the default one runs; each once, however often it ended
    assert 'href="/hub/spawn/alice/nightly?opt-template=pytorch' in text
    assert len(re.findall(r'workspaces/often-\d"', text)) == 5


@pytest.mark.parametrize(("name", "who"), [("alice", "You"), ("admin", "alice")])
def test_a_restarted_workspace_was_not_stopped(world, name, who):
    world.save(page_world.reclaimed("gone", reason=ExitReason.CHANGED, ended_by="alice"))
    text = Browser(world, name).look("workspaces/gone").text
    assert re.search(f"<h2[^>]*>{who} restarted it without a GPU at ", text)
    assert "because" not in text


def test_no_template_is_read_from_its_file_once_the_service_has_started(monkeypatch):
    def refuse(name, *_arguments, **_named):
        pytest.fail(f"{name} is read again")

    base.templates.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", refuse)
        found = {name: base.templates().get_template(name) for name in base._TEMPLATES}
    assert {"home.html", "admin_overview.html"} < found.keys()
    assert all(one.is_up_to_date for one in found.values())
    assert found["home.html"].filename.endswith("templates/home.html"), "a traceback says where"
