"""The workspace server's handling of the service's answers, over real HTTP."""

import logging
import socket

import pytest

from gpuspawner.workspace import service as client_module
from gpuspawner.workspace.service import ServiceClient

LOG = logging.getLogger("gpuspawner.workspace.test")
LEASE = "lease-7"
TOKEN = "workspace-token-that-nobody-else-may-see"


@pytest.fixture
def client(service):
    return ServiceClient(service.url, LEASE, TOKEN, LOG)


async def test_state_is_the_services_document_asked_with_the_workspaces_token(client, service):
    reply = await client.state()
    assert reply.status == 200
    assert reply.body["gpus"][0]["utilization_percent"] == 78.4
    assert service.received == [("GET", "", f"token {TOKEN}")]


@pytest.mark.parametrize("action", ["keep", "extend"])
async def test_an_action_is_one_post(client, service, action):
    reply = await client.act(action)
    assert (reply.status, reply.body["id"]) == (200, LEASE)
    assert service.received == [("POST", f"/{action}", f"token {TOKEN}")]


async def test_a_refusal_keeps_its_status_and_its_words(client, service):
    service.answer = (409, b'{"error": {"message": "0 of 3 Keeps are left"}}')
    reply = await client.act("keep")
    assert (reply.status, reply.body) == (409, {"error": {"message": "0 of 3 Keeps are left"}})


async def test_another_workspaces_token_is_refused_in_words(service):
    reply = await ServiceClient(service.url, LEASE, "wrong", LOG).state()
    assert (reply.status, reply.body) == (403, {"error": {"message": "this token is not this workspace's"}})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param((503, b'{"error": {"message": "the store is locked"}}'), "the store is locked", id="reason"),
        pytest.param((500, b"{}"), "HTTP 500", id="no reason"),
        pytest.param((502, b"<h1>Bad Gateway</h1>"), "HTTP 502 and no JSON object", id="a proxy's page"),
        pytest.param((200, b"[1, 2]"), "no JSON object", id="no object"),
        pytest.param((200, b"\xff\xfe"), "no JSON object", id="no text"),
        pytest.param((302, b"{}"), "HTTP 302", id="a redirect, to which the token must not go"),
    ],
)
async def test_an_answer_of_another_program_means_away(client, service, answer, message):
    service.answer = answer
    reply = await client.state()
    assert (reply.status, reply.body["away"]) == (200, True)
    assert message in reply.body["message"]
    assert len(service.received) == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/services/gpu", "no-address", "http://[::bad/", "http://a b/"])
async def test_no_one_there_means_away(url):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        reply = await ServiceClient(url.format(port=unused.getsockname()[1]), LEASE, TOKEN, LOG).state()
    assert (reply.status, reply.body["away"]) == (200, True)


async def test_an_answer_after_the_deadline_means_away(client, service, monkeypatch):
    monkeypatch.setattr(client_module, "DEADLINE_SECONDS", 0.2)
    service.delay_seconds = 0.6
    reply = await client.state()
    assert reply.body["away"] is True
    assert "Timeout" in reply.body["message"]


async def test_going_away_and_coming_back_are_logged_once_each_without_the_token(client, service, caplog):
    caplog.set_level(logging.DEBUG, logger=LOG.name)
    service.answer = (503, b"{}")
    for _ in range(3):
        await client.state()
    service.answer = None
    for _ in range(3):
        await client.state()
    assert caplog.messages == ["The GPU service is away: HTTP 503", "The GPU service is back"]
    assert TOKEN not in caplog.text


def test_without_the_spawners_variables_there_is_no_client():
    whole = {"GPUSPAWNER_SERVICE_URL": "http://x", "GPUSPAWNER_LEASE_ID": "1", "GPUSPAWNER_WORKSPACE_TOKEN": "t"}
    assert ServiceClient.from_environment(whole, LOG) is not None
    for name in whole:
        assert ServiceClient.from_environment({**whole, name: ""}, LOG) is None
