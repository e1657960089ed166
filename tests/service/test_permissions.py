"""Each endpoint answers the roles that have its permission, and no others. Made from the routes themselves."""

import re
from dataclasses import replace

import pytest
import requests
from page_world import running

from gpuspawner.service.api.rest.document import METHODS
from gpuspawner.service.api.rest.route import route_of
from gpuspawner.service.api.routes import ROUTERS, ROUTES
from gpuspawner.service.engine.allocation.start_attempts import WORKSPACE_TOKEN_PREFIX, hash_token
from gpuspawner.service.web.permissions import ALLOWED, Permission, Role

ENDPOINTS = [(method, *found) for found in ROUTES for method in METHODS if route_of(found[1], method) is not None]
WORKSPACE_TOKEN = f"{WORKSPACE_TOKEN_PREFIX}of-alice"
SIGN_IN = "Sign in to the hub, or send a token with the scope custom:gpu:use."
PEOPLE = {"nobody": frozenset(), "alice": {Role.USER}, "admin": {Role.USER, Role.ADMINISTRATOR}}
TYPED = [one for router in ROUTERS for one in router.endpoints]


@pytest.fixture
def world(make_web_world):
    made = make_web_world()
    made.observe()
    return made


def address_of(pattern):
    """Return an address that a route's pattern matches: the first of its words, or an id that nothing has."""
    return re.sub(r"\(([^)]*)\)", lambda found: "none" if "[" in found[1] else found[1].split("|")[0], pattern)


def ask(world, name, method, pattern):
    token = WORKSPACE_TOKEN if name == "workspace" else world.token(name)
    headers = {} if name == "nobody" else {"Authorization": f"token {token}"}
    address = f"{world.url}{world.parts.prefix.rstrip('/')}{address_of(pattern.removesuffix('?'))}"
    with requests.request(method, address, headers=headers, timeout=20, stream=True) as answer:
        return answer.status_code, "" if answer.ok else answer.json()["error"]["message"]


@pytest.mark.parametrize("name", PEOPLE)
def test_promise_9_each_endpoint_is_for_the_roles_with_its_permission(world, name):
    wrong = []
    for method, pattern, handler in ENDPOINTS:
        declared, (status, message) = route_of(handler, method), ask(world, name, method, pattern)
        is_admin = Role.ADMINISTRATOR in PEOPLE[name]
        allowed = declared.everybody or (name != "nobody" and (is_admin or not declared.admins))
        reason = f"Only administrators (scope custom:gpu:admin) {declared.admins}." if PEOPLE[name] else SIGN_IN
        refused = (status, message) == (403, reason)
        if refused is allowed or status >= 500:
            wrong.append((method, pattern, status, message))
    assert (wrong, len(ENDPOINTS) > 30) == ([], True)


@pytest.mark.parametrize("role", ["workspace", "robot", "alice", "admin"])
def test_promise_9_each_typed_endpoint_follows_the_table_of_permissions(world, role):
    world.save(replace(running("runs"), token_hash=hash_token(WORKSPACE_TOKEN)))
    roles, wrong = {**PEOPLE, "workspace": {Role.WORKSPACE}, "robot": {Role.SERVICE}}[role], []
    for one in TYPED:
        status, message = ask(world, role, one.method, re.sub(r"\{\w+\}", "none", one.path))
        refused = status == 403 and (one.permission.value in message)
        if refused is bool(roles & ALLOWED[one.permission]) or status >= 500:
            wrong.append((one.method, one.path, status, message))
    assert wrong == []


def test_each_permission_has_roles_and_each_typed_endpoint_needs_one():
    assert ALLOWED.keys() == set(Permission)
    assert all(ALLOWED.values())
    declared = {(method, pattern) for method, pattern, _ in ENDPOINTS}
    for one in TYPED:
        assert isinstance(one.permission, Permission)
        assert (one.method, re.sub(r"\{\w+\}", "([^/]+)", one.path)) in declared
