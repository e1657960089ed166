"""The health of GPUs: read from the machine and from DCGM exporter, shown, and faulty GPUs in quarantine."""

import asyncio
from dataclasses import replace

import pytest
from harness.nvidia import simulated_driver
from harness.waiting import eventually
from page_world import Browser, api, running, world_fixture
from prometheus import prometheus
from test_dcgm import exporter, line

from gpuspawner.backends.local import nvidia
from gpuspawner.catalog import Exporter
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.outages import GpuHealth
from gpuspawner.service.administration.gpu_health import quarantine_round
from gpuspawner.service.engine.sampling.gpu_health import parse_exported_health

WELL = GpuHealth(64.0, 358.0, 400.0, 1410.0, 3, 0, 0)


world = world_fixture(running())


def look(world, **health):
    """Let the service read the health of the first GPU of the fleet."""
    gpu = world.backend.gpus[0]
    world.backend.health = {gpu.id: replace(WELL, **health)}
    world.call(quarantine_round, world.parts)
    return gpu


def health_of(world, gpu, name="admin"):
    answer = api(world, name, "admin/gpu-health").json()
    return next(one for one in answer["gpus"] if one["id"] == gpu.id)


def test_health_is_reported_and_unknown_values_are_absent(world):
    gpu = look(world, clock_mhz=None)
    told = health_of(world, gpu)
    assert (told["state"], told["celsius"], told["watts"], told["clock_mhz"]) == ("healthy", 64.0, 358.0, None)
    others = [one for one in api(world, "admin", "admin/gpu-health").json()["gpus"] if one["id"] != gpu.id]
    assert {one["state"] for one in others} == {"not measured"}
    own = api(world, "alice", "workspaces/runs").json()["gpus"][0]["health"]
    assert (own["celsius"], own["fault"]) == (64.0, "")


def test_a_fatal_xid_puts_the_gpu_in_quarantine_and_its_user_and_the_administrators_are_told(world):
    gpu = look(world, xid=79)
    told = health_of(world, gpu)
    assert (told["state"], told["fault"]) == ("quarantined", "Xid 79: the GPU has fallen off the bus")
    assert world.parts.restrictions.close_gpus(world.parts.scheduler.fleet).by_id[gpu.id].closed
    assert world.lease("runs").phase is Phase.RUNNING
    warning = api(world, "alice", "workspaces/runs").json()["warning"]
    assert (warning["kind"], "Xid 79" in warning["text"]) == ("closed", True)
    assert [one["actor"] for one in api(world, "admin", "admin/audit?what=quarantined").json()["audit"]] == [
        "gpuspawner"
    ]
    page = Browser(world, "admin").look("console/gpu-health").text
    assert "is in quarantine" in page
    assert "Mark as healthy" in page


def test_a_quarantine_that_was_ended_is_not_repeated_for_the_same_error(world):
    gpu = look(world, xid=79)
    found = health_of(world, gpu)["restriction"]
    assert api(world, "admin", f"admin/restrictions/{found}", "DELETE", {"reason": "reset"}).status_code == 200
    look(world, xid=79)
    assert health_of(world, gpu)["state"] == "faulty", "it is shown, and a person decided"
    look(world, xid=95)
    assert health_of(world, gpu)["state"] == "quarantined"


def test_growing_uncorrected_errors_put_the_gpu_in_quarantine(world):
    gpu = look(world, uncorrected_errors=1)
    assert health_of(world, gpu)["state"] == "healthy"
    look(world, uncorrected_errors=3)
    assert health_of(world, gpu)["fault"] == "2 new uncorrected memory errors, 3 in all"


def lift(world, gpu):
    found = health_of(world, gpu)["restriction"]
    assert api(world, "admin", f"admin/restrictions/{found}", "DELETE", {"reason": "reset"}).status_code == 200


def test_the_same_error_after_a_reset_is_a_new_fault(world):
    gpu = look(world, xid=79)
    lift(world, gpu)
    for xid, state in ((79, "faulty"), (None, "healthy"), (79, "faulty"), (0, "healthy"), (79, "quarantined")):
        world.clock.at += 30
        look(world, xid=xid)
        assert health_of(world, gpu)["state"] == state, xid


def test_memory_errors_from_before_the_end_of_a_quarantine_make_no_other_one(world):
    for errors in (10, 11, 13):
        gpu = look(world, uncorrected_errors=errors)
        world.clock.at += 600
    assert health_of(world, gpu)["fault"] == "1 new uncorrected memory errors, 11 in all"
    lift(world, gpu)
    for _ in range(6):
        look(world, uncorrected_errors=13)
        assert health_of(world, gpu)["state"] != "quarantined"
        world.clock.at += 600
    look(world, uncorrected_errors=14)
    assert health_of(world, gpu)["state"] == "quarantined"


def test_the_catalog_turns_the_rule_off(world):
    rules = replace(world.parts.catalog.rules, quarantine_faulty_gpus=False)
    world.parts.in_force.catalog = replace(world.parts.catalog, rules=rules)
    gpu = look(world, xid=79)
    assert health_of(world, gpu)["state"] == "faulty"
    assert world.parts.restrictions.live() == ()


@pytest.mark.parametrize("name", ["alice", "robot", "mallory"])
def test_promise_9_only_administrators_see_the_health_of_all(world, name):
    assert api(world, name, "admin/gpu-health").status_code == 403


def test_an_exporter_tells_a_faulty_gpu_and_its_node_is_drained_where_gpus_are_only_counted(world, tmp_path):
    node = world.backend.gpus[0].node
    where = {"UUID": "GPU-a", "gpu": "1", "Hostname": node}
    lines = [
        line("DCGM_FI_DEV_GPU_TEMP", 71, **where),
        line("DCGM_FI_DEV_XID_ERRORS", 79, **where),
        line("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 9223372036854775794, **where),
        line("DCGM_FI_DEV_GPU_TEMP", 40, UUID="GPU-a", gpu="1", GPU_I_ID="7"),
    ]
    with exporter(lines) as target:
        job = {"job_name": "dcgm", "static_configs": [{"targets": [target]}]}
        with prometheus(tmp_path, job) as url:
            world.parts.in_force.catalog = replace(world.parts.catalog, exporter=Exporter(url))

            def drains():
                world.call(quarantine_round, world.parts)
                return world.parts.restrictions.live()

            (drain,) = eventually(drains)
    (found,) = world.parts.gpu_health.readings()
    assert (found.uuid, found.node, found.index) == ("GPU-a", node, 1)
    assert found.health == GpuHealth(celsius=71.0, xid=79)
    assert (drain.measure.value, drain.target) == ("drain", node)
    assert drain.reason.startswith("GPU 1: Xid 79: the GPU has fallen off the bus. The cluster does not tell")


def test_an_invalid_answer_of_prometheus_is_refused():
    for body in (b"", b"{}", b'{"data": {"result": [{"metric": {"UUID": "a"}}]}}'):
        with pytest.raises(Unavailable, match="is not understood"):
            parse_exported_health(body)


def test_nvidia_smi_tells_the_health_of_nvidias_simulated_gpus(tmp_path):
    driver = simulated_driver(tmp_path / "driver", gpus=2)
    found = asyncio.run(nvidia.health(str(driver.programs / "nvidia-smi")))
    assert set(found) == set(driver.uuids)
    first = found[driver.uuids[0]]
    assert first.celsius
    assert first.watts
    assert first.uncorrected_errors == 0
    driver.fail("ecc_uncorrectable", gpu=0)
    eventually(
        lambda: asyncio.run(nvidia.health(str(driver.programs / "nvidia-smi")))[driver.uuids[0]].uncorrected_errors
    )
