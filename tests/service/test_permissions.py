"""The table of roles and permissions, cell by cell. The cases are made from the routes themselves."""

import re
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest
import requests
from page_world import CATALOG, GPUS, NOW, Browser, api, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.authentication import sign_ssh_ticket
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.quotas.ledger import QuotaAmount
from gpuspawner.core.quotas.quota_requests import QuotaRequest
from gpuspawner.core.rules import Account, LimitedResource, Rate
from gpuspawner.service.administration.dialogs import DIALOGS, DialogPage
from gpuspawner.service.api.rest.document import METHODS, route_of
from gpuspawner.service.api.routes import ROUTERS, ROUTES
from gpuspawner.service.engine.allocation.start_attempts import WORKSPACE_TOKEN_PREFIX, hash_token
from gpuspawner.service.web.admin_page import TABS, AdminPage
from gpuspawner.service.web.page_routes import ROUTES as PAGES
from gpuspawner.service.web.permissions import ACTS, ALLOWED, Permission, Reach, Role, refusal_words

DECLARED = [(method, *found) for found in ROUTES for method in METHODS if route_of(found[1], method) is not None]
TYPED = [one for router in ROUTERS for one in router.endpoints]
OF_ONE = [one for one in TYPED if one.path.startswith("/api/v1/workspaces/{workspace}")]
WORKSPACE_TOKEN = f"{WORKSPACE_TOKEN_PREFIX}of-alice"
SIGN_IN = "Sign in to the hub, or send a token with the scope custom:gpu:use."
PEOPLE = {
    "alice": {Role.USER},
    "lena": {Role.USER, Role.LEAD},
    "otto": {Role.USER, Role.AUDITOR},
    "vera": {Role.USER, Role.OPERATOR},
    "admin": {Role.USER, Role.ADMINISTRATOR},
    "robot": {Role.SERVICE},
    "workspace": {Role.WORKSPACE},
}
CONSOLE = {name: roles for name, roles in PEOPLE.items() if Role.USER in roles}
TICKET = sign_ssh_ticket(b"s" * 32, "own", "alice", NOW)
BODIES = {
    "consent": {"substitutes": []},
    "take": {"count": 1},
    "done": {"minutes": 10},
    "lacking": {"lacks": []},
    "check": {"ticket": TICKET},
}
ACT_LINK = re.compile(r"console/act/([a-z-]+)")


@pytest.fixture
def world(make_web_world):
    made = make_web_world(load_catalog({**CATALOG, "teams": {"vision": {}, "speech": {}}}))
    made.observe()
    made.groups = {"bob": {"vision"}, "lena": {"vision"}, "carol": {"speech"}}
    return made


def of_team(lease, team):
    return replace(lease, request=replace(lease.request, team=team))


def reach_of(name, permission):
    return max((ALLOWED[permission].get(role, 0) for role in PEOPLE[name]), default=0)


def ask(world, name, method, path, body=None):
    """Return the status and the message of an error."""
    token = WORKSPACE_TOKEN if name == "workspace" else world.token(name)
    headers = {} if name == "nobody" else {"Authorization": f"token {token}"}
    address = f"{world.url}{world.parts.prefix.rstrip('/')}{path}"
    with requests.request(method, address, headers=headers, json=body, timeout=20, stream=True) as answer:
        return answer.status_code, "" if answer.ok else answer.json()["error"]["message"]


def test_promise_9_without_a_sign_in_only_the_routes_for_everybody_answer(world):
    wrong = []
    for method, pattern, handler in DECLARED:
        path = re.sub(r"\([^)]*\)", "none", pattern.removesuffix("?"))
        refused = ask(world, "nobody", method, path) == (403, SIGN_IN)
        if refused is route_of(handler, method).everybody:
            wrong.append((method, pattern))
    assert (wrong, len(DECLARED) > 40) == ([], True)


@pytest.mark.parametrize("name", PEOPLE)
def test_promise_9_each_endpoint_refuses_the_roles_without_its_permission(world, name):
    world.save(replace(running("runs"), token_hash=hash_token(WORKSPACE_TOKEN)))
    wrong = []
    for one in TYPED:
        status, message = ask(world, name, one.method, re.sub(r"\{\w+\}", "none", one.path.removesuffix("?")))
        refused = (status, message) == (403, refusal_words(one.permission))
        if refused is bool(reach_of(name, one.permission)) or status >= 500:
            wrong.append((one.method, one.path, status, message))
    assert wrong == []


@pytest.mark.parametrize("name", PEOPLE)
def test_promise_9_a_permission_reaches_one_s_own_workspace_those_of_a_team_or_all(world, name):
    token = {"token_hash": hash_token(WORKSPACE_TOKEN)} if name == "workspace" else {}
    user = "alice" if name in {"workspace", "robot"} else name
    world.save(of_team(replace(running("own", user=user), **token), "speech"))
    world.save(of_team(running("team", user="bob", gpus=(1,)), "vision"))
    world.save(of_team(running("all", user="carol", gpus=(2,)), "speech"))
    needed = {"own": Reach.OWN, "team": Reach.TEAM, "all": Reach.ALL}
    if name == "robot":
        needed["own"] = Reach.ALL  # it has no workspaces of its own
    wrong = []
    for one in OF_ONE:
        for lease, least in needed.items():
            sees, may = reach_of(name, Permission.SEE_WORKSPACES) >= least, reach_of(name, one.permission) >= least
            without = not reach_of(name, one.permission)
            path = one.path.replace("{workspace}", lease)
            status, message = ask(world, name, one.method, path, BODIES.get(path.rpartition("/")[2]))
            expected = 403 if without else 404 if not sees else 403 if not may else None
            found = status if status in {403, 404} else None
            if found != expected or (found == 403 and without and message != refusal_words(one.permission)):
                wrong.append((one.path, lease, status, message, expected))
            world.save(world.lease(lease))
    assert (wrong, len(OF_ONE) > 15) == ([], True)


@pytest.mark.parametrize("name", CONSOLE)
def test_promise_9_each_page_of_the_console_opens_for_the_roles_with_its_permission(world, name):
    browser, wrong = Browser(world, name), []
    shown = {tab.name for tab in TABS if reach_of(name, tab.permission) > Reach.OWN}
    for pattern, handler in PAGES:
        if not issubclass(handler, AdminPage) or ("get" not in vars(handler) and handler.get is AdminPage.get):
            continue
        for act in DIALOGS if handler is DialogPage else [""]:
            path = (
                re.sub(r"\([^)]*\)", lambda found, act=act: act or ("bob" if "+" in found[0] else ""), pattern)
                .replace("/?", "/")
                .lstrip("/")
                .replace("\\", "")
            )
            needed = ACTS[act] if act else handler.permission.fget(SimpleNamespace(tab=handler.tab))
            answer = browser.get(world.home + path, timeout=20)
            allowed = reach_of(name, needed) > Reach.OWN
            if (answer.status_code == 403) is allowed or answer.status_code >= 500:
                wrong.append((path, answer.status_code))
            tabs = {tab.name for tab in TABS if f'<a href="{PREFIX}/{tab.path}"' in answer.text}
            if answer.ok and "console/act" not in path and not shown <= tabs:
                wrong.append((path, shown - tabs))
    assert wrong == []
    home = browser.get(world.home).text
    assert ('href="/services/gpu/console/"' in home) is bool(shown)


PREFIX = "/services/gpu"


@pytest.mark.parametrize("name", CONSOLE)
def test_promise_9_pages_have_the_buttons_that_a_role_may_press(world, name):
    world.save(of_team(running("runs", user="bob", deadline_at=NOW + 3600), "vision"))
    wait = waiting("waits", user="bob")
    world.save(of_team(replace(wait, key=replace(wait.key, server="two")), "vision"))
    for what in ({"what": "quarantine", "gpu": GPUS[3].id}, {"what": "exempt", "user": "bob", "until": "3d"}):
        assert api(world, "admin", "admin/restrictions", "POST", {**what, "reason": "x"}).status_code == 201
    grant = {"user": "bob", "team": "vision", "what": "+2 GPUs", "until": "3d", "why": "x"}
    assert api(world, "admin", "quota-grants", "POST", grant).status_code == 201
    account, amount = Account("vision", "bob born"), QuotaAmount(LimitedResource.GPUS, "", Fraction(1))
    asked = QuotaRequest("q1", "hub-1", "bob born", "bob", account, amount, None, NOW + 3600, "x", NOW)
    world.call(world.parts.quota_requests.change, asked, [])
    browser, found = Browser(world, name), set()
    paths = [tab.path for tab in TABS] + ["console/people/bob", "workspaces/runs"]
    for path in paths:
        answer = browser.get(world.home + path, timeout=20)
        found |= set(ACT_LINK.findall(answer.text)) if answer.ok else set()
    allowed = {act for act in DIALOGS if reach_of(name, ACTS[act])}
    assert (found - allowed, found) == (set(), allowed)
    extends = "workspaces/runs/extend" in browser.get(f"{world.home}workspaces/runs", timeout=20).text
    assert extends is (reach_of(name, Permission.KEEP) > Reach.OWN)


def test_each_permission_has_roles_and_each_endpoint_needs_one():
    assert ALLOWED.keys() == set(Permission)
    assert all(ALLOWED.values())
    declared = {(method, pattern) for method, pattern, _ in DECLARED}
    for one in TYPED:
        assert (one.method, re.sub(r"\{\w+\}", "([^/]+)", one.path)) in declared
    for name, dialog in DIALOGS.items():
        assert ACTS[name] is dialog.endpoint.permission or dialog.endpoint.audit_field


def test_promise_9_the_kind_of_a_restriction_decides_who_may_make_and_end_it(world):
    world.save(running("runs", user="bob"))
    exempt = {"what": "exempt", "ids": ["runs"], "until": "3d", "reason": "x"}
    refused = api(world, "vera", "admin/restrictions", "POST", exempt)
    assert (refused.status_code, refused.json()["error"]["message"]) == (403, refusal_words(Permission.RESERVE))
    reserve = {"what": "reserve", "kind": "a100", "count": 1, "team": "vision", "until": "3d", "reason": "x"}
    user = api(world, "alice", "admin/restrictions", "POST", reserve)
    assert (user.status_code, user.json()["error"]["message"]) == (403, refusal_words(Permission.RESERVE))
    made = api(world, "admin", "admin/restrictions", "POST", exempt).json()["restrictions"][0]
    ended = api(world, "vera", f"admin/restrictions/{made['id']}", "DELETE", {"reason": "x"})
    assert (ended.status_code, ended.json()["error"]["message"]) == (403, refusal_words(Permission.RESERVE))
    pause = {"what": "pause", "reason": "x"}
    assert api(world, "vera", "admin/restrictions", "POST", pause).status_code == 201


def test_promise_9_a_lead_sees_the_lists_of_the_team_alone(world):
    for lease, team in ((running("ours", user="bob"), "vision"), (running("theirs", "carol", (1,)), "speech")):
        world.save(of_team(replace(lease, rate=Rate(Fraction(1))), team))
    for name, user, team in (("our-wait", "bob", "vision"), ("their-wait", "carol", "speech")):
        lease = waiting(name, user=user)
        world.save(of_team(replace(lease, key=replace(lease.key, server="two")), team))
    for name, user, team in (("our-end", "bob", "vision"), ("their-end", "carol", "speech")):
        lease = of_team(running(name, user=user, gpus=(), server="three"), team)
        world.save(replace(lease, phase=Phase.ENDED, ended_at=NOW - 60))
    listed = api(world, "lena", "workspaces?all=1&ended=9").json()["workspaces"]
    assert {one["id"] for one in listed} == {"ours", "our-wait", "our-end"}
    browser = Browser(world, "lena")
    for path, ids in (("workspaces", ["ours"]), ("queue", ["our-wait"]), ("ended", ["our-end"])):
        rows = browser.get(f"{world.home}console/{path}.json").json()["rows"]
        assert [row["user"] for row in rows] == ["bob"], (path, ids)
    assert "theirs" not in browser.get(f"{world.home}console/workspaces").text
    usage = api(world, "lena", "usage?all=1&by=team").json()["rows"]
    assert {row["key"] for row in usage} == {"vision"}
    assert {row["name"] for row in browser.get(f"{world.home}console/usage.json").json()["rows"]} == {"vision"}
    named = [(one["id"], one["user"]) for one in api(world, "lena", "queue").json()["queue"]]
    assert sorted(named, key=str) == [("our-wait", "bob"), (None, None)]
    assert api(world, "lena", "quota?user=bob").status_code == 200
    assert api(world, "lena", "quota?user=carol").status_code in {400, 403}


def test_promise_9_a_lead_sees_no_quota_of_another_team_of_a_member(make_web_world):
    teams = ("vision", "speech")
    quotas = {team: {"group": team, "gpus": {"hard": 3}, "gpu_hours": {"per": "week", "hard": 9}} for team in teams}
    world = make_web_world(load_catalog({**CATALOG, "teams": {team: {} for team in teams}, "quotas": quotas}))
    world.groups = {"bob": {*teams}, "lena": {"vision"}}
    for name, entries in (("lena", {"vision"}), ("bob", {*teams}), ("admin", {*teams})):
        found = api(world, name, "quota?user=bob").json()
        assert {one["entry"] for one in (*found["limits"], *found["budgets"])} == entries


def test_promise_9_a_lead_stops_the_team_s_workspaces_with_a_reason_that_names_the_role(world):
    world.save(of_team(running("ours", user="bob"), "vision"))
    world.save(of_team(running("theirs", user="carol", gpus=(1,)), "speech"))
    body = {"ids": ["theirs"], "reason": "Deadline", "now": True}
    assert api(world, "lena", "admin/workspaces/stop", "POST", body).status_code == 404
    assert api(world, "lena", "admin/workspaces/stop", "POST", {**body, "ids": ["ours"]}).status_code == 200
    entry = api(world, "otto", "admin/audit?what=stop").json()["audit"][0]
    assert (entry["actor"], entry["where"]) == ("lena", "the API, as team lead")
    assert world.lease("ours").message.startswith("It was stopped by lena, from the API, as team lead")


def test_promise_9_a_lead_gives_extra_quota_to_members_of_the_team_alone(world):
    grant = {"user": "bob", "team": "vision", "what": "+2 GPUs", "until": "3d", "why": "Deadline"}
    made = api(world, "lena", "quota-grants", "POST", grant)
    assert made.status_code == 201, made.text
    for changed in ({"team": "speech"}, {"user": None}, {"team": None}):
        values = {key: value for key, value in {**grant, **changed}.items() if value is not None}
        refused = api(world, "lena", "quota-grants", "POST", values)
        assert (refused.status_code, refused.json()["error"]["limit"]) == (400, "teams that you lead: vision")
    other = api(world, "admin", "quota-grants", "POST", {**grant, "user": "carol", "team": "speech"}).json()
    assert [one["id"] for one in api(world, "lena", "quota-grants").json()["grants"]] == [made.json()["id"]]
    take = {"why": "Over"}
    assert api(world, "lena", f"quota-grants/{other['id']}", "DELETE", take).status_code == 404
    assert api(world, "lena", f"quota-grants/{made.json()['id']}", "DELETE", take).status_code == 200
    where = [one["where"] for one in api(world, "admin", "admin/audit?who=lena").json()["audit"]]
    assert set(where) == {"the API, as team lead"}


def test_promise_9_a_lead_extends_no_workspace_of_their_own_beyond_its_policy(world):
    world.save(of_team(running("own", user="lena"), "vision"))
    world.save(of_team(running("ours", user="bob", gpus=(1,)), "vision"))
    before, body = world.lease("own").deadline_at, {"reason": "Deadline", "until": "3d"}
    refused = api(world, "lena", "admin/workspaces/extend", "POST", {**body, "ids": ["own"]})
    assert (refused.status_code, world.lease("own").deadline_at) == (409, before)
    assert "It is your own workspace." in refused.json()["error"]["message"]
    assert api(world, "lena", "admin/workspaces/extend", "POST", {**body, "ids": ["ours"]}).status_code == 200
    assert api(world, "vera", "admin/workspaces/extend", "POST", {**body, "ids": ["own"]}).status_code == 200


def test_promise_9_a_lead_gives_no_extra_quota_to_themselves(world):
    grant = {"user": "lena", "team": "vision", "what": "+2 GPUs", "until": "3d", "why": "Deadline"}
    refused = api(world, "lena", "quota-grants", "POST", grant)
    assert (refused.status_code, refused.json()["error"]["limit"]) == (400, "other members of your team")
    assert api(world, "admin", "quota-grants", "POST", grant).status_code == 201


def test_the_roles_are_listed_with_their_scopes_and_the_people_who_used_them(world):
    for name in ("lena", "otto", "vera", "admin"):
        assert api(world, name, "").status_code == 200
    roles = {one["role"]: one for one in api(world, "otto", "admin/roles").json()["roles"]}
    people = {role: [one["name"] for one in entry["people"]] for role, entry in roles.items()}
    assert people["team lead"] == ["lena"]
    assert (people["operator"], people["auditor"], people["administrator"]) == (["vera"], ["otto"], ["admin"])
    assert roles["team lead"]["scope"] == "custom:gpu:lead"
    assert roles["team lead"]["may"][Permission.GRANT.value] == "team"
    assert roles["user"]["may"]["see workspaces"] == "own"
    assert not [act for act in roles["user"]["may"] if "other users" in act]
    page = Browser(world, "vera").get(f"{world.home}console/roles").text
    assert all(
        one in page
        for one in ("lena", "custom:gpu:operate", "Give extra quota, move it between members or take it back")
    )
    assert api(world, "lena", "").json()["roles"] == ["user", "team lead"]
