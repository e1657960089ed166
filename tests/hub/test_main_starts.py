"""From form, API or link to a server with exactly its GPUs: at once, behind another, over the quota, after a crash."""

import html
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import requests
from harness.hub import ADMIN_TOKEN, RealHub, eventually
from versions import both_hubs


@pytest.fixture(scope="module")
def hub(python, tmp_path_factory):
    """Two GPUs; a user may hold two."""
    folder = tmp_path_factory.mktemp("starts")
    # The hub gives a silent server up after 8 s: well before the service would take its start for dropped.
    patient = {"heartbeat_seconds": 60.0}
    # A refusal that a busy machine answers late is told where the start is asked for all the same.
    extra = "c.Spawner.http_timeout = 8"
    limits = {"gpus": 2, "quota": 2, "lifetime": "2h"}
    with RealHub(folder, python=python, extra=extra, settings=patient, slow_spawn_timeout=5.0, **limits) as real:
        yield real


@pytest.fixture(autouse=True)
def _leave_nothing(hub):
    """Stop all workspaces of a test, so that the next test starts without them."""
    yield
    for lease in hub.workspaces():
        hub.stop(lease["user"], lease["server"])
    eventually(lambda: not hub.workspaces(), what="every workspace has ended")


def gpus_of(lease) -> list[str]:
    return [gpu["id"] for gpu in lease["gpus"]]


def refused_as(response: requests.Response) -> str:
    """The message of the hub's REST API."""
    return response.json()["message"]


class Events(threading.Thread):
    """Listens to the progress of a start, as the hub's page does."""

    def __init__(self, hub: RealHub, user: str):
        super().__init__(daemon=True)
        self.url, self.events = f"{hub.url}/hub/api/users/{user}/server/progress", []

    def run(self):
        headers = {"Authorization": f"token {ADMIN_TOKEN}"}
        with requests.get(self.url, headers=headers, stream=True, timeout=60) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                if line.startswith(b"data:"):
                    self.events.append(json.loads(line[5:]))

    def messages(self) -> list[str]:
        return [event.get("message", "") for event in self.events]


@both_hubs
def test_the_form_shows_itself_and_starts_only_when_it_is_sent(hub):
    session = hub.login("ann")
    page = session.get(f"{hub.url}/hub/spawn", timeout=20)
    assert page.status_code == 200
    assert "Starts now on 1 simulated A100 (2 free)." in html.unescape(page.text)
    assert hub.server("ann") is None
    sent = hub.submit(session, "ann", template="lab", gpu="a100", count="2", cpu="2", memory="2GiB", lifetime="3h")
    assert sent.status_code == 302, sent.text
    lease = hub.until("ann", "running")
    assert lease["request"] == {
        "template": "lab",
        "template_title": "Lab",
        "words": "2 simulated A100",
        "icon": "layers",
        "gpu": "a100",
        "count": 2,
        "cpu_cores": 2,
        "memory_bytes": 2 * 2**30,
        "lifetime_seconds": 3 * 3600,
        "substitutes": [],
        "team": None,
        "team_title": None,
    }
    assert lease["ends_at"] == pytest.approx(lease["running_at"] + 3 * 3600)
    assert lease["simulated"]


def test_the_form_starts_without_a_gpu(hub):
    session = hub.login("abe")
    page = session.get(f"{hub.url}/hub/spawn", timeout=20)
    kinds = re.findall(r'<input type="radio" name="gpu" value="([^"]*)"', page.text)
    assert kinds == ["", "a100", "half", "any", "none"]
    assert hub.submit(session, "abe", template="lab", gpu="none", count="1").status_code == 302
    lease = hub.until("abe", "running")
    assert (lease["request"]["gpu"], lease["request"]["count"], gpus_of(lease)) == (None, 0, [])


def test_the_form_without_its_xsrf_token_starts_nothing(hub):
    session = hub.login("anton")
    session.get(f"{hub.url}/hub/spawn", timeout=20)
    sent = session.post(f"{hub.url}/hub/spawn/anton", data={"template": "lab"}, timeout=20)
    assert sent.status_code == 403
    assert hub.server("anton") is None


def test_a_workspace_sees_exactly_its_own_gpus(hub):
    hub.add_user("bea", "ben", "bo")
    for user, options in (("bea", {}), ("ben", {}), ("bo", {"gpu": "none"})):
        assert hub.begin(user, **options).status_code in {201, 202}
    leases = {user: hub.until(user, "running") for user in ("bea", "ben", "bo")}
    seen = {}
    for user, lease in leases.items():
        environment = hub.environment(lease["id"])
        assert environment["CUDA_VISIBLE_DEVICES"] == ",".join(gpus_of(lease))
        listed = subprocess.run(["nvidia-smi", "-L"], env=environment, capture_output=True, text=True, check=False)
        seen[user] = re.findall(r"GPU-[0-9a-f-]+", listed.stdout)
    assert seen == {user: gpus_of(lease) for user, lease in leases.items()}
    assert [len(found) for found in seen.values()] == [1, 1, 0]
    assert not set(seen["bea"]) & set(seen["ben"])


def test_shares_of_one_gpu_are_two_workspaces_on_it_and_a_third_waits(hub):
    hub.add_user("cid", "cleo", "coco", "cyd", "cem")
    for user in ("cid", "cleo", "coco", "cyd"):
        assert hub.begin(user, gpu="half").status_code in {201, 202}
    leases = [hub.until(user, "running") for user in ("cid", "cleo", "coco", "cyd")]
    held = sorted(gpu for lease in leases for gpu in gpus_of(lease))
    assert held[0] == held[1] != held[2] == held[3]
    assert hub.begin("cem", gpu="half").status_code == 202
    assert hub.until("cem", "queued")["queue"]["place"] == 1


def test_a_named_server_starts_by_form_next_to_the_default_server(hub):
    hub.add_user("dan")
    assert hub.begin("dan").status_code in {201, 202}
    session = hub.login("dan")
    assert hub.submit(session, "dan", "second", template="lab", count="1").status_code == 302
    both = hub.until("dan", "running"), hub.until("dan", "running", server="second")
    assert not set(gpus_of(both[0])) & set(gpus_of(both[1]))


def test_it_goes_on_without_a_gpu_and_back_with_the_same_home(hub):
    hub.add_user("didi", "dirk")
    hub.begin("didi", count=2, lifetime="1h")
    hub.begin("dirk", count=2)
    first = hub.until("didi", "running")
    hub.until("dirk", "queued")
    (hub.folder / "homes" / "didi" / "kept.txt").write_text("kept")
    ticket = {"Authorization": f"ticket {hub.ticket('didi')}"}
    post = f"{hub.url}/services/gpu/api/v1/workspaces/{first['id']}/without-gpu"
    assert requests.post(post, headers=ticket, timeout=30).status_code == 200
    hub.until("dirk", "running")
    without = eventually(lambda: (one := hub.until("didi", "running"))["id"] != first["id"] and one)
    assert (without["request"]["gpu"], gpus_of(without), without["request"]["lifetime_seconds"]) == (None, [], 3600)
    assert hub.environment(without["id"])["CUDA_VISIBLE_DEVICES"] == ""
    hub.stop("dirk")
    hub.act("didi", without["id"], "with-gpu")
    back = eventually(lambda: (one := hub.until("didi", "running"))["id"] != without["id"] and one)
    assert (len(gpus_of(back)), back["request"]) == (2, first["request"])
    assert (hub.folder / "homes" / "didi" / "kept.txt").read_text() == "kept"


def test_a_second_tabs_start_is_told_that_it_changed_nothing(hub):
    hub.add_user("dot", "dora")
    session = hub.login("dot")
    second_tab = hub.form_url(session, "dot")
    hub.begin("dora", count=2)
    hub.until("dora", "running")
    assert hub.submit(session, "dot", template="lab", count="1").status_code == 302
    hub.until("dot", "queued")
    waits = hub.send(session, second_tab, template="lab", count="2")
    assert (waits.status_code, "This workspace is already starting or waiting</h1>" in waits.text) == (400, True)
    assert "withdraw or stop it first" in waits.text
    hub.stop("dora")
    hub.until("dot", "running")
    eventually(lambda: hub.server("dot")["ready"])
    runs = hub.send(session, second_tab, template="lab", count="2")
    assert (runs.status_code, "This workspace is already running</h1>" in runs.text) == (400, True)
    assert '<a class="gs-button gs-primary" href="/hub/home">' in runs.text
    assert hub.lease("dot")["request"]["count"] == 1


def test_every_other_error_of_the_hub_says_its_number_and_nothing_of_a_start(hub):
    session = hub.login("dot")
    for path, status in (("nothing-is-here", 404), ("accept-share", 400)):
        page = session.get(f"{hub.url}/hub/{path}", timeout=20)
        assert (page.status_code, f'gs-fine">{status}' in page.text) == (status, True)
        assert "Start changed nothing" not in page.text


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("opt-template=lab&opt-gpu=a100&opt-count=2&opt-lifetime=5h", id="with the prefix opt-"),
        pytest.param("template=lab&gpu=a100&count=2&lifetime=5h", id="without it"),
    ],
)
@pytest.mark.parametrize("path", ["/hub/spawn", "/hub/spawn/eve", "/hub/spawn/eve/named"])
def test_a_link_fills_the_form_in_and_starts_nothing(hub, path, query):
    session = hub.login("eve")
    page = session.get(f"{hub.url}{path}?{query}", timeout=20)
    assert page.status_code == 200
    assert 'value="2"' in re.search(r'<input[^>]*name="count"[^>]*>', page.text)[0]
    assert 'value="5h"' in re.search(r'<input[^>]*name="lifetime"[^>]*>', page.text)[0]
    assert re.search(r'<input[^>]*name="gpu"[^>]*value="a100"[^>]*checked', page.text)
    assert not any(w["user"] == "eve" for w in hub.workspaces(ended=50))
    assert hub.server("eve") is None
    assert hub.server("eve", "named") is None


def test_a_link_with_a_bad_value_fills_it_in_and_says_what_is_wrong(hub):
    session = hub.login("eli")
    page = session.get(f"{hub.url}/hub/spawn?opt-count=99&opt-memory=%3Cscript%3E", timeout=20)
    assert page.status_code == 200
    assert "<script>&quot;" not in page.text
    assert "You asked for '99'. Allowed: 1 to 8." in html.unescape(page.text)


def test_a_link_with_an_unavailable_choice_says_so_and_names_the_replacement(hub):
    session = hub.login("elmo")
    page = html.unescape(session.get(f"{hub.url}/hub/spawn?opt-template=nope&opt-gpu=v100", timeout=20).text)
    assert "The link asks for the workspace 'nope', which is not offered. Lab is chosen instead: " in page
    assert "The link asks for the GPU 'v100', which Lab does not offer. A100 is chosen instead: " in page
    assert "Starts now on 1 simulated A100" in page


@both_hubs
def test_a_waiting_user_sees_the_place_and_gets_the_gpu_of_a_stopped_workspace(hub):
    hub.add_user("fay", "fred", "fritz")
    hub.begin("fay", count=2)
    held = gpus_of(hub.until("fay", "running"))
    assert hub.begin("fred", count=2).status_code == 202
    hub.until("fred", "queued")
    assert hub.begin("fritz").status_code == 202
    hub.until("fritz", "queued")
    listeners = Events(hub, "fred"), Events(hub, "fritz")
    for listener in listeners:
        listener.start()
    first = "All 2 simulated A100 are in use, and you need 2. You are 1st in line. "
    eventually(lambda: any(first in m for m in listeners[0].messages()), what="fred sees that he is first")
    eventually(lambda: any("You are 2nd in line. " in m for m in listeners[1].messages()), what="fritz is second")
    queue = hub.gpu("/queue")["queue"]
    assert [(waiter["user"], waiter["place"], waiter["count"]) for waiter in queue] == [("fred", 1, 2), ("fritz", 2, 1)]
    hub.stop("fay")
    assert sorted(gpus_of(hub.until("fred", "running"))) == sorted(held)
    eventually(lambda: any("You are 1st in line. " in m for m in listeners[1].messages()), what="fritz is first")
    eventually(lambda: listeners[0].events[-1].get("ready"), what="the last event says that it is ready")
    assert (
        "Got 2 simulated A100; starting." in listeners[0].messages()
        or "Starting on 2 simulated A100." in listeners[0].messages()
    )
    assert not any(event.get("failed") for event in listeners[0].events)
    progress = [event["progress"] for event in listeners[0].events]
    assert progress == sorted(progress)
    hub.stop("fred")
    assert len(gpus_of(hub.until("fritz", "running"))) == 1


@both_hubs
def test_the_hard_quota_refuses_alike_by_form_api_and_check(hub):
    hub.add_user("gil")
    hub.begin("gil")
    hub.until("gil", "running")
    message = (
        "GPUs: You asked for 2. Allowed: 2 per user. You use or wait for 1. "
        "Ask for 1, or ask an administrator to raise the quota."
    )
    by_api = hub.begin("gil", "second", count=2)
    assert (by_api.status_code, refused_as(by_api)) == (403, message)
    session = hub.login("gil")
    by_form = hub.submit(session, "gil", "third", template="lab", count="2")
    assert by_form.status_code == 403
    assert message in html.unescape(by_form.text)
    token = hub.api("POST", "/users/gil/tokens", {}).json()["token"]
    checked = requests.post(
        f"{hub.url}/services/gpu/api/v1/check",
        headers={"Authorization": f"token {token}"},
        json={"count": 2, "server": "second"},
        timeout=20,
    )
    error = checked.json()["error"]
    assert (checked.status_code, error["message"]) == (403, message)
    assert error["field"] == "count"
    assert (hub.server("gil", "second") or {}).get("ready") in {None, False}
    assert [w["server"] for w in hub.workspaces() if w["user"] == "gil"] == [""]
    assert hub.begin("gil", "second", count=1).status_code in {201, 202}, "what is left of the quota is given"
    hub.until("gil", "running", server="second")


def test_neither_a_link_nor_a_refusal_left_a_traceback_in_the_hubs_log(hub):
    lines = hub.log.read_text().splitlines()
    assert [line for line in lines if "Traceback" in line] == []
    told = [line for line in lines if "Failed to spawn single-user server" in line]
    assert [line for line in told if "Allowed: 2 per user" not in line] == [], "each is told in its one line"


@both_hubs
def test_a_server_that_dies_by_itself_ends_as_failed_and_its_gpu_goes_to_the_next(hub):
    hub.add_user("hal", "hank")
    hub.begin("hal", count=2)
    lease = hub.until("hal", "running")
    hub.begin("hank", count=2)
    hub.until("hank", "queued")
    for pid in hub.workspace_pids(lease["id"]):
        os.kill(pid, signal.SIGKILL)
    end = hub.until_ended("hal", "failed")
    assert end["end"]["message"] == "Its server ended by itself. Your files are untouched."
    assert gpus_of(hub.until("hank", "running")) == gpus_of(lease)
    page = hub.login("hal").get(f"{hub.url}/hub/home?hub", timeout=20)
    assert page.status_code == 200
    form = hub.login("hal").get(f"{hub.url}/hub/spawn", timeout=20)
    assert "Its server ended by itself." in form.text, "the next form says how the last one ended"


@both_hubs
def test_a_server_that_cannot_start_gives_its_gpu_back_and_says_so(hub):
    hub.add_user("ida", "ina")
    home = Path(hub.folder) / "homes" / "ida" / "fails"
    home.parent.mkdir()
    home.touch()
    try:
        answer = hub.begin("ida", count=2)
        assert answer.status_code in {202, 409}
        assert hub.until_ended("ida", "failed", 60)["running_at"] is None
    finally:
        home.unlink()
    hub.begin("ina", count=2)
    hub.until("ina", "running")
