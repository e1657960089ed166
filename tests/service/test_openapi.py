"""The OpenAPI document: every route is in it, it is valid, and any request by it is answered as it says."""

import base64
import inspect
import json
import re

import pytest
import requests
from few_examples import statuses_of_any_request
from hypothesis import strategies as st
from page_world import api, running, waiting, world_fixture

from gpuspawner.service.api.rest.document import BELOW, path_of, route_of
from gpuspawner.service.api.routes import ROUTES, document_of_all
from gpuspawner.service.app import application

world = world_fixture(running("runs"), waiting("waits", "bob"))


def test_each_route_of_the_application_is_declared_and_in_the_document(world):
    rules = application(world.parts).wildcard_router.rules
    prefix = world.parts.prefix.rstrip("/")
    below = [(rule.matcher.regex.pattern.removeprefix(prefix).rstrip("$"), rule.target) for rule in rules]
    served = [(pattern, handler) for pattern, handler in below if pattern.startswith(BELOW)]
    assert list(undeclared(served)) == []
    assert {path_of(*one) for one in served} == set(document_of_all()["paths"])
    assert len(served) == len(ROUTES) > 20


def undeclared(routes):
    """Yield each method of a handler that says nothing of what it takes and answers."""
    for _, handler in routes:
        for name in METHODS:
            own = inspect.getattr_static(handler, name, None)
            is_ours = inspect.isfunction(own) and own.__module__.startswith("gpuspawner")
            if is_ours and route_of(handler, name) is None:
                yield f"{handler.__module__}.{handler.__name__}.{name}"


def test_the_document_is_answered_to_anybody_below_the_service_s_address(world):
    answer = requests.get(f"{world.home}api/openapi.json", timeout=20)
    assert answer.status_code == 200
    told = answer.json()
    assert (told["openapi"], told["servers"]) == ("3.1.0", [{"url": "/services/gpu"}])
    action = told["paths"]["/api/v1/workspaces/{workspace}/keep"]["post"]
    assert action["summary"] == "Pause its idle check for a while. The end time stays."
    assert action["parameters"][1]["name"] == "Idempotency-Key"
    assert {"200", "400", "403", "404", "409", "422", "503"} <= set(action["responses"])
    listing = {one["name"]: one for one in told["paths"]["/api/v1/workspaces"]["get"]["parameters"]}
    assert listing["limit"]["description"] == "The number of entries in one answer."
    sentence = told["components"]["schemas"]["Problem"]["properties"]["sentence"]
    assert sentence["description"] == "All errors of the options in one sentence."
    assert "text/event-stream" in told["paths"]["/api/v1/events"]["get"]["responses"]["200"]["content"]


def forged(*order):
    return base64.urlsafe_b64encode(json.dumps(order).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("GET", "queue?who=bob", None, "'who'"),
        ("GET", "workspaces?ended=many", None, "ended: You asked for 'many'. Allowed: a valid integer"),
        ("GET", "workspaces?limit=0", None, "limit: You asked for '0'. Allowed: greater than or equal to 1"),
        ("GET", "workspaces?limit=0", None, "It means: The number of entries in one answer."),
        ("GET", "workspaces?cursor=lost", None, "cursor: You asked for 'lost'. Allowed: `next` of the part before"),
        ("GET", f"workspaces?ended=5&cursor={forged(1, 5, chr(0xD800))}", None, "Allowed: `next` of the part before"),
        ("GET", f"workspaces?ended=5&cursor={forged(1, 5, chr(0))}", None, "Allowed: `next` of the part before"),
        ("POST", "check", {"memory": "16 boxes"}, "Memory: You asked for '16 boxes'"),
        ("POST", "check", {"memorry": "16GiB"}, "Did you mean `memory`?"),
        ("POST", "workspaces/runs/keep", {"for": "2h"}, "'for'"),
    ],
)
def test_unknown_parameters_and_wrong_units_are_refused(world, method, path, body, words):
    answer = api(world, "alice", path, method, body)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_a_long_list_comes_in_parts_and_nothing_twice(world):
    for index in range(5):
        world.save(running(f"of-{index}", minutes=index, server=f"s{index}"))
    whole = [one["id"] for one in api(world, "alice").json()["workspaces"]]
    parts, cursor = [], ""
    while cursor is not None:
        answer = api(world, "alice", f"workspaces?limit=2&ended=2&cursor={cursor}").json()
        parts += [one["id"] for one in answer["workspaces"]]
        cursor = answer["next"]
    assert parts == whole
    assert len(parts) == 6


def keyed(world, key, path="workspaces/runs/extend", body=None):
    headers = {"Authorization": f"token {world.token('alice')}", "Idempotency-Key": key}
    return requests.post(f"{world.home}api/v1/{path}", headers=headers, data=json.dumps(body or {}), timeout=20)


def test_a_repeated_key_acts_once_and_returns_the_same_answer(world):
    first, again = keyed(world, "one"), keyed(world, "one")
    assert (first.status_code, again.status_code) == (200, 200), first.text
    assert first.json() == again.json()
    assert ("Idempotency-Replayed" in first.headers, again.headers["Idempotency-Replayed"]) == (False, "true")
    once = world.lease("runs").extended_seconds
    assert keyed(world, "two").status_code == 200
    assert world.lease("runs").extended_seconds == 2 * once > 0
    assert keyed(world, "one", "workspaces/runs/stop").status_code == 422
    assert keyed(world, "x" * 256).status_code == 400


def test_a_refused_request_may_be_repeated_with_the_same_key(world):
    assert keyed(world, "one", "workspaces/runs/move").status_code == 409
    assert keyed(world, "one", "workspaces/runs/stop").status_code == 200


METHODS = {"get", "post", "put", "delete"}
OPERATIONS = [(method, path) for path, one in document_of_all()["paths"].items() for method in METHODS & one.keys()]


@pytest.mark.parametrize(("method", "path"), sorted(OPERATIONS))
def test_an_argument_that_does_not_exist_is_refused_in_json_at_each_route(world, method, path):
    address = world.home.rstrip("/") + re.sub(r"\{[^}]*\}", "runs", path)
    for headers in ({}, {"Authorization": f"token {world.token('admin')}"}):
        answer = requests.request(method, f"{address}?no-such-argument=1", headers=headers, data="{}", timeout=20)
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]["message"]


def test_any_request_by_the_document_is_answered_as_it_says(world):
    """Valid and invalid requests from the document: no answer is a 500 or missing in the document."""
    told = json.loads(json.dumps(document_of_all()))
    del told["paths"]["/api/v1/events"]["get"]  # it does not end

    def send(case, _mode, who, of_mine):
        if of_mine and "workspace" in case.path_parameters:  # else hardly ever one that is there
            case.path_parameters["workspace"] = "runs"
        headers = {"Authorization": f"Bearer {world.token(who)}"}
        return case.call(base_url=world.home.rstrip("/"), headers=headers, timeout=20)

    drawn = st.tuples(st.sampled_from(["alice", "admin"]), st.booleans())
    assert {200, 400, 404} <= statuses_of_any_request(told, drawn, send)
