"""Soft evidence in pods of the restricted standard with sidecars: the probe's exec decides by what it sees."""

import json

import pytest
from kube_hub import KubeHub, eventually

pytestmark = pytest.mark.slow

POLICIES = """
policies:
  default:
    mode: enforce
    lifetime: 1s-24h
    idle: {sample: 8s}
    activity: {none_for: 24s, grace: 16s}
"""
SIDECAR = """
import json, os, time
uptime = float(open("/proc/uptime").read().split()[0])
kernels = [{"name": "of-the-sidecar.ipynb", "busy": True, "idle_seconds": 0}]
told = {"begin": 1, "pid": os.getpid(), "uptime": uptime, "kernels": kernels, "end": 1}
os.write(os.memfd_create("gpuspawner-kernels"), json.dumps(told).encode())
while True:
    pass
"""
"""Looks like a Jupyter server whose kernel is busy, and uses CPU."""
CELL = """
import asyncio, json, os, urllib.request
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

base = "127.0.0.1:8888" + os.environ["JUPYTERHUB_SERVICE_PREFIX"]
headers = {"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"], "Content-Type": "application/json"}


async def main():
    body = {"path": "work/train.ipynb", "name": "", "type": "notebook", "kernel": {}}
    asked = urllib.request.Request(f"http://{base}api/sessions", json.dumps(body).encode(), headers)
    kernel = json.load(urllib.request.urlopen(asked))["kernel"]["id"]
    connection = await websocket_connect(HTTPRequest(f"ws://{base}api/kernels/{kernel}/channels", headers=headers))
    header = {"msg_id": "1", "username": "", "session": "1", "msg_type": "execute_request"}
    content = {"code": "import time; time.sleep(3600)", "silent": False}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
    await connection.write_message(json.dumps(message))
    while json.loads(await connection.read_message())["msg_type"] != "execute_input":
        pass


asyncio.run(main())
"""
"""Starts a cell in the pod's own Jupyter server, with the server's own token, and leaves."""


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    sidecar = {
        "name": "sidecar",
        "image": one_machine.image,
        "imagePullPolicy": "Never",
        # KubeSpawner expands text in braces.
        "command": ["python3", "-c", SIDECAR.replace("{", "{{").replace("}", "}}")],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}},
    }
    extra = f"import json\nc.KubeSpawner.extra_containers = [json.loads({json.dumps(sidecar)!r})]"
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with one_machine.namespace(**restricted) as namespace:
        hub = KubeHub(tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra)
        hub.catalog.write_text(hub.catalog.read_text().partition("policies:")[0] + POLICIES)
        with hub:
            yield hub


def because(hub, user):
    """Why a workspace is judged as it is, in words."""
    lease = hub.lease(user)
    return lease["idle"]["because"] if lease and lease["idle"] else ""


def test_a_busy_kernel_is_seen_by_exec_and_a_sidecars_is_not(hub):
    for user in ("alice", "bob"):
        hub.add_user(user)
        assert hub.begin(user, template="cpu").status_code in {201, 202}
    for user in ("alice", "bob"):
        eventually(lambda user=user: hub.server(user)["ready"], 300, f"{user}'s server is ready")
    code, _, said = hub.cluster.run_in(hub.namespace, hub.pod("alice").metadata.name, "python3", "-c", CELL)
    assert code == 0, said
    eventually(lambda: "kernel train.ipynb busy" in because(hub, "alice"), 300, "alice's kernel is seen")
    hub.until_ended("bob", "idle", 300)
    why = hub.last_end("bob")["end"]["message"]
    assert "no kernel, no terminal open, no SSH session, no VS Code window" in why, "the sidecar's is none of bob's"
    assert "kernel train.ipynb busy" in because(hub, "alice")
    assert hub.lease("alice")["phase"] == "running"
