"""A service that dies at a named step of a stop: what to plant in it, and how to arm a step."""

import pytest

STEPS = ["before marking", "marked, stop not sent", "stop sent", "gone, end not written", "end written"]
"""In the order in which a stop takes them."""


def some_steps(*names):
    """Return all steps as parameters: `make test` kills the service at those named, `make test-all` at each.

    service/test_stopping.py kills a service in memory at each.
    """
    return [step if step in names else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]


PLANTED = """
import os, signal
def armed(step):
    try:
        os.remove({armed!r} + step)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.engine.registry import LeaseRegistry
from {module} import {backend}
commit, stop, end, save = LeaseCommits.commit, HubClient.stop, {backend}.end, LeaseRegistry.save

def new_commit(self, before, step, *readings):
    if step.lease.phase is Phase.STOPPING and before.phase is not Phase.STOPPING:
        armed("before marking")
    return commit(self, before, step, *readings)
async def new_stop(*arguments):
    armed("marked, stop not sent")
    try:
        await stop(*arguments)
    finally:  # a busy hub may answer too late
        armed("stop sent")
async def new_end(*arguments):
    done = await end(*arguments)
    armed("gone, end not written")
    return done
def new_save(self, *leases, **others):
    stored = save(self, *leases, **others)
    if any(not lease.live for lease in leases):
        stored.add_done_callback(lambda _: armed("end written"))
    return stored
LeaseCommits.commit, HubClient.stop, {backend}.end, LeaseRegistry.save = new_commit, new_stop, new_end, new_save
"""


def kills(folder, module, backend):
    """Return the code to plant in the service of a hub in ``folder``, whose workspaces are in this backend."""
    return PLANTED.format(armed=str(folder / "armed-"), module=module, backend=backend)


def arm(folder, step):
    """Have the service die once at this step; returns the file that goes when it does."""
    file = folder / f"armed-{step}"
    file.touch()
    return file
