"""Custom resources of which a process of its own has the cluster's side: it may end at any write, and one leads."""

import json
from functools import partial

import pytest
from resource_world import Cluster
from service_world import PREFIX, SECRET
from tornado.netutil import bind_sockets

from gpuspawner.backends.custom_resources.base import Resource
from gpuspawner.cli.kube.operate import Rounds
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.service.api.base import is_spawner
from gpuspawner.service.app import application
from gpuspawner.service.custom_resources.controller import Operator
from gpuspawner.service.custom_resources.relay import LEADS_SECONDS, Relay, Seen, add_operating
from gpuspawner.service.process.connections import LARGEST_DISCARDED_BYTES, PublicServer
from gpuspawner.service.process.startup_gate import StartupGate
from gpuspawner.spawner.client import NOT_OURS, LeaseClient


class Ended(BaseException):
    """The process was killed."""


class Dying:
    """The cluster as seen by one process, which is killed before or after ``writes`` writes."""

    def __init__(self, cluster, writes, *, after):
        self._cluster, self._writes, self._after = cluster, writes, after

    def __getattr__(self, name):
        async def call(*arguments):
            if name in {"requests", "refuses", "going"}:
                return await getattr(self._cluster, name)(*arguments)
            self._writes -= 1
            if self._writes < 0 and not self._after:
                raise Ended
            await getattr(self._cluster, name)(*arguments)
            if self._writes < 0:
                raise Ended
            return None

        return call


class Apart:
    """A service whose custom resources another process sees and writes, over a fake cluster."""

    def __init__(self, world):
        self.world, self.cluster = world, Cluster()
        self.relay = Relay(self.cluster_entries(), world.clock.now)
        self.operator = Operator(world.parts, self.relay)
        self.process = self.another()

    def cluster_entries(self):
        cluster = self.cluster

        class Entries:
            entries, close = cluster.requests, cluster.requests

        return Entries()

    async def operate(self, seen):
        """As it is on its way: what is not JSON is told, and what the service does not take."""
        shown = Seen.model_validate_json(json.dumps(seen))
        return {"writes": json.loads(json.dumps(await self.relay.round(shown, self.operator)))}

    def another(self, writes=10**6, *, after=False):
        return Rounds(Dying(self.cluster, writes, after=after), self)

    async def rounds(self, count=6):
        for _ in range(count):
            await self.world.round()
            await self.process.round()
            self.world.clock.advance(2.0)

    async def rounds_without_status(self):
        """As :meth:`rounds`, while another program removes the status: each time there is a status to write."""
        for _ in range(10):
            await self.rounds(1)
            self.cluster.change(self.cluster.there["train"], status={})

    def leases(self):
        return [lease.id for lease in self.world.registry if lease.user == "ada"]


@pytest.fixture
def apart(world):
    world.hub.add("ada")
    return Apart(world)


async def test_a_separate_operator_starts_updates_and_stops_a_workspace(apart):
    apart.cluster.apply("train")
    await apart.rounds()
    assert apart.leases() == ["uidtrain"]
    there = apart.cluster.there["train"]
    assert (there.held, there.status["lease"]) == (True, "uidtrain")
    other = await apart.world.up("bob")
    await apart.rounds()
    assert set(apart.cluster.there) == {"train", f"ws-{other.id[:12]}"}
    apart.cluster.refusal = "no policy"
    apart.cluster.apply("new", server="second")
    await apart.rounds()
    assert apart.cluster.there["new"].status["message"] == "no policy"
    apart.cluster.change(there, deleting=True)
    await apart.rounds(10)
    assert "train" not in apart.cluster.there
    assert apart.leases() == []


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("after", [False, True])
async def test_another_operator_continues_after_a_kill_at_any_write(apart, writes, after):
    apart.cluster.apply("train")
    apart.process = apart.another(writes, after=after)
    with pytest.raises(Ended):
        await apart.rounds_without_status()
    apart.process = apart.another()
    apart.world.clock.advance(LEADS_SECONDS)
    await apart.rounds()
    assert apart.leases() == ["uidtrain"], "it was asked for once"
    assert apart.cluster.there["train"].status["lease"] == "uidtrain"
    apart.cluster.change(apart.cluster.there["train"], deleting=True)
    await apart.rounds(10)
    assert (apart.cluster.there, apart.leases()) == ({}, [])


async def test_deleting_all_resources_together_stops_nothing(apart):
    apart.cluster.apply("train")
    await apart.rounds()
    apart.cluster.is_going = True
    apart.cluster.change(apart.cluster.there["train"], deleting=True)
    await apart.rounds()
    assert (apart.cluster.there, apart.leases()) == ({}, ["uidtrain"])


async def test_a_second_operator_takes_over_from_a_silent_one(apart, caplog):
    apart.cluster.apply("train")
    await apart.rounds()
    second, told = apart.another(), len(apart.cluster.told)
    apart.cluster.apply("second", server="second")
    await second.round()
    await second.round()
    assert [one.getMessage() for one in caplog.records if "leads. This one waits" in one.getMessage()], "said"
    assert len(apart.cluster.told) == told
    with pytest.raises(Conflict, match=r"leads\. This one waits"):
        await apart.operate({"who": "third", "requests": [], "refuses": "", "going": False})
    apart.world.clock.advance(LEADS_SECONDS)
    apart.process = second
    await apart.rounds()
    assert len(apart.leases()) == 2


async def test_the_operator_sends_signed_requests_of_any_size(apart):
    world = apart.world
    pages = application(world.parts)
    add_operating(pages, world.parts, apart.relay, apart.operator)
    gate = StartupGate(pages, world.parts)
    gate.waits_for = ""
    server, (socket,) = PublicServer(gate, partial(is_spawner, SECRET), 100), bind_sockets(0, "127.0.0.1")
    server.add_socket(socket)
    url = f"http://127.0.0.1:{socket.getsockname()[1]}{PREFIX.rstrip('/')}"
    try:
        apart.cluster.apply("train")
        apart.process = Rounds(apart.cluster, LeaseClient(url, SECRET, world.clock.wall))
        await apart.rounds()
        assert apart.leases() == ["uidtrain"]
        assert apart.cluster.there["train"].status["lease"] == "uidtrain"
        apart.cluster.refusal = "x" * (2 * LARGEST_DISCARDED_BYTES)
        apart.cluster.apply("new", server="second")
        await apart.rounds()
        assert apart.cluster.there["new"].phase == "Pending"
        with pytest.raises(Unavailable, match=NOT_OURS):
            await LeaseClient(url, b"another", world.clock.wall).operate(
                {"who": "a", "requests": [], "refuses": "", "going": False}
            )
    finally:
        server.stop()
        await server.close_all_connections()


async def test_thousands_of_large_requests_of_one_user_hide_no_request_of_another(apart):
    """Each round shows some of them, the oldest first, and of what is over no more than that it is."""
    many = 200
    for number in range(many):
        apart.cluster.apply(f"a{number:03}", server="x/y", lifetime="1" * 7000)
    apart.cluster.apply("train")
    sizes = []
    operate = apart.operate
    apart.operate = lambda seen: (sizes.append(len(json.dumps(seen))), operate(seen))[1]
    await apart.rounds(2)
    assert apart.cluster.there["train"].status == {}
    await apart.rounds(8)
    assert apart.leases() == ["uidtrain"]
    assert {apart.cluster.there[f"a{number:03}"].phase for number in range(many)} == {"Refused"}
    assert max(sizes) < LARGEST_DISCARDED_BYTES
    assert sizes[-1] < 1000 * many


async def test_an_invalid_resource_is_refused():
    with pytest.raises(ValueError, match="requests"):
        Seen.model_validate_json(json.dumps({"who": "a", "requests": [{"name": 3}], "refuses": "", "going": False}))
    shown = {"name": "a", "uid": "u", "version": "1", "created": "then", "spec": {"user": "ada"}}
    seen = Seen.model_validate_json(json.dumps({"who": "a", "requests": [shown], "refuses": "", "going": False}))
    assert seen.requests == (Resource("a", "u", "1", "then", spec={"user": "ada"}),)
