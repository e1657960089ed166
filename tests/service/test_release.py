"""Reports of the spawner about a start or a server, in every phase; and repeated requests."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpuspawner.core.errors import Conflict, Gone, Unavailable
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.exits import CANCELLED, UNKNOWN, Exit, ExitReason
from gpuspawner.core.leases.lease import JOINABLE, UP, WAITING, Phase
from gpuspawner.core.leases.reports import MESSAGE_CHARACTERS, RELEASE_SPOOL, ReleaseReport
from gpuspawner.service.engine.hub_state import AHEAD_SECONDS, LATE_SECONDS
from gpuspawner.service.engine.recovery import read_release_spool
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.spawner.client import spool_release

OUTCOMES = {
    "cancelled": (ExitReason.CANCELLED, "alice"),
    "failed": (ExitReason.FAILED, "hub"),
    "stopped": (ExitReason.STOPPED, "hub"),
    "died": (ExitReason.FAILED, "hub"),
    "quit": (ExitReason.STOPPED, "its own server"),
    "shutdown": (ExitReason.STOPPED, "hub shutdown"),
}
LIVE = [phase for phase in Phase if phase is not Phase.ENDED]


async def in_phase(world, phase):
    """A lease of alice in a phase, by the ways that lead there."""
    if phase in UP | {Phase.STOPPING}:
        lease = await world.up("alice")
        if phase is Phase.RECLAIMING:
            await world.registry.save(transitions.begin_grace(lease, world.clock.now()))
        elif phase is Phase.STOPPING:
            await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "idle"))
        return world.registry.get(lease.id)
    if phase in WAITING:
        world.backend.complete = False
    await world.round()
    lease = await world.start("alice")
    if phase is Phase.PARKED:
        await world.parts.attempts.park(lease.id, 1)
    elif phase is Phase.STARTING:
        await world.create(lease)
    lease = world.registry.get(lease.id)
    assert lease.phase is phase
    return lease


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("phase", LIVE)
async def test_an_outcome_ends_a_lease_with_its_reason(world, phase, outcome):
    lease = await in_phase(world, phase)
    await world.hub_stops(lease, outcome, "because")
    released = world.now_of(lease)
    assert released.phase is (Phase.ENDED if phase in WAITING | {Phase.RESERVED} else Phase.STOPPING)
    reason, by = OUTCOMES[outcome]
    if outcome == "stopped" and phase not in UP:
        reason, by = ExitReason.FAILED, "hub"  # the hub's own time for a start was over
    if phase is Phase.STOPPING:
        reason, by = ExitReason.IDLE, "gpuspawner"  # the first reason stands
    assert (released.reason, released.ended_by) == (reason, by)
    assert released.message == ("idle" if phase is Phase.STOPPING else "because")
    await world.go_on(2, step=1)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason) == (Phase.ENDED, reason)
    assert world.did(lease).count("stop") == 1
    assert world.hub.calls == []


@pytest.mark.parametrize("phase", LIVE)
async def test_an_older_attempt_s_outcome_is_ignored(world, phase):
    lease = await in_phase(world, phase)
    await world.registry.save(newer := replace(lease, attempt=2))
    for outcome in OUTCOMES:
        await world.parts.attempts.release(lease.id, 1, outcome, "old")
        assert world.now_of(lease) == newer, outcome


async def test_a_repeated_or_unknown_outcome_is_harmless(world):
    lease = await world.up("alice")
    await world.hub_stops(lease)
    await world.go_on(2, step=1)
    ended = world.now_of(lease)
    await world.parts.attempts.release(lease.id, 1, "failed", "again")
    await world.parts.attempts.release("nobody", 1, "failed", "")
    assert world.now_of(lease) == ended


@pytest.mark.parametrize("phase", sorted(JOINABLE))
async def test_a_start_cancelled_by_the_service_s_stop_is_requeued(world, phase):
    lease = await in_phase(world, phase)
    world.allocator.observed._stops[lease.key] = world.clock.now() - 4.9
    await world.hub_stops(lease, "cancelled")
    parked = world.now_of(lease)
    assert (parked.phase, parked.asked_at) == (Phase.PARKED, lease.asked_at)
    assert parked.not_before <= world.clock.now(), "nobody passes it"
    world.backend.complete = True
    await world.rounds(2)
    assert [call[:2] for call in world.hub.calls] == [("start", "alice")]


@pytest.mark.parametrize("phase", sorted(JOINABLE))
async def test_a_start_cancelled_five_seconds_after_the_stop_ends(world, phase):
    lease = await in_phase(world, phase)
    world.allocator.observed._stops[lease.key] = world.clock.now() - 5.1
    await world.hub_stops(lease, "cancelled")
    assert world.now_of(lease).reason is ExitReason.CANCELLED


async def test_a_stop_of_ours_is_remembered_for_its_key(world):
    lease = await world.up("alice")
    await world.stop(lease)
    await world.round()
    assert world.allocator.observed._stops == {lease.key: world.clock.now()}


@pytest.mark.parametrize("phase", [*sorted(UP), Phase.STOPPING])
async def test_a_new_start_waits_until_the_old_process_has_ended(world, phase):
    """The hub starts again and has no server of it. The old process is ended first, then the start continues."""
    lease = await in_phase(world, phase)
    world.hub.forget("alice")
    with pytest.raises(Conflict, match="still ending"):
        await world.start("alice")
    await world.go_on(2, step=1)
    assert not world.backend.running
    assert world.now_of(lease).reason is (ExitReason.IDLE if phase is Phase.STOPPING else ExitReason.ORPHANED)
    again = await world.ask("alice")
    assert (again.phase, again.id != lease.id) == (Phase.RESERVED, True)
    assert world.hub.calls == []


async def test_a_repeated_message_of_the_start_that_made_it_does_not_end_a_running_workspace(world):
    await world.round()
    lease = await world.create(await world.start("alice", start_id="once"))
    world.hub.answer("alice")
    await world.round()
    with pytest.raises(Conflict):
        await world.ask("alice", start_id="once")
    assert world.registry.get(lease.id).phase is Phase.RUNNING


async def test_a_start_repeated_after_a_time_out_is_the_same_lease_and_attempt(world):
    await world.round()
    first = await world.start("alice", start_id="once")
    assert await world.ask("alice", start_id="once") == replace(first, heard_at=world.clock.now())
    assert (await world.ask("alice", start_id="twice")).attempt == 2


async def test_the_spawner_of_an_older_attempt_or_ended_lease_is_refused(world):
    await world.round()
    old = await world.start("alice")
    await world.ask("alice")
    with pytest.raises(Gone, match="newer start"):
        await world.parts.attempts.hear(old.id, 1)
    await world.parts.attempts.release(old.id, 2, "cancelled", "no more")
    with pytest.raises(Gone, match="no more"):
        await world.parts.attempts.acknowledge(old.id, 2)
    with pytest.raises(Gone, match="over"):
        await world.parts.attempts.park("nobody", 1)


async def test_parking_does_not_undo_a_grant(world):
    await world.round()
    lease = await world.start("alice")
    assert (await world.parts.attempts.park(lease.id, 1)).phase is Phase.RESERVED


async def test_a_parked_request_with_a_new_heartbeat_is_attended(make_world):
    world = make_world(gpus=1)
    await world.up("alice")
    lease = await world.start("bob")
    await world.parts.attempts.park(lease.id, 1)
    assert (await world.parts.attempts.hear(lease.id, 1)).phase is Phase.QUEUED
    assert not world.registry.get(lease.id).unattended


async def test_leftovers_of_an_earlier_start_are_ended_before_the_next_start(world):
    await world.round()
    lease = await world.create(await world.start("alice"))
    again = await world.ask("alice")
    world.backend.unkillable.add(lease.id)
    assert await world.acknowledge(again) is None
    assert world.registry.get(lease.id).phase is Phase.RESERVED
    world.backend.unkillable.clear()
    assert (await world.create(again)).phase is Phase.STARTING
    assert set(world.backend.running) == {(lease.id, 2)}


async def test_simultaneous_starts_of_a_user_are_limited(make_world):
    world = make_world(gpus=8, concurrent_starts=4, concurrent_starts_each=2)
    mine = [await world.start("alice", str(number)) for number in range(3)]
    theirs = [await world.start("bob", str(number)) for number in range(2)]
    last = await world.start("carol")
    await world.round()
    phases = [world.now_of(lease).phase for lease in (*mine, *theirs, last)]
    assert phases == [Phase.RESERVED] * 2 + [Phase.QUEUED] + [Phase.RESERVED, Phase.QUEUED] + [Phase.RESERVED], (
        "who has nothing yet goes before another's second"
    )
    sentences = [world.view(x).queue.sentence for x in (mine[2], theirs[1])]
    assert sentences == [
        "2 of your workspaces are starting, the most at one time. This request keeps its place and starts by itself.",
        "4 workspaces are starting, the most at one time. This request keeps its place and starts by itself.",
    ]
    await world.create(mine[0])
    world.hub.answer("alice", "0")
    await world.rounds(2)
    assert (world.now_of(theirs[1]).phase, world.now_of(mine[2]).phase) == (Phase.RESERVED, Phase.QUEUED), (
        "who has less goes before another's third"
    )


# Reports that the service missed


async def test_leftover_files_next_to_the_data_are_reported_once(world, tmp_path):
    lease = await world.up("alice")
    spool_release(tmp_path, ReleaseReport(lease.id, lease.attempt, "shutdown"))
    spool_release(tmp_path, ReleaseReport(lease.id, lease.attempt, "stopped", "told later: it changes nothing"))
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / RELEASE_SPOOL).iterdir()} == {0o600}
    assert (tmp_path / RELEASE_SPOOL).stat().st_mode & 0o777 == 0o700
    await read_release_spool(tmp_path, world.parts.attempts)
    assert world.now_of(lease).message == "It was stopped because the hub was shut down. Your files are untouched."
    assert world.did(lease).count("stop") == 1
    assert list((tmp_path / RELEASE_SPOOL).iterdir()) == []


async def test_leftovers_stay_while_the_store_is_away(world, tmp_path, monkeypatch):
    lease = await world.up("alice")
    spool_release(tmp_path, ReleaseReport(lease.id, lease.attempt, "stopped"))
    with monkeypatch.context() as away:
        away.setattr(world.parts.store, "save", lambda *_: (_ for _ in ()).throw(Unavailable("The store is away.")))
        with pytest.raises(Unavailable):
            await read_release_spool(tmp_path, world.parts.attempts)
    await read_release_spool(tmp_path, world.parts.attempts)
    assert world.now_of(lease).reason is ExitReason.STOPPED


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"lease": 1, "attempt": 1, "outcome": "died", "message": ""}', "\udcff", "9" * 5000,
     '{"lease": "a", "attempt": 1, "outcome": "eaten"}', "[" * 60000, f'{{"lease": "{"a" * 70000}"}}',
     '{"lease": "a", "attempt": true, "outcome": "died"}'],
)  # fmt: skip
async def test_an_invalid_report_is_removed(world, tmp_path, text, caplog):
    (tmp_path / RELEASE_SPOOL).mkdir()
    (tmp_path / RELEASE_SPOOL / "some.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    await read_release_spool(tmp_path, world.parts.attempts)
    assert "is no report of a workspace's end" in caplog.text
    assert list((tmp_path / RELEASE_SPOOL).iterdir()) == []


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere")])
async def test_a_special_file_in_place_of_a_report_blocks_no_other_report(world, tmp_path, make):
    lease = await world.up("alice")
    (tmp_path / RELEASE_SPOOL).mkdir()
    make(tmp_path / RELEASE_SPOOL / "0.json")
    spool_release(tmp_path, ReleaseReport(lease.id, lease.attempt, "stopped"))
    await read_release_spool(tmp_path, world.parts.attempts)
    assert world.now_of(lease).reason is ExitReason.STOPPED


async def test_an_unreadable_report_blocks_no_other_report(world, tmp_path, monkeypatch, caplog):
    lease = await world.up("alice")
    for outcome in ("died", "stopped"):
        spool_release(tmp_path, ReleaseReport(lease.id, lease.attempt, outcome))
    opened, refused = Path.open, []

    def refuse_the_first(path, *arguments, **named):
        if not refused:
            refused.append(path)
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse_the_first)
    await read_release_spool(tmp_path, world.parts.attempts)
    assert world.now_of(lease).phase is Phase.STOPPING
    assert "can't be read: [Errno 13]" in caplog.text
    assert list((tmp_path / RELEASE_SPOOL).iterdir()) == refused


@pytest.mark.parametrize("heard", ["by HTTP", "late"])
async def test_an_unstorable_message_is_cleaned_and_cut(world, tmp_path, heard):
    """A path whose bytes are no UTF-8: its message failed at each round, and after it nothing was granted any more."""
    lease = await world.up("alice")
    message = "no such folder: /home/\udcff\0" + "x" * 3000
    if heard == "late":
        spool_release(tmp_path, ReleaseReport(lease.id, lease.attempt, "failed", message))
        await read_release_spool(tmp_path, world.parts.attempts)
    else:
        await world.parts.attempts.release(lease.id, lease.attempt, "failed", message)
    assert world.now_of(lease).message.startswith("no such folder: /home/??xxx")
    assert len(world.now_of(lease).message) == MESSAGE_CHARACTERS


@pytest.mark.parametrize("named", ["before its end", "while it stops", "after its end", "late"])
@pytest.mark.parametrize("by", ["alice", "root", "the service cull"])
async def test_a_stop_in_the_hub_names_its_actor(world, by, named):
    lease = await world.up("alice")
    if named == "before its end":
        await world.allocator.stoppers.name(lease.key, by)
        world.clock.advance(AHEAD_SECONDS)
    await world.hub_stops(lease)
    told = world.now_of(lease)
    if named != "before its end":
        assert (told.ended_by, told.message) == ("hub", UNKNOWN)
        assert present_workspace(world.parts, told).end.sentence.startswith("Somebody stopped it from the hub")
    if named in {"after its end", "late"}:
        await world.go_on(2, step=1)
        world.clock.advance(LATE_SECONDS if named == "late" else 10.0)
    for _ in range(2):
        await world.allocator.stoppers.name(lease.key, by)
    ended = world.now_of(lease)
    if named == "late":
        assert (ended.ended_by, ended.message) == ("hub", UNKNOWN)
        return
    assert (ended.reason, ended.ended_by, ended.message) == (
        ExitReason.STOPPED,
        by,
        f"It was stopped by {by}, from the hub.",
    )
    assert world.did(lease).count("stopper") == (named != "before its end")


async def test_the_actor_of_a_hub_stop_outlives_an_unstored_end(world, monkeypatch):
    lease = await world.up("alice")
    await world.allocator.stoppers.name(lease.key, "root")
    save = world.parts.store.save

    def away(*_arguments):
        raise Unavailable("The store does not answer.")

    monkeypatch.setattr(world.parts.store, "save", away)
    with pytest.raises(Unavailable):
        await world.hub_stops(lease)
    monkeypatch.setattr(world.parts.store, "save", save)
    await world.hub_stops(lease)  # the spawner tells it again
    ended = world.now_of(lease)
    assert (ended.ended_by, ended.message) == ("root", "It was stopped by root, from the hub.")


async def test_the_actor_of_a_hub_stop_is_not_used_for_another_end(world):
    lease = await world.up("alice")
    await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.IDLE, "gpuspawner", "idle"))
    idle = world.now_of(lease)
    await world.allocator.stoppers.name(lease.key, "the service gpu")
    assert world.now_of(lease) == idle
    bobs = await world.up("bob")
    await world.allocator.stoppers.name(bobs.key, "root")
    world.clock.advance(AHEAD_SECONDS + 1)
    await world.hub_stops(bobs)
    assert world.now_of(bobs).message == UNKNOWN, "that stop came to nothing, long ago"


async def test_the_actor_of_a_hub_stop_is_not_used_for_the_next_attempt(world):
    lease = await world.up("alice")
    await world.allocator.stoppers.name(lease.key, "root")
    again = replace(world.now_of(lease), attempt=lease.attempt + 1)
    await world.parts.registry.save(again)
    await world.hub_stops(again)
    assert world.now_of(lease).message == UNKNOWN


async def test_a_cancelled_start_names_the_actor_only_if_it_is_another_user(world):
    lease = await in_phase(world, Phase.RESERVED)
    await world.hub_stops(lease, "cancelled")
    await world.allocator.stoppers.name(lease.key, "alice")
    assert world.now_of(lease).message == CANCELLED
    await world.allocator.stoppers.name(lease.key, "root")
    assert (world.now_of(lease).ended_by, world.now_of(lease).message) == ("root", "The start was cancelled by root.")
