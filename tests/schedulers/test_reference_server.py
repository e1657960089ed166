"""The reference scheduler over HTTP follows the contract for any request, and under each fault."""

import hashlib
import hmac
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests
import yaml
from few_examples import POSITIVE, statuses_of_any_request
from harness.waiting import eventually
from hypothesis import strategies as st
from reference_claims import NOW, asking, holding
from reference_server import TOKEN, reference_server

from demo.scheduler.contract import CONTRACT

SIGNED = {"Authorization": f"Bearer {TOKEN}"}
keys = map(str, itertools.count())


@pytest.fixture(scope="module")
def served():
    with reference_server() as found:
        yield found


@pytest.fixture
def ask(served):
    """Send a request to a server without claims."""
    url, server = served
    server.faults.coming.clear()
    assert requests.post(f"{url}/admin/forget", headers=SIGNED, timeout=20).status_code == 204

    def send(method, path, body=None, **more):
        headers = {**SIGNED, "Idempotency-Key": next(keys), **more.pop("headers", {})}
        return requests.request(method, f"{url}{path}", json=body, headers=headers, timeout=20, **more)

    return send


def fault(ask, kind, **more):
    assert ask("POST", "/admin/faults", {"kind": kind, **more}).status_code == 204


def claims(ask, **params):
    return ask("GET", "/v1/hubs/hub/claims", params=params).json()


def until(ask, name, state):
    """Wait for a claim's state by the long poll."""
    told = claims(ask)
    found = {one["id"]: one for one in told["claims"]}
    ends = time.monotonic() + 60
    while found.get(name, {}).get("state") != state:
        assert time.monotonic() < ends, found
        told = claims(ask, cursor=told["cursor"], wait_seconds=20)
        found |= {one["id"]: one for one in told["claims"]}
    return found[name]


def test_a_claim_s_life(ask):
    assert ask("GET", "/v1/capabilities").json()["hold_seconds"] >= 40
    offers = ask("POST", "/v1/offers", asking()).json()["offers"]
    assert [one["cluster"] for one in offers] == ["onsite", "cloud"]
    assert ask("PUT", "/v1/hubs/hub/claims/one", asking()).json()["state"] == "waiting"
    state = until(ask, "one", "granted")
    assert ask("POST", "/v1/hubs/hub/claims/one/confirm", {"revision": 1}).json()["state"] == "running"
    running = asking(want="running", holds=holding(state))
    assert ask("PUT", "/v1/hubs/hub/claims/one", running).json()["grant"]["slots"] == state["grant"]["slots"]
    free = [one["free"] for one in ask("GET", "/v1/stock").json()["stock"] if one["kind"] == "a100"]
    assert free == [3, 4]
    assert ask("POST", "/admin/jobs", {"id": "big", "kind": "a100", "count": 4}).status_code == 204
    assert ask("POST", "/v1/hubs/hub/claims/one/preemption/acknowledge").status_code == 409
    assert claims(ask, wait_seconds=0)["complete"] is True
    assert [ask("DELETE", "/v1/hubs/hub/claims/one").status_code for _ in range(2)] == [204, 204]
    assert claims(ask)["claims"] == []


def test_a_request_without_a_token_is_refused_everywhere(served):
    url, _ = served
    asked = {"GET": ["/v1/stock", "/x"], "PUT": ["/v1/hubs/h/claims/c"], "POST": ["/admin/forget"]}
    for method, path in [(method, path) for method, paths in asked.items() for path in paths]:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = requests.request(method, url + path, headers=headers, timeout=20)
            assert (answer.status_code, set(answer.json())) == (401, {"error", "words"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"count": -1}, "count: -1"),
        ({"ttl_seconds": 1}, "ttl_seconds: 1"),
        ({"asked_at": "today"}, "asked_at: 'today'"),
        ({"kind": None}, "kind and count"),
    ],
)
def test_a_violation_of_the_contract_is_refused_by_its_field(ask, change, words):
    answer = ask("PUT", "/v1/hubs/hub/claims/one", {**asking(), **change})
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert words in answer.json()["words"]
    assert claims(ask)["claims"] == []


def test_a_request_that_comes_again_is_answered_as_before_and_does_nothing(ask):
    first = ask("PUT", "/v1/hubs/hub/claims/one", asking(), headers={"Idempotency-Key": "same"})
    ask("DELETE", "/v1/hubs/hub/claims/one")
    late = ask("PUT", "/v1/hubs/hub/claims/one", asking(), headers={"Idempotency-Key": "same"})
    assert (late.status_code, late.json()) == (200, first.json())
    assert claims(ask)["claims"] == []
    other = ask("PUT", "/v1/hubs/hub/claims/two", asking(), headers={"Idempotency-Key": "same"})
    assert (other.status_code, other.json()["error"]) == (422, "key_reused")


def test_news_come_at_once_to_who_waits_for_them(ask):
    cursor = claims(ask)["cursor"]
    with ThreadPoolExecutor() as pool:
        poll = pool.submit(claims, ask, cursor=cursor, wait_seconds=30)
        time.sleep(0.2)
        asked_at = time.monotonic()
        ask("PUT", "/v1/hubs/hub/claims/one", asking())
        told = poll.result(60)
        assert time.monotonic() - asked_at < 20
    assert [one["state"] for one in told["claims"]] == ["granted"]
    assert claims(ask, cursor=told["cursor"], wait_seconds=0)["claims"] == []


def test_after_it_forgot_all_a_cursor_is_refused(ask):
    cursor = claims(ask)["cursor"]
    ask("PUT", "/v1/hubs/hub/claims/one", asking())
    ask("POST", "/admin/forget")
    answer = ask("GET", "/v1/hubs/hub/claims", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["error"]) == (410, "gone")
    assert claims(ask)["claims"] == []


@pytest.mark.parametrize(
    ("kind", "done"), [("error", False), ("error_after", True), ("cut", False), ("cut_after", True)]
)
def test_a_fault_loses_the_request_or_the_answer(ask, kind, done):
    fault(ask, kind, only="PUT")
    try:
        assert ask("PUT", "/v1/hubs/hub/claims/one", asking()).status_code == 500
        assert kind.startswith("error")
    except requests.ConnectionError:
        assert kind.startswith("cut")
    assert bool(claims(ask)["claims"]) is done


@pytest.mark.parametrize("kind", ["slow", "late"])
def test_a_fault_delays(ask, kind):
    fault(ask, kind, seconds=0.4, only="PUT")
    begun = time.monotonic()
    assert ask("PUT", "/v1/hubs/hub/claims/one", asking()).status_code == 200
    assert time.monotonic() - begun >= 0.4


def test_a_repeated_event_happens_once_and_is_answered_twice(ask):
    cursor = claims(ask)["cursor"]
    fault(ask, "twice", count=2)
    assert ask("PUT", "/v1/hubs/hub/claims/one", asking()).status_code == 200
    again = claims(ask, cursor=cursor, wait_seconds=20)
    assert again["cursor"] == cursor
    assert [one["id"] for one in claims(ask, cursor=cursor, wait_seconds=20)["claims"]] == ["one"]
    assert ask("POST", "/admin/faults", {"kind": "fire"}).status_code == 400


@pytest.fixture
def hook():
    """An address that receives callbacks and refuses the first one."""
    had = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            had.append((self.headers["X-Signature"], self.headers["X-Delivery"], body))
            self.send_response(500 if len(had) == 1 else 204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Taking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/changed", had
        server.shutdown()


def test_a_callback_is_signed_and_sent_again_as_the_same_delivery(ask, hook):
    url, had = hook
    assert ask("PUT", "/v1/hubs/hub/callback", {"url": url}).status_code == 204
    ask("PUT", "/v1/hubs/hub/claims/one", asking())
    eventually(lambda: len(had) >= 2, what="it is sent again")
    (_, first, _), (signature, again, body) = had[:2]
    assert first == again
    assert yaml.safe_load(body)["hub"] == "hub"
    at, v1 = (part.partition("=")[2] for part in signature.split(","))
    assert hmac.new(TOKEN.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest() == v1
    assert abs(time.time() - int(at)) < 60
    elsewhere = ask("PUT", "/v1/hubs/hub/callback", {"url": "http://192.0.2.1/x"})
    assert (elsewhere.status_code, elsewhere.json()["error"]) == (409, "url_refused")
    assert ask("PUT", "/v1/hubs/hub/callback", {"url": None}).status_code == 204


def test_any_request_by_the_contract_is_answered_as_it_says(ask, served):
    """Valid and invalid requests from the document never get a 500 or an undocumented answer."""
    ask("PUT", "/v1/hubs/hub/claims/one", asking())

    def send(case, mode, of_mine, at_once):
        if of_mine and mode is POSITIVE and "id" in case.path_parameters:  # else hardly ever one that is there
            case.path_parameters.update(hub="hub", id="one")
        if at_once and "wait_seconds" in (case.query or {}):
            case.query.pop("wait_seconds")
        return case.call(base_url=served[0], headers=SIGNED, timeout=90)

    statuses = statuses_of_any_request(CONTRACT, st.tuples(st.booleans(), st.booleans()), send)
    assert {200, 204, 400, 404, 409, 410} <= statuses


def test_the_page_shows_who_waits_and_who_holds(ask, served):
    ask("PUT", "/v1/hubs/hub/claims/one", asking(user="<i>eve</i>"))
    until(ask, "one", "granted")
    ask("PUT", "/v1/hubs/hub/claims/two", asking(4, user="bob"))
    ask("PUT", "/v1/hubs/hub/claims/three", asking(4, user="carol", at=NOW + 1))
    eventually(lambda: until(ask, "three", "waiting")["reason"], what="why it waits")
    page = requests.get(f"{served[0]}/", timeout=20)
    assert page.status_code == 200
    assert "&lt;i&gt;eve" in page.text
    assert "granted, to be taken within" in page.text
    assert "No node has 4 a100 free." in page.text
