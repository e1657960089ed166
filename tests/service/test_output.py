"""The last output of a server that failed: whose it is, for how long, and where it never goes."""

import pytest
from store_builders import delete_old

from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.reports import BYTES, KEPT_SECONDS
from gpuspawner.service.store import tables
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act
from gpuspawner.service.workspaces.models import Output
from gpuspawner.service.workspaces.presenter import present_output, present_workspace

ROOT = Person("root", scopes=frozenset({"custom:gpu:admin"}))


def person(lease):
    return Person(lease.user, lease.key.owner)


async def failed(world, output):
    lease = await world.up("alice")
    world.lose(lease)
    await world.parts.attempts.release(lease.id, lease.attempt, "died", "It ended.", output)
    await world.go_on(2, step=1)
    return world.now_of(lease)


async def test_an_administrator_reads_it_once_its_user_has_shared_it(world):
    lease = await failed(world, "the last line")
    assert (await present_output(world.parts, lease, person(lease))).text == "the last line"
    assert await present_output(world.parts, lease, ROOT) == Output(there=True, text=None, shared=False)
    assert "the last line" not in str(
        [present_workspace(world.parts, lease), world.parts.store.audit_log.latest(lease.id), lease]
    )
    for _ in range(2):
        await act(world.parts, person(lease), lease, "share", "its page")
    assert await present_output(world.parts, lease, ROOT) == Output(there=True, text="the last line", shared=True)
    assert world.did(lease).count("shared") == 1


async def test_it_is_kept_for_a_week_and_never_more_than_its_bytes(world):
    lease = await failed(world, "x" * 100_000 + "\0end")
    text = (await present_output(world.parts, lease, person(lease))).text
    assert (len(text), text[-4:]) == (BYTES, "?end")
    world.clock.advance(KEPT_SECONDS - 2)  # which it took to end
    delete_old(world.parts.store, tables.outputs, now=world.clock.now())
    assert (await present_output(world.parts, lease, person(lease))).there
    world.clock.advance(1)
    assert not (await present_output(world.parts, lease, person(lease))).there, "also before it is deleted"
    with pytest.raises(Conflict, match="kept for a week"):
        await act(world.parts, person(lease), lease, "share", "its page")
    delete_old(world.parts.store, tables.outputs, now=world.clock.now())
    world.clock.advance(-KEPT_SECONDS)
    assert not (await present_output(world.parts, lease, person(lease))).there


async def test_sharing_output_of_an_ending_workspace_does_not_bring_it_back(world, monkeypatch):
    lease = await world.up("alice")
    await world.parts.attempts.release(lease.id, lease.attempt, "died", "It ended.", "the last line")
    stopping = world.now_of(lease)
    assert stopping.phase is Phase.STOPPING
    world.lose(lease)
    read, ends = world.parts.store.read, []

    async def ended_meanwhile(step, *arguments, **named):
        found = await read(step, *arguments, **named)
        if step == world.parts.store.outputs.get and not ends:
            ends.append(step)
            await world.go_on(2, step=1)
            assert world.phase(lease) is Phase.ENDED
        return found

    monkeypatch.setattr(world.parts.store, "read", ended_meanwhile)
    await act(world.parts, person(lease), stopping, "share", "its page")
    assert (len(ends), world.phase(lease), world.registry.get(lease.id)) == (1, Phase.ENDED, None)
    assert world.did(lease)[-1] == "shared"
