"""Two clusters in Chromium: the form says where a workspace starts, and what the other cluster brings.

The form and the service are real; the clusters are two sets of GPUs of the official fake.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect
from service_pages import pages

from gpuspawner.backends.fake import fake_gpus
from gpuspawner.catalog import load_text
from gpuspawner.core.authentication import sign_ticket
from gpuspawner.spawner.web import form

CATALOG = load_text("""
version: 1
currency: CHF
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 80GiB, price: 3}
clusters:
  eu-west: {data: [genomes]}
  us-east: {kubeconfig: /etc/us-east, hub: "https://hub.example.org", price_factor: 0.8}
templates:
  genomes: {title: Genomes, gpus: {a100: 1}, default: {lifetime: 2h}, data: [genomes]}
""")
THERE = "a100@us-east"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Both GPUs are free."""
    made = pages.World(tmp_path, monkeypatch, CATALOG)
    made.backend.gpus = (*fake_gpus("a100", 1), *fake_gpus(THERE, 1))
    made.observe()
    yield made
    made.close()


@pytest.fixture
def show(world, browser):
    """Return a function that opens alice's form; a script error fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    errors: list[str] = []

    def show() -> Page:
        ticket = sign_ticket(b"s" * 32, "alice", "alice born", world.clock.now(), form=True)
        html = form.FormView(
            CATALOG, user="alice", server="", ticket=ticket, service_prefix=f"{pages.PREFIX}/", chosen={}
        ).render()
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        document = f"<!doctype html><html lang=en><title>Form</title><main><form>{html}</form></main></html>"
        page.route("**/hub/spawn", lambda route: route.fulfill(body=document, content_type="text/html"))
        page.goto(f"{world.url}/hub/spawn")
        return page

    yield show
    context.close()
    assert errors == []


def test_the_form_says_where_the_data_is_and_what_the_other_cluster_costs(show):
    page = show()
    sentence = page.locator("#gs-sentence")
    expect(sentence).to_contain_text("Starts now on 1 simulated A100 in eu-west (1 free).")
    expect(sentence).to_contain_text("In eu-west, where its data is; us-east costs 20 % less.")
    page.locator(f"input[name=gpu][value='{THERE}']").check()
    expect(sentence).to_contain_text("In us-east; eu-west costs 25 % more.")


def test_where_the_data_is_all_are_in_use_and_elsewhere_it_starts_now_for_who_ticks_it(world, show):
    taken, other = world.backend.gpus
    world.backend.gpus = (replace(taken, foreign=True), other)
    world.observe()
    page = show()
    sentence = page.locator("#gs-sentence")
    expect(sentence).to_contain_text("The only simulated A100 in eu-west is in use")
    expect(sentence).to_contain_text("In eu-west, where its data is; us-east starts now and costs 20 % less.")
    page.get_by_role("checkbox", name="A100 in us-east").check()
    expect(sentence).to_contain_text(
        "You get A100 in us-east instead of A100 in eu-west, as you allowed: CHF 2.40 instead of 3.00 per hour."
    )
    expect(sentence).to_contain_text("Starts now")
