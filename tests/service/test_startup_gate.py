"""The service's port while its store is away: the hub's probe passes, people and programs read why."""

import pytest
import requests
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from gpuspawner.service.app import application
from gpuspawner.service.process.startup_gate import StartupGate


@pytest.fixture
def address(make_web_world):
    """Where a service answers whose store is away."""
    world = make_web_world()
    socket, port = bind_unused_port()

    def serve():
        gate = StartupGate(application(world.parts), world.parts)
        gate.waits_for = "The store does not answer (disk is full)."
        server = HTTPServer(gate)
        server.add_socket(socket)
        return server

    server = world.call(serve)
    yield f"http://127.0.0.1:{port}/services/gpu/"
    world.call(server.stop)


def test_the_hubs_probe_gets_no_error_while_the_store_is_away(address):
    # JupyterHub takes no 5xx for an answer of a service that it starts, and ends itself without one.
    answer = requests.get(address, allow_redirects=False, timeout=20)
    assert (answer.status_code, "/hub/api/oauth2/authorize" in answer.headers["Location"]) == (302, True)


@pytest.mark.parametrize("path", ["api/v1/", "internal/acquire", "metrics"])
def test_programs_are_told_with_503_what_is_waited_for(address, path):
    answer = requests.get(address + path, allow_redirects=False, timeout=20)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "disk is full" in answer.json()["error"]["message"]
