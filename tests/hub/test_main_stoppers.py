"""Who stopped a server by the hub's own pages and API, on each JupyterHub that is supported."""

import pytest
from harness import eventually

CHAINED = """
def logged(handler):
    open("{folder}/requests.log", "a").write(handler.request.method + " " + handler.request.path + "\\n")

c.JupyterHub.tornado_settings |= {{"log_function": logged, "slow_stop_timeout": 1}}
"""


@pytest.mark.parametrize("python", ["hub6", "hub5"], indirect=True)
def test_a_stop_by_the_hub_tells_who_stopped_it(new_hub, python, tmp_path):
    hub = new_hub(gpus=2, python=python, extra=CHAINED.format(folder=tmp_path))
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
    assert hub.api("DELETE", "/users/uma/servers/other", {"remove": True}).status_code == 204
    eventually(lambda: hub.last_end("uma")["end"]["by"] == "the service tests", 20)
    assert "DELETE /hub/api/users/uma/servers/other" in (tmp_path / "requests.log").read_text()
