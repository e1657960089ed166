"""A workspace's view is the same for one machine and for tens of thousands of GPUs."""

from dataclasses import replace

import page_world

from gpuspawner.backends.fake import fake_gpus
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.service.workspaces.presenter import present_workspace


class Gpus(tuple):
    """GPUs that count the iterations over all of them."""

    __slots__ = ()
    looks = 0

    def __iter__(self):
        type(self).looks += 1
        return super().__iter__()


def test_many_workspaces_are_shown_without_a_look_at_every_gpu_for_each(world):
    gpus = Gpus(fake_gpus("a100", 4))
    world.parts.scheduler._view.fleet = Fleet(gpus, complete=True)
    slots = page_world.running().slots
    lease = page_world.running(slots=tuple(replace(slot, gpu=gpus[3].id) for slot in slots))
    (shown,) = present_workspace(world.parts, lease).gpus
    assert (shown.id, shown.model) == (gpus[3].id, gpus[3].model)
    before = Gpus.looks
    for _ in range(100):
        present_workspace(world.parts, lease)
    assert Gpus.looks == before
