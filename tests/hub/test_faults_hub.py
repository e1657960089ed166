"""The hub dies, is shut down, or is told to cancel: no lease, place or GPU is lost or doubled."""

import concurrent.futures

import pytest
import requests
from harness.hub import eventually
from versions import both_hubs, newest_hub

QUICK = {"slow_spawn_timeout": 0.3, "service_poll": 0.3}
PARKS = {"wait": 0.5, "slow_spawn_timeout": 3, "failure_limit": 3}
IDLE_SOON = {"fast": 60, "sample": "3m", "idle": "3m", "grace": "2h"}
"""Three seconds of idleness, read at once, begin a grace of two minutes."""
ACCEPTED = {201, 202}


def begin(hub, user, **options):
    """Press Start as soon as the hub takes it; return the waiting or running lease."""
    eventually(lambda: hub.begin(user, **options).status_code in ACCEPTED, what=f"the start of {user} is accepted")


def run(hub, *users):
    hub.add_user(*users)
    for user in users:
        begin(hub, user)
    return [eventually(lambda user=user: is_up(hub, user) and hub.lease(user)) for user in users]


def wait_in_line(hub, user):
    hub.add_user(user)
    begin(hub, user)
    return hub.until(user, "queued")


def end_of(hub, lease):
    """How a lease ended: whose user may have had others."""
    return eventually(lambda: hub.gpu(f"/workspaces/{lease['id']}")["end"], what=f"{lease['user']}'s ends")


def is_same(lease, before):
    """The very lease at its very place: nothing was lost, nothing made twice."""
    return (lease["id"], lease["asked_at"]) == (before["id"], before["asked_at"])


def assert_disjoint_and_single(hub):
    """Assert one process for each running workspace, no other process, and no GPU twice."""
    running = [lease for lease in hub.workspaces() if lease["phase"] in {"running", "reclaiming"}]
    gpus = [gpu["id"] for lease in running for gpu in lease["gpus"]]
    assert len(set(gpus)) == len(gpus)
    assert [len(hub.server_pids(lease["id"])) for lease in running] == [1] * len(running)
    assert len(hub.server_pids()) == len(running)


@newest_hub  # both are killed, and ended, while one waits below
def test_promise_2_hub_killed_while_a_user_is_queued_who_then_presses_start(shared_hub, python):
    hub = shared_hub(python=python, gpus=1, **QUICK)
    run(hub, "anna")
    ben, cleo = wait_in_line(hub, "ben"), wait_in_line(hub, "cleo")
    hub.kill_hub()
    hub.start_hub()
    begin(hub, "ben")
    assert is_same(hub.until("ben", "queued"), ben)
    hub.stop("anna")
    assert is_same(hub.until("ben", "running"), ben)
    assert is_same(hub.lease("cleo"), cleo)
    assert hub.lease("cleo")["phase"] in {"queued", "parked"}
    assert_disjoint_and_single(hub)
    hub.stop("ben")
    assert is_same(hub.until("cleo", "running"), cleo), "whom nobody listened for starts by itself"


@both_hubs
def test_cancel_by_page_and_by_api_while_waiting_and_while_starting(shared_hub, python):
    hub = shared_hub(python=python, gpus=1, **QUICK)
    begun = len(hub.log.read_text())
    run(hub, "anna")
    # Users without a recent stop: otherwise the service takes the hub's cancel for its own and starts them again.
    for user, by_page in (("gina", True), ("hugo", False)):
        lease = wait_in_line(hub, user)
        cancel(hub, lease, by_page)
        assert end_of(hub, lease)["reason"] == "cancelled"
    hub.stop("anna")
    for user, by_page in (("dora", True), ("emil", False)):
        hub.add_user(user)
        hub.delay(user, "before-start", 60)
        begin(hub, user)
        lease = hub.until(user, "starting")
        cancel(hub, lease, by_page)
        assert end_of(hub, lease)["reason"] == ("stopped" if by_page else "cancelled")
    run(hub, "fay")  # the one GPU is free again
    assert [lease["user"] for lease in hub.workspaces()] == ["fay"]
    assert "] 500 " not in hub.log.read_text()[begun:]


def cancel(hub, lease, by_page):
    if by_page:
        hub.end(lease["id"])
    else:
        assert hub.stop(lease["user"]).status_code in {202, 204}
    eventually(lambda: hub.server(lease["user"]) is None, what="the hub has no server of it")


@newest_hub
def test_server_stopped_while_the_service_is_away_was_stopped_not_failed(shared_hub, python):
    hub = shared_hub(python=python, gpus=1, **QUICK)
    (anna,) = run(hub, "anna")
    away = hub.folder / "away"
    away.touch()
    hub.plant(f"import os, time\nwhile os.path.exists({str(away)!r}): time.sleep(0.1)")
    hub.kill_service()
    hub.stop("anna")
    eventually(lambda: hub.server("anna") is None)
    away.unlink()
    end = end_of(hub, anna)
    # Who stopped it is known as soon as the hub has told the service, which may be before or after this.
    assert (end["reason"], "from the hub" in end["message"]) == ("stopped", True)
    assert len(hub.audit(anna["id"], "stop")) == 1


@pytest.mark.parametrize(
    ("python", "died"),
    [pytest.param("hub6", "before-start", marks=pytest.mark.slow), ("hub6", "after-start"), ("hub5", "after-start")],
    ids=["6, no process yet", "6, process but state not saved", "5, process but state not saved"],
    indirect=["python"],
)
def test_parked_lease_is_granted_and_its_start_answered_202_when_the_hub_dies(shared_hub, python, died):
    hub = shared_hub(python=python, gpus=1, wait=0.3, settings={"heartbeat_seconds": 3, "orphan_seconds": 2}, **QUICK)
    run(hub, "anna")
    hub.add_user("ben")
    hub.begin("ben")
    ben = hub.until("ben", "parked")
    hub.delay("ben", died, 60)
    hub.stop("anna")
    hub.until("ben", "starting")
    eventually(lambda: hub.server("ben")["pending"] == "spawn")
    eventually(lambda: died == "before-start" or hub.workspace_pids(ben["id"]))
    hub.kill_hub()
    hub.delay("ben", died, None)
    hub.start_hub()
    assert is_same(hub.until("ben", "running", 60), ben)
    assert_disjoint_and_single(hub)


@pytest.mark.parametrize("by", [pytest.param("hub", marks=pytest.mark.slow), "page"])
def test_stop_during_grace_and_start_again_at_once(shared_hub, by):
    hub = shared_hub(gpus=1, **IDLE_SOON, **QUICK)
    (first,) = run(hub, "anna")
    hub.until("anna", "reclaiming")
    if by == "hub":
        assert hub.stop("anna").status_code in {202, 204}
    else:
        hub.end(first["id"])
    begin(hub, "anna")
    again = hub.until("anna", "running")
    assert again["id"] != first["id"]
    ended = hub.gpu(f"/workspaces/{first['id']}")["end"]
    assert (ended["reason"], len(hub.audit(first["id"], "stop"))) == ("stopped", 1)
    assert again["granted_at"] >= ended["at"], "its GPU was free before it was given again"
    assert_disjoint_and_single(hub)


def test_start_repeated_after_a_time_out_leaves_one_process(new_hub, python):
    hub = new_hub(python=python, gpus=1, extra="c.Spawner.start_timeout = 2", **QUICK)
    hub.add_user("anna")
    hub.delay("anna", "after-start", 60)
    begin(hub, "anna")
    first = hub.until("anna", "starting")
    assert eventually(lambda: hub.workspace_pids(first["id"]))
    eventually(lambda: hub.server("anna") is None, what="the hub gave up")
    hub.delay("anna", "after-start", None)
    begin(hub, "anna")
    again = hub.until("anna", "running")
    assert again["id"] != first["id"]
    assert not hub.workspace_pids(first["id"])
    assert_disjoint_and_single(hub)
    end = hub.gpu(f"/workspaces/{first['id']}")["end"]
    assert end["reason"] == "failed"
    said = "The server did not start within 2 s. Its last step was: "
    assert end["message"].startswith(said)
    assert end["message"].endswith(" Start it again, or ask your administrator.")


@both_hubs
def test_parking_keeps_the_place_and_starts_by_itself(shared_hub, python):
    hub = shared_hub(python=python, gpus=1, **PARKS)
    run(hub, "anna")
    hub.add_user("ben")
    answer = hub.begin("ben")
    assert answer.status_code == 409, "a shortage is no failure of the hub"
    assert "You are 1st in line" in answer.json()["message"]
    assert "It starts by itself." in answer.json()["message"]
    ben = hub.until("ben", "parked")
    assert hub.server("ben") is None, "nobody waits in the hub"
    hub.stop("anna")
    assert is_same(hub.until("ben", "running", 30), ben)
    assert hub.server("ben")["ready"]
    assert_disjoint_and_single(hub)


@pytest.mark.parametrize("deleted", ["a named server", "a user"])
def test_a_user_deleted_while_parked_is_never_started(shared_hub, python, deleted):
    hub = shared_hub(python=python, gpus=1, **PARKS)
    run(hub, "anna")
    hub.add_user("ben", "cleo")
    server = "train" if deleted == "a named server" else ""
    assert hub.begin("ben", server).status_code == 409
    ben = hub.until("ben", "parked", server=server)
    assert hub.begin("cleo").status_code == 409
    hub.until("cleo", "parked")
    if server:
        assert hub.api("DELETE", f"/users/ben/servers/{server}", {"remove": True}).status_code == 204
    else:
        assert hub.api("DELETE", "/users/ben").status_code == 204
    end = end_of(hub, ben)
    assert (end["reason"], end["by"]) == ("cancelled", "hub")
    assert hub.lease("cleo")["queue"]["place"] == 1
    hub.stop("anna")
    hub.until("cleo", "running")
    assert [lease["user"] for lease in hub.workspaces()] == ["cleo"]


@both_hubs
def test_six_refusals_and_six_parkings_in_a_row_do_not_abort_the_hub(shared_hub, python):
    hub = shared_hub(python=python, gpus=1, **PARKS)
    run(hub, "anna")
    hub.add_user("ben")
    refused = [hub.begin("ben", count=count) for count in range(9, 15)]
    assert [answer.status_code for answer in refused] == [400] * 6, refused[0].text
    assert [hub.begin("ben").status_code for _ in range(6)] == [409] * 6
    assert hub.hub.poll() is None
    hub.stop("anna")
    hub.until("ben", "running")


PARKS_SOME = """
import asyncio, os
import gpuspawner.spawner.waiting as waiting
waiting.HEARTBEAT_SECONDS = 0.5
async def hook(spawner):
    spawner.gpu_wait_in_hub_seconds = 0.2 if spawner.user.name in ("parked", "reserved") else 60
    while os.path.exists("homes/" + spawner.user.name + ".hold"):
        await asyncio.sleep(0.1)
c.Spawner.pre_spawn_hook = hook
"""


@pytest.mark.parametrize(
    ("python", "cleanup_servers"),
    [*(pytest.param(*one, marks=pytest.mark.slow) for one in [("hub6", True), ("hub5", None)]), ("hub6", None)],
    ids=["6, servers stopped too", "5, servers left running", "6, servers left running"],
    indirect=["python"],
)
def test_promise_2_hub_sigterm_in_each_phase(new_hub, python, cleanup_servers):
    settings = {"heartbeat_seconds": 3, "reserved_seconds": 15, "settle_seconds": 1}
    hub = new_hub(
        python=python,
        gpus=5,
        cleanup_servers=cleanup_servers,
        extra=PARKS_SOME,
        settings=settings,
        **IDLE_SOON,
        **QUICK,
    )
    before = in_each_phase(hub)
    assert {user: lease["phase"] for user, lease in before.items()} == {user: user for user in before}
    hub.terminate_hub()
    hub.delay("starting", "before-start", None)
    (hub.folder / "homes" / "reserved.hold").unlink()
    hub.start_hub()

    hub.until_ended("stopping", "stopped")
    assert len(hub.audit(before["stopping"]["id"], "stop")) == 1
    for user in ("running", "reclaiming"):
        if cleanup_servers:
            eventually(lambda user=user: hub.last_end(user)["id"] == before[user]["id"])
        else:
            assert is_same(hub.lease(user), before[user])
            assert is_up(hub, user)
    waiting = ["reserved", "starting", "queued", "parked"]
    eventually(lambda: sum(is_up(hub, user) for user in waiting) == (4 if cleanup_servers else 3))
    assert all(is_same(hub.lease(user), before[user]) for user in waiting), "no place was lost"
    assert_disjoint_and_single(hub)
    if not cleanup_servers:
        (last,) = (user for user in waiting if not is_up(hub, user))
        hub.stop("running")
        eventually(lambda: is_up(hub, last))


def test_hub_shut_down_with_its_servers_says_so_on_the_workspaces_page(new_hub, python):
    hub = new_hub(python=python, gpus=1, cleanup_servers=True, **QUICK)
    (anna,) = run(hub, "anna")
    hub.terminate_hub()
    assert not hub.server_pids(), "the hub ended its servers"
    hub.start_hub()
    end = hub.until_ended("anna", "stopped")
    assert (end["id"], end["end"]["by"]) == (anna["id"], "hub shutdown")
    page = hub.login("anna").get(f"{hub.url}/services/gpu/workspaces/{anna['id']}", timeout=20).text
    assert "It was stopped because the hub was shut down. Your files are untouched." in page
    assert "ended by itself" not in page
    run(hub, "anna")


def is_up(hub, user) -> bool:
    return hub.lease(user)["phase"] in {"running", "reclaiming"}


def in_each_phase(hub):
    """Bring one user, named after it, into each phase that a lease can be in; return the leases."""
    users = ["running", "reclaiming", "stopping", "holder"]
    run(hub, *users)
    for user in users:
        hub.until(user, "reclaiming")
    for user in ("running", "stopping", "holder"):
        hub.gpu(f"/workspaces/{hub.lease(user)['id']}/keep", "POST")
    hub.add_user("filler", "reserved", "starting", "queued", "parked")
    begin(hub, "filler")
    hub.until("filler", "running")
    hub.begin("reserved")
    hub.until("reserved", "parked")
    (hub.folder / "homes" / "reserved.hold").touch()
    hub.stop("holder")
    hub.until("reserved", "reserved")
    hub.delay("starting", "before-start", 60)
    hub.stop("filler")
    begin(hub, "starting")
    hub.until("starting", "starting")
    begin(hub, "queued")
    hub.begin("parked")
    hub.until("parked", "parked")
    hub.delay("stopping", "before-stop", 3)
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(hub.end, hub.lease("stopping")["id"])
    hub.until("stopping", "stopping")
    return {lease["user"]: lease for lease in hub.workspaces()}


FAILS_ONCE = """
import os

c.JupyterHub.allow_named_servers = False

def scopes_of(spawner):
    broken = "{folder}/broken"
    if os.path.exists(broken):
        os.unlink(broken)
        raise RuntimeError("the database is locked")
    spawner.oauth_client_allowed_scopes = []  # JupyterHub writes it into the environment
    return []

c.Spawner.oauth_client_allowed_scopes = scopes_of
"""


def fails_once(hub):
    """Let the hub fail once before a start, after a test has made the file, and have no named servers."""
    hub.extra = FAILS_ONCE.format(folder=hub.folder)


@both_hubs
def test_a_hub_without_named_servers_gives_a_workspace_with_a_name_no_gpu(shared_hub, python):
    hub = shared_hub(fails_once, python=python, gpus=1, **QUICK)
    hub.add_user("anna")
    for _ in range(2):
        with pytest.raises(requests.HTTPError) as refused:
            hub.gpu("/workspaces", "POST", {"user": "anna", "server": "train"})
        assert "this hub has no named servers" in refused.value.response.text
    assert hub.workspaces(ended=5) == []


@both_hubs
def test_a_server_that_the_hub_lists_after_an_error_of_its_own_can_be_stopped(shared_hub, python):
    hub = shared_hub(fails_once, python=python, gpus=1, **QUICK)
    hub.add_user("anna")
    (hub.folder / "broken").touch()
    assert hub.begin("anna").status_code == 500
    assert hub.server("anna")["ready"], "JupyterHub lists it although nothing runs"
    lease = eventually(lambda: hub.lease("anna"), what="the service adopts it")
    hub.act("anna", lease["id"], "stop")
    assert hub.until_ended("anna", "stopped")["id"] == lease["id"]
    assert hub.server("anna") is None
    begin(hub, "anna")
    hub.until("anna", "running")
