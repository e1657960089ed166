"""A scheduler that takes its time: what it answers counts only if it still fits, and what it does not answer waits."""

import asyncio
import inspect
import re
import shutil
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from late_scheduler import LateScheduler
from service_world import World

from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import HOLDING, WAITING, Phase
from gpuspawner.core.queue.snapshot import claim_of
from gpuspawner.schedulers.base import Answer, Grant, Preempted


class LateWorld(World):
    """A service over a scheduler that outlives it."""

    def make_scheduler(self, backend):
        if not hasattr(self, "late"):
            self.late = LateScheduler(backend, self.catalog.gpus)
        return self.late

    async def settle(self):
        """Wait for the background work, except a question that the scheduler has not answered yet."""
        await super().settle()
        for _ in range(5):
            await asyncio.sleep(0)
        await self.registry.settled()

    def asked(self):
        return super().asked() if self.late.gate.is_set() else []


@pytest.fixture
async def world(tmp_path):
    world = LateWorld(tmp_path / "s.sqlite")
    await world.round()
    yield world
    await world.parts.allocator.syncs.close()
    world.crash()


def words(world, lease):
    return world.view(lease).queue.sentence


async def test_a_request_waits_for_the_schedulers_answer_and_is_granted_with_it(world):
    world.late.gate.clear()
    lease = await world.ask("alice")
    await world.settle()
    assert world.phase(lease) is Phase.QUEUED
    assert words(world, lease)
    world.late.gate.set()
    await world.settle()
    assert world.phase(lease) is Phase.RESERVED


async def test_the_scheduler_gets_one_question_at_a_time(world):
    world.late.gate.clear()
    asked = len(world.late.answers)
    line = [await world.ask("user0", gpu="half")]
    await world.settle()
    line += [await world.ask(f"user{number}", gpu="half") for number in range(1, 4)]
    world.late.gate.set()
    await world.settle()
    assert (world.late.most_at_once, len(world.late.answers) - asked) == (1, 2)
    assert {world.phase(lease) for lease in line} == {Phase.RESERVED}


async def test_pages_reload_after_changes_and_not_after_each_question(world, monkeypatch):
    decide, changed_at = world.late._decide, 0.0
    monkeypatch.setattr(world.late, "_decide", lambda seen: replace(decide(seen), changed_at=changed_at))

    async def version():
        world.clock.advance(1)
        world.parts.allocator.syncs.request()
        await world.settle()
        return world.parts.queue.version

    before = await version()
    assert [await version() for _ in range(3)] == [before] * 3
    changed_at = world.clock.now()
    assert await version() == before + 1


async def test_an_answer_to_an_old_attempt_grants_nothing(world):
    world.late.gate.clear()
    lease = await world.ask("alice", count=2)
    await world.settle()
    world.late.mode = "old"
    world.late.answers.clear()
    again = await world.ask("alice", count=1)
    world.late.gate.set()
    await world.settle()
    assert (again.id, world.phase(lease)) == (lease.id, Phase.QUEUED), "it was for two, in the attempt before"
    world.late.mode = "well"
    await world.round()
    assert (world.phase(lease), len(world.now_of(lease).slots)) == (Phase.RESERVED, 1)


async def test_an_answer_to_a_claim_that_was_withdrawn_grants_nothing(world):
    world.late.gate.clear()
    lease, other = await world.ask("alice", count=2), await world.ask("bob", count=2)
    await world.settle()
    await world.parts.attempts.forget(lease.key)
    world.late.gate.set()
    await world.settle()
    assert (world.phase(lease), world.phase(other)) == (Phase.ENDED, Phase.RESERVED)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (600, r"Training goes first\. It ends at [\d:]+\."),
        (-60, r"Training goes first\. .+ told of it when its time was over: there was no notice\. It ends now\."),
    ],
)
async def test_a_late_preemption_says_that_there_was_no_notice(world, seconds, told):
    lease = await world.up("alice")
    world.late.preempts = (Preempted(lease.id, world.clock.now() + seconds, "Training goes first."),)
    await world.round()
    (warned,) = [why for _, action, why in world.audit(lease) if action == "warned of claim"]
    assert re.fullmatch(told, warned)
    assert ("there was no notice" in world.now_of(lease).notice.why) == (seconds < 0), "its end tells it too"
    await world.sample()
    assert (world.phase(lease) is Phase.RUNNING) == (seconds > 0), "where its time is over, it ends at once"


async def test_a_lost_answer_is_asked_for_again(world):
    world.late.mode = "lost"
    lease = await world.ask("alice", count=2)
    await world.settle()
    assert world.phase(lease) is Phase.QUEUED
    world.late.mode = "well"
    await world.round()
    assert world.phase(lease) is Phase.RESERVED


async def test_an_outage_of_the_scheduler_is_shown_and_ends_nothing(world):
    up = await world.up("anna")
    world.shows(up, 50)
    world.late.mode = "away"
    lease = await world.ask("bob")
    await world.go_on(600, step=60)
    assert words(world, lease).startswith("The scheduler has not answered since ")
    assert (world.phase(lease), world.phase(up), world.now_of(up).slots) == (Phase.PARKED, Phase.RUNNING, up.slots)
    world.boot()
    await world.go_on(60, step=20)
    assert (world.phase(up), world.now_of(lease).asked_at) == (Phase.RUNNING, lease.asked_at)
    world.late.mode = "well"
    await world.round()
    assert world.phase(lease) is Phase.RESERVED


async def test_a_scheduler_that_forgot_a_running_workspace_does_not_grant_its_gpus(world):
    up = await world.up("anna", count=2)
    world.late.forget()
    lease = await world.ask("bob")
    await world.round()
    assert (world.phase(up), world.phase(lease)) == (Phase.RUNNING, Phase.QUEUED)


async def test_promise_1_a_gpu_granted_to_two_leases_goes_to_one(world):
    world.late.gate.clear()
    line = [await world.ask(user) for user in ("alice", "bob")]
    await world.settle()
    one = (Slot(world.backend.gpus[0].id),)
    grants = tuple(Grant(claim_of(world.now_of(lease)), one) for lease in line)
    world.late.mode, world.late.answers[:] = "old", [Answer(world.clock.now(), lambda: grants, dict, dict)]
    world.late.gate.set()
    await world.settle()
    assert [world.phase(lease) for lease in line] == [Phase.RESERVED, Phase.QUEUED]


async def test_promise_1_a_grant_with_one_gpu_twice_is_ignored(world):
    world.late.gate.clear()
    lease = await world.ask("alice", count=2)
    await world.settle()
    grant = Grant(claim_of(world.now_of(lease)), (Slot(world.backend.gpus[0].id),) * 2)
    world.late.mode, world.late.answers[:] = "old", [Answer(world.clock.now(), lambda: (grant,), dict, dict)]
    world.late.gate.set()
    await world.settle()
    assert world.phase(lease) is Phase.QUEUED


async def test_promise_1_a_gpu_taken_by_an_outside_process_is_not_granted(world):
    world.late.gate.clear()
    lease = await world.ask("alice", count=2)
    await world.settle()
    observed = world.allocator.observed
    observed.note_running([("unknown", Slot(world.backend.gpus[0].id))], observed.release_count)
    world.late.gate.set()
    await world.settle()
    assert world.phase(lease) is Phase.QUEUED


async def test_an_expired_grant_returns_to_its_queue_position(world):
    world.late.held_seconds = 5.0
    lease = await world.ask("alice")
    await world.settle()
    assert world.phase(lease) is Phase.RESERVED
    world.clock.advance(6)
    with pytest.raises(Conflict):
        await world.acknowledge(lease)
    lapsed = world.now_of(lease)
    assert (lapsed.phase, lapsed.asked_at, lapsed.attempt) == (Phase.QUEUED, lease.asked_at, lease.attempt)
    await world.round()
    assert await world.acknowledge(lease), "it was granted anew, and its start goes on"


async def test_a_grant_whose_expiry_could_not_be_stored_expires_later(world, monkeypatch):
    world.late.held_seconds = 5.0
    lease = await world.ask("alice")
    await world.settle()
    world.clock.advance(6)

    def full(*_some):
        raise Unavailable("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(world.parts.store, "save", full)
        with pytest.raises(Unavailable):
            await world.allocator.granting.lapse_expired()
    assert world.phase(lease) is Phase.RESERVED
    await world.allocator.granting.lapse_expired()
    assert world.phase(lease) is Phase.QUEUED


async def test_a_refusal_by_the_scheduler_ends_with_its_words(world):
    world.late.mode = "away"
    lease = await world.ask("alice")
    world.late.refuses[lease.id] = "Your project is closed."
    world.late.mode = "well"
    await world.round()
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason) == (Phase.ENDED, ExitReason.FAILED)
    assert ended.message == "Its scheduler refused it: Your project is closed. Press Start to request it again."


USERS = ["alice", "bob", "carol"]
WHO = st.sampled_from(USERS)


class Seam(RuleBasedStateMachine):
    """Requests, starts and ends, with answers that are late, lost, old or none, and restarts of either side."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.world = LateWorld(self.folder / "s.sqlite")
        self.run(self.world.round)

    def run(self, step, *arguments, **named):
        async def act():
            try:
                result = step(*arguments, **named)
                if inspect.isawaitable(result):
                    await result
            except (Conflict, Gone, RequestRefused):
                pass
            await self.world.settle()

        self.loop.run_until_complete(act())

    def of(self, user):
        return self.world.registry.of_key(self.world.key(user))

    @rule(user=WHO, gpu=st.sampled_from(["a100", "half"]), count=st.integers(1, 2))
    def a_user_asks(self, user, gpu, count):
        self.run(self.world.ask, user, gpu=gpu, count=count)

    @rule(user=WHO)
    def a_start_takes_its_grant(self, user):
        if (lease := self.of(user)) is not None and lease.phase is Phase.RESERVED:
            self.run(self.world.create, lease)

    @rule(user=WHO, outcome=st.sampled_from(["failed", "cancelled"]))
    def a_start_ends(self, user, outcome):
        if (lease := self.of(user)) is not None:
            self.world.backend.vanish(lease.id)
            self.run(self.world.parts.attempts.release, lease.id, lease.attempt, outcome, "")

    @rule(user=WHO)
    def a_request_is_withdrawn(self, user):
        self.run(self.world.parts.attempts.forget, self.world.key(user))

    @rule(user=WHO)
    def a_waiter_is_heard(self, user):
        if (lease := self.of(user)) is not None:
            self.run(self.world.parts.attempts.hear, lease.id, lease.attempt)

    @rule(seconds=st.sampled_from([1, 10, 61]))
    def time_passes(self, seconds):
        self.world.clock.advance(seconds)
        self.run(self.world.round)

    @rule(mode=st.sampled_from(["well", "well", "away", "lost", "old"]), held=st.sampled_from([None, 5.0]))
    def the_scheduler_changes(self, mode, held):
        self.world.late.mode, self.world.late.held_seconds = mode, held
        del self.world.late.answers[: -len(self.world.late.answers) // 2]
        self.run(self.world.allocator.grant_waiting)

    @rule(answers=st.booleans())
    def answers_wait_or_come(self, answers):
        (self.world.late.gate.set if answers else self.world.late.gate.clear)()
        self.run(self.world.allocator.grant_waiting)

    @rule()
    def the_scheduler_forgets(self):
        self.world.late.forget()

    @rule()
    def the_service_restarts(self):
        self.run(self.world.parts.allocator.syncs.close)
        self.world.boot()
        self.run(self.world.round)

    @invariant()
    def promise_1_no_gpu_is_granted_twice(self):
        assert self.world.overused() == {}

    @invariant()
    def a_grant_is_of_what_is_asked_now(self):
        for lease in self.world.registry:
            if lease.phase in HOLDING and lease.phase is not Phase.STOPPING:
                assert len(lease.slots) == lease.request.count
                assert {slot.share for slot in lease.slots} == {Fraction(1, 2 if lease.request.gpu == "half" else 1)}

    @invariant()
    def one_question_at_a_time(self):
        assert self.world.late.most_at_once <= 1

    def teardown(self):
        """Whatever happened: once the scheduler answers and others leave, everybody who waits is granted."""
        world = self.world
        world.late.mode, world.late.held_seconds = "well", None
        world.late.gate.set()
        waiting = {lease.id for lease in world.registry if lease.phase in WAITING}
        for _ in range(20):
            self.time_passes(301)
            for lease in world.registry:
                if lease.phase not in WAITING:
                    waiting.discard(lease.id)
                    self.a_start_ends(lease.user, "failed")
        assert not waiting & {lease.id for lease in world.registry}
        self.run(world.parts.allocator.syncs.close)
        world.crash()
        self.loop.close()
        asyncio.set_event_loop(None)
        shutil.rmtree(self.folder)


Seam.TestCase.settings = settings(stateful_step_count=30)
TestSeam = Seam.TestCase


async def asks(parts):
    """Have the scheduler asked, as a change that it tells would."""
    parts.allocator.syncs.request()
    await parts.allocator.syncs._task


async def test_promise_2_a_frozen_service_withdraws_no_claim_of_its_successor(world):
    frozen, world.parts = world.parts, None  # it is not ended: it only does nothing for a while
    try:
        world.boot()
        await world.round()
        lease = await world.ask("alice")
        await world.settle()
        assert (world.phase(lease), list(world.late.granted)) == (Phase.RESERVED, [lease.id])
        await asks(frozen)
        assert list(world.late.granted) == [lease.id]
        asked = len(world.late.answers)
        await asks(world.parts)
        assert len(world.late.answers) == asked + 1, "who owns the store goes on asking"
    finally:
        frozen.store.close()


async def test_the_scheduler_is_not_asked_while_the_store_is_away(world, monkeypatch):
    lease = await world.ask("alice")
    await world.settle()
    asked = len(world.late.answers)

    def away():
        raise Unavailable("The store does not answer.")

    with monkeypatch.context() as patched:
        patched.setattr(world.parts.store, "check_epoch", away)
        await asks(world.parts)
    assert len(world.late.answers) == asked
    await asks(world.parts)
    assert (len(world.late.answers), world.phase(lease)) == (asked + 1, Phase.RESERVED)
