"""The adapter with the reference server under faults: no claim is lost or doubled, and both sides agree again."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
import requests
from harness.waiting import until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request
from reference_server import TOKEN, reference_server

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import HttpSchedulerAddress
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import HOLDING, WAITING, Phase
from gpuspawner.core.queue.snapshot import Snapshot, claim_of
from gpuspawner.core.rules import EndNotice
from gpuspawner.schedulers.base import SCHEDULER
from gpuspawner.schedulers.http.claims import ClusterNames, claim_body
from gpuspawner.schedulers.http.client import MAX_CONCURRENT, RequestRejected, SchedulerClient
from gpuspawner.schedulers.http.models import write_timestamp
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.own_queue import InMemoryScheduler

SIGNED = {"Authorization": f"Bearer {TOKEN}"}
FAULTS = ("slow", "late", "error", "error_after", "cut", "cut_after", "twice")
GPUS = fake_gpus("a100", 3)
INVENTORY = f"""
clusters:
  - {{name: here, near: true, price: {{a100: 2}}, nodes: {{node-1: {{a100: [{", ".join(gpu.id for gpu in GPUS)}]}}}}}}
"""


@pytest.fixture(scope="module")
def served():
    with reference_server(INVENTORY, notice_seconds=300) as found:
        yield found


class Both:
    """Leases, the adapter that sends them, and the server."""

    def __init__(self, served, folder):
        self.url, self.server = served
        self.address = HttpSchedulerAddress(self.url, str(folder / "token"), timeout_seconds=0.5)
        (folder / "token").write_text(TOKEN)
        self.leases, self.now, self.made = {}, NOW, 0
        self.server.faults.coming.clear()
        self.admin("forget")
        self.scheduler = None

    def admin(self, what, **body):
        assert requests.post(f"{self.url}/admin/{what}", json=body, headers=SIGNED, timeout=30).status_code == 204

    async def begin(self):
        """Start our side, also after a crash."""
        if self.scheduler is not None:
            await self.scheduler.close()
        mine = InMemoryScheduler(FakeBackend(GPUS), KINDS)
        self.scheduler = HttpScheduler(SchedulerClient(self.address, "hub"), mine)
        await self.scheduler.observe(NOW)

    def ask(self, count=1):
        self.made += 1
        name = f"lease-{self.made}"
        self.leases[name] = a_lease(name, asked_at=NOW + self.made, request=a_request(count=count))
        return name

    def seen(self):
        return Snapshot(self.now, self.scheduler.kinds, tuple(self.leases.values()), self.scheduler.fleet)

    async def sync(self):
        """Sync once, and act like the service: make the grants, and let the starts take them."""
        try:
            answer = await self.scheduler.sync(self.seen())
        except Unavailable:
            return
        for grant in answer.grants():
            lease, used = self.leases[grant.claim.id], self.seen().used
            if lease.phase in WAITING and all(used.get(slot.gpu, 0) + slot.share <= 1 for slot in grant.slots):
                given = transitions.grant(lease, grant.slots, self.now, given=grant.kind)
                self.leases[lease.id] = transitions.acknowledge(given, "", self.now)
        for one in answer.preempted:
            lease = self.leases[one.lease_id]
            self.leases[lease.id] = replace(lease, notice=EndNotice(SCHEDULER, one.at, one.why, "it"))

    async def agree(self):
        """Sync at most fifteen times until both sides agree."""
        for _ in range(15):
            await self.sync()
            await until(lambda: self.server._soon is None)
            if self.differs() is None:
                return
        raise AssertionError(self.differs())

    def differs(self):
        """Return the first difference between the two sides, or None."""
        theirs = {claim.id: claim for claim in list(self.server.machine.claims.values())}
        if theirs.keys() != self.leases.keys():
            return f"they have {sorted(theirs)}, we {sorted(self.leases)}"
        for name, lease in self.leases.items():
            told = theirs[name].told
            if lease.phase in HOLDING:
                gpus = sorted(gpu for slot in (told["grant"] or {"slots": ()})["slots"] for gpu in slot["gpus"])
                if told["state"] not in {"running", "preempting"} or gpus != sorted(x.gpu for x in lease.slots):
                    return f"{name} holds {lease.slots}; they say {told}"
            elif told["state"] != "waiting":
                return f"{name} waits; they say {told}"
        return None


@pytest.fixture
async def both(served, tmp_path):
    both = Both(served, tmp_path)
    await both.begin()
    yield both
    await both.scheduler.close()


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("only", ["GET", "PUT", "DELETE"])
async def test_after_each_fault_both_agree_and_no_claim_is_lost_or_doubled(both, kind, only):
    first, gone = both.ask(), both.ask(2)
    await both.agree()
    del both.leases[gone]
    waiting = [both.ask(2), both.ask(3)]
    both.admin("faults", kind=kind, count=1, seconds=0.8, only=only)
    await both.agree()
    assert not both.server.faults.coming, "the fault has happened"
    assert [both.leases[name].phase for name in (first, *waiting)] == [Phase.STARTING, Phase.STARTING, Phase.QUEUED]


async def test_an_unanswered_request_means_away_in_words_and_grants_nothing(both):
    both.ask()
    both.admin("faults", kind="error", count=1, only="GET")
    with pytest.raises(Unavailable, match="answered 500 at http"):
        await both.scheduler.sync(both.seen())
    assert TOKEN not in repr(both.scheduler.__dict__)


async def test_a_forgotten_workspace_is_reported_again_and_an_unknown_grant_is_given_back(both):
    held = both.ask(2)
    await both.agree()
    both.admin("forget")
    requests.put(
        f"{both.url}/v1/hubs/another/claims/theirs",
        json=claim_body(claim_of(a_lease("theirs")), 1, lambda at: write_timestamp(at + 1.7e9), ClusterNames({})),
        headers={**SIGNED, "Idempotency-Key": "k"},
        timeout=30,
    ).raise_for_status()
    await both.sync()
    await both.sync()
    claims = {(one.hub, one.id): one.told["state"] for one in both.server.machine.claims.values()}
    assert claims["hub", held] == "running"
    assert ("another", "theirs") in claims, "what is another hub's is not ours to give back"
    await both.begin()  # our side restarts without its state
    both.leases.clear()
    both.ask()
    await both.sync()
    assert {one.id for one in both.server.machine.claims.values() if one.hub == "hub"} == set(both.leases)


async def test_a_preemption_is_acknowledged_once_its_user_was_told_and_refuses_to_extend(both):
    held = both.ask(3)
    await both.agree()
    both.leases[held] = transitions.run(both.leases[held], "then", both.now)
    await both.agree()
    both.admin("jobs", id="llm", kind="a100", count=3)

    async def is_told():
        await both.sync()
        return both.leases[held].notice

    await until(is_told)
    lease = both.leases[held]
    assert "Training that goes first" in lease.notice.why
    claim = both.server.machine.claims["hub", held]
    assert not claim.preemption.acknowledged
    await both.sync()
    assert claim.preemption.acknowledged
    with pytest.raises(Conflict, match="scheduler refuses: It must end by"):
        await both.scheduler.extend(lease, both.now + 7200)
    both.admin("cancel", id="llm")


async def test_changes_within_a_revision_are_sent_under_a_higher_one(both):
    both.ask(3)
    await both.agree()
    name = both.ask(2)
    lease = both.leases[name]
    both.leases[name] = replace(lease, request=replace(lease.request, substitutes=("t4",)))
    await both.agree()
    both.leases[name] = lease  # the catalog no longer allows that substitute
    await both.begin()  # and the earlier consent is lost
    for _ in range(3):
        await both.sync()
    assert both.server.machine.claims["hub", name].asked["substitutes"] == []


async def test_a_grant_is_not_applied_to_a_repeated_and_rejected_claim(both, monkeypatch):
    name = both.ask()
    telling = both.scheduler._claims
    for _ in range(9):
        answer = await both.scheduler.sync(both.seen())
        if answer.grants():
            break
        await until(lambda: both.server._soon is None)  # it decides a moment after it answers
    assert [grant.claim.id for grant in answer.grants()] == [name]
    lease = both.leases[name]
    both.leases[name] = replace(lease, attempt=lease.attempt + 1)

    async def refuse(*_):
        raise RequestRejected(422, "unknown_kind", "It has no such GPU.")

    monkeypatch.setattr(telling._client, "claim", refuse)
    answer = await both.scheduler.sync(both.seen())
    assert answer.grants() == []
    assert telling.why_rejected(name) == "It has no such GPU."


async def test_changes_are_received_at_once_by_long_poll(both):
    both.ask(3)
    await both.agree()
    heard = asyncio.Event()
    both.scheduler.listen(heard.set)
    await both.sync()
    heard.clear()
    both.admin("jobs", id="llm", kind="a100", count=3)
    await asyncio.wait_for(heard.wait(), 30)
    both.admin("cancel", id="llm")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3)),
        st.tuples(st.just("withdraw"), st.integers(0, 5)),
        st.tuples(st.just("ask again"), st.integers(0, 5)),
        st.tuples(st.just("lapse"), st.integers(0, 5)),
        st.tuples(st.just("fault"), st.sampled_from([x for x in FAULTS if x not in {"slow", "late"}])),
        st.tuples(st.just("forget"), st.none()),
        st.tuples(st.just("crash"), st.none()),
        st.tuples(st.just("sync"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_under_any_order_of_crashes_and_answers_no_claim_is_lost_or_doubled(served, tmp_path, steps):
    asyncio.run(played(served, tmp_path, steps))


async def played(served, folder, steps):
    both = Both(served, folder)
    await both.begin()
    for what, value in steps:
        names = sorted(both.leases)
        name = names[value % len(names)] if names and isinstance(value, int) else None
        if what == "ask":
            both.ask(value)
        elif what == "withdraw" and name:
            del both.leases[name]
        elif what == "ask again" and name:
            both.made += 1
            with contextlib.suppress(Conflict):
                changed = a_request(count=1 + value % 3)
                both.leases[name] = transitions.join(
                    both.leases[name], changed, {}, start_id=f"start {both.made}", boot_id="b", now=both.now
                )
        elif what == "lapse" and name and both.leases[name].phase is Phase.STARTING:
            both.now += 1
            both.leases[name] = transitions.requeue(both.leases[name], "No room.", 0.0, both.now)
        elif what == "fault":
            both.admin("faults", kind=value)
        elif what == "forget":
            both.admin("forget")
        elif what == "crash":
            await both.begin()
        await both.sync()
        granted = [slot.gpu for lease in both.leases.values() if lease.phase in HOLDING for slot in lease.slots]
        assert len(granted) == len(set(granted)), "no GPU is granted twice"
    both.server.faults.coming.clear()
    await both.agree()
    await both.scheduler.close()


async def test_requests_are_sent_in_the_order_of_asking_despite_slow_answers(both):
    names = [both.ask() for _ in range(5)]
    both.admin("faults", kind="slow", count=1, seconds=0.3, only="PUT")
    await both.agree()
    assert [both.leases[name].phase for name in names] == [Phase.STARTING] * 3 + [Phase.QUEUED] * 2


async def test_a_flood_of_open_forms_takes_half_the_turns_from_claims_at_most(tmp_path):
    """A scheduler that does not answer previews still gets the claims of starting and running workspaces."""
    (tmp_path / "token").write_text(TOKEN)
    begun, ends = [], asyncio.Event()

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        if b"/offers" in head:
            begun.append(head)
            await ends.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = SchedulerClient(
        HttpSchedulerAddress(f"http://127.0.0.1:{port}", str(tmp_path / "token"), timeout_seconds=30), "h"
    )
    forms = [asyncio.create_task(client.offers({})) for _ in range(100)]
    await asyncio.wait_for(client.release("lease-1"), 20)
    assert 0 < len(begun) <= MAX_CONCURRENT // 2
    for one in forms:
        one.cancel()
    ends.set()
    await asyncio.gather(*forms, return_exceptions=True)
    server.close()
