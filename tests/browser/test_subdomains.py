"""A hub with ``subdomain_host``: its pages find the service, and no page of a user's server acts for its visitor."""

import re
import sys
from pathlib import Path

import pytest
import requests
from harness.hub import RealHub, eventually
from playwright.sync_api import expect

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))  # tests are no package

from apart import HubApart

ATTACK = """
async ([service, code]) => {
  const told = [];
  for (const [path, options] of [
    ["api/v1/workspaces?all=1", { credentials: "include" }],
    ["login-code", { credentials: "include" }],
    ["login-code", { method: "POST", credentials: "include", body: new URLSearchParams({ code, answer: "allow" }) }],
  ]) {
    try {
      told.push((await fetch(service + path, options)).status);
    } catch (error) {
      told.push(error.name);
    }
  }
  return told;
}
"""


class SubdomainHub(RealHub):
    """A hub on ``hub.localhost``, whose services have domains below it: browsers find all of them on this machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.host = f"hub.localhost:{self.port}"
        self.extra = f'c.JupyterHub.subdomain_host = "http://{self.host}"'
        self.proxy_options = ("--host-routing",)
        self.pages = f"http://gpu--service.{self.host}/services/gpu/"

    def gpu(self, path, method="GET", body=None, token="test-admin-token-0123456789"):
        headers = {"Authorization": f"token {token}", "Host": f"gpu--service.{self.host}"}
        address = f"{self.url}/services/gpu/api/v1{path}"
        response = requests.request(method, address, headers=headers, json=body or {}, timeout=30)
        response.raise_for_status()
        return response.json()


class SubdomainHubApart(SubdomainHub, HubApart):
    """The same, whose service is a process of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        own = f"http://gpu--service.{self.host}"
        self.more_options = {"public-url": f"http://{self.host}", "own-public-url": own}


@pytest.fixture(scope="module", params=[SubdomainHub, SubdomainHubApart], ids=["started by the hub", "by itself"])
def subdomains(request, tmp_path_factory):
    hub = request.param(tmp_path_factory.mktemp("hub"))
    yield hub.start()
    hub.close()


def sign_in(hub, browser, name):
    page = browser.new_context().new_page()
    page.goto(f"http://{hub.host}/hub/login")
    page.fill("#username_input", name)
    page.fill("#password_input", "x")
    page.click("#login_submit")
    page.wait_for_url(lambda url: "/hub/login" not in url)
    return page


def test_the_hubs_pages_ask_the_service_on_its_own_domain_and_lead_there(browser, subdomains):
    hub = subdomains
    hub.add_user("alice")
    hub.begin("alice", gpu="a100", count=1)
    lease = hub.until("alice", "running")
    page = sign_in(hub, browser, "alice")
    page.goto(f"http://{hub.host}/hub/token")  # nothing of the page before asks any more
    with page.expect_response(lambda answer: answer.url.startswith(f"{hub.pages}api/v1/") and answer.ok) as answer:
        page.reload()
    assert answer.value.headers["access-control-allow-origin"] == f"http://{hub.host}"
    page.get_by_role("link", name="Workspaces", exact=True).first.click()
    expect(page).to_have_url(hub.pages)
    page.goto(f"http://{hub.host}/services/gpu/workspaces/{lease['id']}")
    expect(page).to_have_url(f"{hub.pages}workspaces/{lease['id']}")
    page.get_by_role("link", name="Open JupyterLab").first.click()
    expect(page).to_have_url(re.compile(rf"^http://alice\.{hub.host}/user/alice/"))
    page.goto(f"{hub.pages}workspaces/{lease['id']}")
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop workspace").click()
    end = eventually(lambda: hub.last_end("alice"))
    assert end["end"]["reason"] == "stopped", end


def test_no_page_of_a_users_server_acts_for_an_administrator_who_looks_at_it(browser, subdomains):
    hub = subdomains
    hub.add_user("bob")
    hub.begin("bob", template="cpu")
    hub.until("bob", "running")
    headers = {"Host": f"gpu--service.{hub.host}"}
    begun = requests.post(
        f"{hub.url}/services/gpu/api/v1/login?device=bobs&admin=1", headers=headers, timeout=20
    ).json()
    page = sign_in(hub, browser, "admin")
    page.goto(hub.pages)  # the service's cookie is there, too
    page.goto(f"http://bob.{hub.host}/user/bob/")
    eventually(lambda: page.url.startswith(f"http://bob.{hub.host}/user/bob/"), 20)
    assert page.evaluate(ATTACK, [hub.pages, begun["code"]]) == ["TypeError"] * 3, "no answer may be read"
    headers["Authorization"] = f"login {begun['secret']}"
    came = requests.post(f"{hub.url}/services/gpu/api/v1/login/token", headers=headers, timeout=20).json()
    assert came["token"] is None, "what was sent without being read allowed nothing"
