"""The activity of a real Jupyter server as the probe observes it: kernels and JupyterLab's terminals, without HTTP."""

import json
import os
import urllib.request
import uuid

import pytest
from harness.waiting import until
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler
from tornado.websocket import websocket_connect

from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.workspace.probe_reports import EVERY_SECONDS, is_page_load

LEASE, ATTEMPT = "lease-7", os.getpid()


def call(server, method, path, body=None):
    """Call the server's API with the person's token."""
    headers = {"Authorization": f"token {server.token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read()
    return json.loads(text) if text else None


async def seen(tmp_path, name, interval_seconds=1.0):
    backend = LocalBackend([], {}, tmp_path)
    result = await backend.probe(LEASE, ATTEMPT, (), 60.0)
    sample, _ = parse_probe(result, (), None, interval_seconds=interval_seconds, age_seconds=600.0)
    assert not sample.problem
    return next(one for one in sample.soft if one.name == name)


async def becomes(tmp_path, name, words, interval_seconds=1.0):

    async def look():
        found = await seen(tmp_path, name, interval_seconds)
        return found if found.words == words else None

    return await until(look, what=words)


async def closed(connection):
    """Close a connection, with its socket."""
    connection.close()
    while await connection.read_message() is not None:
        pass


@pytest.fixture
def notebook(lab):
    """A notebook's kernel: its id."""
    body = {"path": f"work/{uuid.uuid4().hex}/train.ipynb", "name": "", "type": "notebook", "kernel": {}}
    session = call(lab, "POST", "api/sessions", body)
    yield session["kernel"]["id"]
    call(lab, "DELETE", f"api/sessions/{session['id']}")


async def run(lab, kernel, code):
    """Send a cell, and leave, as a browser that is closed."""
    url = f"{lab.url.replace('http', 'ws', 1)}api/kernels/{kernel}/channels?token={lab.token}"
    header = {"msg_id": uuid.uuid4().hex, "username": "", "session": uuid.uuid4().hex, "msg_type": "execute_request"}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
    connection = await websocket_connect(url)
    await connection.write_message(json.dumps(message))
    while json.loads(await connection.read_message())["msg_type"] != "execute_input":
        pass
    await closed(connection)


async def test_a_busy_kernel_is_seen_with_its_notebook_and_no_browser(lab, notebook, tmp_path):
    assert (await becomes(tmp_path, "kernel", "kernels quiet")).active is False
    await run(lab, notebook, "import time; time.sleep(600)")
    assert (await becomes(tmp_path, "kernel", "kernel train.ipynb busy")).active
    call(lab, "POST", f"api/kernels/{notebook}/interrupt")
    await becomes(tmp_path, "kernel", "kernels quiet")


async def test_a_cell_shorter_than_the_time_between_two_looks_is_seen(lab, notebook, tmp_path):
    await becomes(tmp_path, "kernel", "kernels quiet")
    await run(lab, notebook, "1")
    await becomes(tmp_path, "kernel", "kernel train.ipynb in use", interval_seconds=20 * EVERY_SECONDS)


async def test_a_server_without_kernels_has_no_activity_and_a_hanging_one_is_unknown(lab, tmp_path):
    await becomes(tmp_path, "kernel", "no kernel")
    backend = LocalBackend([], {}, tmp_path)
    result = await backend.probe(LEASE, ATTEMPT, (), 60.0)
    (clock,) = [line for line in result.text.splitlines() if line.startswith("clock ")]
    seconds = float(clock.split()[1])
    later = result.text.replace(clock, clock.replace(clock.split()[1], f"{seconds + 300:.2f}"))
    sample, _ = parse_probe(type(result)(later), (), None, interval_seconds=60.0, age_seconds=600.0)
    assert sample.soft[0].active is None
    assert sample.soft[0].words.startswith("its Jupyter server has reported nothing for 30")


async def test_a_program_in_a_terminal_of_jupyterlab(lab, tmp_path):
    name = call(lab, "POST", "api/terminals")["name"]
    connection = await websocket_connect(
        f"{lab.url.replace('http', 'ws', 1)}terminals/websocket/{name}?token={lab.token}"
    )
    try:
        await connection.write_message(json.dumps(["stdin", "sleep 600\r"]))
        assert (await becomes(tmp_path, "terminal", "a terminal runs a program")).active
    finally:
        await closed(connection)
        call(lab, "DELETE", f"api/terminals/{name}")


async def test_jupyterhub_singleuser_reports_kernels_too(singleuser, tmp_path):
    assert (await seen(tmp_path, "kernel")).active is False


class Page(RequestHandler):
    """A page, or a document, of a server that knows who is signed in."""

    def get_current_user(self):
        return self.request.headers.get("Signed-In")

    def get(self, kind):
        if kind == "gone":
            self.set_status(404)
        self.set_header("Content-Type", "application/json" if kind == "api" else "text/html; charset=UTF-8")
        self.finish("{}")


HTML = {"Signed-In": "alice", "Accept": "text/html,*/*"}


@pytest.mark.parametrize(
    ("path", "headers", "is_one"),
    [
        pytest.param("lab", {**HTML, "Sec-Fetch-Mode": "navigate"}, True, id="opened"),
        pytest.param("lab", HTML, True, id="a browser that says nothing of itself"),
        pytest.param("lab", {**HTML, "Sec-Fetch-Mode": "cors"}, False, id="asked for by a page"),
        pytest.param("lab", {**HTML, "Signed-In": ""}, False, id="not signed in"),
        pytest.param("lab", {"Signed-In": "alice", "Accept": "*/*"}, False, id="the hub's own look"),
        pytest.param("api", {**HTML, "Sec-Fetch-Mode": "navigate"}, False, id="no page"),
        pytest.param("gone", {**HTML, "Sec-Fetch-Mode": "navigate"}, False, id="no such page"),
    ],
)
async def test_a_page_load_counts_as_a_visit_and_a_poll_does_not(path, headers, is_one):
    found = []
    server = HTTPServer(
        Application([("/(.*)", Page)], log_function=lambda handler: found.append(is_page_load(handler)))
    )
    socket, port = bind_unused_port()
    server.add_socket(socket)
    headers = {name: value for name, value in headers.items() if value}
    response = await AsyncHTTPClient(force_instance=True).fetch(
        f"http://127.0.0.1:{port}/{path}", headers=headers, raise_error=False
    )
    again = {**headers, "If-None-Match": response.headers.get("Etag", "none")}
    await AsyncHTTPClient(force_instance=True).fetch(
        f"http://127.0.0.1:{port}/{path}", headers=again, raise_error=False
    )
    server.stop()
    assert found[0] is is_one
    assert found[1] is is_one or path == "api", "what the browser has already is opened too"


async def test_the_probe_sees_that_a_page_was_opened(lab, tmp_path):
    address = f"{lab.url}lab?token={lab.token}"
    await AsyncHTTPClient(force_instance=True).fetch(address, headers={"Accept": "text/html"})
    backend = LocalBackend([], {}, tmp_path)

    async def is_opened():
        result = await backend.probe(LEASE, ATTEMPT, (), 60.0)
        return parse_probe(result, (), None, interval_seconds=1.0, age_seconds=600.0)[0].opened

    await until(is_opened)
