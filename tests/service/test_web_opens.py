"""The links of a workspace's page by its template: for its user, while it runs."""

import re

import page_world
import pytest
import requests
from page_world import Browser, api

from gpuspawner.catalog import load_catalog
from gpuspawner.service.engine.allocation.start_attempts import hash_token


def opening(*what):
    template = {**page_world.CATALOG["templates"]["pytorch"], **({"opens": list(what)} if what else {})}
    return load_catalog({**page_world.CATALOG, "templates": {"pytorch": template}})


@pytest.fixture
def world_opening(make_web_world):
    """Make the world of a catalog whose template opens these."""
    return lambda *what: make_web_world(opening(*what))


def offered(html):
    found = re.findall(r'<a class="gs-button[^"]*" href="([^"]+)"[^>]*><svg[^>]*><use[^>]*></svg>([^<]+)<', html)
    return [(href, words) for href, words in found if href.startswith("/user/")]


def test_each_page_of_a_workspace_is_offered_the_default_first_and_the_ssh_line(world_opening):
    world = world_opening("ssh", "vscode", "lab")
    world.save(page_world.running("train", server="train set"))
    alice = Browser(world, "alice")
    page = alice.look("workspaces/train").text
    server = "/user/alice/train%20set"
    assert offered(page) == [(f"{server}/vscode/", "Open VS Code"), (f"{server}/lab", "JupyterLab")]
    assert offered(alice.home.text) == [(f"{server}/vscode/", "Open"), (f"{server}/lab", "JupyterLab")]
    assert f"<code>gpuspawner ssh --url {world.home.rstrip('/')} &#39;train set&#39;</code>" in page
    (view,) = api(world, "alice").json()["workspaces"]
    assert view["opens"] == ["ssh", "vscode", "lab"]


def test_ports_of_the_template_are_links_through_the_hub_s_proxy(make_web_world):
    ports = {"ports": {"tensorboard": {"port": 6006, "title": "TensorBoard"}, "app": {"port": 8501}}}
    template = {**page_world.CATALOG["templates"]["pytorch"], **ports}
    world = make_web_world(load_catalog({**page_world.CATALOG, "templates": {"pytorch": template}}))
    world.save(page_world.running("live"))
    page = Browser(world, "alice").look("workspaces/live").text
    assert ("/user/alice/proxy/6006/", "TensorBoard") in offered(page)
    assert ("/user/alice/proxy/8501/", "app") in offered(page)


def test_nothing_is_offered_of_one_that_waits_and_no_ssh_to_another_s_administrator(world_opening):
    world = world_opening("vscode", "ssh")
    world.save(page_world.waiting("waits", user="alice"))
    page = Browser(world, "alice").look("workspaces/waits").text
    assert (offered(page), "gpuspawner ssh" in page) == ([], False)
    world.save(page_world.running("live", server="train"))
    assert " train</code>" in Browser(world, "alice").look("workspaces/live").text
    assert "gpuspawner ssh" not in Browser(world, "admin").look("workspaces/live").text


def test_where_the_template_does_not_say_the_hub_s_default_opens(world_opening):
    world = world_opening()
    world.save(page_world.running("live"))
    page = Browser(world, "alice").look("workspaces/live").text
    assert offered(page) == [("/user/alice/", "Open JupyterLab")]
    assert "gpuspawner ssh" not in page


def test_a_link_missing_in_the_image_is_hidden_and_reported_by_its_workspace_alone(world_opening):
    world = world_opening("lab", "vscode", "ssh")
    token = "gpuws-0123456789"
    world.save(page_world.running("runs", token_hash=hash_token(token)))

    def tell(credential, lacks):
        headers = {"Authorization": f"token {credential}"}
        address = f"{world.home}api/v1/workspaces/runs/lacking"
        return requests.post(address, json={"lacks": lacks}, headers=headers, timeout=20).status_code

    assert tell(world.token("alice"), ["vscode"]) == 403
    assert tell(token, ["everything"]) == 400
    assert tell(token, ["vscode", "ssh"]) == 200
    page = Browser(world, "alice").look("workspaces/runs").text
    assert (offered(page), "gpuspawner ssh" in page) == ([("/user/alice/lab", "Open JupyterLab")], False)
    assert api(world, "alice").json()["workspaces"][0]["opens"] == ["lab"]
