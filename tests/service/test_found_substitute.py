"""A start that was dropped and runs after all on a substitute has that kind, which quotas and the ledger count."""

from dataclasses import replace
from fractions import Fraction

from service_world import SECRET, World

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.rules import Rate
from gpuspawner.service.engine.lease_documents import lease_variables


async def test_a_recovered_workspace_has_its_granted_kind(tmp_path):
    world = World(tmp_path / "s.db")
    await world.round()
    lease = await world.create(await world.start("ada"))
    asked = replace(lease.request, substitutes=("half",))
    told = replace(lease, request=asked, given="half")
    dropped = transitions.drop_start(replace(told, given="", rate=Rate(Fraction(1))), world.clock.now())
    await world.registry.save(dropped)
    variables = lease_variables(replace(told, slots=(Slot(lease.slots[0].gpu, Fraction(1, 2)),)), SECRET)
    running = Running(lease_id=lease.id, attempt=lease.attempt, environment=variables)
    world.hub.answer("ada", "")
    server = await world.hub.server("ada", "")
    observer = world.parts.engine.observer
    observer.last_look = observer.last_look._replace(of_lease={lease.id: [running]})
    await observer.recovery.recover(dropped, server)
    assert world.registry.get(lease.id).kind == "half"
    assert world.registry.get(lease.id).rate.gpus == Fraction(1, 2), "and is charged for that one"
