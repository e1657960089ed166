"""The scenario of a database that accepts no writes, because of a lock or of a full disk.

Run as a program (``bad_store.py DISK``) it plays the scenario on a disk that it fills.
"""

import asyncio
import contextlib
import sqlite3
import sys
import tempfile
from pathlib import Path

import pytest
from bad_machine import BUSY, WELL, BadMachine

from gpuspawner.backends.local import nvidia
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase


@contextlib.contextmanager
def locked(disk):
    """Lock the database, as a forgotten backup does."""
    with contextlib.closing(sqlite3.connect(disk / "service.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextlib.contextmanager
def full(disk):
    """Fill the disk, so that not even the reserved pages of the database can be written."""
    with contextlib.closing(sqlite3.connect(disk / "service.sqlite", isolation_level=None)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with contextlib.suppress(OSError), (disk / "much").open("wb", buffering=0) as file:
        while file.write(b"x" * 512):
            pass
    yield
    (disk / "much").unlink()


async def nothing_is_lost(machine, trouble, said):
    """Check that an outage of the database loses nothing.

    One workspace is warned and then used, one request waits, another one is refused, and the service restarts twice.
    """
    lease, waits = await machine.up("alice"), await machine.start("bob")
    await machine.until_warned(lease)
    before, place = machine.now_of(lease), machine.now_of(waits)
    with trouble:
        machine.tool(lease, BUSY)
        for _ in range(4):
            await machine.go_on(60)
        with pytest.raises(Unavailable, match=said):
            await machine.start("carol")
        with pytest.raises(Unavailable, match=said):
            await machine.parts.actions.keep(machine.registry.get(lease.id), "alice")
        with pytest.raises(Unavailable, match=said):
            machine.boot()
    assert (machine.hub.calls, machine.lives(lease)) == ([], True)
    machine.boot()
    found = machine.now_of(lease)
    assert (found.deadline_at, found.slots, found.sampled_at) == (before.deadline_at, before.slots, machine.clock.now())
    assert machine.now_of(waits).asked_at == place.asked_at
    await machine.go_on(60)
    assert (machine.phase(lease), machine.hub.calls) == (Phase.RUNNING, []), "the work of the bad hours saved it"
    assert machine.did(lease)[-1] == "grace ended"
    machine.tool(lease, WELL)
    await machine.until_ended(lease)
    assert machine.now_of(lease).reason is ExitReason.IDLE
    assert machine.did(lease).count("warned") == 2
    assert [row.kind for row in machine.parts.store.readings.of_lease(lease.id)].count("busy") == 1


async def _on_a_disk(folder, disk):
    nvidia.find, nvidia.has_devices = lambda: None, lambda: False
    machine = BadMachine(folder, disk=disk)
    try:
        await nothing_is_lost(machine, full(disk), "disk is full")
    finally:
        machine.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(_on_a_disk(Path(scratch), Path(sys.argv[1])))
