"""The client with the reference server, with lost and repeated messages, and restarts of both sides."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lease_builders import A100, KINDS, T4, a_lease
from reference_claims import NOW
from reference_server import TOKEN

from demo.ports import pick_free
from demo.scheduler.faults import Fault
from demo.scheduler.inventory import Inventory
from demo.scheduler.life import Server
from demo.scheduler.records import Job, Refused, Settings
from demo.scheduler.server import listen
from gpuspawner.backends.fake import FakeBackend
from gpuspawner.catalog import HttpSchedulerAddress
from gpuspawner.core.errors import GpuspawnerError, Unavailable
from gpuspawner.core.gpus.fleet import Gpu
from gpuspawner.core.leases.lease import HOLDING, WAITING, Phase
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.schedulers.http.client import SchedulerClient
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.own_queue import InMemoryScheduler

GPUS = {"n1": ("a100", ["A", "B"]), "n2": ("a100", ["C"]), "n3": ("t4", ["T"])}
INVENTORY = Inventory.read(
    """
clusters:
  - {name: near, near: true, price: {a100: 1, t4: 1}, nodes: {n1: {a100: [A, B]}, n2: {a100: [C]}, n3: {t4: [T]}}}
"""
)
SETTLE_SECONDS = 5
AGREE_WITHIN_SECONDS = 60
TIMEOUT_SECONDS = 30


def fleet_of():
    return tuple(
        Gpu(name, kind, node, index, kind, KINDS[kind].memory_bytes)
        for node, (kind, names) in GPUS.items()
        for index, name in enumerate(names)
    )


@dataclass
class Both:
    """The stored leases of a service, its client, which a crash loses, and the server."""

    token_file: str
    now: float = NOW
    leases: dict = field(default_factory=dict)
    expiries: dict = field(default_factory=dict)
    sent: list = field(default_factory=list)
    known: dict = field(default_factory=dict)
    """Workspaces that ran, and were known to run, at the last look."""
    ids: count = field(default_factory=count)

    async def begin(self):
        self.server = Server(INVENTORY, Settings(settle_seconds=SETTLE_SECONDS), TOKEN, lambda: self.now)
        self.server.move_on_soon = lambda: None  # time moves by hand
        (port,) = pick_free(1)
        self.url = f"http://127.0.0.1:{port}"
        self.http = listen(self.server, port)
        await self.begin_client()

    async def begin_client(self):
        mine = InMemoryScheduler(FakeBackend(fleet_of()), {"a100": A100, "t4": T4})
        await mine.observe(self.now)
        client = SchedulerClient(HttpSchedulerAddress(self.url, self.token_file, TIMEOUT_SECONDS), "hub")
        fetched = client._send

        def remember(asked, size):
            if asked.method in {"PUT", "DELETE"}:
                self.sent.append((asked, size))
            return fetched(asked, size)

        client._send = remember
        self.fetched = fetched
        self.client = HttpScheduler(client, mine, lambda: self.now)

    async def end(self):
        await self.client.close()
        self.http.stop()
        await self.http.close_all_connections()

    # Events

    async def ask(self, kind, lease_body):
        name = f"lease-{next(self.ids)}"
        lease = a_lease(name, asked_at=self.now, user=name)
        self.leases[name] = replace(lease, request=replace(lease.request, gpu=kind, count=lease_body))

    async def go_on(self):
        """Take the grants. Starting workspaces run."""
        for name, lease in self.leases.items():
            if lease.phase is Phase.RESERVED:
                self.leases[name] = replace(lease, phase=Phase.STARTING)
            elif lease.phase is Phase.STARTING:
                ends_at = self.now + 3600
                self.leases[name] = replace(lease, phase=Phase.RUNNING, running_at=self.now, deadline_at=ends_at)

    async def move(self, which, to):
        """Withdraw a lease, end it, or return it to the queue."""
        if self.leases:
            name = sorted(self.leases)[which % len(self.leases)]
            if to == "gone":
                del self.leases[name]
            elif self.leases[name].phase in HOLDING:
                self.back(name)

    def back(self, name):
        lease = self.leases[name]
        self.leases[name] = replace(lease, phase=Phase.QUEUED, slots=(), attempt=lease.attempt + 1, running_at=None)

    async def sync(self, stored=True):
        """Send and receive like the service. A crash may happen before the answer is stored."""
        try:
            answer = await self.client.sync(
                Snapshot(self.now, self.client.kinds, tuple(self.leases.values()), self.client.fleet)
            )
        except Unavailable:
            return
        for grant in answer.grants() if stored else ():
            lease = self.leases[grant.claim.id]
            held = {slot.gpu for one in self.leases.values() for slot in one.slots}
            assert lease.phase in WAITING
            assert claim_of(lease).revision == grant.claim.revision
            assert held.isdisjoint(slot.gpu for slot in grant.slots), "GPUs that another lease has are granted"
            self.leases[lease.id] = replace(lease, phase=Phase.RESERVED, slots=grant.slots, granted_at=self.now)
            self.expiries[lease.id] = grant.expires_at
        for one in answer.refused:
            del self.leases[one.claim.id]
        for one in answer.preempted if stored else ():
            if self.now >= one.at - 60:
                self.back(one.lease_id)

    async def wait(self, seconds):
        self.now += seconds
        for name, lease in self.leases.items():
            if lease.phase is Phase.RESERVED and self.now >= self.expiries[name]:
                self.leases[name] = replace(lease, phase=Phase.PARKED, slots=(), not_before=self.now + 1)
        self.server.move_on()

    async def crash(self, side):
        if side == "server":
            self.server.begin()
        else:
            await self.client.close()
            await self.begin_client()

    async def fault(self, kind, times):
        self.server.faults.coming.append(Fault(kind, times))

    async def again(self, which, unseen):
        """Repeat an earlier request, as a proxy may do late."""
        if self.sent:
            asked, size = self.sent[which % len(self.sent)]
            if unseen and "Idempotency-Key" in asked.headers:
                asked.headers["Idempotency-Key"] = f"unseen-{next(self.ids)}"
            with suppress(GpuspawnerError):  # the answer is lost
                await self.fetched(asked, size)

    async def train(self, kind, on):
        try:
            self.server.machine.submit(Job("train", kind, 1, 10, 30, self.now))
        except Refused:
            return
        if not on:
            self.server.machine.cancel("train")

    # Invariants

    def check(self):
        """Check that no GPU has two holders, except a preempted one, and that running claims keep their GPUs."""
        holders = [one for one in self.server.machine.claims.values() if one.grant]
        firm = [gpu for one in holders if one.preemption is None for gpu in one.grant.gpus]
        training = [gpu.id for job in self.server.machine.jobs.values() for gpu in job.gpus]
        assert len(set(firm + training)) == len(firm + training), "a GPU is held twice"
        known = {}
        for name, lease in self.leases.items():
            claim = self.server.machine.claims.get(("hub", name))
            if lease.phase in {Phase.STARTING, Phase.RUNNING} and claim is not None and claim.is_taken:
                known[self.server.machine.boot, name, lease.attempt] = claim.grant.gpus
        for (boot, name, attempt), gpus in self.known.items():
            runs = name in self.leases and self.leases[name].attempt == attempt and boot == self.server.machine.boot
            assert not runs or known.get((boot, name, attempt)) == gpus, f"{name} runs, and its GPUs were given up"
        self.known = known

    def check_agreed(self):
        claims = {name: one for (hub, name), one in self.server.machine.claims.items() if hub == "hub"}
        assert set(claims) == set(self.leases)
        for name, lease in self.leases.items():
            ours = {slot.gpu for slot in lease.slots}
            grant = claims[name].grant
            theirs = {self.server.inventory.gpus[gpu].name for gpu in grant.gpus} if grant else set()
            if lease.phase in HOLDING:
                assert ours == theirs, f"{name} holds {ours}, for the server {theirs}"
            if lease.phase in {Phase.STARTING, Phase.RUNNING}:
                assert claims[name].is_taken, f"{name} runs, and the server does not know"
            if lease.phase in WAITING:
                assert not claims[name].is_taken, f"{name} waits, and the server holds {theirs} for it"

    async def settle(self):
        """Check that both sides agree within a minute without faults."""
        self.server.faults.coming.clear()
        for _ in range(6):
            await self.wait(AGREE_WITHIN_SECONDS / 6)
            await self.sync()
        await self.sync(stored=False)  # tells what the last look has changed: who was preempted waits again
        self.server.move_on()
        self.check()
        self.check_agreed()

    async def serve_all(self):
        """Check that each waiting claim is granted after others have ended."""
        self.server.machine.jobs.clear()
        for _ in range(20 * (1 + len(self.leases))):
            if not self.leases:
                return
            await self.wait(5)
            await self.sync()
            for name, lease in list(self.leases.items()):
                if lease.phase in HOLDING:
                    del self.leases[name]
        raise AssertionError(f"never granted: {self.leases}")


KIND = st.sampled_from(["a100", "a100", "t4"])
WHICH = st.integers(0, 60)
FAULTS = st.sampled_from(["error", "error_after", "cut", "cut_after", "twice"])
HAPPENS = st.one_of(
    st.tuples(st.just("ask"), KIND, st.integers(1, 2)),
    st.tuples(st.just("go_on")),
    st.tuples(st.just("go_on")),
    st.tuples(st.just("move"), WHICH, st.sampled_from(["gone", "back"])),
    st.tuples(st.just("crash"), st.sampled_from(["server", "client"])),
    st.tuples(st.just("fault"), FAULTS, st.integers(1, 3)),
    st.tuples(st.just("again"), WHICH, st.booleans()),
    st.tuples(st.just("train"), KIND, st.booleans()),
)
THEN = st.sampled_from([(), ("sync",), ("sync", 1), ("sync", 6, "sync"), (6, "sync"), ("lost",), (45, "sync"), (70,)])
"""The next step: time passes, the service syncs with the scheduler, or it crashes during a sync."""


async def play(steps, token_file):
    both = Both(token_file)
    await both.begin()
    try:
        for (name, *told), then in steps:
            await getattr(both, name)(*told)
            for one in then:
                await (both.sync(stored=one == "sync") if isinstance(one, str) else both.wait(one))
                both.check()
        await both.settle()
        await both.serve_all()
    finally:
        await both.end()


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(HAPPENS, THEN), min_size=8, max_size=30))
def test_no_claim_is_lost_or_doubled_and_both_agree_within_a_minute(tmp_path_factory, steps):
    token_file = tmp_path_factory.getbasetemp() / "token-of-both"
    token_file.write_text(TOKEN)
    asyncio.run(play(steps, str(token_file)))


async def test_a_grant_that_the_server_forgot_is_told_as_held_and_then_left_alone(tmp_path):
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    both = Both(str(token_file))
    await both.begin()
    try:
        await both.ask("a100", 1)
        await both.sync()
        await both.wait(SETTLE_SECONDS + 1)
        await both.sync()
        assert both.leases["lease-0"].phase is Phase.RESERVED
        revision = both.server.machine.claims["hub", "lease-0"].revision
        await both.crash("server")
        for _ in range(5):
            await both.sync()
        claim = both.server.machine.claims["hub", "lease-0"]
        assert (claim.is_taken, claim.revision) == (True, revision)
        assert len(both.sent) == 3  # requested, held, and once more with its cluster, which the server reported again
    finally:
        await both.end()
