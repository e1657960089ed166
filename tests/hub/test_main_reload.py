"""A catalog that is edited while hub, service and workspaces run: form and service follow, without a restart."""

import html
import subprocess
import sys

import requests
from harness.hub import ADMIN_TOKEN, eventually


def form_of(hub, session):
    """The text of alice's form."""
    return html.unescape(session.get(f"{hub.url}/hub/spawn/alice", timeout=20).text)


def checked(hub, token, **options):
    """Return the message or sentence of the service's check for alice."""
    url, headers = f"{hub.url}/services/gpu/api/v1/check", {"Authorization": f"token {token}"}
    answer = requests.post(url, headers=headers, json=options, timeout=20).json()
    return answer["error"]["message"] if "error" in answer else answer["sentence"]


def test_promise_10_an_edited_catalog_is_in_force_within_seconds_and_a_broken_one_changes_nothing(new_hub):
    hub = new_hub()
    hub.add_user("alice", "bob")
    hub.begin("bob")
    running = hub.until("bob", "running")
    service, alice, admin = hub.service_pids(), hub.login("alice"), hub.login("admin")
    token = hub.api("POST", "/users/alice/tokens", {}).json()["token"]
    assert "per hour" not in form_of(hub, alice)
    assert "Starts now" in checked(hub, token, lifetime="2h")

    good = hub.catalog.read_text()
    edited = good.replace("memory: 80GiB}", "memory: 80GiB, price: 2.10}").replace(
        "lifetime: 1s-24h}", "lifetime: 1s-1h}"
    )
    edited = edited.replace("lifetime: 8h", "lifetime: 1h")
    hub.catalog.write_text(edited)
    eventually(lambda: "80 GiB each, 2.10 per hour" in form_of(hub, alice), 15, "the form shows the price")
    eventually(lambda: "Allowed: 1 s to 1 h" in checked(hub, token, lifetime="2h"), 15, "the service refuses")
    refused = hub.begin("alice", lifetime="2h")
    assert "Run time: You asked for '2h'. Allowed: 1 s to 1 h" in refused.json()["message"]

    broken = edited.replace("price: 2.10", "prize: 3.10").replace("1s-1h", "1s-5h")
    hub.catalog.write_text(broken)
    line = next(number for number, text in enumerate(broken.splitlines(), 1) if "prize" in text)
    told = f"{hub.catalog}:{line}: gpus.a100.prize: unknown key 'prize'. Did you mean `price`?"
    eventually(
        lambda: told in html.unescape(admin.get(f"{hub.url}/services/gpu/console/", timeout=20).text), 15, "it is told"
    )
    assert "2.10 per hour" in form_of(hub, alice)
    assert "Allowed: 1 s to 1 h" in checked(hub, token, lifetime="2h")
    metrics = requests.get(
        f"{hub.url}/services/gpu/metrics", headers={"Authorization": f"token {ADMIN_TOKEN}"}, timeout=20
    )
    assert "gpuspawner_catalog_reload_success 0.0" in metrics.text

    hub.kill_service()
    eventually(lambda: hub.service_pids() not in ([], service), 60, "the hub starts it again")
    eventually(lambda: "Allowed: 1 s to 1 h" in checked(hub, token, lifetime="2h"), 30, "by the last good one")
    assert told in html.unescape(admin.get(f"{hub.url}/services/gpu/console/", timeout=20).text)
    service = hub.service_pids()

    hub.catalog.write_text(good)
    eventually(lambda: "Starts now" in checked(hub, token, lifetime="2h"), 15, "as before")
    eventually(lambda: "per hour" not in form_of(hub, alice), 15, "without a price again")
    assert hub.service_pids() == service, "nothing was restarted"
    assert hub.lease("bob")["id"] == running["id"]


def test_promise_10_a_hub_that_restarts_with_a_wrong_catalog_goes_by_the_last_good_one_and_says_so(new_hub):
    hub = new_hub()
    hub.add_user("alice")
    good = hub.catalog.read_text()
    hub.terminate_hub()
    broken = good.replace("memory: 80GiB}", "memory: 80GiB, prize: 3.10}")
    hub.catalog.write_text(broken)
    hub.start_hub()
    told = f"{hub.catalog}:4: gpus.a100.prize: unknown key 'prize'. Did you mean `price`?"
    hub.begin("alice")
    hub.until("alice", "running")
    assert f"the catalog cannot be used. This start uses the last good one:\n{told}" in hub.log.read_text()
    admin, alice = hub.login("admin"), hub.login("alice")
    for page in ("", "console/quotas", "console/", "console/gpus"):
        for session, is_told in ((admin, True), (alice, False)):
            shown = html.unescape(session.get(f"{hub.url}/services/gpu/{page}", timeout=20).text)
            assert (shown.count(told) == 1) is is_told, page
    headers = {"Authorization": f"token {ADMIN_TOKEN}"}
    metrics = requests.get(f"{hub.url}/services/gpu/metrics", headers=headers, timeout=20)
    assert "gpuspawner_catalog_reload_success 0.0" in metrics.text
    command = [sys.executable, "-m", "gpuspawner.cli", "server", "check", str(hub.catalog)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1, "check stays strict"
    hub.catalog.write_text(good)
    eventually(lambda: told not in html.unescape(admin.get(f"{hub.url}/services/gpu/", timeout=20).text), 15, "mended")
