"""Promises 9 and 10 over HTTP: who may do what, and how a bad request is refused."""

import json

import pytest
from service_world import PREFIX, SECRET, open_gate
from tornado.escape import utf8
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.testing import bind_unused_port

from gpuspawner.core.authentication import (
    NONCE_HEADER,
    TICKET_SECONDS,
    RequestTarget,
    new_nonce,
    request_headers,
    sign_ticket,
)
from gpuspawner.core.errors import Gone, Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.allocation.start_attempts import hash_token
from gpuspawner.service.engine.hub_state import USER_KNOWN_SECONDS
from gpuspawner.spawner.client import NOT_OURS, LeaseClient, is_proven, target_of
from gpuspawner.spawner.web.pages import ServiceView

ACTIONS = ["keep", "extend", "stop", "seen", "dispute"]
SPAWNER = "the hub's spawner"


class Client:
    def __init__(self, world, url):
        self.world, self.url = world, url

    def ticket(self, user, *, form=False):
        created = self.world.hub.add(user)
        return f"ticket {sign_ticket(SECRET, user, created, self.world.clock.now(), form=form)}"

    async def __call__(self, who, method, path, body=None):
        """Return the status and the answer, JSON always."""
        headers = {"Authorization": who} if who else {}
        text = body if isinstance(body, (str, bytes)) else None if body is None else json.dumps(body)
        text = "" if method == "POST" and text is None else text
        if who == SPAWNER:
            asked = RequestTarget(method, PREFIX.rstrip("/") + path)
            headers = request_headers(SECRET, new_nonce(), self.world.clock.wall(), asked, utf8(text or ""))
        request = HTTPRequest(self.url + path, method, headers, text, allow_nonstandard_methods=True)
        client = SimpleAsyncHTTPClient(force_instance=True)
        response = await client.fetch(request, raise_error=False)
        client.close()
        return response.code, json.loads(response.body)


@pytest.fixture
async def serve(monkeypatch):
    """Return a function that serves a world's API and returns its client."""
    for name in ("API_URL", "API_TOKEN", "CLIENT_ID", "BASE_URL", "SERVICE_PREFIX", "OAUTH_CALLBACK_URL"):
        monkeypatch.setenv(f"JUPYTERHUB_{name}", "http://127.0.0.1:9/hub/api" if name == "API_URL" else "x")
    servers = []

    def serve(world):
        socket, port = bind_unused_port()
        servers.append(HTTPServer(open_gate(world.parts)))
        servers[-1].add_socket(socket)
        return Client(world, f"http://127.0.0.1:{port}{PREFIX.rstrip('/')}")

    yield serve
    for server in servers:
        server.stop()
        await server.close_all_connections()


@pytest.fixture
async def call(world, serve):
    return serve(world)


async def a_token(world, lease):
    """The token of a running workspace, as its environment holds it."""
    token = "gpuws-of-" + lease.user
    changed = type(lease)(**{**vars(lease), "token_hash": hash_token(token)})
    await world.registry.save(changed)
    return f"token {token}"


@pytest.mark.parametrize("who", ["bob by ticket", "bob's workspace"])
async def test_promise_9_another_s_workspace_is_neither_seen_nor_acted_on(world, call, who):
    mine, bobs = await world.up("alice"), await world.up("bob")
    bob = call.ticket("bob") if who == "bob by ticket" else await a_token(world, bobs)
    for path in ("", "/readings", "/audit"):
        assert (await call(bob, "GET", f"/api/v1/workspaces/{mine.id}{path}"))[0] == 404
    for action in ACTIONS:
        status, _ = await call(bob, "POST", f"/api/v1/workspaces/{mine.id}/{action}")
        assert status in ({404} if who == "bob by ticket" else {403, 404}), action
    status, listed = await call(bob, "GET", "/api/v1/workspaces")
    assert (status, [x["user"] for x in listed["workspaces"]]) == (200, ["bob"])
    assert (await call(bob, "GET", "/api/v1/workspaces?all=1"))[0] == 403
    assert world.now_of(mine) == mine


async def test_promise_9_a_new_user_with_a_deleted_one_s_name_has_nothing_of_theirs(make_world, serve):
    world = make_world(quota=2)
    call = serve(world)
    ended, live = await world.up("alice"), await world.up("alice", "second")
    await world.hub_stops(ended)
    await world.go_on(3, step=1)
    world.hub.users["alice"] = "another alice born"
    before, alice = world.now_of(live), call.ticket("alice")
    assert (await call(alice, "GET", "/api/v1/workspaces?ended=200"))[1] == {"workspaces": [], "next": None}
    for lease in (ended, live):
        for path in ("", "/readings", "/audit"):
            assert (await call(alice, "GET", f"/api/v1/workspaces/{lease.id}{path}"))[0] == 404
        for action in ACTIONS:
            assert (await call(alice, "POST", f"/api/v1/workspaces/{lease.id}/{action}"))[0] == 404
    assert (await call(alice, "POST", "/api/v1/check", {"count": 2, "server": "second"}))[0] == 200, "her own quota"
    assert world.now_of(live) == before


async def test_promise_9_a_renamed_user_keeps_what_is_theirs_and_the_old_name_gets_nothing(world, call):
    lease = await world.up("alice", count=2)
    waits = await world.start("alice", "second")
    world.hub.rename("alice", "alicia")
    world.hub.users["alice"] = "another alice born"
    alice, alicia = call.ticket("alice"), call.ticket("alicia")
    assert (await call(alice, "GET", "/api/v1/workspaces"))[1] == {"workspaces": [], "next": None}
    assert (await call(alice, "GET", f"/api/v1/workspaces/{lease.id}"))[0] == 404
    assert (await call(alice, "POST", f"/api/v1/workspaces/{waits.id}/stop"))[0] == 404
    queue = (await call(alice, "GET", "/api/v1/queue"))[1]["queue"]
    assert [(x["id"], x["user"], x["mine"]) for x in queue] == [(None, None, False)]
    listed = (await call(alicia, "GET", "/api/v1/workspaces"))[1]["workspaces"]
    assert [x["id"] for x in listed] == [lease.id, waits.id], "before the service has heard of the new name"
    assert (await call(alicia, "POST", f"/api/v1/workspaces/{lease.id}/extend"))[0] == 200
    await world.go_on(10, step=5)
    assert world.now_of(lease).user == world.now_of(waits).user == "alicia"


async def test_promise_9_the_queue_shows_one_s_own_name_alone(world, call):
    await world.up("alice", count=2)
    await world.start("bob")
    await world.start("carol")
    _, answer = await call(call.ticket("carol"), "GET", "/api/v1/queue")
    assert [(x["user"], x["mine"], x["place"]) for x in answer["queue"]] == [(None, False, 1), ("carol", True, 2)]
    assert answer["queue"][0]["id"] is None


async def test_promise_9_a_workspace_s_token_keeps_and_extends_its_own_lease_and_nothing_more(world, call):
    lease = await world.up("alice")
    second = await world.up("alice", "second")
    token = await a_token(world, lease)
    assert (await call(token, "POST", f"/api/v1/workspaces/{lease.id}/keep"))[0] == 200
    assert (await call(token, "POST", f"/api/v1/workspaces/{lease.id}/extend"))[0] == 200
    assert (await call(token, "POST", f"/api/v1/workspaces/{lease.id}/stop"))[0] == 403
    for action in ("move", "without-gpu", "with-gpu"):
        assert (await call(token, "POST", f"/api/v1/workspaces/{lease.id}/{action}"))[0] == 403
    assert (await call(token, "GET", f"/api/v1/workspaces/{second.id}"))[0] == 404
    assert (await call(token, "POST", "/internal/acquire", {}))[0] == 403
    assert (await call(token, "POST", "/api/v1/ready", {"at": "8:00", "on": "daily"}))[0] == 403
    assert world.now_of(lease).phase is Phase.RUNNING


async def test_promise_9_the_token_of_a_workspace_is_invalid_after_its_end(world, call):
    lease = await world.up("alice")
    token = await a_token(world, lease)
    await world.hub_stops(lease)
    await world.go_on(3, step=1)
    assert (await call(token, "GET", f"/api/v1/workspaces/{lease.id}"))[0] == 403


@pytest.mark.parametrize("who", ["", "ticket forged.ticket", "spawner", "spawner x", "token gpuws-no", "basic x", "é"])
async def test_promise_9_an_anonymous_request_gets_nothing(world, call, who):
    lease = await world.up("alice")
    paths = ["/api/v1", "/api/v1/offers", "/api/v1/queue", "/api/v1/workspaces", f"/api/v1/workspaces/{lease.id}"]
    if not who.startswith(("ticket", "token")):
        who = who or "ticket "
    for path in paths:
        status, answer = await call(who, "GET", path)
        assert status in {403, 503}, path
        assert lease.id not in json.dumps(answer)
    assert (await call(who, "POST", f"/internal/leases/{lease.id}/release?attempt=1&outcome=failed"))[0] == 403
    assert world.now_of(lease) == lease


async def test_promise_9_a_ticket_is_valid_for_a_minute(world, call):
    assert TICKET_SECONDS == 60
    ticket = call.ticket("alice")
    world.clock.advance(TICKET_SECONDS - 1)
    assert (await call(ticket, "GET", "/api/v1"))[1]["user"] == "alice"
    world.clock.advance(2)
    assert (await call(ticket, "GET", "/api/v1"))[0] == 403


async def test_promise_9_a_ticket_does_nothing_for_a_deleted_user(world, call):
    lease, ticket = await world.up("alice"), call.ticket("alice")
    assert (await call(ticket, "POST", f"/api/v1/workspaces/{lease.id}/keep"))[0] == 200
    world.clock.advance(USER_KNOWN_SECONDS)
    for created in (None, "another alice born"):
        world.hub.users.pop("alice", None) if created is None else world.hub.users.update(alice=created)
        for action in ACTIONS:
            status, answer = await call(ticket, "POST", f"/api/v1/workspaces/{lease.id}/{action}")
            assert (status, answer["error"]["message"]) == (
                403,
                "The hub has no user alice any more: nothing was done.",
            )
    assert world.now_of(lease).keeps_used == 1
    world.hub.unreachable = "The hub does not answer."
    assert (await call(ticket, "POST", f"/api/v1/workspaces/{lease.id}/keep"))[0] == 200, "nobody says that she is gone"


async def test_promise_9_the_ticket_of_a_form_says_what_a_start_would_do_and_nothing_more(world, call):
    lease = await world.up("alice")
    ticket = call.ticket("alice", form=True)
    assert (await call(ticket, "GET", "/api/v1/offers"))[1]["held"] == lease.request.count == 1
    assert (await call(ticket, "POST", "/api/v1/check", {"server": "b"}))[0] == 200
    for path in ("", "/queue", "/workspaces", f"/workspaces/{lease.id}", "/disputes", f"/workspaces/{lease.id}/audit"):
        assert (await call(ticket, "GET", f"/api/v1{path}"))[0] == 403, path
    for action in ACTIONS:
        assert (await call(ticket, "POST", f"/api/v1/workspaces/{lease.id}/{action}"))[0] == 403, action
    assert world.now_of(lease).phase is Phase.RUNNING


async def test_promise_9_a_get_never_starts_or_stops_anything(world, call):
    lease = await world.up("alice")
    alice = call.ticket("alice")
    for action in ACTIONS:
        assert (await call(alice, "GET", f"/api/v1/workspaces/{lease.id}/{action}"))[0] == 405
    assert (await call(alice, "GET", "/api/v1/check"))[0] == 405
    assert (await call(SPAWNER, "GET", "/internal/acquire"))[0] == 405
    for path in ("release?outcome=failed&attempt=1", "park?attempt=1", "acknowledge?attempt=1"):
        assert (await call(SPAWNER, "GET", f"/internal/leases/{lease.id}/{path}"))[0] == 405
    assert world.now_of(lease) == lease


async def test_promise_10_refusals_by_tornado_have_a_message(world, call):
    lease = await world.up("alice")
    alice = call.ticket("alice")
    answers = [
        await call(alice, "GET", f"/api/v1/workspaces/{lease.id}/keep"),
        await call(alice, "GET", f"/api/v1/workspaces/{lease.id}/readings?since=%ff"),
    ]
    assert [(status, document["error"]["message"]) for status, document in answers] == [
        (405, "This address does not take GET."),
        (400, "A value in the address is missing, or no text in UTF-8."),
    ]


async def test_a_check_says_the_queue_position_before_and_after_the_request(make_world, serve):
    world = make_world()
    call = serve(world)
    await world.up("bob", gpu="a100", count=2)
    asked = {"gpu": "a100", "count": 2}
    before = await call(call.ticket("alice"), "POST", "/api/v1/check", asked)
    await world.ask("alice", **asked)
    after = await call(call.ticket("alice"), "POST", "/api/v1/check", asked)
    told = [answer["sentence"] for _, answer in (before, after)]
    assert ["You would be 1st in line" in told[0], "You are 1st in line" in told[1]] == [True, True], told


async def test_a_check_says_what_start_cannot_do_now(make_world, serve):
    world = make_world(gpus=8, concurrent_starts_each=1)
    call = serve(world)
    running = await world.up("alice")
    status, answer = await call(call.ticket("alice"), "POST", "/api/v1/check", {})
    assert (status, running.phase) == (409, Phase.RUNNING)
    assert "runs already" in answer["error"]["message"]
    await world.start("alice", "second")
    status, answer = await call(call.ticket("alice"), "POST", "/api/v1/check", {"server": "third"})
    assert (status, answer["starts_now"], answer["place"], answer["ends_at"]) == (200, False, None, None)
    assert "1 of your workspaces are starting, the most at one time" in answer["sentence"]


HUGE = "x" * 2_000_000
BAD_OPTIONS = [
    {"gpu": "h100"}, {"gpu": True}, {"gpu": ["a100"]}, {"count": 0}, {"count": -1}, {"count": 9}, {"count": True},
    {"count": [2, 3]}, {"count": {}}, {"count": "NaN"}, {"count": "1e309"}, {"count": 10**30}, {"count": "\u0661"},
    {"memory": "1 box"}, {"memory": "-1GiB"}, {"cpu": "inf"}, {"lifetime": "1s"}, {"lifetime": None}, {"template": "x"},
    {"unknown": 1}, {"template": {"a": 1}}, {"cpu": ""},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
async def test_promise_10_a_bad_request_is_refused_alike_by_check_and_start(world, call, options):
    await world.round()
    ask = {"hub": world.hub_id, "user": "alice", "user_created": "then", "server": "", "options": options}
    start = await call(SPAWNER, "POST", "/internal/acquire", {**ask, "start_id": "1", "boot_id": "b"})
    check = await call(call.ticket("alice"), "POST", "/api/v1/check", options)
    assert start == check
    status, answer = start
    beside = {key: answer["error"].pop(key) for key in ("sentence", "fields", "understood")}
    assert (beside["sentence"], len(beside["fields"])) == (answer["error"]["message"], 1)
    assert status in {400, 403}
    assert {"field", "asked", "limit", "remedy", "message"} == set(answer["error"])
    assert all(answer["error"].values())
    assert list(world.registry) == []
    assert (await world.ask("alice")).phase is Phase.RESERVED, "the next plain start works"


async def test_a_check_reports_all_errors_at_once_and_explains_the_valid_values(world, call):
    await world.round()
    asked = {"count": "99", "memory": "1 box", "lifetime": "1h30"}
    status, answer = await call(call.ticket("alice"), "POST", "/api/v1/check", asked)
    error = answer["error"]
    assert (status, error["sentence"]) == (400, "Change GPUs and Memory first.")
    assert [one["field"] for one in error["fields"]] == ["count", "memory"]
    assert error["understood"] == {"lifetime": "1 h 30 min"}
    _, answer = await call(call.ticket("alice"), "POST", "/api/v1/check", {"lifetime": "90"})
    assert answer["understood"] == {"lifetime": "1 h 30 min"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/internal/acquire", "no JSON", 400),
        ("/internal/acquire", "[]", 400),
        ("/internal/acquire", b"\xff\xfe", 400),
        ("/internal/acquire", "{}", 400),
        ("/internal/acquire", json.dumps({"hub": 1}), 400),
        ("/internal/acquire", HUGE, 413),
        ("/internal/acquire", "[" * 50_000, 400),
        ("/internal/leases/nobody/park?attempt=x", "", 400),
        ("/internal/leases/nobody/park", "", 400),
        ("/internal/leases/nobody/park?attempt=1", "", 410),
        ("/internal/leases/nobody/heartbeat?attempt=1", "", 410),
        ("/internal/leases/nobody/requeue?attempt=1", "", 410),
        ("/internal/leases/nobody/requeue?attempt=1", "[]", 400),
        ("/internal/leases/nobody/acknowledge?attempt=1", "", 410),
        ("/internal/leases/nobody/release?attempt=1&outcome=odd", "", 400),
        ("/internal/leases/nobody/release?attempt=1&outcome=failed", "", 200),
    ],
)
async def test_promise_10_an_invalid_request_of_the_spawner_is_refused_with_a_message(world, call, path, body, status):
    answered, answer = await call(SPAWNER, "POST", path, body)
    assert answered == status
    assert status == 200 or answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/v1/check", "no JSON", 400),
        ("POST", "/api/v1/check", "[]", 400),
        ("POST", "/api/v1/check", HUGE, 413),
        ("GET", "/api/v1/workspaces?ended=-1", None, 400),
        ("GET", "/api/v1/workspaces?ended=999999999", None, 400),
        ("GET", "/api/v1/workspaces/nobody", None, 404),
        ("POST", "/api/v1/workspaces/nobody/stop", None, 404),
        ("GET", "/api/v1/workspaces/{lease}/readings?since=x", None, 400),
        ("GET", "/api/v1/workspaces/{lease}/readings?since=nan", None, 400),
        ("POST", "/api/v1/workspaces/{lease}/extend", None, 200),
        ("POST", "/api/v1/workspaces/{lease}/keep", "[1]", 400),
    ],
)
async def test_promise_10_an_invalid_request_of_a_user_is_refused_with_a_message(
    world, call, method, path, body, status
):
    lease = await world.up("alice")
    answered, answer = await call(call.ticket("alice"), method, path.format(lease=lease.id), body)
    assert answered == status
    assert status == 200 or answer["error"]["message"]


UNKNOWN = [
    *(
        (f"/api/v1/workspaces/{{lease}}/{action}", set())
        for action in ("keep", "extend", "move", "stop", "without-gpu")
    ),
    *((f"/api/v1/workspaces/{{lease}}/{action}", {"sentence"}) for action in ("dispute",)),
    ("/api/v1/workspaces/{lease}/rename", {"title"}),
    ("/api/v1/workspaces/{lease}/size", {"gpu", "count", "cpu", "memory", "at_once"}),
    ("/api/v1/workspaces/{lease}/extend?until=1900000000", set()),
    *((f"/internal/leases/{{lease}}/{step}?attempt=1", set()) for step in ("acknowledge", "heartbeat", "park")),
    ("/internal/leases/{lease}/requeue?attempt=1", {"why", "node"}),
    ("/internal/leases/{lease}/release?attempt=1&outcome=failed", {"message", "output"}),
    ("/internal/forget", {"hub", "user_created", "server"}),
    ("/internal/acquire", {"hub", "user_created", "server", "user", "options", "start_id", "boot_id", "by"}),
]


@pytest.mark.parametrize(("path", "known"), UNKNOWN)
async def test_promise_10_an_unknown_field_is_refused_by_name_and_nothing_is_done(world, call, path, known):
    lease = await world.up("alice")
    who = SPAWNER if path.startswith("/internal") else call.ticket("alice")
    body = dict.fromkeys(known, "") | ({} if "until" in path else {"until": 1_900_000_000})
    status, answer = await call(who, "POST", path.format(lease=lease.id), body)
    told = status, answer["error"]["field"], set(answer["error"]["limit"].split(", "))
    assert told == (400, "'until'", known or {"none"})
    assert world.now_of(lease) == lease


async def test_promise_6_a_start_without_room_returns_to_its_queue_position(world, call):
    await world.round()
    lease = await world.start("alice")
    path = f"/internal/leases/{lease.id}/requeue?attempt=1"
    why = {"why": "The cluster's quota team leaves no room.", "node": "one"}
    assert (await call(SPAWNER, "POST", path, why))[0] == 409, "it was not begun"
    await world.acknowledge(lease)
    status, answer = await call(SPAWNER, "POST", path, why)
    told = "The cluster's quota team leaves no room. We try again in 30 s. Others can go first meanwhile."
    assert (status, answer["attempt"], answer["lease"]["queue"]["sentence"]) == (200, 2, told)
    assert world.now_of(lease).tried_nodes == ("one",)
    assert (await call(SPAWNER, "POST", path, why))[0] == 410, "it was heard, though the answer was not"


async def test_promise_6_the_spawner_names_the_node_without_room(world, call):
    await world.round()
    lease = await world.start("alice")
    await world.acknowledge(lease)
    await LeaseClient(call.url, SECRET, world.clock.wall).requeue(
        lease.id, 1, "Its node had no room after all.", "node-7"
    )
    assert world.now_of(lease).tried_nodes == ("node-7",)


async def test_a_lease_that_is_over_can_t_be_kept_and_says_so(world, call):
    lease = await world.up("alice")
    alice = call.ticket("alice")
    assert (await call(alice, "POST", f"/api/v1/workspaces/{lease.id}/stop"))[1]["phase"] == "stopping"
    await world.go_on(3, step=1)
    status, answer = await call(alice, "POST", f"/api/v1/workspaces/{lease.id}/keep")
    assert (status, "Start it again" in answer["error"]["message"]) == (409, True)
    assert (await call(alice, "POST", f"/api/v1/workspaces/{lease.id}/seen"))[1]["end"]["seen"] is True


async def test_an_unreachable_store_is_answered_with_503_and_the_reason(world, call):
    await world.round()
    world.parts.store._engine.dispose()
    ask = {"hub": world.hub_id, "user": "alice", "user_created": "t", "server": "", "options": {}}
    ask |= {"start_id": "1", "boot_id": "b"}
    with world.database.connected():  # as another service that writes
        status, answer = await call(SPAWNER, "POST", "/internal/acquire", ask)
    assert (status, "The store does not answer" in answer["error"]["message"]) == (503, True)
    assert list(world.registry) == []
    assert (await call(SPAWNER, "POST", "/internal/acquire", ask))[0] == 200


async def test_promise_10_a_hub_with_another_id_is_refused_with_both_ids(world, call):
    await world.round()
    ask = {"hub": "new-id", "user": "alice", "user_created": "t", "server": "", "options": {}}
    status, answer = await call(SPAWNER, "POST", "/internal/acquire", {**ask, "start_id": "1", "boot_id": "b"})
    assert (status, list(world.registry)) == (503, [])
    assert f"The hub has the id new-id, and this GPU service is for {world.hub_id}" in answer["error"]["message"]


async def test_answers_of_another_hubs_service_are_distinguished_from_our_own(world, call):
    lease = await world.up("alice")
    ticket = call.ticket("alice").removeprefix("ticket ")
    for secret, ours in ((SECRET, True), (b"x" * 32, False)):
        client = LeaseClient(call.url, secret, world.clock.wall)
        with pytest.raises(Gone if ours else Unavailable, match=None if ours else NOT_OURS):
            await client.heartbeat(lease.id, 7)
        found = await ServiceView(call.url, ticket, secret).workspaces()
        assert (found is not None) == ours, "a ticket that another service would take proves nothing of it"


async def test_the_proof_of_an_answer_names_its_request(world, call):
    """A proof that did not name its request could be used for another request."""
    await world.up("alice")
    url, nonce = f"{call.url}/api/v1/workspaces", new_nonce()
    response = await AsyncHTTPClient().fetch(url, headers={"Authorization": call.ticket("bob"), NONCE_HEADER: nonce})
    assert is_proven(response, SECRET, nonce, RequestTarget("GET", target_of(url)))
    assert not is_proven(
        response, SECRET, nonce, RequestTarget("GET", target_of(f"{call.url}/internal/leases/1?attempt=1"))
    )
    assert not is_proven(response, SECRET, nonce, RequestTarget("POST", target_of(url)))
