"""A fresh sign-in at the hub, before its service makes an administrator's token for the command line."""

import re

import pytest
import requests
from harness.hub import eventually

PASSWORD = """
c.DummyAuthenticator.password = "x"
"""
ELSEWHERE = """
from jupyterhub.auth import DummyAuthenticator
from jupyterhub.handlers import LoginHandler


class ByAnotherSite(DummyAuthenticator):
    def login_url(self, base_url):
        return base_url + "oauth_login"

    def get_handlers(self, app):
        return [*super().get_handlers(app), ("/oauth_login", LoginHandler)]


c.JupyterHub.authenticator_class = ByAnotherSite
"""


def begin(hub):
    answer = requests.post(f"{hub.url}/services/gpu/api/v1/login?device=laptop&admin=1", timeout=20)
    answer.raise_for_status()
    return answer.json()


def taken(hub, begun):
    headers = {"Authorization": f"login {begun['secret']}"}
    return requests.post(f"{hub.url}/services/gpu/api/v1/login/token", headers=headers, timeout=20).json()


def submit(session, page, **fields):
    """Send the one form of a page."""
    token = re.search(r'name="_xsrf" value="([^"]+)"', page.text)[1]
    action = re.search(r'<form method="post" action="([^"]+)"', page.text)
    url = page.url if action is None else requests.compat.urljoin(page.url, action[1])
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    return session.post(url, data={**hidden, "_xsrf": token, **fields}, timeout=30)


def ask_to_allow(hub, begun):
    session = hub.login("admin")
    page = session.get(f"{hub.url}/services/gpu/login-code", timeout=30)
    page = submit(session, page, code=begun["code"])
    return session, submit(session, page, answer="allow")


def test_an_administrators_token_takes_their_password_once_more(new_hub):
    hub = new_hub(extra=PASSWORD)
    hub.add_user("bob")
    begun = eventually(lambda: begin(hub))
    session, page = ask_to_allow(hub, begun)
    assert page.url.startswith(f"{hub.url}/hub/gpuspawner/confirm?code=")
    for wrong in ({"username": "admin", "password": "y"}, {"username": "bob", "password": "x"}):
        refused = submit(session, page, **wrong)
        assert (refused.status_code, "Nothing was allowed" in refused.text) == (403, True)
    assert taken(hub, begun)["token"] is None
    confirmed = submit(session, page, username="admin", password="x")
    assert confirmed.url.startswith(f"{hub.url}/services/gpu/login-code?code="), confirmed.url
    assert taken(hub, begun)["token"] is None, "a button is left to press"
    assert "is logged in" in submit(session, confirmed, answer="allow").text
    assert taken(hub, begun)["about"]["admin_until"]


@pytest.mark.parametrize("python", ["hub5"], indirect=True)
def test_an_authenticator_of_another_site_is_not_asked_for_a_password(new_hub, python):
    hub = new_hub(extra=ELSEWHERE, python=python)
    begun = eventually(lambda: begin(hub))
    session, page = ask_to_allow(hub, begun)
    assert page.url.startswith(f"{hub.url}/services/gpu/login-code?code="), page.url
    submit(session, page, answer="allow")
    assert taken(hub, begun)["about"]["admin_until"]
