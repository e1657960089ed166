"""Promises 4 and 5 of design section 4, as the service keeps them: unknown is never idle, and people know before."""

import pytest
from service_world import GRACE, IDLE_FOR, POLICY, a_catalog

from gpuspawner.backends.fake import probe_text
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.workspaces.presenter import present_workspace

LONG = 3 * (IDLE_FOR + GRACE)
"""Seconds in which an idle workspace would have ended three times."""

# 4. Unknown is never idle.

UNKNOWN = {
    "a bracketed value": "[N/A]",
    "no permission": "[Insufficient Permissions]",
    "no number": "",
    "above 100": "101",
    "below 0": "-1",
}


@pytest.mark.parametrize("percent", UNKNOWN.values(), ids=UNKNOWN.keys())
async def test_promise_4_a_gpu_that_can_t_be_read_is_not_idle(world, percent):
    lease = await world.up("alice", count=2)
    world.shows(lease, {lease.slots[0].gpu: 0, lease.slots[1].gpu: percent})
    await world.go_on(LONG)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    assert "GPU 1" in world.registry.get(lease.id).streak.because
    assert world.registry.get(lease.id).streak.idle_seconds == 0


@pytest.mark.parametrize(
    ("problem", "cut"),
    [
        pytest.param("the probe did not end within 20 s", 1.0, id="timed out"),
        pytest.param("", 0.6, id="half read"),
        pytest.param("", 0.0, id="nothing read"),
        pytest.param("the workspace has no process", 1.0, id="no process"),
    ],
)
async def test_promise_4_a_probe_that_failed_is_not_idle(world, problem, cut):
    lease = await world.up("alice")
    text = probe_text({lease.slots[0].gpu: 0})
    world.shows(lease, 0, problem=problem, text=text[: int(len(text) * cut)])
    await world.go_on(LONG)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    assert {row.kind for row in world.parts.store.readings.of_lease(lease.id)} == {"unknown"}


async def test_promise_4_a_missing_nvidia_smi_is_not_idle(world):
    lease = await world.up("alice")
    text = probe_text({}).replace("reading 0", "reading 127\nsmi sh: nvidia-smi: not found")
    world.shows(lease, 0, text=text)
    await world.go_on(LONG)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    assert "nvidia-smi does not exist" in world.registry.get(lease.id).streak.because


async def test_promise_4_only_known_minutes_count_and_a_gap_does_not(world):
    lease = await world.up("alice")
    await world.go_on(180)
    world.clock.advance(7200)  # the service did not run
    await world.go_on(60)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    assert world.registry.get(lease.id).streak.idle_seconds <= 180 + 90


async def test_promise_4_one_busy_gpu_of_several_is_enough(world):
    lease = await world.up("alice", count=2)
    world.shows(lease, {lease.slots[0].gpu: 0, lease.slots[1].gpu: 50})
    await world.go_on(LONG)
    assert world.registry.get(lease.id).phase is Phase.RUNNING


@pytest.mark.parametrize("foreign", [True, False])
async def test_promise_4_an_unknown_process_on_a_shared_gpu_is_not_idle(world, foreign):
    lease = await world.up("alice", gpu="half")
    note = "process 42, which no lease gave it to, computes on it" if foreign else ""
    world.backend.change_gpu(lease.slots[0].gpu, foreign=foreign, note=note)
    await world.go_on(1200)
    now = world.now_of(lease)
    assert (now.phase is Phase.RUNNING) == foreign
    assert note in now.streak.because


# 5. People know before it happens.


async def test_promise_5_an_idle_workspace_is_warned_and_kept_by_one_click(world):
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR + 60)
    warning = present_workspace(world.parts, world.registry.get(lease.id)).warning
    assert warning.kind == "idle"
    assert warning.actions == ["keep", "without-gpu"]
    assert warning.text.startswith("The GPU has been idle for 5 min. Its highest use was 0 %. This workspace stops at ")
    assert GRACE - 60 <= warning.ends_at - world.clock.now() <= GRACE
    await world.parts.actions.keep(world.registry.get(lease.id), "alice")
    await world.go_on(3600)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    assert world.registry.get(lease.id).keeps_used == 1


async def test_promise_5_keep_has_the_policy_s_bounds_and_says_so(world):
    lease = await world.up("alice")
    keep = world.parts.actions.keep
    for _ in range(2):
        await keep(world.registry.get(lease.id), "alice")
        world.clock.advance(3600)
    with pytest.raises(Conflict, match="2 of 2 are used"):
        await keep(world.registry.get(lease.id), "alice")


async def test_promise_5_a_second_click_uses_up_no_second_keep(world):
    lease = await world.up("alice")
    once = await world.parts.actions.keep(lease, "alice")
    world.clock.advance(60)
    assert await world.parts.actions.keep(world.registry.get(lease.id), "alice") == once


async def test_promise_5_no_workspace_is_stopped_for_idleness_without_the_whole_grace(world):
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR + GRACE)
    assert world.now_of(lease).phase is Phase.RECLAIMING
    warned = next(x.at for x in world.parts.store.audit_log.latest(lease.id) if x.event.action == "warned")
    await world.go_on(180)
    assert world.now_of(lease).ended_at - warned >= GRACE


async def test_promise_5_each_threshold_of_the_end_is_announced_once(world):
    lease = await world.up("alice", lifetime="2h")
    world.shows(lease, 50)
    await world.go_on(7200 + 120)
    warned = [(action, why) for _, action, why in world.audit(lease) if action == "warned"]
    assert warned == [("warned", "ends in 30 min"), ("warned", "ends in 10 min")]
    assert world.now_of(lease).reason is ExitReason.EXPIRED


async def test_promise_5_a_deadline_that_passed_in_an_outage_moves_to_give_notice(world):
    lease = await world.up("alice", lifetime="2h")
    world.shows(lease, 50)
    world.clock.advance(9000)
    await world.sample()
    assert world.registry.get(lease.id).deadline_at == world.clock.now() + 600
    await world.go_on(540)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    await world.go_on(180)
    assert world.now_of(lease).reason is ExitReason.EXPIRED


@pytest.mark.parametrize("mode", ["observe", "warn"])
async def test_promise_5_without_enforcement_nothing_is_stopped_for_idleness(make_world, mode):
    world = make_world(policy={"mode": mode})
    lease = await world.up("alice")
    await world.go_on(LONG)
    assert world.registry.get(lease.id).phase is Phase.RUNNING
    actions = {"observe": ["would warn", "would stop"], "warn": ["warned", "would stop"]}[mode]
    assert world.did(lease)[3:] == actions
    assert (present_workspace(world.parts, world.registry.get(lease.id)).warning is not None) == (mode == "warn")


async def in_its_last_minute(world):
    lease = await world.up("alice")
    world.shows(lease, 0)
    await world.go_on(IDLE_FOR + 120)
    while world.registry.get(lease.id).streak.grace_left_seconds > 60:
        await world.go_on(5, step=5)
    assert world.phase(lease) is Phase.RECLAIMING
    return lease


async def still_to_be_kept(world, lease):
    """Whether enough of the grace is left to object, and Keep works."""
    await world.go_on(GRACE - 60, step=5)
    assert world.phase(lease) is Phase.RECLAIMING
    return (await world.parts.actions.keep(world.registry.get(lease.id), "alice")).phase is Phase.RUNNING


async def test_a_changed_policy_ends_the_grace(world):
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR + 60)
    assert world.phase(lease) is Phase.RECLAIMING
    world.change_catalog(a_catalog(policy={"idle": {**POLICY["idle"], "for": "2h"}}))
    assert world.phase(lease) is Phase.RUNNING
    await world.go_on(1200)
    assert world.phase(lease) is Phase.RUNNING, world.now_of(lease).message
    assert "grace ended" in world.did(lease)


@pytest.mark.parametrize("mode", ["observe", "warn"])
async def test_a_grace_that_a_changed_policy_ends_sends_no_message(make_world, mailbox, mode):
    world = make_world(notify_users=mailbox.address("{user}@example.org"))
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR + 60)
    assert world.phase(lease) is Phase.RECLAIMING
    world.change_catalog(a_catalog(policy={"mode": mode}))
    assert world.phase(lease) is Phase.RUNNING
    told = [row.document["text"] for row in world.parts.store.outbox.due(world.clock.now(), 10)]
    assert len(told) == 1, "only what was told before the restart"


async def test_promise_5_an_outage_of_the_store_leaves_time_to_keep(world):
    lease = await in_its_last_minute(world)
    save, world.parts.store.save = world.parts.store.save, refuse
    await world.go_on(600, step=5)
    with pytest.raises(Unavailable):
        await world.parts.actions.keep(world.registry.get(lease.id), "alice")
    world.parts.store.save = save
    assert await still_to_be_kept(world, lease)


def refuse(*_arguments):
    raise Unavailable("The disk is full.")


async def test_promise_5_an_outage_of_the_hub_leaves_time_to_keep(world):
    lease = await in_its_last_minute(world)
    world.hub.unreachable = "The hub does not answer."
    await world.go_on(600, step=5)
    assert world.phase(lease) is Phase.RECLAIMING, "nobody can open its pages"
    world.hub.unreachable = ""
    assert await still_to_be_kept(world, lease)


async def test_short_outages_of_the_hub_keep_no_workspace(world):
    lease = await in_its_last_minute(world)
    for _ in range(3):
        world.hub.unreachable = "The hub does not answer."
        await world.go_on(15, step=5)
        world.hub.unreachable = ""
        await world.go_on(15, step=5)
    assert world.now_of(lease).reason is ExitReason.IDLE
