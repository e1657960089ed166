"""``bench/sampler`` measures what it says, on few workspaces."""

import asyncio

import pytest
import sampler

from gpuspawner.service.store import Store


def test_virtual_time_waits_for_nothing() -> None:
    loop, slept = sampler.VirtualTime(), []

    async def sleeps() -> None:
        await asyncio.gather(*(asyncio.sleep(hours * 3600) for hours in range(3)))
        slept.append(loop.time())

    sampler.run_virtually(sleeps(), loop)
    assert slept == pytest.approx([7200])


# On one slot 40 probes of 2.3 s take 92 s. After its first hang a probe waits apart and delays no other probe.
@pytest.mark.parametrize(("slots", "longest_seconds"), [(64, (60, 62)), (1, (80, 120))])
def test_lateness_is_of_slots_and_hanging_probes(monkeypatch, slots: int, longest_seconds: tuple[int, int]) -> None:
    monkeypatch.setattr(sampler, "MANY", 40)
    monkeypatch.setitem(sampler.CLUSTER_TIMES, "probes_at_once", slots)
    count, longest, mean = sampler.latest()
    assert count > 40
    assert longest_seconds[0] <= longest <= longest_seconds[1]
    assert mean <= longest


def test_a_round_is_of_every_workspace() -> None:
    taken, write = sampler.one_round(30)
    assert taken > write > 0


def test_a_day_of_readings_is_one(tmp_path, monkeypatch) -> None:
    store = Store(f"sqlite:///{tmp_path / 'service.sqlite'}")
    store.open()
    now = 1_800_000_000.0
    sampler.fill(tmp_path / "service.sqlite", [sampler.lease(7, now)], now)
    rows = store.readings.of_lease("000007")
    store.close()
    assert len(rows) == 1440
    assert (rows[0].at, rows[-1].at, rows[0].kind) == (now - 86400, now - 60, "idle")
