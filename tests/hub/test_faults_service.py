"""The service dies, hangs, is doubled or loses its store: workspaces go on, and each step is taken once."""

import contextlib
import os
import resource
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest
import requests
from harness.fork_server import start_python
from harness.hub import eventually
from kills import STEPS, arm, kills, some_steps
from versions import oldest_hub

QUICK = {"slow_spawn_timeout": 0.3}
THREE = {"gpus": 3, "service_poll": 0.3, **QUICK}
ACCEPTED = {201, 202}


def begin(hub, user, **options):
    eventually(lambda: hub.begin(user, **options).status_code in ACCEPTED, what=f"the start of {user} is accepted")


def run(hub, *users, **options):
    hub.add_user(*users)
    for user in users:
        begin(hub, user, **options)
    return [hub.until(user, "running") for user in users]


def restart_service(hub):
    """Kill the service, and wait until the hub's next one answers."""
    old = hub.service_pids()
    hub.kill_service()
    eventually(lambda: set(hub.service_pids()) - set(old) and hub.gpu("/"), what="the next service answers")


@contextlib.contextmanager
def store_of(hub):
    connection = sqlite3.connect(hub.folder / "gpu" / "gpuspawner.sqlite", isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def epoch(hub) -> int:
    with store_of(hub) as store:
        return store.execute("SELECT number FROM meta WHERE name = 'epoch'").fetchone()[0]


def first_steps(hub, user) -> str:
    """Return the messages of a pending start so far, as its progress page reads them."""
    path = f"{hub.url}/hub/api/users/{user}/server/progress"
    told = ""
    with (
        requests.get(path, headers={"Authorization": "token test-admin-token-0123456789"}, stream=True, timeout=2) as r,
        contextlib.suppress(requests.RequestException),
    ):
        for chunk in r.iter_content(None, decode_unicode=True):
            told += chunk
    return told


def test_service_away_during_three_starts_which_say_so_and_start_when_it_is_back(shared_hub):
    hub = shared_hub(**THREE)
    users = ["anna", "ben", "cleo"]
    hub.add_user(*users)
    away = hub.folder / "away"
    away.touch()
    hub.plant(f"import os, time\nwhile os.path.exists({str(away)!r}): time.sleep(0.1)")
    hub.kill_service()
    for user in users:
        assert hub.begin(user).status_code == 202
    assert "does not answer. This start tries again" in first_steps(hub, "ben")
    assert hub.api("GET", "/users").status_code == 200, "the hub itself goes on"
    away.unlink()
    leases = [hub.until(user, "running") for user in users]
    assert len({gpu["id"] for lease in leases for gpu in lease["gpus"]}) == 3


def test_stale_attempt_is_ignored(shared_hub):
    hub = shared_hub(**THREE)
    run(hub, "hanna", count=3)  # who starts again without a choice has the last one
    hub.add_user("ben")
    begin(hub, "ben")
    ben = hub.until("ben", "queued")
    user = hub.api("GET", "/users/ben").json()
    ask = {"hub": (hub.folder / "gpu" / "hub-id").read_text().strip(), "user": "ben", "user_created": user["created"]}
    ask |= {"server": "", "options": {}, "start_id": "another start", "boot_id": "another hub process"}
    newer = hub.internal("/acquire", body=ask).json()
    assert (newer["lease"]["id"], newer["attempt"]) == (ben["id"], 2)
    path = f"/leases/{ben['id']}"
    for older in ("cancelled", "failed", "stopped", "died"):
        assert hub.internal(f"{path}/release", attempt=1, outcome=older).status_code == 200
    assert [hub.internal(f"{path}/{what}", attempt=1).status_code for what in ("heartbeat", "acknowledge", "park")] == [
        410
    ] * 3
    eventually(lambda: hub.server("ben") is None, what="the older start of the hub ends")
    assert hub.lease("ben")["id"] == ben["id"]
    assert hub.lease("ben")["phase"] in {"queued", "parked"}
    assert hub.internal("/acquire", body=ask).json()["attempt"] == 2, "the same start again is the same attempt"
    assert hub.internal(f"{path}/release", attempt=2, outcome="cancelled").status_code == 200
    assert hub.until_ended("ben", "cancelled")["id"] == ben["id"]


@contextlib.contextmanager
def locked(hub):
    with store_of(hub) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextlib.contextmanager
def unwritable(hub):
    """No file of the service may grow: what a full disk does to it."""
    (pid,) = hub.service_pids()
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("trouble", [locked, unwritable], ids=["locked", "disk full"])
def test_store_trouble_is_a_503_with_its_reason_and_passes_without_a_hand(shared_hub, trouble):
    hub = shared_hub(**THREE)
    (anna,) = run(hub, "anna")
    service = hub.service_pids()
    hub.add_user("ben")
    with trouble(hub):
        answer = requests.post(
            f"http://127.0.0.1:{hub.service_port}/services/gpu/api/v1/workspaces/{anna['id']}/extend",
            headers={"Authorization": "token test-admin-token-0123456789"},
            timeout=30,
        )
        assert answer.status_code == 503
        assert "The store does not answer (" in answer.json()["error"]["message"]
        check = hub.gpu("/check", "POST", {})
        assert check["sentence"].startswith("The service's database has not answered since ")
        assert (check["starts_now"], check["ends_at"]) == (False, None)
        begin(hub, "ben")
        assert hub.service_pids() == service
    assert hub.until("ben", "running")
    assert hub.gpu(f"/workspaces/{anna['id']}/extend", "POST")["ends_at"] > anna["ends_at"]
    assert hub.service_pids() == service, "it never exited"


def test_promise_2_store_lost_is_rebuilt_from_what_runs(shared_hub):
    hub = shared_hub(**THREE)
    before = run(hub, "anna", "ben", "dora")
    away = hub.folder / "away"
    away.touch()
    hub.plant(f"import os, time\nwhile os.path.exists({str(away)!r}): time.sleep(0.1)")
    hub.kill_service()
    for file in (hub.folder / "gpu").glob("gpuspawner.sqlite*"):
        file.unlink()
    away.unlink()
    for lease in before:
        rebuilt = hub.until(lease["user"], "running")
        same = ("id", "asked_at", "granted_at", "gpus", "request", "options")
        assert {name: rebuilt[name] for name in same} == {name: lease[name] for name in same}
        assert abs(rebuilt["ends_at"] - lease["ends_at"]) < 5, "its time is counted from its grant"
    hub.add_user("cleo")
    begin(hub, "cleo")
    assert hub.until("cleo", "queued"), "the GPUs are in use"
    hub.stop("anna")
    hub.until("cleo", "running")


@pytest.mark.slow  # core/test_idleness_restart.py has the rule
def test_service_restarted_every_20_minutes_of_policy_time_grace_passes_once_neither_never_nor_early(new_hub):
    # 20 policy minutes are four samples, 8 s; idleness takes 4 s, grace 10.
    scale = """
    from gpuspawner.core.idle import verdicts
    from gpuspawner.service.engine import engine
    for module in (verdicts, engine):  # each imported the number by its name
        module.LEAST_GRACE_SECONDS /= 150
    """
    policy = {"fast": 150, "sample": "5m", "idle": "10m", "grace": "25m"}
    hub = new_hub(gpus=1, service_poll=0.3, planted=scale, **policy, **QUICK)
    (anna,) = run(hub, "anna")
    until, restarts = time.monotonic() + 90, 0
    while hub.workspaces():
        assert time.monotonic() < until, "grace never passes"
        seen = samples(hub, anna)
        eventually(lambda seen=seen: not hub.workspaces() or samples(hub, anna) >= seen + 4, 40)
        restart_service(hub)
        restarts += 1
    assert restarts > 1
    lines = {action: hub.audit(anna["id"], action) for action in ("running", "warned", "stop")}
    assert {action: len(found) for action, found in lines.items()} == {"running": 1, "warned": 1, "stop": 1}
    assert lines["warned"][0]["at"] - lines["running"][0]["at"] >= 4
    assert lines["stop"][0]["at"] - lines["warned"][0]["at"] >= 10
    assert hub.last_end("anna")["end"]["reason"] == "idle"


def samples(hub, lease) -> int:
    return len(hub.gpu(f"/workspaces/{lease['id']}/readings")["readings"])


def dies_at_a_step(hub):
    hub.planted = kills(hub.folder, "gpuspawner.backends.local.backend", "LocalBackend")


@pytest.mark.parametrize("step", some_steps("marked, stop not sent", "gone, end not written"))
def test_promise_3_service_killed_at_each_step_of_a_reclaim_ends_it_once(shared_hub, step):
    times = {"fast": 60, "sample": "1m", "idle": "1m", "grace": "1m", "service_poll": 0.3}
    hub = shared_hub(dies_at_a_step, gpus=1, settings={"stop_retry_seconds": 1}, **times, **QUICK)
    user = f"user-{STEPS.index(step)}"
    (lease,) = run(hub, user)
    armed = arm(hub.folder, step)
    end = hub.until_ended(user, "idle", 60)
    assert end["id"] == lease["id"]
    assert not armed.exists(), "the service was killed there"
    assert [line["fields"]["reason"] for line in hub.audit(lease["id"], "stop")] == ["idle"]
    assert not hub.server_pids()
    assert hub.server(user) is None
    readings = hub.gpu(f"/workspaces/{lease['id']}/readings")["readings"]
    assert readings, "the readings behind the stop are kept"


def test_promise_1_two_services_at_once_the_older_writes_nothing_more(shared_hub):
    hub = shared_hub(**THREE)
    (anna,) = run(hub, "anna")
    (older,) = hub.service_pids()
    before = epoch(hub)
    command, environment = _started_as(older)
    environment.pop("GPUSPAWNER_HUB_PID")  # started by hand: no hub of its own to live and die with
    os.kill(older, signal.SIGSTOP)
    answers = []
    stale = threading.Thread(target=lambda: answers.append(_release(hub, anna)))
    with (hub.folder / "second.log").open("wb") as log:
        second = start_python(command, env=environment, stdout=log, stderr=log)
    try:
        stale.start()  # it waits at the older service's port
        eventually(lambda: epoch(hub) == before + 1, what="the second service owns the store")
        os.kill(older, signal.SIGCONT)
        eventually(lambda: not _is_running(older), 10, "the older one sees the newer epoch and goes")
        stale.join(20)
        assert answers in ([503], ["nobody"]), "what it was asked meanwhile was not done"
        held = eventually(lambda: hub.lease("anna"), what="the service that is up now shows it")
        assert (held["id"], held["phase"]) == (anna["id"], "running")
        second.wait(20)
    finally:
        second.kill()
        second.wait()
    (last,) = eventually(hub.service_pids)
    assert last not in {older, second.pid}, "the hub's own service wins in the end"
    eventually(lambda: hub.lease("anna")["phase"] == "running")
    assert hub.audit(anna["id"], "stop") == []


def _started_as(pid):
    proc = Path("/proc") / str(pid)
    command = [os.fsdecode(word) for word in (proc / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")]
    pairs = (entry.partition(b"=") for entry in (proc / "environ").read_bytes().rstrip(b"\0").split(b"\0"))
    return command, {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _stat(pid) -> list[str]:
    """State, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _is_running(pid) -> bool:
    try:
        return _stat(pid)[0] not in "ZX"
    except FileNotFoundError:
        return False


def _release(hub, lease):
    try:
        return hub.internal(f"/leases/{lease['id']}/release", attempt=1, outcome="stopped").status_code
    except requests.RequestException:
        return "nobody"


@pytest.mark.slow  # the hub's and the service's proofs have tests of their own
def test_another_hubs_service_that_took_the_port_is_named_and_never_answers_for_this_hub(new_hub):
    hub = new_hub(gpus=1, service_poll=30, wait=5, slow_spawn_timeout=10)
    hub.add_user("anna")
    other = new_hub(start=False)
    other.service_port = hub.service_port
    hub.kill_service()
    other.start()  # before the hub looks again whether its own service lives: on a busy machine that took over 20 s
    refused = hub.begin("anna", gpu="a100")
    assert refused.status_code == 503, refused.text
    assert hub.server("anna") is None
    session = hub.login("anna")
    assert session.get(f"{hub.url}/hub/home", timeout=30).status_code == 200
    assert "The GPU service does not answer" in session.get(f"{hub.url}/hub/spawn", timeout=30).text
    theirs = session.get(f"{hub.url}/services/gpu/", timeout=30)
    assert theirs.status_code == 503
    assert "The hub did not take this sign-in" in theirs.text
    assert "this may be the GPU service of another hub" in theirs.text
    assert other.workspaces(ended=5) == [], "it was not asked for a workspace"
    said = f"port {hub.service_port} is taken by the GPU service of the hub whose data_dir is {other.folder}/gpu"
    eventually(lambda: f"gpuspawner server serve: {said}" in hub.log.read_text(), 90)
    assert "Traceback" not in hub.log.read_text()
    other.terminate_hub()
    eventually(lambda: hub.gpu("/"), 150, "this hub's own service answers")
    run(hub, "anna")


def test_server_started_before_configure_is_adopted(new_hub):
    hub = new_hub(configured=False, cleanup_servers=False)
    hub.add_user("anna")
    assert hub.begin("anna").status_code in ACCEPTED
    eventually(lambda: hub.server("anna")["ready"])
    hub.terminate_hub()
    hub.configured = True
    hub.start_hub()
    anna = hub.until("anna", "running")
    assert (anna["adopted"], anna["ends_at"], anna["gpus"]) == (True, None, [])
    page = hub.login("anna").get(f"{hub.url}{anna['page']}", timeout=30).text
    assert "earlier idle time does not count" in page, "she is told what happened"
    overview = hub.login("admin").get(f"{hub.url}/services/gpu/console/", timeout=30).text
    assert "started without the GPU service, before" in overview
    hub.stop("anna")
    hub.until_ended("anna", "stopped")
    run(hub, "anna")


@pytest.mark.slow  # it waits for the hub's own bound
@oldest_hub
def test_broken_store_at_the_services_start_is_waited_for_and_told(new_hub, python):
    hub = new_hub(gpus=1, python=python, **QUICK)
    (anna,) = run(hub, "anna")
    hub.terminate_hub()
    store = hub.folder / "gpu" / "gpuspawner.sqlite"
    for left in store.parent.glob("gpuspawner.sqlite-*"):
        left.unlink()
    good = store.read_bytes()
    store.write_bytes(b"this is no database" * 500)
    hub.start_hub()
    service = eventually(hub.service_pids)
    eventually(lambda: "The store does not answer (file is not a database)" in hub.log.read_text())
    browser = hub.login("anna")
    home = f"{hub.url}/services/gpu/"
    page = eventually(lambda: "is not a database" in (seen := browser.get(home, timeout=20)).text and [seen])[0]
    assert (page.status_code, page.headers["Refresh"]) == (503, "5")
    assert "no workspace starts or stops. Tell an administrator." in page.text
    assert "nothing is lost" not in page.text
    time.sleep(13)  # JupyterHub 5 ends itself after ten seconds without an answer below 500, JupyterHub 6 after thirty
    assert hub.api("GET", "/users").status_code == 200, "the hub serves without it"
    store.write_bytes(good)
    assert hub.until("anna", "running")["id"] == anna["id"]
    assert hub.service_pids() == service
