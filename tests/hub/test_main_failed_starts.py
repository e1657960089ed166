"""A start whose server ends: told soon, with its likely cause to all, and its last lines to its user alone."""

import time

import pytest
import requests
from harness import eventually

KEY, LINE = "k3y-0f-th3-h0use", "ModuleNotFoundError: No module named 'thesis'"
FAILS = f"""
c.Spawner.http_timeout = 120
c.Spawner.environment = {{"HOUSE_KEY": "{KEY}"}}

def fails(spawner):
    if spawner.user.name == "fay":
        spawner.cmd = ["sh", "-c", "echo The key is $HOUSE_KEY; echo \\"{LINE}\\" >&2; exit 3"]

c.Spawner.pre_spawn_hook = fails
"""


def output(hub, lease: str, token: str) -> dict:
    return hub.gpu(f"/workspaces/{lease}/output", token=token)


@pytest.mark.parametrize("python", ["hub6", "hub5"], indirect=True)
def test_a_server_that_ends_before_it_answers_is_told_soon_and_why(new_hub, python):
    hub = new_hub(gpus=2, python=python, extra=FAILS)
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
    assert "What its server wrote last" in page.text
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
