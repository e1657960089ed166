"""A template that chooses the cluster: the reason is in the check and on the workspace's page."""

from dataclasses import replace

import page_world
import pytest
from page_world import Browser

from gpuspawner.backends.fake import fake_gpus
from gpuspawner.catalog import load_catalog
from gpuspawner.core.gpus.fleet import Slot

THERE = "a100@us-east"
CLUSTERS = {
    "eu-west": {"data": ["genomes"]},
    "us-east": {"title": "US East", "kubeconfig": "/k", "hub": "http://h", "nodes": "n", "price_factor": 0.8},
}


@pytest.fixture
def pages(make_web_world):
    def pages(place, here=2, there=2):
        template = {**page_world.CATALOG["templates"]["pytorch"], "data": ["genomes"], "place": place}
        entries = {**page_world.CATALOG, "clusters": CLUSTERS, "templates": {"pytorch": template}}
        world = make_web_world(load_catalog(entries))
        world.backend.gpus = (*fake_gpus("a100", here), *fake_gpus(THERE, there))
        world.observe()
        return world

    return pages


def sentence(world, **options):
    return page_world.api(world, "alice", "check", "POST", options).json()["sentence"]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("cheapest", "US East is the cheapest with free GPUs."),
        ("nearest", "eu-west is the nearest with free GPUs."),
        ("soonest", "eu-west starts it soonest."),
    ],
)
def test_the_reason_is_said_before_start(pages, place, reason):
    world = pages(place)
    told = sentence(world, gpu="a100", substitutes=[THERE])
    assert f"Of the clusters that you accept, {reason}" in told
    assert "clusters that you accept" not in sentence(world, gpu="a100", substitutes=[]), "the user chose"


def there(world, user, **changes):
    """A workspace with a GPU of the other cluster."""
    request = page_world.request(user, "a100", 1)
    lease = page_world.running(f"{user}s", user=user, slots=(Slot(world.backend.gpus[-1].id),))
    return replace(lease, given=THERE, request=replace(request, substitutes=(THERE,), **changes))


def test_a_cluster_without_free_gpus_is_passed_over(pages):
    world = pages("cheapest", there=1)
    world.save(there(world, "bob"))
    told = sentence(world, gpu=THERE, substitutes=["a100"])
    assert "Of the clusters that you accept, eu-west is the cheapest with free GPUs." in told


def test_the_page_of_the_workspace_has_the_reason(pages):
    world = pages("cheapest")
    world.save(there(world, "alice", place="cheapest"))
    text = Browser(world, "alice").look("workspaces/alices").text
    assert "as you allowed" in text
    assert "Of the clusters that you accept, US East is the cheapest with free GPUs." in text
