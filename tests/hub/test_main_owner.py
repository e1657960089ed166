"""The owner of a workspace is a user account, not a name, because names move when users are renamed or deleted."""

import time

import pytest
import requests
from harness.hub import RealHub, eventually

NAMESAKE = "namesake-token-0123456789"
SERVICE = """
c.JupyterHub.services.append({"name": "olga", "api_token": "namesake-token-0123456789"})
c.JupyterHub.load_roles.append(
    {"name": "namesake", "services": ["olga"], "scopes": ["custom:gpu:use", "access:services!service=gpu"]}
)
"""
READS = ["", "/readings", "/audit"]
ACTS = ["keep", "extend", "stop", "seen", "dispute", "answer"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    # Here the service looks at the hub once a second; by default every ten, which is how late a new name is shown.
    with RealHub(tmp_path_factory.mktemp("owner"), gpus=2, quota=1, extra=SERVICE) as real:
        yield real


def ask(hub, credential: str, path: str = "", method: str = "GET") -> requests.Response:
    return requests.request(
        method,
        f"{hub.url}/services/gpu/api/v1{path}",
        headers={"Authorization": credential},
        data="{}" if method == "POST" else None,
        timeout=20,
    )


def tokens(hub, user: str) -> dict[str, str]:
    """Whatever a user's own requests may come with."""
    answer = hub.api("POST", f"/users/{user}/tokens", {})
    narrow = hub.api("POST", f"/users/{user}/tokens", {"scopes": ["custom:gpu:use", "access:services!service=gpu"]})
    return {
        "hub token": f"token {answer.json()['token']}",
        "narrow token": f"token {narrow.json()['token']}",
        "ticket": f"ticket {hub.ticket(user)}",
    }


def answers_about(hub, credential: str, lease: str) -> list[int]:
    """Return the status of each request about a lease."""
    reads = [ask(hub, credential, f"/workspaces/{lease}{more}") for more in READS]
    acts = [ask(hub, credential, f"/workspaces/{lease}/{act}", "POST") for act in ACTS]
    return [answer.status_code for answer in (*reads, *acts)]


def has_nothing_of(hub, user: str, lease: str) -> None:
    """Fail where this user, or a page of theirs, shows or acts on a lease."""
    for kind, credential in tokens(hub, user).items():
        assert lease not in ask(hub, credential, "/workspaces?ended=200").text, kind
        answers = answers_about(hub, credential, lease)
        assert set(answers) <= {403, 404}, kind
        assert answers == answers_about(hub, credential, "0" * 32), "nothing shows that it exists"
        assert lease not in ask(hub, credential, "/queue").text
    session, prefix = hub.login(user), f"{hub.url}/services/gpu"
    assert lease not in session.get(f"{prefix}/", timeout=20).text
    assert session.get(f"{prefix}/workspaces/{lease}", timeout=20).status_code == 404
    xsrf = session.cookies.get("_xsrf", path="/services/gpu/")
    for act in ACTS:
        sent = session.post(f"{prefix}/workspaces/{lease}/{act}", data={"_xsrf": xsrf}, timeout=20)
        assert sent.status_code == 404
    assert lease not in session.get(f"{hub.url}/hub/home?hub", timeout=20).text


def test_a_new_user_with_a_deleted_one_s_name_sees_nothing_of_theirs(hub):
    hub.add_user("dora")
    hub.begin("dora", template="lab")
    lease = hub.until("dora", "running")
    old = tokens(hub, "dora")
    assert ask(hub, old["narrow token"], f"/workspaces/{lease['id']}").status_code == 200
    hub.stop("dora")
    hub.until_ended("dora", "stopped")
    eventually(lambda: hub.server("dora") is None)
    assert hub.api("DELETE", "/users/dora").status_code == 204
    hub.add_user("dora")
    has_nothing_of(hub, "dora", lease["id"])
    hub.begin("dora", template="lab")
    mine = hub.until("dora", "running")
    assert mine["id"] != lease["id"]
    for kind, credential in old.items():
        # The hub knows these tokens no longer; the service may believe one for 30 s more, as its first user's.
        answer = ask(hub, credential, f"/workspaces/{mine['id']}")
        assert answer.status_code in {403, 404}, kind
    hub.stop("dora")
    hub.until_ended("dora", "stopped")


@pytest.fixture(scope="module")
def renamed(hub):
    """The workspace of Rita, who is called Ritva now, the tokens she had, and a new Rita."""
    hub.add_user("rita")
    hub.begin("rita", template="lab")
    lease = hub.until("rita", "running")
    credentials = tokens(hub, "rita")
    assert {ask(hub, x, f"/workspaces/{lease['id']}").status_code for x in credentials.values()} == {200}
    assert hub.api("PATCH", "/users/rita", {"name": "ritva"}).status_code == 200
    hub.add_user("rita")
    return lease, credentials


def test_a_renamed_user_keeps_a_live_workspace_at_once(hub, renamed):
    lease, before = renamed
    path = f"/workspaces/{lease['id']}"
    for kind, credential in {**before, **{f"new {kind}": x for kind, x in tokens(hub, "ritva").items()}}.items():
        assert [x["id"] for x in ask(hub, credential, "/workspaces").json()["workspaces"]] == [lease["id"]], kind
        assert ask(hub, credential, path).status_code == 200, kind
    assert ask(hub, before["narrow token"], f"{path}/extend", "POST").status_code == 200
    page = hub.login("ritva").get(f"{hub.url}/services/gpu{path}", timeout=20)
    assert page.status_code == 200
    follows = time.monotonic()
    eventually(lambda: hub.lease("ritva")["id"] == lease["id"], 60, "the service calls it by the new name")
    assert time.monotonic() - follows < 5


def test_a_new_owner_of_an_old_name_gets_nothing_of_the_renamed_user(hub, renamed):
    lease, _ = renamed
    has_nothing_of(hub, "rita", lease["id"])
    # JupyterHub gives the renamed one's server and a default one of hers the same OAuth client, and refuses the second.
    hub.begin("rita", "second", template="lab")
    mine = hub.until("rita", "running", server="second")
    assert mine["id"] != lease["id"], "within her own quota"
    assert hub.lease("ritva")["phase"] == "running"
    ask(hub, tokens(hub, "rita")["narrow token"], f"/workspaces/{mine['id']}/stop", "POST")
    hub.until_ended("rita", "stopped")
    assert hub.lease("ritva")["phase"] == "running", "only her own is stopped"


def test_a_renamed_user_stops_it_and_sees_how_it_ended(hub, renamed):
    lease, before = renamed
    assert ask(hub, before["narrow token"], f"/workspaces/{lease['id']}/stop", "POST").status_code == 200
    hub.until_ended("ritva", "stopped")
    own = tokens(hub, "ritva")["narrow token"]
    assert [x["id"] for x in ask(hub, own, "/workspaces?ended=5").json()["workspaces"]] == [lease["id"]]
    assert ask(hub, own, f"/workspaces/{lease['id']}/audit").json()["audit"]
    has_nothing_of(hub, "rita", lease["id"])


def test_a_service_with_a_user_s_name_gets_nothing(hub):
    hub.add_user("olga")
    hub.begin("olga", gpu="none")
    lease = hub.until("olga", "running")
    service = f"token {NAMESAKE}"
    assert ask(hub, service, "/").json()["user"] == "olga"
    assert ask(hub, service, "/workspaces?ended=5").json() == {"workspaces": [], "next": None}
    answers = answers_about(hub, service, lease["id"])
    assert set(answers) <= {403, 404}
    assert answers == answers_about(hub, service, "0" * 32)
    assert hub.lease("olga")["phase"] == "running"
