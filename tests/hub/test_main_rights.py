"""Rights by JupyterHub's scopes: users see and change only their own objects, and no secret is readable for others."""

import asyncio
import json
import re
import time
from pathlib import Path

import pytest
import requests
from harness.hub import ADMIN_TOKEN, RealHub

from gpuspawner.core.authentication import TICKET_SECONDS, sign_ticket
from gpuspawner.core.errors import Unavailable
from gpuspawner.service.engine.hub_client import HubClient

NARROW_ROLES = """
c.JupyterHub.services.append({"name": "outsider", "api_token": "outsider-token-0123456789"})
c.JupyterHub.load_roles.append({"name": "outsider", "services": ["outsider"], "scopes": ["read:users"]})
c.JupyterHub.load_groups = {"vision": {"users": []}}
c.JupyterHub.load_roles.append({"name": "vision-lead", "users": ["lena"], "scopes": [
    "custom:gpu:lead!group=vision", "access:services!service=gpu"]})
c.JupyterHub.load_roles.append({"name": "gpu-operator", "users": ["vera"]})
c.JupyterHub.load_roles.append({"name": "helper", "users": ["helper"], "scopes": [
    "list:users!user=olga", "servers!server=olga/shared", "access:servers!server=olga/shared"]})
"""
OUTSIDER = "outsider-token-0123456789"
READS = ["", "/readings", "/audit"]
ACTS = ["keep", "extend", "stop", "seen", "dispute"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with RealHub(tmp_path_factory.mktemp("rights"), extra=NARROW_ROLES) as real:
        yield real


@pytest.fixture(scope="module")
def owner(hub):
    """Her running workspace."""
    hub.add_user("olga", "eve")
    hub.begin("olga", template="lab")
    return hub.until("olga", "running")


@pytest.fixture(scope="module")
def eve(hub, owner):
    """Somebody else, with a workspace of her own."""
    hub.begin("eve", template="lab")
    return hub.until("eve", "running")


@pytest.fixture(scope="module")
def secret(hub) -> bytes:
    return bytes.fromhex((Path(hub.folder) / "gpu" / "secret").read_text().strip())


def ask(hub, credential: str, path: str = "", method: str = "GET", base: str = "/api/v1", **more) -> requests.Response:
    headers = {"Authorization": credential, **more.pop("headers", {})} if credential else more.pop("headers", {})
    data = more.pop("data", "{}" if method == "POST" else None)
    return requests.request(
        method, f"{hub.url}/services/gpu{base}{path}", headers=headers, data=data, timeout=20, allow_redirects=False
    )


def hub_token(hub, user: str, **body) -> str:
    answer = hub.api("POST", f"/users/{user}/tokens", body)
    assert answer.status_code == 201, answer.text
    return f"token {answer.json()['token']}"


def own_token(hub, lease) -> str:
    return f"token {hub.environment(lease['id'])['GPUSPAWNER_WORKSPACE_TOKEN']}"


def unchanged(hub, lease) -> bool:
    now = hub.lease(lease["user"])
    return all(now[key] == lease[key] for key in ("id", "phase", "ends_at", "extend", "keep", "end"))


@pytest.mark.parametrize("kind", ["hub token", "ticket", "workspace token"])
def test_another_users_workspace_does_not_exist(hub, owner, eve, kind):
    credential = {
        "hub token": lambda: hub_token(hub, "eve"),
        "ticket": lambda: f"ticket {hub.ticket('eve')}",
        "workspace token": lambda: own_token(hub, eve),
    }[kind]()

    def answers_about(lease: str) -> list[requests.Response]:
        path = f"/workspaces/{lease}"
        reads = [ask(hub, credential, path + more) for more in READS]
        return [*reads, *(ask(hub, credential, f"{path}/{action}", "POST") for action in ACTS)]

    answers, of_none = answers_about(owner["id"]), answers_about("0" * 32)
    assert {answer.status_code for answer in answers} <= {403, 404}
    assert [answer.status_code for answer in answers] == [answer.status_code for answer in of_none]
    missing = ask(hub, credential, f"/workspaces/{'0' * 32}")
    told = answers[0].json()["error"]["message"].replace(owner["id"], "ID")
    assert told == missing.json()["error"]["message"].replace("0" * 32, "ID"), "nothing tells whether it exists"
    listed = ask(hub, credential, "/workspaces?ended=200").json()["workspaces"]
    assert {workspace["user"] for workspace in listed} == {"eve"}
    assert ask(hub, credential, "/workspaces?all=1").status_code == 403
    assert owner["id"] not in ask(hub, credential, "/queue").text
    assert unchanged(hub, owner)


def test_another_users_pages_do_not_exist_either(hub, owner, eve):
    session = hub.login("eve")
    prefix = f"{hub.url}/services/gpu"
    assert session.get(f"{prefix}/workspaces/{eve['id']}", timeout=20).status_code == 200
    page = session.get(f"{prefix}/workspaces/{owner['id']}", timeout=20)
    assert page.status_code == 404
    assert "olga" not in page.text
    assert owner["id"] not in session.get(f"{prefix}/", timeout=20).text
    xsrf = session.cookies.get("_xsrf", path="/services/gpu/")
    sent = session.post(f"{prefix}/workspaces/{owner['id']}/stop", data={"_xsrf": xsrf}, timeout=20)
    assert sent.status_code == 404
    assert unchanged(hub, owner)


def test_a_user_without_the_scope_is_refused(hub, owner):
    without = [f"token {OUTSIDER}", "token nobody-knows-this-0123456789", "", "spawner 00", "ticket x", "bearer "]
    without.append(hub_token(hub, "olga", scopes=["read:users!user=olga"]))
    for credential in without:
        for path in ("/", "/offers", "/queue", "/workspaces", f"/workspaces/{owner['id']}"):
            answer = ask(hub, credential, path)
            assert answer.status_code == 403, (credential, path)
            known = not credential.startswith("token nobody")
            told = "Sign in to the hub, or send a token with the scope" if known else "The hub does not know this token"
            assert answer.json()["error"]["message"].startswith(told), credential
        assert ask(hub, credential, f"/workspaces/{owner['id']}/stop", "POST").status_code == 403
        assert ask(hub, credential, "/check", "POST").status_code == 403
    assert unchanged(hub, owner)


def test_a_service_without_the_right_to_read_servers_treats_no_server_as_absent(hub, owner):
    """Promise 1 and 2: an unreadable server would be ended as an orphan and started a second time."""
    blind = HubClient(f"{hub.url}/hub/api", OUTSIDER)
    with pytest.raises(Unavailable, match="Give the role of this service the scopes read:servers and read:users"):
        asyncio.run(blind.server("olga", ""))


def test_a_token_with_the_scope_alone_sees_its_own(hub, owner):
    narrow = hub_token(hub, "olga", scopes=["custom:gpu:use", "access:services!service=gpu"])
    assert ask(hub, narrow, f"/workspaces/{owner['id']}").json()["user"] == "olga"


def test_the_hub_renews_a_ticket_by_its_cookie_until_the_logout_and_never_by_a_token(hub, owner):
    session, address = hub.login("olga"), f"{hub.url}/hub/gpuspawner/ticket"
    ticket = session.get(address, timeout=20).json()["ticket"]
    assert ask(hub, f"ticket {ticket}", f"/workspaces/{owner['id']}").status_code == 200
    by_token = requests.get(address, headers={"Authorization": hub_token(hub, "olga")}, timeout=20)
    session.get(f"{hub.url}/hub/logout", timeout=20)
    refused = [by_token, session.get(address, timeout=20), requests.get(f"{address}/olga/", timeout=20)]
    assert [(one.status_code, "ticket" in one.text) for one in refused] == [(403, False)] * 3


def test_an_administrator_sees_and_acts_by_the_scope(hub, owner):
    administrator = hub_token(hub, "admin")
    assert ask(hub, administrator, "/").json()["admin"] is True
    assert ask(hub, administrator, f"/workspaces/{owner['id']}").status_code == 200
    users = {w["user"] for w in ask(hub, administrator, "/workspaces?all=1").json()["workspaces"]}
    assert "olga" in users


def test_forged_torn_and_old_tickets_are_refused(hub, owner, secret):
    good, created = hub.ticket("olga"), hub.api("GET", "/users/olga").json()["created"]
    assert ask(hub, f"ticket {good}", f"/workspaces/{owner['id']}").status_code == 200
    body, _, signature = good.partition(".")
    other = hub.ticket("eve").partition(".")
    forged = [
        sign_ticket(b"x" * 32, "olga", created, time.time()),
        sign_ticket(secret, "olga", created, time.time() - TICKET_SECONDS - 1),
        f"{body}.{other[2]}",
        f"{other[0]}.{signature}",
        body,
        f"{body}.",
        f".{signature}",
        f"{good}0",
        "é" * 20,
    ]
    for ticket in forged:
        answer = ask(hub, "", f"/workspaces/{owner['id']}", headers={"Authorization": f"ticket {ticket}".encode()})
        assert answer.status_code == 403, ticket


def test_a_workspaces_token_acts_on_its_own_lease_and_nowhere_else(hub, owner, eve):
    credential = own_token(hub, owner)
    assert [ask(hub, credential, f"/workspaces/{owner['id']}{more}").status_code for more in READS] == [200] * 3
    assert ask(hub, credential, f"/workspaces/{owner['id']}/stop", "POST").status_code == 403
    assert [w["id"] for w in ask(hub, credential, "/workspaces").json()["workspaces"]] == [owner["id"]]
    assert ask(hub, credential, f"/workspaces/{owner['id']}", base="").status_code == 403, "it opens no pages"
    assert hub.api("GET", "/users/olga", token=credential.removeprefix("token ")).status_code == 403
    assert unchanged(hub, owner)


def test_a_workspaces_token_ends_with_its_workspace(hub):
    hub.add_user("otto")
    hub.begin("otto", gpu="none")
    lease = hub.until("otto", "running")
    credential = own_token(hub, lease)
    assert ask(hub, credential, f"/workspaces/{lease['id']}").status_code == 200
    hub.stop("otto")
    hub.until_ended("otto", "stopped")
    assert ask(hub, credential, f"/workspaces/{lease['id']}").status_code == 403


@pytest.mark.parametrize(
    "credential", ["hub admin", "ticket", "workspace", "wrong secret", "secret, not a proof", "none"]
)
def test_the_spawners_api_takes_the_secret_alone(hub, owner, secret, credential):
    header = {
        "hub admin": f"token {ADMIN_TOKEN}",
        "ticket": f"ticket {hub.ticket('olga')}",
        "workspace": own_token(hub, owner),
        "wrong secret": f"spawner {'0' * 64}",
        "secret, not a proof": f"spawner {secret.hex()}",
        "none": "",
    }[credential]
    body = {
        "hub": "h",
        "user": "eve",
        "user_created": "x",
        "server": "",
        "options": {},
        "start_id": "s",
        "boot_id": "b",
    }
    refused = [ask(hub, header, "/acquire", "POST", "/internal", data=json.dumps(body))]
    path = f"/leases/{owner['id']}"
    refused.append(ask(hub, header, f"{path}?attempt=1", "GET", "/internal"))
    acts = [f"{path}/{act}?attempt=1&outcome=stopped" for act in ("acknowledge", "heartbeat", "park", "release")]
    refused += [ask(hub, header, act, "POST", "/internal") for act in acts]
    assert {answer.status_code for answer in refused} == {403}
    assert unchanged(hub, owner)


def test_the_pages_act_by_post_with_their_xsrf_token_only(hub, owner):
    session = hub.login("olga")
    page = session.get(f"{hub.url}/services/gpu/workspaces/{owner['id']}", timeout=20)
    assert page.status_code == 200
    url = f"{hub.url}/services/gpu/workspaces/{owner['id']}/extend"
    for form in ({}, {"_xsrf": "forged"}):
        assert session.post(url, data=form, timeout=20).status_code == 403
    assert session.get(url, timeout=20).status_code == 200, "a GET shows the page"
    assert unchanged(hub, owner)
    token = re.search(r'name="_xsrf" value="([^"]+)"', page.text)[1]
    done = session.post(url, data={"_xsrf": token}, timeout=20, allow_redirects=False)
    assert done.status_code == 303
    assert hub.lease("olga")["ends_at"] > owner["ends_at"]
    assert requests.post(url, data={"_xsrf": token}, timeout=20, allow_redirects=False).status_code == 403


def test_a_server_start_right_does_not_allow_other_actions_by_the_form(hub, owner):
    session = hub.login("helper")
    refused = hub.send(session, hub.form_url(session, "olga", "shared"), template="lab", gpu="t4", memory="1PiB")
    pages = [session.get(f"{hub.url}/hub/spawn/olga/shared", timeout=20).text, refused.text]
    for page in pages:
        tickets = set(re.findall(r'data-ticket="([^"]+)"', page))
        form = re.search(r'id="gs-form"[^>]*data-ticket="([^"]+)"', page)[1]
        assert ask(hub, f"ticket {form}", "/offers").json()["held"] == owner["request"]["count"]
        for ticket in tickets:
            assert ask(hub, f"ticket {ticket}", f"/workspaces/{owner['id']}").status_code in {403, 404}
            assert ask(hub, f"ticket {ticket}", f"/workspaces/{owner['id']}/stop", "POST").status_code in {403, 404}
    assert "Quota of olga" in pages[0]
    renewal = f"{hub.url}/hub/gpuspawner/ticket/olga"
    renewed = session.get(f"{renewal}/shared", timeout=20).json()["ticket"]
    assert ask(hub, f"ticket {renewed}", "/offers").json()["held"] == owner["request"]["count"]
    assert ask(hub, f"ticket {renewed}", f"/workspaces/{owner['id']}").status_code == 403
    assert session.get(f"{renewal}/", timeout=20).status_code in {403, 404}, "of another server of hers"
    assert hub.lease("olga")["phase"] == "running"

    assert hub.submit(session, "olga", "shared", template="lab", gpu="none").status_code == 302
    shared = hub.until("olga", "running", server="shared")
    assert [line["actor"] for line in hub.audit(shared["id"], "asked")] == ["helper"]
    assert [line["actor"] for line in hub.audit(owner["id"], "asked")] == ["olga"]
    hub.stop("olga", "shared")


def test_a_form_starts_for_oneself_only(hub, owner):
    session = hub.login("eve")
    assert session.get(f"{hub.url}/hub/spawn/olga", timeout=20).status_code in {403, 404}
    page = session.get(f"{hub.url}/hub/spawn/eve/another", timeout=20)
    action = re.search(r'id="spawn_form"\s+action="([^"]+)"', page.text)[1].replace("&amp;", "&")
    stolen = session.post(f"{hub.url}{action.replace('/eve/', '/olga/')}", data={"template": "lab"}, timeout=20)
    assert stolen.status_code in {403, 404}
    assert hub.server("olga", "another") is None


def test_no_secret_stands_where_another_could_read_it(hub, owner, eve, secret):
    hers = hub.environment(owner["id"])["GPUSPAWNER_WORKSPACE_TOKEN"]
    seen = {
        "the hub's log": hub.log.read_text(),
        "the hub's API": hub.api("GET", "/users?include_stopped_servers").text,
        "another's server": json.dumps(hub.environment(eve["id"])),
        "the service's API": json.dumps(hub.workspaces(ended=50)) + json.dumps(hub.gpu("/queue")),
        "the database": "".join(p.read_bytes().decode("latin-1") for p in (Path(hub.folder) / "gpu").glob("*.sqlite*")),
    }
    for where, text in seen.items():
        assert secret.hex() not in text, where
        assert hers not in text, where
    assert secret.hex() not in json.dumps(hub.environment(owner["id"])), "not even in one's own"
    for path in ("secret", "hub-id"):
        assert (Path(hub.folder) / "gpu" / path).stat().st_mode & 0o077 == 0
    assert (Path(hub.folder) / "gpu").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("user", "roles", "all_users", "audit"),
    [
        pytest.param("lena", ["user", "team lead"], 200, 403, id="lead of a team"),
        pytest.param("vera", ["user", "operator"], 200, 200, id="operator"),
        pytest.param("olga", ["user"], 403, 403, id="user"),
    ],
)
def test_roles_of_the_hub_are_roles_of_the_service(hub, user, roles, all_users, audit):
    hub.add_user("olga")
    token = hub_token(hub, user)
    assert ask(hub, token).json()["roles"] == roles
    assert ask(hub, token, "/workspaces?all=1").status_code == all_users
    assert ask(hub, token, "/admin/audit").status_code == audit
