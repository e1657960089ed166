"""Login of the command line by a code: who may allow it, for how long, what it may then, and how it ends."""

import json
import os
import re
import stat
import threading

import requests
from page_world import PEOPLE, Browser, api, running, world_fixture

from gpuspawner.cli.main import main
from gpuspawner.core.authentication import CONFIRMED_SECONDS, sign_confirmation
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.api.routes import document_of_all
from gpuspawner.service.sign_in import tokens as logins_module
from gpuspawner.service.sign_in.tokens import (
    ADMIN_SECONDS,
    LOGIN_SECONDS,
    MOST_ALLOWED_EACH,
    MOST_TRIED_EACH,
    TOKEN_SECONDS,
    Logins,
)
from gpuspawner.service.store import tables

world = world_fixture(running("runs"), running("bobs", "bob", gpus=(1,)))


def begin(world, status=201, **query):
    answer = requests.post(f"{world.home}api/v1/login", params={"device": "laptop", **query}, timeout=20)
    assert answer.status_code == status, answer.text
    return answer.json()


def taken(world, begun, status=200):
    headers = {"Authorization": f"login {begun['secret']}"}
    answer = requests.post(f"{world.home}api/v1/login/token", headers=headers, timeout=20)
    assert answer.status_code == status, answer.text
    return answer.json()


def signed_in(world, name="alice", **query):
    begun = begin(world, **query)
    confirmed = sign_confirmation(b"s" * 32, f"{name} born", begun["code"], world.clock.at) if query else ""
    Browser(world, name).submit("login-code", code=begun["code"], answer="allow", confirmed=confirmed)
    return taken(world, begun)["token"]


def ask(world, token, path="workspaces", method="GET", status=200):
    headers = {"Authorization": f"token {token}"}
    answer = requests.request(method, f"{world.home}api/v1/{path}", headers=headers, timeout=20)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_an_allowed_code_gets_a_token_once(world):
    begun = begin(world)
    assert re.fullmatch("[B-Z]{4}-[B-Z]{4}", begun["code"])
    assert taken(world, begun)["token"] is None
    alice = Browser(world, "alice")
    assert begun["page"] == f"{world.home}login-code", "no link has the code: it is typed"
    page = alice.submit("login-code", code=begun["code"].lower())
    assert "laptop" in page.text
    assert taken(world, begun)["token"] is None, "looking allows nothing"
    assert "laptop is logged in" in alice.submit("login-code", code=begun["code"], answer="allow").text
    told = taken(world, begun)
    assert (told["user"], told["about"]["until"]) == ("alice", world.clock.at + TOKEN_SECONDS)
    assert [one["id"] for one in ask(world, told["token"])["workspaces"]] == ["runs"]
    taken(world, begun, 403)
    assert "No login waits with this code" in alice.submit("login-code", 404, code=begun["code"], answer="allow").text
    audit = world.call(world.parts.store.read, world.parts.store.audit_log.latest)
    assert [(line.actor, line.event.name, line.why) for line in audit] == [("alice", "signed in", "laptop")]


def test_promise_9_a_token_of_the_command_line_is_for_its_user_s_own_use_alone(world):
    token = signed_in(world)
    ask(world, token, "workspaces/bobs", status=404)
    ask(world, token, "workspaces?all=1", status=403)
    ask(world, token, "groups", status=403)
    for page in ("", "tokens", "login-code?code=BCDF-GHJK"):
        headers = {"Authorization": f"token {token}"}
        assert requests.get(world.home + page, headers=headers, timeout=20).status_code == 403
    begun = begin(world)
    body = {"code": begun["code"], "answer": "allow"}
    for who in (token, world.token("alice")):
        headers = {"Authorization": f"token {who}"}
        assert requests.post(f"{world.home}login-code", body, headers=headers, timeout=20).status_code == 403
    assert taken(world, begun)["token"] is None
    rows = world.call(world.parts.store.read, _rows, world.parts.store)
    assert token not in json.dumps(rows)


def _rows(store):
    with store._transaction() as connection:
        return [list(row) for row in connection.execute(tables.tokens.select())]


def test_a_forged_form_and_a_denial_give_no_token(world):
    begun = begin(world)
    alice = Browser(world, "alice")
    body = {"code": begun["code"], "answer": "allow", "_xsrf": "none"}
    assert alice.post(f"{world.home}login-code", body).status_code == 403
    assert "The machine was refused" in alice.submit("login-code", code=begun["code"], answer="deny").text
    taken(world, begun, 403)


def test_a_code_is_invalid_after_five_minutes(world):
    begun, allowed = begin(world), begin(world)
    Browser(world, "alice").submit("login-code", code=allowed["code"], answer="allow")
    world.clock.at += LOGIN_SECONDS
    Browser(world, "alice").submit("login-code", 404, code=begun["code"], answer="allow")
    taken(world, begun, 403)
    taken(world, allowed, 403)


def test_no_link_shows_a_login_to_be_allowed_by_a_click(world):
    begun = begin(world)
    page = Browser(world, "alice").look(f"login-code?code={begun['code']}").text
    assert ("laptop" in page, ">Allow<" in page) == (False, False)


def test_wrong_codes_are_limited_by_user(world):
    code = begin(world)["code"]
    bob = Browser(world, "bob")
    for _ in range(MOST_TRIED_EACH):
        bob.submit("login-code", 404, code="BBBB-BBBB")
    assert "Too many wrong codes" in bob.submit("login-code", 404, code=code).text
    assert "laptop" in Browser(world, "alice").submit("login-code", code=code).text


def test_unapproved_logins_lock_out_no_user_whatever_address_they_name(world):
    """Behind the hub's proxy all have one address, and a header that names another may be forged."""
    for number in range(40):
        headers = {"X-Real-Ip": "10.0.0.9"} if number % 2 else {}
        assert requests.post(f"{world.home}api/v1/login", headers=headers, timeout=20).status_code == 201
    assert signed_in(world)


def test_a_person_has_a_limit_of_logins_in_five_minutes(world):
    for _ in range(MOST_ALLOWED_EACH):
        signed_in(world)
    begun = begin(world)
    page = Browser(world, "alice").submit("login-code", 429, code=begun["code"], answer="allow").text
    assert "You allowed many logins. Try again in five minutes." in page
    assert taken(world, begun)["token"] is None
    assert signed_in(world, "bob")
    world.clock.at += LOGIN_SECONDS
    assert signed_in(world)


def test_a_flood_of_logins_removes_no_login_whose_page_is_open(monkeypatch):
    monkeypatch.setattr(logins_module, "MOST_WAITING", 100)
    logins, alice = Logins(), Owner("hub-1", "alice born")
    unseen, seen = (logins.begin("laptop", 0.0, admin=False) for _ in range(2))
    assert logins.find(seen.code, alice, 1.0).secret == seen.secret
    for _ in range(100):
        logins.begin("flood", 2.0, admin=False)
    assert (unseen.secret in logins.waiting, len(logins.waiting)) == (False, 100)
    logins.decide(logins.find(seen.code, alice, 3.0), alice, "alice")
    assert logins.of_secret(seen.secret, 4.0).user == "alice"


def test_an_administrator_s_token_takes_a_fresh_sign_in_of_its_user_for_this_login(world):
    begun, other = begin(world, admin=1), begin(world, admin=1)
    admin, code = Browser(world, "admin"), begun["code"]
    confirmed = {
        "none": "",
        "of another user": sign_confirmation(b"s" * 32, "alice born", code, world.clock.at),
        "for another login": sign_confirmation(b"s" * 32, "admin born", other["code"], world.clock.at),
        "over": sign_confirmation(b"s" * 32, "admin born", code, world.clock.at - CONFIRMED_SECONDS),
        "forged": sign_confirmation(b"t" * 32, "admin born", code, world.clock.at),
        "torn": "WyJh",
    }
    token = re.search(r'name="xsrf" content="([^"]*)"', admin.home.text)[1]
    for what, one in confirmed.items():
        body = {"_xsrf": token, "code": code, "answer": "allow", "confirmed": one}
        answer = admin.post(f"{world.home}login-code", body, allow_redirects=False)
        assert answer.status_code == 303, what
        assert answer.headers["Location"] == f"/hub/gpuspawner/confirm?code={code}", what
        if one:
            assert "over" in admin.look(f"login-code?code={code}&confirmed={one}", 403).text, what
    assert taken(world, begun)["token"] is None
    good = sign_confirmation(b"s" * 32, "admin born", code, world.clock.at)
    assert ">Allow laptop<" in admin.look(f"login-code?code={code}&confirmed={good}").text
    assert taken(world, begun)["token"] is None, "a GET allows nothing"
    admin.submit("login-code", code=code, answer="allow", confirmed=good)
    assert taken(world, begun)["about"]["admin_until"]


def test_a_code_in_other_letters_is_wrong(world):
    begin(world)
    bob = Browser(world, "bob")
    for code in ("ÄÖÜß-ÄÖÜß", "БББББББB"):
        assert "No login waits" in bob.submit("login-code", 404, code=code).text


def test_administrators_alone_allow_an_administrator_s_token_and_for_a_day_s_work(world, monkeypatch, capsys):
    begun = begin(world, admin=1)
    page = Browser(world, "alice").submit("login-code", code=begun["code"]).text
    assert "You have no administrator role" in page
    assert ">Allow<" not in page
    Browser(world, "alice").submit("login-code", 403, code=begun["code"], answer="allow")
    plain, token = signed_in(world, "admin"), signed_in(world, "admin", admin=1)
    ask(world, plain, "workspaces?all=1", status=403)
    assert len(ask(world, token, "workspaces?all=1")["workspaces"]) == 2
    monkeypatch.setenv("GPUSPAWNER_TOKEN", token)
    assert main(["admin", "report", "--by", "user", "--url", world.home]) == 0
    assert "USER   ALLOCATED" in capsys.readouterr().out
    monkeypatch.setenv("GPUSPAWNER_TOKEN", plain)
    assert main(["admin", "report", "--url", world.home]) == 2
    assert "administrators may see other users' usage" in capsys.readouterr().err
    world.clock.at += ADMIN_SECONDS
    ask(world, token, "workspaces?all=1", status=403)
    assert ask(world, token, "")["user"] == "admin"


def test_a_token_ends_with_its_time_its_user_and_when_it_is_revoked(world):
    over, revoked, kept = signed_in(world), signed_in(world), signed_in(world)
    listed = ask(world, kept, "tokens")["tokens"]
    assert len(listed) == 3
    ask(world, revoked, "tokens/this", "DELETE")
    assert "revoked: run gpuspawner login" in ask(world, revoked, status=403)["error"]["message"]
    page = Browser(world, "alice")
    assert page.look("tokens").text.count("Log out laptop") == 2
    page.submit("tokens", token=ask(world, kept, "tokens")["tokens"][0]["id"])
    (left,) = [one for one in (over, kept) if _works(world, one)]
    bobs = signed_in(world, "bob")
    ask(world, bobs, f"tokens/{listed[0]['id']}", "DELETE", 404)
    world.clock.at += TOKEN_SECONDS
    ask(world, left, status=403)


def _works(world, token):
    headers = {"Authorization": f"token {token}"}
    return requests.get(f"{world.home}api/v1/", headers=headers, timeout=20).status_code == 200


def test_promise_9_a_token_follows_its_user_and_not_the_name(world, monkeypatch):
    token = signed_in(world)
    world.clock.at += 60
    world.created.update(alice="another alice born", alicia="alice born")
    assert ask(world, token, "")["user"] == "alicia"
    assert [one["id"] for one in ask(world, token)["workspaces"]] == ["runs"]
    world.clock.at += 60
    world.created["alicia"] = None
    ask(world, token, status=403)
    assert world.call(world.parts.store.read, _rows, world.parts.store) == []
    assert "alice" in PEOPLE


def test_a_token_is_not_accepted_while_the_hub_is_away(world):
    token = signed_in(world)
    world.clock.at += 60
    world.hub_down = True
    ask(world, token, status=503)


def test_the_command_line_signs_in_lists_and_signs_out(world, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GPUSPAWNER_TOKEN", raising=False)
    monkeypatch.delenv("GPUSPAWNER_URL", raising=False)
    monkeypatch.setattr("gpuspawner.service.sign_in.api.ASK_SECONDS", 0.1)
    url = world.home.rstrip("/")
    assert main(["list", "--url", url]) == 2
    assert "You are not signed in. Run gpuspawner login --url ADDRESS" in capsys.readouterr().err
    alice = Browser(world, "alice")

    def allow():
        while not (waiting := list(world.parts.logins.waiting.values())):
            pass
        alice.submit("login-code", code=waiting[0].code.lower(), answer="allow")

    thread = threading.Thread(target=allow)
    thread.start()
    assert main(["login", "--url", url, "--no-browser"]) == 0
    thread.join()
    out, err = capsys.readouterr()
    assert f"Open {world.home}login-code\ntype this code there, press Continue, then Allow:" in err
    assert out.startswith("Signed in as alice until ")
    file = tmp_path / "gpuspawner" / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["list"]) == 0, "the service is the one that was signed in to last"
    assert "runs" in capsys.readouterr().out
    assert main(["list", "--url", f"{world.url}/services/other"]) == 2, "the token goes nowhere else"
    assert "You are not signed in" in capsys.readouterr().err
    assert main(["tokens"]) == 0
    assert os.uname().nodename[:20] in capsys.readouterr().out
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("bob"))
    assert main(["list"]) == 0
    assert "bobs" in capsys.readouterr().out, "the environment goes before the login"
    monkeypatch.delenv("GPUSPAWNER_TOKEN")
    file.chmod(0o644)
    assert main(["list"]) == 2
    assert f"Run chmod 600 {file}" in capsys.readouterr().err
    file.chmod(0o600)
    assert main(["logout"]) == 0
    assert json.loads(file.read_text()) == {"tokens": {}, "last": ""}
    assert ask(world, world.token("alice"), "tokens")["tokens"] == []
    assert api(world, "alice").status_code == 200


def test_the_page_of_the_command_line_has_the_login_to_copy_and_leads_to_every_route(world):
    browser = Browser(world, "alice")
    assert f"gpuspawner login --url {world.home.rstrip('/')}" in browser.look("tokens").text
    reference = browser.look("reference").text
    assert "`" not in reference
    for path, operations in document_of_all()["paths"].items():
        assert path in reference
        assert all(operations[method]["operationId"] in reference for method in operations if method in {"get", "post"})
