"""The hub's answers as the service takes them: what is no answer of a hub is no hub."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from gpuspawner.core.errors import Unavailable
from gpuspawner.service.engine.hub_client import HubClient


class SignInPage(BaseHTTPRequestHandler):
    """The answer of a proxy before the hub to an unknown user."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Sign in</html>")

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def hub():
    server = HTTPServer(("127.0.0.1", 0), SignInPage)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield HubClient(f"http://127.0.0.1:{server.server_port}", "secret")
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_sign_in_page_in_place_of_the_hub_is_unavailable(hub):
    with pytest.raises(Unavailable, match=r"What answers GET /users/anna is not the hub: it sends no JSON\."):
        await hub.server("anna", "")


@pytest.mark.parametrize("words", ["Invalid server_name: x", "Named servers are not enabled."])
async def test_the_hub_s_reason_for_refusing_a_server_is_returned(hub, words, monkeypatch):
    def post(self):
        self.send_response(400)
        self.end_headers()
        self.wfile.write(json.dumps({"message": words}).encode())

    monkeypatch.setattr(SignInPage, "do_POST", post, raising=False)
    assert await hub.start("anna", "x", {}) == words


@pytest.mark.parametrize(
    ("state", "address"),
    [
        ({"email": "anna@example.org", "manager": {"email": "boss@example.org"}}, "anna@example.org"),
        ({"manager": {"email": "boss@example.org"}}, None),
        ({"manager": {"email": "boss@example.org"}, "github_user": {"email": "anna@example.org"}}, "anna@example.org"),
        ({"user": {"email": "anna@example.org"}}, "anna@example.org"),
        ({"oauth_user": {"email": None, "manager": {"email": "boss@example.org"}}}, None),
        (None, None),
    ],
)
async def test_mail_goes_to_the_user_and_to_no_namesake_of_the_authenticator(hub, state, address, monkeypatch):
    def get(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"name": "anna", "auth_state": state}).encode())

    monkeypatch.setattr(SignInPage, "do_GET", get)
    assert await hub.email("anna") == address
