"""How a workspace ended, on each JupyterHub that is supported.

Why a start failed is told soon, with its likely cause to all, and its last lines to its user alone; who stopped a
server, by the hub's own pages and API.
"""

import time

import pytest
import requests
from harness.hub import eventually
from versions import both_hubs

KEY, LINE = "k3y-0f-th3-h0use", "ModuleNotFoundError: No module named 'thesis'"
ENDS = f"""
c.Spawner.http_timeout = 120
c.Spawner.environment |= {{"HOUSE_KEY": "{KEY}"}}

def fails(spawner):
    if spawner.user.name == "fay":
        spawner.cmd = ["sh", "-c", "echo The key is $HOUSE_KEY; echo \\"{LINE}\\" >&2; exit 3"]

c.Spawner.pre_spawn_hook = fails

def logged(handler):
    with open("requests.log", "a") as log:
        log.write(handler.request.method + " " + handler.request.path + "\\n")

c.JupyterHub.tornado_settings |= {{"log_function": logged, "slow_stop_timeout": 1}}
"""


@pytest.fixture
def hub(shared_hub, python):
    return shared_hub(python=python, gpus=2, extra=ENDS)


def output(hub, lease: str, token: str) -> dict:
    return hub.gpu(f"/workspaces/{lease}/output", token=token)


@both_hubs
def test_a_server_that_ends_before_it_answers_is_told_soon_and_why(hub):
    hub.add_user("fay", "eve")
    token, eves = (hub.api("POST", f"/users/{user}/tokens", {}).json()["token"] for user in ("fay", "eve"))
    session, begun = hub.login("fay"), time.monotonic()
    hub.begin("fay", template="lab", gpu="none")
    end = hub.until_ended("fay", "failed", 60)
    assert time.monotonic() - begun < 60, "half of the hub's own time for an answer"
    lease, why = end["id"], "Its server ended before it answered: a module was not found."
    assert why in end["end"]["why"]

    told = output(hub, lease, token)
    assert told == {"there": True, "text": f"The key is ***\n{LINE}", "shared": False}
    page = session.get(f"{hub.url}/hub/user/fay/", timeout=20)
    assert "Last output of its server" in page.text
    assert "named &#39;thesis&#39;" in page.text
    admins = output(hub, lease, "test-admin-token-0123456789")
    assert admins == {"there": True, "text": None, "shared": False}
    with pytest.raises(requests.HTTPError, match="404"):
        output(hub, lease, eves)

    for nowhere in (hub.gpu(f"/workspaces/{lease}/audit"), end, hub.api("GET", "/users/fay").json()):
        assert "thesis" not in str(nowhere)
    assert KEY not in "".join(path.read_text(errors="replace") for path in (hub.folder / "gpu").rglob("*.json"))
    assert LINE in hub.log.read_text(), "the hub's log still has it"
    eventually(lambda: not list((hub.folder / "gpu" / "output").glob("*.txt")), 10)

    hub.gpu(f"/workspaces/{lease}/share", "POST", token=token)
    assert output(hub, lease, "test-admin-token-0123456789")["text"] == told["text"]
    assert [line["actor"] for line in hub.audit(lease, "shared")] == ["fay"]


@both_hubs
def test_a_stop_by_the_hub_tells_who_stopped_it(hub):
    hub.add_user("uma")
    for server, slow in ("quick", None), ("slow", 3.0):
        hub.begin("uma", server, template="lab", gpu="none")
        hub.until("uma", "running", server=server)
        hub.delay("uma", "before-stop", slow)
        session = hub.login("uma")
        headers = {"X-XSRFToken": session.cookies.get("_xsrf", path="/hub/")}
        address = f"{hub.url}/hub/api/users/uma/servers/{server}"
        assert session.delete(address, headers=headers, timeout=20).status_code == (202 if slow else 204)
        told = (server, "It was stopped by uma, from the hub.")
        eventually(
            lambda told=told: (end := hub.last_end("uma")) and (end["server"], end["end"]["message"]) == told, 20
        )
    hub.delay("uma", "before-stop", None)
    hub.begin("uma", "other", template="lab", gpu="none")
    hub.until("uma", "running", server="other")
    assert hub.api("DELETE", "/users/uma/servers/other", {"remove": True}).status_code in {202, 204}
    eventually(lambda: hub.last_end("uma")["end"]["by"] == "the service tests", 20)
    assert "DELETE /hub/api/users/uma/servers/other" in (hub.folder / "requests.log").read_text()
