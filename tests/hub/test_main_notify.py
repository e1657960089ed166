"""Mail from a real hub: to the address that its authenticator stored, with a link that opens a page, which asks."""

import re

import pytest
from harness.hub import eventually
from versions import newest_hub

AUTHENTICATOR = """
from jupyterhub.auth import DummyAuthenticator


class WithMail(DummyAuthenticator):
    async def authenticate(self, handler, data):
        name = await super().authenticate(handler, data)
        return {{"name": name, "auth_state": {{"oauth_user": {{"email": f"{{name}}.lee@example.org"}}}}}}


c.JupyterHub.authenticator_class = WithMail
c.Authenticator.enable_auth_state = True
c.JupyterHub.public_url = "http://127.0.0.1:{port}/"
"""


@newest_hub  # apprise is not in the other's environment
@pytest.mark.parametrize("notify", ["{email}", pytest.param("{user}@example.org", marks=pytest.mark.slow)])
def test_a_warning_comes_by_mail_and_its_link_asks(new_hub, python, mailbox, notify):
    to = "anna.lee@example.org" if notify == "{email}" else "anna@example.org"
    hub = new_hub(
        start=False,
        python=python,
        lifetime="5m",
        warn="10m",
        settings={"notify_users": mailbox.address(notify)},
        environment_of_hub={"JUPYTERHUB_CRYPT_KEY": 64 * "a"},
    )
    hub.extra = AUTHENTICATOR.format(port=hub.port)
    hub.start()
    anna = hub.login("anna")
    assert hub.begin("anna", template="lab").status_code in {201, 202}
    lease = hub.until("anna", "running", 120)
    ((subject, text),) = eventually(lambda: mailbox.received(to), 60, "a mail")
    assert subject.startswith("Your workspace ends in ")
    link = re.search(rf"{hub.url}/services/gpu/workspaces/\w+", text)[0]
    assert link.endswith(lease["id"])
    ends_at = hub.lease("anna")["ends_at"]
    page = anna.get(link, timeout=30)
    assert page.status_code == 200
    assert "Extend by 1 h" in page.text
    assert hub.lease("anna")["ends_at"] == ends_at, "looking changed nothing"
    sent = 'gpuspawner_notifications_total{result="sent"} 1.0'
    eventually(lambda: sent in metrics(hub), 60, "it is counted: counters are told as they are stored")


def metrics(hub):
    token = hub.api("POST", "/users/admin/tokens", {"scopes": ["custom:gpu:admin", "access:services!service=gpu"]})
    assert token.status_code == 201, token.text
    session = hub.login("admin")
    headers = {"Authorization": f"token {token.json()['token']}"}
    return session.get(f"{hub.url}/services/gpu/metrics", headers=headers, timeout=30).text
