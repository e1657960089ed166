"""The registry: the live leases by id and key, what readers see of a change that is not stored, and who is woken."""

import threading
from dataclasses import replace

import pytest
from lease_builders import a_lease
from store_builders import FULL_LEASE

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.store import store as store_module

pytestmark = pytest.mark.postgresql


async def test_the_registry_refuses_a_second_live_lease_of_a_key(store):
    registry = LeaseRegistry(store)
    await registry.save(FULL_LEASE)
    with pytest.raises(Conflict):
        await registry.save(replace(FULL_LEASE, id="second"))
    assert [x.id for x in registry] == ["full"]


async def test_a_key_passes_to_the_next_lease_in_the_registry(store):
    registry, second = LeaseRegistry(store), replace(FULL_LEASE, id="second")
    await registry.save(FULL_LEASE)
    ended = replace(FULL_LEASE, phase=Phase.ENDED)
    await registry.save(second, ended)
    assert registry.of_key(FULL_LEASE.key) == second
    await registry.save(ended)
    assert registry.of_key(FULL_LEASE.key) == second, "an end told again takes no other's key"


async def test_the_registry_has_only_live_leases(store):
    registry = LeaseRegistry(store)
    await registry.save(FULL_LEASE, a_lease())
    await registry.save(replace(a_lease(), phase=Phase.ENDED))
    again = LeaseRegistry(store)
    await again.load()
    assert list(registry) == list(again) == [FULL_LEASE]
    assert registry.of_key(FULL_LEASE.key) == FULL_LEASE
    assert registry.of_key(a_lease().key) is None


async def test_a_reader_sees_no_step_before_it_is_stored(store):
    registry = LeaseRegistry(store)
    await registry.save(FULL_LEASE)
    registry.save(replace(FULL_LEASE, phase=Phase.STOPPING))
    assert (await registry.find("full")).phase is Phase.STOPPING
    assert store.leases.get("full").phase is Phase.STOPPING


async def test_a_reader_does_not_wait_for_ever_for_a_store_that_hangs(store, monkeypatch):
    registry, answers, save = LeaseRegistry(store), threading.Event(), store.save
    await registry.save(FULL_LEASE)
    monkeypatch.setattr(store, "save", lambda *rows: answers.wait() and save(*rows))
    stored = registry.save(replace(FULL_LEASE, phase=Phase.STOPPING))
    monkeypatch.setattr(store_module, "ANSWER_SECONDS", 0.1)
    with pytest.raises(Unavailable, match="has not answered for 0 s"):
        await registry.find("full")
    monkeypatch.setattr(store_module, "ANSWER_SECONDS", 75.0)
    answers.set()
    assert (await registry.find("full")).phase is Phase.STOPPING
    await stored


async def test_a_reader_sees_the_old_state_when_a_step_cannot_be_stored(store, monkeypatch):
    def refuse(*_):
        raise Unavailable("The database is away.")

    registry = LeaseRegistry(store)
    await registry.save(FULL_LEASE)
    monkeypatch.setattr(store, "save", refuse)
    lost = registry.save(replace(FULL_LEASE, phase=Phase.STOPPING))
    assert await registry.find("full") == FULL_LEASE
    with pytest.raises(Unavailable):
        await lost


async def test_the_registry_counts_each_end_once_by_its_reason(store):
    registry = LeaseRegistry(store)
    await registry.save(FULL_LEASE, a_lease())
    ended = replace(FULL_LEASE, phase=Phase.ENDED)
    await registry.save(ended, replace(a_lease(), phase=Phase.STOPPING, reason=ExitReason.STOPPED))
    await registry.save(replace(ended, seen_by_user=True))
    assert registry.ends == {(ExitReason.IDLE, ""): 1}


async def test_a_waiting_request_is_woken_only_by_events_that_can_move_its_place(store):
    registry = LeaseRegistry(store)
    await registry.save(FULL_LEASE)
    for change, wakes in [
        ({"sampled_at": 1.0}, False),
        ({"phase": Phase.STOPPING}, True),
        ({"deadline_at": 9.0}, True),
    ]:
        waiting = registry._changed
        await registry.save(replace(registry.get("full"), **change))
        assert waiting.is_set() == wakes
    await registry.wait_for_change(0.01)
    registry.note_heard("full", 5.0)
    registry.note_heard("nobody", 5.0)
    assert registry.get("full").heard_at == 5.0
    assert store.leases.get("full").heard_at == FULL_LEASE.heard_at
