"""A request is resolved once: what waits and what starts is what was asked, whatever the catalog says by then."""

from service_world import a_catalog

from gpuspawner.core.leases.lease import Phase


def with_image(image, cpu="2"):
    default = {"gpu": "a100", "count": 1, "cpu": cpu, "memory": "8GiB", "lifetime": "8h"}
    bounds = {"cpu": "1-16", "memory": "1GiB-64GiB", "lifetime": "30m-24h"}
    template = {"title": "P", "image": image, "gpus": {"a100": "1-8"}, "bounds": bounds, "default": default}
    return a_catalog(templates={"pytorch": template})


async def test_a_waiting_request_gets_its_original_options_despite_a_changed_catalog(world):
    world.parts.in_force.catalog = with_image("ml/pytorch:1")
    world.allocator.observed.processes_known = False  # nothing is granted yet
    first = await world.start("alice", cpu="4")
    assert (first.phase, first.request.image, first.request.cpu_cores) == (Phase.QUEUED, "ml/pytorch:1", 4)
    world.parts.in_force.catalog = with_image("ml/pytorch:2", cpu="3")
    again = await world.start("alice", cpu="4")
    assert (again.id, again.request, again.attempt) == (first.id, first.request, 2)
    await world.round()
    starting = await world.acknowledge(world.now_of(again))
    assert starting.request == first.request


async def test_a_changed_request_is_resolved_by_the_present_catalog(world):
    world.parts.in_force.catalog = with_image("ml/pytorch:1")
    world.allocator.observed.processes_known = False
    await world.start("alice", cpu="4")
    world.parts.in_force.catalog = with_image("ml/pytorch:2")
    assert (await world.start("alice", cpu="5")).request.image == "ml/pytorch:2"
