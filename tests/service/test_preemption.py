"""A workspace whose place takes its GPU, or loses it: its user is told, and it comes back where it stood."""

from dataclasses import replace

import pytest
from service_world import a_catalog

from gpuspawner.core.errors import Conflict
from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act
from gpuspawner.service.workspaces.presenter import present_workspace

WHY = "The cluster needed its GPU for work with a higher priority."


async def disrupted(world, lease, **changes):
    world.change_process(lease, disruption=WHY, **changes)
    await world.round()
    return world.now_of(lease)


async def gone(world, lease, outcome="died"):
    """Its place ends it, and the hub sees that it is gone."""
    await world.hub_stops(lease, outcome)
    await world.rounds(2)


def waiting(world, lease):
    return next((x for x in world.registry if x.key == lease.key), None)


async def test_an_announced_preemption_is_a_warning_with_the_time(world):
    alice = await world.up("alice")
    told = await disrupted(world, alice, ends_in_seconds=30.0)
    assert (told.phase, told.disruption, told.disrupted_until) == (Phase.RUNNING, WHY, world.clock.now() + 30)
    warning = present_workspace(world.parts, told).warning
    assert (warning.kind, warning.ends_at, warning.actions) == ("preempted", told.disrupted_until, [])
    assert warning.text.startswith(WHY)
    assert "Save now" in warning.text
    assert "starts again by itself" in warning.text
    await world.round()
    assert world.did(alice).count("disrupted") == 1


async def test_an_earlier_preemption_is_announced_again(world):
    alice = await world.up("alice")
    told = await disrupted(world, alice)
    assert "This workspace may end at any moment. Save now." in present_workspace(world.parts, told).warning.text
    told = await disrupted(world, alice, ends_in_seconds=120.0)
    assert told.disrupted_until == world.clock.now() + 120
    assert world.did(alice).count("disrupted") == 1, "that it may end at any moment was said already"
    told = await disrupted(world, alice, ends_in_seconds=30.0)
    assert told.disrupted_until == world.clock.now() + 30
    assert world.did(alice).count("disrupted") == 2
    await world.go_on(5)
    assert world.did(alice).count("disrupted") == 2


async def test_a_withdrawn_preemption_has_no_warning(world):
    alice = await world.up("alice")
    await disrupted(world, alice, ends_in_seconds=30.0)
    world.change_process(alice, disruption="", ends_in_seconds=None)
    await world.rounds(2)
    spared = world.now_of(alice)
    assert (spared.phase, spared.disruption, spared.disrupted_until) == (Phase.RUNNING, "", None)
    assert present_workspace(world.parts, spared).warning is None
    assert [did for did in world.did(alice) if did in {"disrupted", "spared"}] == ["disrupted", "spared"]
    await gone(world, alice)
    assert world.now_of(alice).reason is ExitReason.FAILED
    assert waiting(world, alice) is None


async def test_a_workspace_that_survives_on_a_silent_node_is_reported(world):
    alice = await world.up("alice")
    await disrupted(world, alice, ends_in_seconds=30.0)
    await world.go_on(60, step=10)
    warning = world.view(alice).warning
    assert "but we cannot see that it is gone. Its node may not answer. Nobody else gets its GPUs" in warning.text
    assert "Save now" not in warning.text
    assert "starts again by itself" in warning.text
    assert world.now_of(alice).phase is Phase.RUNNING


async def test_an_announced_disappearance_was_a_preemption_too(world):
    alice = await world.up("alice")
    await disrupted(world, alice)
    world.lose(alice)
    await world.go_on(20, step=2)
    assert world.now_of(alice).reason is ExitReason.PREEMPTED
    assert waiting(world, alice) is not None


async def test_the_spawner_may_report_a_preemption_that_was_not_announced(world):
    alice = await world.up("alice")
    await world.hub_stops(alice, "preempted", "Its node is gone.")
    await world.round()
    assert (world.now_of(alice).reason, world.now_of(alice).message) == (ExitReason.PREEMPTED, "Its node is gone.")
    assert waiting(world, alice) is not None


async def test_a_stop_during_a_preemption_counts_as_a_stop(world):
    alice = await world.up("alice")
    await disrupted(world, alice)
    await gone(world, alice, "stopped")
    assert world.now_of(alice).reason is ExitReason.STOPPED
    assert waiting(world, alice) is None


async def test_without_back_in_queue_a_preempted_workspace_ends(make_world):
    world = make_world(policy={"preemption": {"back_in_queue": False}})
    alice = await world.up("alice")
    told = await disrupted(world, alice)
    assert "starts again" not in present_workspace(world.parts, told).warning.text
    await gone(world, alice)
    assert world.now_of(alice).reason is ExitReason.PREEMPTED
    assert waiting(world, alice) is None


async def test_a_crash_loses_no_preempted_workspace(world):
    alice = await world.up("alice")
    await disrupted(world, alice)
    await world.hub_stops(alice, "died")
    world.boot()
    await world.rounds(2)
    assert waiting(world, alice).asked_at == alice.asked_at


@pytest.mark.parametrize("reason", [ExitReason.STOPPED, ExitReason.FAILED, ExitReason.IDLE, ExitReason.EXPIRED])
async def test_other_ends_do_not_restart(world, reason):
    alice = await world.up("alice")
    await world.parts.engine.begin_stop(alice.id, Exit(reason, "somebody", "Because."))
    world.lose(alice)
    await world.rounds(2)
    assert world.now_of(alice).phase is Phase.ENDED
    assert waiting(world, alice) is None


async def test_a_gpu_that_fails_under_a_workspace_is_told_and_stops_nothing(world):
    alice = await world.up("alice", count=2)
    world.change_process(alice, unhealthy=("GPU-1",))
    await world.round()
    told = world.view(alice).warning
    assert (told.kind, told.ends_at, told.actions) == ("unhealthy", None, ["move"])
    assert "1 of its 2 GPUs is unhealthy" in told.text
    assert world.now_of(alice).phase is Phase.RUNNING
    await world.round()
    world.change_process(alice, unhealthy=())
    await world.round()
    assert world.view(alice).warning is None
    assert [why for _, action, why in world.audit(alice) if action == "health"] == [
        "GPU-1 reported as unhealthy",
        "its GPUs reported as healthy again",
    ]


async def test_many_gpus_that_fail_at_once_are_counted_in_the_history(world):
    alice = await world.up("alice", count=2)
    world.change_process(alice, unhealthy=("GPU-1", "GPU-2"))
    await world.round()
    assert [why for _, action, why in world.audit(alice) if action == "health"] == [
        "GPU-1 and 1 more reported as unhealthy"
    ]


async def test_promise_5_all_warnings_are_shown_and_the_first_end_leads(world):
    alice = await world.up("alice")
    now = world.clock.now()
    expires = replace(alice, warned_seconds=(900.0,), deadline_at=now + 600, unhealthy=("GPU-1",))
    told = present_workspace(world.parts, expires).warning
    assert (told.kind, told.ends_at, told.actions) == ("expiry", now + 600, ["extend", "move"])
    assert "The run time of this workspace ends at" in told.text
    assert "its GPU is unhealthy" in told.text
    for left_seconds, first in ((300.0, "idle"), (900.0, "expiry")):
        streak = replace(alice.streak, countdown_seconds=left_seconds, mode=Mode.ENFORCE)
        both = replace(expires, phase=Phase.RECLAIMING, unhealthy=(), streak=streak, sampled_at=now)
        told = present_workspace(world.parts, both).warning
        assert (told.kind, told.ends_at) == (first, now + min(left_seconds, 600))
        assert set(told.actions) == {"keep", "extend", "without-gpu"}
    told = present_workspace(world.parts, replace(expires, disruption=WHY, disrupted_until=now + 5000)).warning
    assert (told.kind, told.text.startswith(WHY)) == ("preempted", True)


async def failed_under(world, lease, *names):
    world.change_process(lease, unhealthy=names)
    await world.round()


async def test_a_failed_gpu_of_the_machine_is_a_warning(world):
    alice = await world.up("alice")
    (slot,) = alice.slots
    world.backend.change_gpu(slot.gpu, healthy=False)
    await world.round()
    assert world.now_of(alice).unhealthy == (slot.gpu,)
    assert world.view(alice).warning.actions == ["move"]


@pytest.mark.parametrize("policy", [{}, {"preemption": {"back_in_queue": False}}], ids=["usual", "preempted ones end"])
async def test_promise_3_a_moved_workspace_restarts_at_its_queue_position(make_world, policy):
    world = make_world(policy=policy)
    alice, bob = await world.up("alice", count=2), await world.start("bob", count=2)
    await failed_under(world, alice, "GPU-1")
    person = Person("alice", alice.key.owner)
    await act(world.parts, person, world.now_of(alice), "move", "its page")
    assert world.now_of(alice).phase is Phase.STOPPING
    assert world.hub.calls[-1][:2] == ("stop", "alice"), "by the engine, through the hub"
    await world.hub_stops(alice, "stopped")
    await world.rounds(2)
    ended, back = world.now_of(alice), waiting(world, alice)
    assert (ended.reason, ended.ended_by) == (ExitReason.MOVED, "alice")
    assert "GPU-1 was reported unhealthy" in ended.message
    assert (back.asked_at, back.request, back.options) == (alice.asked_at, alice.request, alice.options)
    assert (back.phase, world.now_of(bob).phase) == (Phase.RESERVED, Phase.QUEUED), "before who asked later"
    await world.round()
    assert world.hub.calls[-1][:2] == ("start", "alice")


async def test_a_workspace_that_could_not_start_again_is_not_moved(world):
    alice = await world.up("alice")
    world.crash()
    world.change_catalog(a_catalog(templates={"pytorch": {"title": "PyTorch", "gpus": {"half": "1-2"}}}))
    await failed_under(world, alice, world.now_of(alice).slots[0].gpu)
    person = Person("alice", alice.key.owner)
    warning = world.view(alice).warning
    assert "it would not start again. GPU: You asked for 'a100'. Allowed: half" in warning.text
    assert (warning.kind, warning.actions) == ("unhealthy", [])
    with pytest.raises(Conflict, match=r"It cannot start again: GPU: You asked for 'a100'\. Allowed: half"):
        await act(world.parts, person, world.now_of(alice), "move", "its page")
    assert world.now_of(alice).phase is Phase.RUNNING


async def test_a_healthy_workspace_is_not_moved(world):
    alice = await world.up("alice")
    person = Person("alice", alice.key.owner)
    with pytest.raises(Conflict, match="None of its GPUs is reported as failed"):
        await act(world.parts, person, world.now_of(alice), "move", "its page")
    assert world.now_of(alice).phase is Phase.RUNNING


async def test_a_start_stopped_before_it_runs_is_not_restarted(world):
    """Its pod is gone a moment before the hub has done with the stop."""
    await world.round()
    alice = await world.create(await world.start("alice"))
    world.backend.vanish(alice.id)
    world.hub.listed["alice", ""] = replace(world.hub.listed["alice", ""], ready=False, pending="stop")
    world.clock.advance(120)
    await world.rounds(2)
    assert world.now_of(alice).phase is Phase.STARTING
    await world.hub_stops(alice)
    await world.round()
    assert world.now_of(alice).phase is Phase.ENDED


async def test_a_request_no_longer_in_the_catalog_ends_instead_of_waiting_for_ever(world):
    alice = await world.up("alice", gpu="half")
    pytorch = {"title": "PyTorch", "gpus": {"a100": "1-8"}, "default": {"gpu": "a100", "memory": "8GiB"}}
    world.change_catalog(a_catalog(templates={"pytorch": pytorch}))
    await world.round()
    told = await disrupted(world, alice, ends_in_seconds=30.0)
    assert "starts again by itself" not in present_workspace(world.parts, told).warning.text
    await gone(world, alice)
    assert world.now_of(alice).reason is ExitReason.PREEMPTED
    assert waiting(world, alice) is None
