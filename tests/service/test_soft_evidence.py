"""Softer evidence in the service: kept with the readings, told, and spent; workspaces without a GPU."""

import asyncio
import json
from dataclasses import replace

import pytest
from service_world import POLICY, a_catalog

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.hub_client import _server
from gpuspawner.service.store.database.recordings import missing_evidence, read_recordings
from gpuspawner.service.workspaces.presenter import present_reading, present_workspace

COUNTS = {"idle": {**POLICY["idle"], "soft": "10m"}, "also_counts": ["cpu", "kernel", "terminal"]}
ACTIVITY = {"activity": {"none_for": "20m", "grace": "3m"}}


class Workspace:
    """A workspace whose probes say what a test says, its clock going on with the world's."""

    def __init__(self, world, lease, *, extension=True):
        self.busy, self.extension, self.more, self.percent = None, extension, (), 0
        world.backend.probe = self._probe
        self._world, self._lease = world, lease
        self._gpus = [slot.gpu for slot in lease.slots]

    async def _probe(self, *_asked):
        clock_seconds = self._world.clock.now() - 1_799_999_000.0
        kernels = [{"name": self.busy, "busy": True, "idle_seconds": 0.0}] if self.busy else []
        told = {"begin": 1, "pid": 100, "uptime": clock_seconds, "kernels": kernels, "end": 1}
        soft = [*([f"kernels 100 {json.dumps(told)}"] if self.extension else []), *self.more]
        percents = dict.fromkeys(self._gpus, self.percent)
        return ProbeResult(probe_text(percents, clock_seconds=clock_seconds, memory_mib=100, soft=soft))


def view(world, lease):
    return world.view(lease).model_dump()


async def test_a_busy_kernel_counts_as_use_for_its_budget(make_world):
    world = make_world(policy=COUNTS)
    lease = await world.up("alice")
    workspace = Workspace(world, lease)
    workspace.percent = 90
    await world.go_on(120)
    workspace.percent, workspace.busy = 0, "train.ipynb"
    await world.go_on(9 * 60)
    seen = view(world, lease)
    idle = seen["idle"]
    assert (idle["state"], idle["idle_seconds"]) == ("soft", 0.0)
    assert "This counts as use for 1 min more." in seen["explained"]
    assert idle["words"] == "in use: kernel train.ipynb busy, GPU 0 at 0 %"
    kernel = next(one for one in idle["also_counts"] if one["evidence"] == "kernel")
    assert kernel == {"evidence": "kernel", "active": True, "words": "kernel train.ipynb busy"}
    assert (idle["soft_seconds"], idle["soft_left_seconds"]) == (600, 60.0)
    await world.go_on(3 * 60)
    idle = view(world, lease)["idle"]
    assert idle["because"].endswith("kernel train.ipynb busy (no longer counts)"), "spent, and said so"
    assert idle["idle_seconds"] == 120.0
    await world.go_on(10 * 60)
    assert world.now_of(lease).reason is ExitReason.IDLE


async def test_the_names_of_kernels_are_shown_while_it_runs_and_after_its_end(make_world):
    world = make_world()
    lease = await world.up("alice")
    workspace = Workspace(world, lease)
    workspace.busy = "train.ipynb"
    await world.go_on(120)
    assert view(world, lease)["kernels"] == ["train.ipynb"]
    workspace.extension = False  # its server hangs: the last names stay
    await world.go_on(120)
    assert view(world, lease)["kernels"] == ["train.ipynb"]
    await world.go_on(40 * 60)
    assert view(world, lease)["end"] is not None
    world.boot()
    ended = world.parts.store.leases.get(lease.id)
    assert present_workspace(world.parts, ended).kernels == ["train.ipynb"]
    again = await world.up("alice")
    assert view(world, again)["kernels"] is None, "of another server"


async def test_softer_evidence_is_stored_with_readings_and_replayed(make_world):
    world = make_world(policy=COUNTS)
    lease = await world.up("alice")
    workspace = Workspace(world, lease)
    workspace.busy = "train.ipynb"
    await world.go_on(30 * 60)
    assert world.now_of(lease).reason is ExitReason.IDLE
    rows = world.parts.store.readings.of_lease(lease.id)
    assert all(row.kept for row in rows)
    assert rows[0].soft == {"kernel": {"active": True, "words": "kernel train.ipynb busy"}}
    assert present_reading(rows[0]).soft == rows[0].soft
    (history,) = read_recordings(world.database.url, 0.0, lambda *_: None, world.database.password_file)
    assert missing_evidence(history) == frozenset()


@pytest.mark.parametrize(("counted", "seconds_held"), [(COUNTS, 600), ({}, 0)])
async def test_kernels_that_cannot_be_read_are_unknown_only_while_they_count(make_world, counted, seconds_held):
    world = make_world(policy=counted)
    lease = await world.up("alice")
    Workspace(world, lease, extension=False)
    await world.go_on(8 * 60)
    assert bool(world.now_of(lease).streak.idle_seconds) is not bool(seconds_held)
    if seconds_held:
        words = view(world, lease)["idle"]["words"]
        assert "the state of its kernels can't be read (no Jupyter server with gpuspawner's extension" in words
    await world.go_on(seconds_held + 4 * 60)
    assert world.now_of(lease).reason is ExitReason.IDLE


async def test_a_workspace_without_a_gpu_is_stopped_after_time_without_activity_and_is_told_first(make_world):
    world = make_world(policy=ACTIVITY)
    lease = await world.up("bob", gpu="none")
    Workspace(world, lease)
    await world.go_on(22 * 60)
    seen = view(world, lease)
    assert world.now_of(lease).phase is Phase.RECLAIMING
    assert seen["warning"]["text"].startswith("Nothing has run in it for 21 min (no kernel, no terminal open, ")
    assert "You lose running kernels. Your files stay." in seen["warning"]["text"]
    assert seen["warning"]["actions"] == ["keep"]
    await world.go_on(4 * 60)
    ended = world.now_of(lease)
    assert ended.reason is ExitReason.IDLE
    assert "no activity at the hub for" in ended.message
    rows = world.parts.store.readings.of_lease(lease.id)
    assert {(row.gpu, row.kept) for row in rows} == {("", True)}
    assert rows[-1].kind == "idle"
    assert list(read_recordings(world.database.url, 0.0, lambda *_: None, world.database.password_file)) == [], (
        "simulate replays the use of GPUs"
    )


@pytest.mark.parametrize("use", ["kernel", "terminal", "ssh", "editor", "hub"])
async def test_any_activity_keeps_a_workspace_without_a_gpu(make_world, use):
    world = make_world(policy=ACTIVITY)
    lease = await world.up("bob", gpu="none")
    workspace = Workspace(world, lease)
    lines = {"terminal": "terminal /dev/pts/3 7 8", "ssh": "ssh 7", "editor": "editor 7"}
    workspace.more = (lines[use],) if use in lines else ()
    workspace.busy = "a.ipynb" if use == "kernel" else None
    for _ in range(6):
        await world.go_on(10 * 60)
        if use == "hub":
            world.hub.touch("bob")
    assert world.now_of(lease).phase is Phase.RUNNING
    assert "warned" not in world.did(lease)


@pytest.mark.parametrize("unknown", ["kernels", "hub", "its record", "probe"])
async def test_unknown_is_never_idle_without_a_gpu_either(make_world, unknown):
    world = make_world(policy=ACTIVITY)
    lease = await world.up("bob", gpu="none")
    workspace = Workspace(world, lease, extension=unknown != "kernels")
    if unknown == "hub":
        world.hub.unreachable = "away"
    if unknown == "its record":
        world.hub.listed["bob", ""] = replace(world.hub.listed["bob", ""], last_activity=None)
    if unknown == "probe":
        workspace.more = ("terminal x",)
    await world.go_on(60 * 60)
    assert world.now_of(lease).phase is Phase.RUNNING
    assert view(world, lease)["idle"]["state"] == "unknown"


async def test_observe_stops_no_workspace_without_a_gpu(make_world):
    world = make_world(policy={**ACTIVITY, "mode": "observe"})
    lease = await world.up("bob", gpu="none")
    Workspace(world, lease)
    await world.go_on(40 * 60)
    assert world.now_of(lease).phase is Phase.RUNNING
    assert "would stop" in world.did(lease)


async def test_a_server_that_ran_before_gpuspawner_did_is_not_judged(make_world):
    world = make_world(policy=ACTIVITY)
    world.hub.put("carol", ready=True)
    await world.round()
    (lease,) = list(world.registry)
    await world.go_on(60 * 60)
    assert world.now_of(lease).phase is Phase.RUNNING
    assert view(world, lease)["idle"] is None
    assert ("probe", lease.id) not in world.backend.calls


@pytest.mark.parametrize(
    ("noted", "seconds"),
    [("2026-11-21T22:00:00.5Z", 1795298400.5), ("2026-11-21T22:00:00", 1795298400.0), (None, None), ("soon", None)],
)
def test_the_hubs_record_is_read_as_it_writes_it(noted, seconds):
    server = _server({"name": "bob", "created": None}, {"name": "", "last_activity": noted})
    assert server.last_activity == seconds


async def test_a_restart_keeps_the_countdown_of_a_workspace_without_a_gpu(make_world):
    world = make_world(policy=ACTIVITY)
    lease = await world.up("bob", gpu="none")
    Workspace(world, lease)
    await world.go_on(22 * 60)
    world.boot()
    await asyncio.sleep(0)
    await world.go_on(5 * 60)
    assert world.now_of(lease).reason is ExitReason.IDLE


async def test_a_wall_clock_moved_back_hides_no_activity_at_the_hub(make_world):
    world = make_world(policy={"activity": {"none_for": "40m", "grace": "5m"}})
    lease = await world.up("bob", gpu="none")
    Workspace(world, lease)
    for minute in range(120):
        if minute == 20:
            world.clock.wall_ahead_seconds = -3600.0
        server = world.hub.listed["bob", ""]
        # As the hub notes it: by the wall, and never earlier than before.
        noted_at = max(server.last_activity or 0.0, world.clock.wall())
        world.hub.listed["bob", ""] = replace(server, last_activity=noted_at)
        await world.go_on(60)
        assert world.now_of(lease).phase is Phase.RUNNING


async def test_a_workspace_without_a_policy_leaves_its_grace(make_world):
    world = make_world(policy=ACTIVITY)
    lease = await world.up("bob", gpu="none")
    Workspace(world, lease)
    await world.go_on(22 * 60)
    assert world.now_of(lease).phase is Phase.RECLAIMING
    world.change_catalog(a_catalog(policy={}))
    assert world.now_of(lease).phase is Phase.RUNNING
    assert view(world, lease)["warning"] is None
