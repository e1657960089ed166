"""The service under hypothesis: users, hub, processes and the service itself come, go, hang and die in any order.

The hub's side of each start is played here as the spawner's mixin does it. The database is real, and all that survives
a crash of the service.
"""

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from service_world import Killed, Life, World

from gpuspawner.core.errors import Conflict, Gone, GpuspawnerError, RequestRefused
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import UP, WAITING, Phase

USERS = ["alice", "bob", "carol"]
WHO = st.sampled_from(USERS)
WANTED = st.sampled_from([("a100", 1), ("a100", 1), ("a100", 2), ("half", 1), ("none", 0)])
GRACE_SECONDS = 180.0


@dataclass
class Start:
    """A ``start()`` in the hub: it ends with the hub, or with its server's end."""

    user: str
    options: dict
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    lease: str = ""
    attempt: int = 0
    created: bool = False


class Service(RuleBasedStateMachine):
    """All events of a service, and the invariants after each of them."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.world = World(self.folder / "service.sqlite")
        self.starts: dict[str, Start] = {}
        self.options: dict[str, dict] = {}
        self.asked: dict[str, tuple] = {}
        self.known: set[str] = set()
        self.loses_reports = False
        self.world.hub.on_start = self.hub_starts
        self.world.hub.on_stop = self.hub_stopped
        stop, end = self.world.hub.stop, self.world.backend.end

        async def checked_stop(user, name):
            """Promise 3: at the moment of a stop, its lease says that it is to stop, and why."""
            server = self.world.hub.listed.get((user, name))
            lease = self.live(user)
            assert server is None or (lease.phase, lease.server_started) == (Phase.STOPPING, server.started)
            assert "stop" in self.world.did(lease)
            await stop(user, name)

        async def checked_end(lease_id, attempts=None, slots=()):
            lease = self.world.parts.store.leases.get(lease_id)
            if attempts is None:
                assert lease is None or lease.phase in {Phase.STOPPING, Phase.ENDED}
            else:
                assert all(attempt < lease.attempt for attempt in attempts)
            return await end(lease_id, attempts, slots)

        self.world.hub.stop, self.world.backend.end = checked_stop, checked_end
        self.run(self.world.round())

    def run(self, step):
        try:
            return self.loop.run_until_complete(step)
        finally:
            self.loop.run_until_complete(self.world.settle())

    def live(self, user):
        return next((x for x in self.world.parts.store.leases.live() if x.key == self.world.key(user)), None)

    # The hub

    async def hub_starts(self, server):
        """The service asks for a parked start: the hub makes a new one of the options that it is given."""
        start = self.starts[server.user] = Start(server.user, self.options[server.user])
        with contextlib.suppress(Killed, GpuspawnerError):
            await self.asks(start)

    async def hub_stopped(self, server):
        """The spawner's stop and its hook after it."""
        start = self.starts.pop(server.user, None)
        if start is None or not start.lease:
            return
        if start.created:
            self.ends(start)
        await self.reports(start, "stopped" if server.ready else "cancelled")

    def ends(self, start):
        """End the processes of a start, except unkillable ones."""
        if start.lease not in self.world.backend.unkillable:
            self.world.backend.running.pop((start.lease, start.attempt), None)

    async def reports(self, start, outcome):
        if not self.loses_reports:
            with contextlib.suppress(Killed):
                await self.world.parts.attempts.release(start.lease, start.attempt, outcome, "")

    async def asks(self, start):
        lease = await self.world.ask(start.user, start_id=start.id, **start.options)
        start.lease, start.attempt = lease.id, lease.attempt
        return lease

    async def goes_on(self, start, creates):
        """One turn of the mixin's loop."""
        try:
            if start.lease:
                lease = await self.world.parts.attempts.hear(start.lease, start.attempt)
            else:
                lease = await self.asks(start)
            granted = lease.phase in {Phase.RESERVED, Phase.STARTING}  # starting: what it creates takes its time
            if granted and await self.world.acknowledge(lease) is not None and creates:
                with contextlib.suppress(Killed):
                    await self.world.create(lease)
                start.created = (lease.id, lease.attempt) in self.world.backend.running
        except (Gone, RequestRefused):
            self.starts.pop(start.user)
            self.world.hub.forget(start.user)
        except Conflict:
            start.lease = ""
        except Killed:
            pass

    @rule(user=WHO, wanted=WANTED)
    def a_user_presses_start(self, user, wanted):
        if (user, "") not in self.world.hub.listed:
            kind, count = wanted
            self.options[user] = {"gpu": kind} | ({"count": count} if count else {})
            self.world.hub.put(user)
            self.starts[user] = Start(user, self.options[user])
            self.run(self.goes_on(self.starts[user], creates=True))
            self.promise_6_a_place_is_lost_only_to_a_larger_request()  # after each change: two may undo each other

    @rule(creates=st.booleans())
    def the_hub_s_starts_go_on(self, creates):
        for start in list(self.starts.values()):
            if not start.created:
                self.run(self.goes_on(start, creates))

    @rule(user=WHO)
    def a_server_answers(self, user):
        start = self.starts.get(user)
        if start and start.created and (start.lease, start.attempt) in self.world.backend.running:
            self.world.hub.answer(user)
            self.run(self.world.round())

    @rule(user=WHO, wanted=WANTED, percent=st.sampled_from([0, 0, 50, "[N/A]"]))
    def a_workspace_comes_up(self, user, wanted, percent):
        self.a_user_presses_start(user, wanted)
        self.run(self.world.round())
        self.the_hub_s_starts_go_on(creates=True)
        self.a_server_answers(user)
        if (lease := self.live(user)) and lease.slots:
            self.world.shows(lease, percent)

    @rule(user=WHO, wanted=WANTED, then=st.sampled_from([("none", 0), ("half", 1)]))
    def the_hub_dies_in_a_start_and_its_user_asks_for_something_else(self, user, wanted, then):
        self.a_user_presses_start(user, wanted)
        self.run(self.world.round())
        self.the_hub_s_starts_go_on(creates=True)
        self.a_process_outlives_its_end_or_not(user, outlives=True)
        self.the_hub_dies_and_comes_back()
        for somebody, something in ((user, then), (USERS[USERS.index(user) - 1], wanted)):
            self.a_user_presses_start(somebody, something)
            self.run(self.world.round())

    @rule(user=WHO)
    def a_hub_s_time_for_waiting_is_over(self, user):
        start, lease = self.starts.get(user), self.live(user)
        if start and not start.created and lease and start.lease == lease.id and lease.phase in WAITING:
            with contextlib.suppress(Killed, Gone):
                self.run(self.world.parts.attempts.park(start.lease, start.attempt))
            self.starts.pop(user)
            self.world.hub.forget(user)

    @rule(user=WHO)
    def a_user_stops_in_the_hub(self, user):
        server = self.world.hub.listed.pop((user, ""), None)
        if server is not None:
            self.run(self.hub_stopped(server))

    @rule()
    def the_hub_dies_and_comes_back(self):
        """It knows the servers that had answered; starts are lost, and what they created goes on running."""
        for user in USERS:
            server = self.world.hub.listed.get((user, ""))
            if server is not None and not server.ready:
                self.world.hub.forget(user)
                self.starts.pop(user, None)

    @rule(answers=st.booleans())
    def the_hub_answers_or_not(self, answers):
        self.world.hub.unreachable = "" if answers else "The hub does not answer."

    @rule(user=WHO)
    def the_hub_forgets_a_server(self, user):
        self.world.hub.forget(user)
        self.starts.pop(user, None)

    @rule(lost=st.booleans())
    def reports_arrive_or_are_lost(self, lost):
        self.loses_reports = lost

    # Workspaces and their users

    @rule(user=WHO, noticed=st.booleans())
    def a_process_dies(self, user, noticed):
        start = self.starts.get(user)
        if start and start.created:
            self.world.backend.running.pop((start.lease, start.attempt), None)
            if noticed:
                self.world.hub.forget(user)
                self.starts.pop(user)
                self.run(self.reports(start, "died"))

    @rule(user=WHO, outlives=st.booleans())
    def a_process_outlives_its_end_or_not(self, user, outlives):
        lease = self.live(user)
        if lease and outlives:
            self.world.backend.unkillable.add(lease.id)
        else:
            self.world.backend.unkillable.clear()

    @rule(user=WHO, percent=st.sampled_from([0, 50, "[N/A]"]))
    def a_workspace_s_gpus_read(self, user, percent):
        if (lease := self.live(user)) and lease.slots:
            self.world.shows(lease, percent)

    @rule(user=WHO, action=st.sampled_from(["keep", "extend", "stop"]))
    def a_user_acts(self, user, action):
        lease = self.world.registry.of_key(self.world.key(user))
        if lease is None:
            return
        with contextlib.suppress(Conflict):
            if action == "stop":
                self.run(self.marked(lease, Exit(ExitReason.STOPPED, user, "enough")))
            else:
                self.run(getattr(self.world.parts.actions, action)(lease, user))

    async def marked(self, lease, how):
        await self.world.parts.engine.begin_stop(lease.id, how)

    # Time, and the service's own life

    @rule(seconds=st.sampled_from([1, 1, 10, 61, 400, 600]))
    def time_passes(self, seconds):
        self.run(self.world.go_on(seconds, step=min(seconds, 60)))

    @rule()
    def the_service_is_killed_between_steps(self):
        before = {lease.id: lease for lease in self.world.registry}
        self.world.boot()
        for lease in self.world.registry:
            was = before.pop(lease.id)
            phase = Phase.PARKED if was.phase is Phase.QUEUED else was.phase  # until the next heartbeat of its spawner
            assert (lease.phase, lease.slots, lease.asked_at, lease.deadline_at, lease.attempt) == (
                (phase, was.slots, was.asked_at, was.deadline_at, was.attempt)
            )
            assert lease.streak.idle_seconds == was.streak.idle_seconds
        assert not before

    @rule(effects=st.integers(0, 6), half=st.booleans(), seconds=st.sampled_from([1, 61]))
    def the_service_is_killed_within_a_step(self, effects, half, seconds):
        self.world.life.left, self.world.life.half = effects, half
        self.run(self.world.go_on(seconds, step=seconds))
        self.world.boot(Life())

    @rule(number=st.integers(0, 1), healthy=st.booleans())
    def a_gpu_breaks_or_is_mended(self, number, healthy):
        self.world.backend.change_gpu(self.world.backend.gpus[number].id, healthy=healthy)

    # Invariants

    @invariant()
    def promise_1_no_gpu_is_used_beyond_its_whole(self):
        assert self.world.overused() == {}

    @invariant()
    def promise_2_no_lease_is_lost(self):
        live = {lease.id: lease for lease in self.world.parts.store.leases.live()}
        for lease_id in self.known - set(live):
            ended = self.world.parts.store.leases.get(lease_id)
            assert (ended.phase, ended.reason is not None) == (Phase.ENDED, True)
            self.check_end(ended)
        self.known = set(live)
        assert len({lease.key for lease in live.values()}) == len(live)
        assert {x.id: x.phase for x in self.world.registry} == {x.id: x.phase for x in live.values()}

    @invariant()
    def promise_6_a_place_is_lost_only_to_a_larger_request(self):
        now = {x.id: (x.asked_at, x.request) for x in self.world.registry}
        for lease_id, (asked_at, request) in now.items():
            if lease_id in self.asked and request.keeps_place_of(self.asked[lease_id][1]):
                assert asked_at == self.asked[lease_id][0]
        self.asked = now

    @invariant()
    def a_running_workspace_has_a_deadline_and_its_gpus(self):
        for lease in self.world.registry:
            if lease.phase in UP and not lease.adopted:
                assert lease.deadline_at is not None
            if lease.phase in UP:
                assert len(lease.slots) == lease.request.count

    def check_end(self, lease):
        """Promises 4 and 5, of a workspace that was stopped for idleness."""
        if lease.reason is not ExitReason.IDLE:
            return
        audit = self.world.parts.store.audit_log.latest(lease.id)
        stopped = next(x.at for x in audit if x.event.action == "stop")
        warned = next(x.at for x in audit if x.event.action == "warned" and "been idle" in x.why)
        assert stopped - warned >= GRACE_SECONDS - 0.01
        rows = [row for row in self.world.parts.store.readings.of_lease(lease.id) if row.at <= stopped]
        assert rows[-1].kind == "idle"
        assert not any(row.kind == "busy" for row in rows if row.at >= warned)
        assert sum(row.kind == "idle" for row in rows) >= 5

    def teardown(self):
        """Whatever happened: once all is well again and people leave, everything ends and every GPU is free."""
        world = self.world
        world.hub.unreachable, self.loses_reports = "", False
        world.backend.unkillable.clear()
        for gpu in world.backend.gpus:
            world.backend.change_gpu(gpu.id, healthy=True)
        for _ in range(100):
            for user in USERS:
                server = world.hub.listed.get((user, ""))
                if server is not None and server.ready:
                    self.a_user_stops_in_the_hub(user)
            if not (list(world.registry) or world.hub.listed or world.backend.running):
                break
            if world.parts.engine.observer.orphans.alert:  # an administrator must end these orphans
                for lease_id in {lease_id for lease_id, _ in world.backend.running} - {x.id for x in world.registry}:
                    world.backend.vanish(lease_id)
            self.the_hub_s_starts_go_on(creates=True)
            for user in USERS:
                start = self.starts.get(user)
                if start and start.created and (start.lease, start.attempt) not in world.backend.running:
                    world.hub.forget(user)  # the hub sees that its process is gone
                    self.run(self.reports(self.starts.pop(user), "died"))
                self.a_server_answers(user)
            self.promise_1_no_gpu_is_used_beyond_its_whole()
            self.run(world.go_on(20, step=10))
        left = {lease.user: lease.phase for lease in world.registry}
        still = (left, list(world.hub.listed), list(world.backend.running))
        assert still == ({}, [], []), still
        self.run(world.round())
        assert world.allocator.observed.others == ()
        world.crash()
        self.loop.close()
        asyncio.set_event_loop(None)
        shutil.rmtree(self.folder)


Service.TestCase.settings = settings(stateful_step_count=25)
test_promises_1_to_6_hold_in_any_order_of_events = Service.TestCase
