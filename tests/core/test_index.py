"""An index that is kept between decisions equals a new one after any history, and decides the same."""

from dataclasses import replace
from fractions import Fraction
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import GIB, KINDS, NOW, a_lease, a_request, gpu, slots

from gpuspawner.core.gpus.fleet import Autoscale, Fleet, GpuKind, Group, HostResources
from gpuspawner.core.gpus.placement import host_resources_left
from gpuspawner.core.gpus.pools import Pools
from gpuspawner.core.idle.policies import LifecyclePolicy, QueuePolicy
from gpuspawner.core.leases.lease import HOLDING, WAITING, Key, Phase
from gpuspawner.core.queue import snapshot
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.fair_share import charge_of
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import LiveLeases, Snapshot, claim_of
from gpuspawner.core.quotas.ledger import rate_of
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.rules import (
    Account,
    Limit,
    LimitedResource,
    LostInterval,
    Quota,
    QuotaGrant,
    QuotaScope,
    Rules,
    Team,
)

SCALED = GpuKind("t4", "T4", 16 * GIB, autoscale=Autoscale(4, 2, 240.0))
ALL_KINDS = {**KINDS, "t4": SCALED}
RULES = Rules(
    teams={"vision": Team("vision", weight=Fraction(2))},
    quotas=(
        Quota("each", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, soft=Fraction(1), hard=Fraction(3)),)),
        Quota("vision", QuotaScope.TEAM, "vision", (Limit(LimitedResource.GPUS, soft=Fraction(2), hard=Fraction(4)),)),
    ),
)
GRANT = QuotaGrant("more", Account("", "alice born"), LimitedResource.GPUS, Fraction(2), NOW + 500, NOW + 4000)
NODES = [f"node-{number}" for number in range(4)]
POLICIES = {"default": LifecyclePolicy(queue=QueuePolicy(longest_wait_seconds=3000.0))}


def gpus_of(node, marks=0):
    """Four GPUs that are only counted, of which the last are unhealthy."""
    group, pool = Group(node, "nvidia.com/gpu"), "t4" if node == NODES[-1] else "a100"
    numbered = [gpu(i, pool, node) for i in range(4)]
    return [replace(x, id=group.gpu(x.index), group=group, healthy=x.index < 4 - marks) for x in numbered]


class History:
    """A cluster to which things happen."""

    def __init__(self):
        self.now, self.made = NOW, 0
        self.leases, self.marks = {}, dict.fromkeys(NODES, 0)
        self.others, self.host_resources, self.in_order = (), {}, True
        self.live = LiveLeases()

    def in_chunks(self):
        """The leases as the service keeps them."""
        for lease in self.live:
            if lease.id not in self.leases:
                self.live.remove(lease.id)
        for name, lease in self.leases.items():
            if self.live.get(name) is not lease:
                self.live.put(lease)
        return self.live.seen()

    def seen(self):
        nodes = list(self.marks.items())
        gpus = (one for node, marks in (nodes if self.in_order else nodes[::-1]) for one in gpus_of(node, marks))
        fleet = Fleet(tuple(gpus), complete=True, host_resources=dict(self.host_resources))
        leases = self.in_chunks() if self.in_order else tuple(self.leases.values())
        return Snapshot(
            self.now, ALL_KINDS, leases, fleet, self.others, rules=RULES, policies=POLICIES, quota_grants=(GRANT,)
        )

    def happens(self, draw):
        what = draw(st.sampled_from(["asks", "asks", "granted", "granted", "runs", "ends", "stops", "time", "back",
                                     "marked", "node", "strangers", "sizes", "sampled", "lost", "turned"]))  # fmt: skip
        getattr(self, what)(draw)

    def asks(self, draw):
        self.made += 1
        name, user, team = (
            f"w{self.made}",
            draw(st.sampled_from(["alice", "bob"])),
            draw(st.sampled_from(["", "vision"])),
        )
        request = a_request(
            user, draw(st.sampled_from(["a100", "half", "t4", None])), draw(st.integers(1, 3)), team=team,
            lifetime_seconds=draw(st.sampled_from([600, 3600])), cpu_cores=draw(st.sampled_from([1.0, 6.0])),
        )  # fmt: skip
        self.leases[name] = a_lease(
            name, asked_at=self.now, user=user, key=Key("hub", f"{user} born", name), request=request
        )

    def granted(self, draw):
        del draw
        for one in decide(self.seen()).grants:
            rate = rate_of(ALL_KINDS.get(one.kind or ""), one.claim.request.count)
            self.leases[one.claim.id] = replace(
                self.leases[one.claim.id], phase=Phase.RESERVED, slots=one.slots, granted_at=self.now, rate=rate,
                latest_end=one.latest_end,
            )  # fmt: skip

    def some(self, draw, phases):
        names = sorted(name for name, lease in self.leases.items() if lease.phase in phases)
        return draw(st.sampled_from(names)) if names else None

    def runs(self, draw):
        if (name := self.some(draw, {Phase.RESERVED, Phase.STARTING})) is not None:
            lease = self.leases[name]
            ends = draw(st.sampled_from([None, self.now + lease.request.lifetime_seconds]))
            self.leases[name] = replace(lease, phase=Phase.RUNNING, running_at=self.now, deadline_at=ends)

    def ends(self, draw):
        self.leases.pop(self.some(draw, HOLDING | WAITING), None)

    def stops(self, draw):
        if (name := self.some(draw, HOLDING)) is not None:
            phase = draw(st.sampled_from([Phase.STOPPING, Phase.RECLAIMING]))
            self.leases[name] = replace(self.leases[name], phase=phase)

    def time(self, draw):
        self.now += draw(st.sampled_from([1.0, 300.0, 4000.0]))

    def back(self, draw):
        self.now -= draw(st.sampled_from([1.0, 300.0]))

    def marked(self, draw):
        if self.marks:
            self.marks[draw(st.sampled_from(sorted(self.marks)))] = draw(st.integers(0, 3))

    def node(self, draw):
        name = draw(st.sampled_from(NODES))
        self.marks = (
            {**self.marks, name: 0} if name not in self.marks else {x: n for x, n in self.marks.items() if x != name}
        )

    def strangers(self, draw):
        names = [one.id for node in self.marks for one in gpus_of(node)]
        self.others = slots(*draw(st.lists(st.sampled_from(names), max_size=2))) if names else ()

    def sizes(self, draw):
        for one in gpus_of(draw(st.sampled_from(NODES)))[:1]:
            self.host_resources[one.on] = HostResources(draw(st.sampled_from([4000, 16000])), 64 * GIB)

    def sampled(self, draw):
        if (name := self.some(draw, HOLDING | WAITING)) is not None:
            self.leases[name] = replace(self.leases[name], heard_at=self.now)

    def lost(self, draw):
        if (name := self.some(draw, {Phase.RUNNING})) is not None:
            until = draw(st.sampled_from([None, self.now]))
            self.leases[name] = replace(self.leases[name], lost=(LostInterval(self.now - 60, until, "why"),))

    def turned(self, draw):
        del draw
        self.in_order = not self.in_order
        self.leases = dict(reversed(self.leases.items()))


def derived(index):
    """Return all that decisions take from an index."""
    pools, holdings = index.pools, index.holdings
    return {
        "used": pools.used,
        "looks": {pool: {look: list(nodes) for look, nodes in pools.looks(pool)} for pool in KINDS},
        "gpus": {
            pool: {node: sorted(x.id for x in pools.gpus(pool, node)) for node in pools.nodes(pool)} for pool in KINDS
        },
        "largest": {pool: pools.largest(pool) for pool in KINDS},
        "held": {limit_key: (one.total, sorted(one.of)) for limit_key, one in holdings.held.items() if one.of},
        "waiting": {limit_key: (one.total, sorted(one.of)) for limit_key, one in holdings.waiting.items() if one.of},
        "ends": {pool: found for pool, ends in index.ends.items() if (found := [x[:2] for x in ends.coming(NOW)])},
        "claims": index.claims,
        "starts": sorted(index.starts),
    }


def charges_of(index, seen):
    accounts = {account for user in ("alice", "bob") for account in accounts_of(f"{user} born", "vision")}
    return {account: index.charges.of(account, seen.now) for account in accounts}


@mock.patch.object(snapshot, "CHUNK_LEASES", 2)
@settings(max_examples=40)
@given(st.data())
def test_a_state_kept_through_any_history_equals_the_recomputed_one_and_decides_the_same(data):
    history, kept = History(), None
    for _ in range(data.draw(st.integers(1, 8))):
        for _ in range(data.draw(st.integers(1, 4))):
            history.happens(data.draw)
        seen = history.seen()
        if kept is None:
            kept = Index(seen)
        else:
            kept.see(seen)
        anew = Index(seen)
        assert derived(kept) == derived(anew)
        assert charges_of(kept, seen) == pytest.approx(charges_of(anew, seen), abs=0.01)
        assert decide(seen, index=kept) == decide(seen)
        also = claim_of(a_lease("also", asked_at=seen.now, request=a_request("bob", "a100", 1, team="vision")))
        assert decide(seen, also=also, index=kept) == decide(seen, also=also)
        assert queue_positions(seen, index=kept) == queue_positions(seen)
        assert derived(kept) == derived(anew), "a pass changes nothing that is kept"


@settings(max_examples=75)
@given(st.data())
def test_the_derived_index_equals_the_snapshot(data):
    history = History()
    for _ in range(data.draw(st.integers(1, 25))):
        history.happens(data.draw)
    seen = history.seen()
    index = Index(seen)
    whole = Pools(seen.placement_fleet, seen.used, host_resources_left(seen.fleet, seen.leases))
    for pool in KINDS:
        assert {x: list(y) for x, y in index.pools.looks(pool)} == {x: list(y) for x, y in whole.looks(pool)}
    assert index.pools.used == seen.used
    assert sorted(index.claims.values(), key=lambda x: (x.asked_at, x.id)) == list(seen.claims)
    for account, charge in charges_of(index, seen).items():
        own = (x for x in seen.leases if account in accounts_of(x.key.user_created, x.request.team))
        assert charge == pytest.approx(sum(charge_of(x, ALL_KINDS, seen.now) for x in own), abs=0.01)
