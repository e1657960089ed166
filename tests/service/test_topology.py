"""A template whose GPUs share a domain: what a start is told, what it gets, and what it waits for."""

from dataclasses import replace

import page_world
import pytest

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Phase


@pytest.fixture
def pages(make_web_world):
    """Four GPUs on two NUMA nodes, and a template whose GPUs share one."""

    def pages(topology):
        template = {**page_world.CATALOG["templates"]["pytorch"], "topology": topology}
        world = make_web_world(load_catalog({**page_world.CATALOG, "templates": {"pytorch": template}}))
        for index, gpu in enumerate(page_world.GPUS):
            world.backend.change_gpu(gpu.id, domains=(f"NUMA {index // 2}",))
        world.observe()
        return world

    return pages


def check(world, **options):
    answer = page_world.api(world, "alice", "check", "POST", options)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("topology", ["prefer", "require"])
def test_a_check_says_which_domain_the_gpus_share(pages, topology):
    world = pages(topology)
    status, told = check(world, count=2)
    assert (status, told["starts_now"]) == (200, True)
    assert "Its GPUs share NUMA 0." in told["sentence"]
    world.save(page_world.running("bobs", user="bob", gpus=[0]))
    assert "Its GPUs share NUMA 1." in check(world, count=2)[1]["sentence"]
    assert "share" not in check(world, count=1)[1]["sentence"], "one GPU needs no domain"


def test_preferred_gpus_apart_are_said_to_be_apart(pages):
    world = pages("prefer")
    assert "Its GPUs share no NVLink or NUMA domain that is known." in check(world, count=3)[1]["sentence"]


def test_required_gpus_are_waited_for_and_more_than_a_domain_has_is_refused(pages):
    world = pages("require")
    world.save(page_world.running("bobs", user="bob", gpus=[0, 2]))
    status, told = check(world, count=2)
    assert (status, told["starts_now"]) == (200, False)
    assert "2 of 4 simulated A100 80 GB are free, and you need 2 in one NVLink or NUMA domain." in told["sentence"]
    status, refused = check(world, count=3)
    assert status == 403
    assert "at most 2 A100 80 GB in one NVLink or NUMA domain" in str(refused)
    waiting = page_world.waiting("mine", user="alice", count=4)
    world.save(replace(waiting, request=replace(waiting.request, topology="require")))
    assert page_world.api(world, "alice", "workspaces/mine").json()["queue"]["startable_count"] == 1
    for gpu in page_world.GPUS:
        world.backend.change_gpu(gpu.id, domains=())
    world.observe()
    assert "no NVLink or NUMA domain of A100 80 GB is known" in str(check(world, count=2)[1])
    assert check(world, count=1)[0] == 200


async def test_gpus_of_one_domain_are_granted_together(make_world):
    template = {"gpus": {"a100": "1-4"}, "topology": "require"}
    world = make_world(gpus=4, templates={"linked": template})
    for index, gpu in enumerate(world.backend.gpus):
        world.backend.change_gpu(gpu.id, domains=(f"NUMA {index // 2}",))
    await world.up("bob")
    lease = await world.start("alice", template="linked", count=2)
    await world.go_on(3, step=1)
    assert world.phase(lease) is Phase.RESERVED
    granted = {slot.gpu for slot in world.now_of(lease).slots}
    assert granted == {gpu.id for gpu in world.backend.gpus[2:]}
