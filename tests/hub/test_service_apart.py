"""The service as a process of its own: hub and service start, end and come back in any order."""

import random
import threading
import time

import pytest
import requests
from apart import HubApart
from harness.hub import eventually
from versions import newest_hub

from gpuspawner.core.leases.reports import RELEASE_SPOOL

AT_ONCE = 10


@pytest.fixture
def hub(request, tmp_path, python):
    hub = HubApart(tmp_path, gpus=2, python=python)
    request.node.hubs = [hub]
    yield hub
    hub.close()


def begin(hub, user, **options):
    hub.add_user(user)
    eventually(lambda: hub.begin(user, **options).status_code in {201, 202}, 90, what=f"{user} starts")


def kept(lease):
    """Return the values that a restart must keep."""
    return {name: lease[name] for name in ("id", "asked_at", "ends_at", "request", "server")}


def test_each_waits_for_the_other(hub):
    hub.start_service()  # and there is no hub yet
    health = f"http://127.0.0.1:{hub.service_port}"
    eventually(lambda: requests.get(f"{health}/readyz", timeout=5).status_code == 200, what="it may give GPUs")
    hub.start_proxy()
    hub.start_hub()
    begin(hub, "ada")
    lease = hub.until("ada", "running")
    session = hub.login("ada")
    page = session.get(f"{hub.url}/services/gpu/workspaces/{lease['id']}", timeout=30)  # signed in through the hub
    assert (page.status_code, "ada" in page.text) == (200, True)
    assert requests.get(f"{hub.url}/services/gpu/readyz", timeout=20, allow_redirects=False).status_code != 200

    hub.end_service()
    assert hub.stop("ada").status_code in {202, 204}
    eventually(lambda: hub.server("ada") is None, what="the hub has stopped the server")
    left = hub.folder / "hub-data" / RELEASE_SPOOL
    eventually(lambda: list(left.glob("*.json")), what="what the service did not hear is kept")
    begin(hub, "bob")  # waits in the hub
    hub.start_service()
    hub.until("bob", "running")
    eventually(lambda: not list(left.glob("*.json")), what="the service is told")
    assert hub.until_ended("ada", "stopped")["id"] == lease["id"]


def ask_all_the_time(hub, over, answers):
    while not over.is_set():
        try:
            answers.append(hub.api("POST", "/users/load", seconds=5).status_code)
            answers.append(hub.begin("load", template="cpu").status_code)
            hub.gpu("/offers")
            answers.append(hub.stop("load").status_code)
        except (requests.RequestException, OSError):
            time.sleep(0.1)


@pytest.mark.slow  # ten restarts; the others are one at a time
@newest_hub
def test_promise_2_restarts_of_either_in_any_order_under_load_lose_nothing(hub):
    hub.start()
    begin(hub, "ada")
    begin(hub, "bob")
    running = [hub.until(user, "running") for user in ("ada", "bob")]
    begin(hub, "cem")
    waiting = eventually(lambda: hub.lease("cem"), what="cem waits")
    pids = {lease["id"]: hub.server_pids(lease["id"]) for lease in running}
    over, answers, choose = threading.Event(), [], random.Random(26)
    asking = threading.Thread(target=ask_all_the_time, args=(hub, over, answers))
    asking.start()
    try:
        for number in range(AT_ONCE):
            what, crash = ("service", "hub", "service", "both", "hub first")[number % 5], choose.random() < 0.3
            if what in {"service", "both"}:
                hub.end_service(crash=crash)
            if what != "service":
                hub.kill_hub() if crash else hub.terminate_hub()
            if what == "hub first":
                hub.end_service()
                hub.start_hub()
            if what in {"service", "both", "hub first"}:
                hub.start_service()
            if what in {"hub", "both"}:
                hub.start_hub()
            hub.until_it_answers()
            for before in running:
                assert kept(hub.lease(before["user"])) == kept(before)
                assert hub.server_pids(before["id"]) == pids[before["id"]]
            now = hub.lease("cem")
            assert (now["id"], now["asked_at"], now["queue"]["place"]) == (waiting["id"], waiting["asked_at"], 1)
    finally:
        over.set()
        asking.join()
    assert {201, 202} & set(answers)
    hub.stop("ada")
    assert hub.until("cem", "running")["id"] == waiting["id"]
