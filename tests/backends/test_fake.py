"""The official fake does what the seam says."""

from __future__ import annotations

import pytest

from gpuspawner.backends.base import Backend, ProbeResult
from gpuspawner.backends.fake import FakeBackend, fake_gpus, probe_text
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.units import MEBIBYTE

GPUS = fake_gpus("a100", 2)
U = tuple(gpu.id for gpu in GPUS)


@pytest.fixture
def fake() -> FakeBackend:
    fake = FakeBackend(GPUS)
    fake.run("a", 1, {"GPUSPAWNER_HUB_ID": "h"})
    fake.run("a", 2)
    fake.run("b")
    return fake


async def test_fleet_and_workspaces(fake: FakeBackend) -> None:
    backend: Backend = fake
    assert (await backend.fleet()).gpus == GPUS
    assert [(w.lease_id, w.attempt) for w in await backend.workspaces()] == [("a", 1), ("a", 2), ("b", 1)]
    fake.change_gpu(U[0], foreign=True)
    assert [gpu.foreign for gpu in (await backend.fleet()).gpus] == [True, False]
    fake.unreachable = "the machine does not answer"
    with pytest.raises(Unavailable):
        await backend.fleet()
    with pytest.raises(Unavailable):
        await backend.workspaces()


async def test_end(fake: FakeBackend) -> None:
    assert await fake.end("a", frozenset({1}))
    assert sorted(fake.running) == [("a", 2), ("b", 1)]
    fake.unkillable.add("b")
    assert not await fake.end("b")
    fake.vanish("b")
    assert sorted(fake.running) == [("a", 2)]


async def test_probes_are_what_the_parser_reads(fake: FakeBackend) -> None:
    idle = await fake.probe("b", 1, U, 10.0)
    sample, table = parse_probe(idle, U, None, interval_seconds=1, age_seconds=1)
    assert [(gpu.utilization_percent, gpu.holders, gpu.problem) for gpu in sample.gpus] == [(0.0, 0, "")] * 2
    text = probe_text({U[0]: 90, U[1]: "[N/A]"}, memory_mib=5, holders=[U[0]], clock_seconds=200.0, cpu_ticks=990)
    fake.probes["b"] = [ProbeResult(text), ProbeResult(problem="timed out")]
    sample, _ = parse_probe(await fake.probe("b", 1, U, 10.0), U, table, interval_seconds=1, age_seconds=1)
    assert [gpu.utilization_percent for gpu in sample.gpus] == [90.0, None]
    assert [gpu.holders for gpu in sample.gpus] == [1, 0]
    assert sample.gpus[0].memory_used_bytes == 5 * MEBIBYTE
    assert sample.cpu_cores is not None
    assert sample.cpu_cores > 0
    assert [(await fake.probe("b", 1, U, 10.0)).problem for _ in range(2)] == ["timed out", "timed out"]
    assert (await fake.probe("gone", 1, U, 10.0)).problem
    fake.probe_seconds = 0.02
    assert "within 0.01 s" in (await fake.probe("b", 1, U, 0.01)).problem


def test_patch(fake: FakeBackend) -> None:
    assert fake.patch((Slot(U[0]),))["environment"]["CUDA_VISIBLE_DEVICES"] == U[0]
