"""GPUs that an administrator closes are not granted until the restriction is lifted. No workspace ends for it."""

from dataclasses import replace
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.administration import Restriction, RestrictionKind, close_gpus, exemption_of, reservation_holds
from gpuspawner.core.gpus.placement import count_free, count_unavailable, largest_fit
from gpuspawner.core.leases.lease import HOLDING, WAITING, Phase
from gpuspawner.core.outages import API_SERVER, GPU_SOURCE, Outage
from gpuspawner.core.queue.decisions import PAUSED, decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.index import Index
from gpuspawner.core.queue.snapshot import ALL_KINDS, Snapshot
from gpuspawner.core.rules import Account, Rules

GPUS = [replace(gpu(number), node=f"node-{number // 2}") for number in range(6)] + [
    replace(gpu(9, "t4"), node="node-3")
]
HOUR = 3600.0
UTC = ZoneInfo("UTC")


def closing(measure, target, until=None, **changes):
    return Restriction("r-1", measure, target, "a new driver", "admin", NOW - 10, until, **changes)


def seen(*leases, now=NOW, restrictions=(), paused=None):
    live = [one for one in restrictions if one.is_in_force(now, UTC)]
    whole = close_gpus(fleet(*GPUS), live)
    return Snapshot(now, KINDS, leases, whole, rules=Rules(holds=reservation_holds(live)), paused=paused or {})


class History:
    """People ask, start and end, while an administrator closes and opens, in any order."""

    def __init__(self):
        self.now, self.made, self.leases = NOW, 0, {}
        self.closed, self.paused = {}, set()

    def seen(self):
        found = seen(*self.leases.values(), now=self.now, restrictions=self.closed.values())
        return replace(found, paused=dict.fromkeys(self.paused, "It is paused."))

    def happens(self, draw):
        what = draw(st.sampled_from(["ask", "ask", "ask", "end", "time", "close", "lift", "pause", "resume"]))
        getattr(self, what)(draw)

    def ask(self, draw):
        self.made += 1
        kind = draw(st.sampled_from(["a100", "a100", "half", "t4", None]))
        others = ("t4",) if kind == "a100" and draw(st.booleans()) else ()
        count = 1 if kind == "t4" or others else draw(st.integers(1, 2))  # all could be had, were nothing closed
        request = a_request(draw(st.sampled_from(["alice", "bob"])), kind, count, substitutes=others)
        name = f"w{self.made}"
        self.leases[name] = a_lease(name, asked_at=self.now, user=request.user, request=request)

    def end(self, draw):
        if self.leases:
            del self.leases[draw(st.sampled_from(sorted(self.leases)))]

    def time(self, draw):
        self.now += draw(st.sampled_from([1.0, HOUR]))

    def close(self, draw):
        one = draw(st.sampled_from(GPUS))
        measure, target = draw(
            st.sampled_from([(RestrictionKind.DRAIN, one.node), (RestrictionKind.QUARANTINE, one.id)])
        )
        until = draw(st.sampled_from([None, self.now + 0.5 * HOUR]))
        self.closed[target] = Restriction("r", measure, target, "dust", "admin", self.now, until)

    def lift(self, draw):
        if self.closed:
            del self.closed[draw(st.sampled_from(sorted(self.closed)))]

    def pause(self, draw):
        self.paused.add(draw(st.sampled_from([ALL_KINDS, "a100", "t4"])))

    def resume(self, _draw):
        self.paused.clear()

    def grant(self, decision):
        """Let those run who are granted; return what they were given."""
        for one in decision.grants:
            lease = self.leases[one.claim.id]
            self.leases[lease.id] = replace(
                lease, phase=Phase.RUNNING, slots=one.slots, granted_at=self.now, running_at=self.now,
                deadline_at=self.now + HOUR, given=one.substitute,
            )  # fmt: skip
        return decision.grants


@settings(max_examples=40)
@given(st.data())
def test_nothing_closed_or_paused_is_given_under_any_interleaving_and_lifting_restores(data):
    world = History()
    index = Index(world.seen())
    for _ in range(data.draw(st.integers(1, 25))):
        world.happens(data.draw)
        now = world.seen()
        index.see(now)
        decision = decide(now, index=index)
        assert decision == decide(now)  # what is kept between decisions says the same
        queue_positions(now)
        closed = {one.target for one in world.closed.values() if one.is_in_force(world.now, UTC)}
        for one in world.grant(decision):
            assert not world.paused & {ALL_KINDS, one.kind}
            assert all(now.fleet.by_id[slot.gpu].node not in closed | {None} for slot in one.slots)
            assert not closed & {slot.gpu for slot in one.slots}
    world.closed.clear()
    world.paused.clear()
    for _ in range(60):  # waiting requests get the closed GPUs as before
        world.leases = {name: x for name, x in world.leases.items() if x.phase not in HOLDING}
        world.grant(decide(world.seen()))
    assert not [x for x in world.leases.values() if x.phase in WAITING]


def test_closed_gpus_are_out_of_service_and_still_waited_for():
    world = seen(restrictions=[closing(RestrictionKind.DRAIN, "node-0"), closing(RestrictionKind.QUARANTINE, "a100-2")])
    kind = KINDS["a100"]
    assert (count_free(kind, world.fleet, {}), count_unavailable(kind, world.fleet)) == (3, 3)
    assert largest_fit(kind, world.fleet) == 2
    assert world.fleet.by_id["a100-0"].closed == "node-0 is drained: a new driver"
    assert world.fleet.by_id["a100-2"].closed == "The GPU is in quarantine: a new driver"
    assert close_gpus(world.fleet, []) is world.fleet


def test_a_request_for_paused_gpus_is_told_so_blocks_no_other_and_has_no_estimate():
    first = a_lease("first", request=a_request("alice", "a100", 2))
    later = a_lease("later", asked_at=NOW + 1, request=a_request("bob", "t4"))
    world = seen(first, later, paused={"a100": "No A100 is given."})
    decision = decide(world)
    assert [one.claim.id for one in decision.grants] == ["later"]
    assert decision.wait_reasons == {"first": (PAUSED, "No A100 is given.")}
    assert queue_positions(world)["first"].unchanged_seconds is None
    none = a_lease("none", request=a_request("carol", None))
    everything = seen(first, later, none, paused={ALL_KINDS: "Nothing is given."})
    assert (decide(everything).grants, len(decide(everything).wait_reasons)) == ((), 3)
    assert {place.unchanged_seconds for place in queue_positions(everything).values()} == {None}


def test_in_an_outage_nothing_is_granted_but_what_does_not_need_the_part_that_is_away():
    gpus = fleet(gpu(0), replace(gpu(1, "t4"), cluster="east"))
    kinds = {"a100": KINDS["a100"], "t4": replace(KINDS["t4"], cluster="east")}
    wants = {"a100": ("a100", ()), "t4": ("t4", ()), "either": ("a100", ("t4",)), "none": (None, ())}

    def granted(**away):
        """Return the grant of each request if it were the only one."""
        found = {}
        for name, (kind, substitutes) in wants.items():
            lease = a_lease(name, request=a_request("alice", kind, substitutes=substitutes))
            decision = decide(Snapshot(NOW, kinds, (lease,), replace(gpus, **away)))
            assert not decision.wait_reasons, "an outage has sentences of its own"
            found.update({one.claim.id: one.kind for one in decision.grants})
        return found

    api, source = Outage(API_SERVER, NOW), Outage(GPU_SOURCE, NOW)
    assert granted() == {"a100": "a100", "t4": "t4", "either": "a100", "none": None}
    assert granted(outages={"east": api}) == {"a100": "a100", "either": "a100", "none": None}
    assert granted(outages={"": api}) == {"t4": "t4", "either": "t4"}
    assert granted(outage=api) == {}
    assert granted(outage=source) == {"none": None}, "it needs no list of GPUs"


def test_a_substitute_is_given_while_the_kind_asked_for_is_paused():
    one = a_lease("one", request=a_request("alice", "a100", substitutes=("t4",)))
    assert [x.kind for x in decide(seen(one, paused={"a100": "No A100 is given."})).grants] == ["t4"]


def test_reserved_gpus_go_only_to_their_user_until_the_end_time():
    hold = closing(
        RestrictionKind.RESERVE, "a100", NOW + HOUR, count=6, account=Account("", "alice born"), whom="alice"
    )
    mine, other = a_lease("mine"), a_lease("other", user="bob")
    assert [x.claim.id for x in decide(seen(mine, other, restrictions=[hold])).grants] == ["mine"]
    held = decide(seen(other, restrictions=[hold])).wait_reasons["other"]
    assert "6 A100 80 GB are reserved for alice" in held.words
    later = seen(other, now=NOW + HOUR, restrictions=[hold])
    assert [x.claim.id for x in decide(later).grants] == ["other"]
    team = closing(RestrictionKind.RESERVE, "a100", NOW + HOUR, count=6, account=Account("vision"), whom="vision")
    of_team = a_lease("team", user="carol", request=a_request("carol", team="vision"))
    assert [x.claim.id for x in decide(seen(of_team, mine, restrictions=[team])).grants] == ["team"]


def test_an_exemption_is_of_a_workspace_or_of_all_of_a_user():
    lease = a_lease("one", Phase.RUNNING, held=slots("a100-0"))
    of_lease = closing(RestrictionKind.EXEMPT, "one", NOW + 50)
    of_user = closing(RestrictionKind.EXEMPT, "", NOW + 90, account=Account("", "alice born"))
    of_other = closing(RestrictionKind.EXEMPT, "", NOW + 900, account=Account("", "bob born"))
    assert exemption_of(lease, [of_lease, of_other]) is of_lease
    assert exemption_of(lease, [of_lease, of_user, of_other]) is of_user
    assert exemption_of(lease, [of_other, closing(RestrictionKind.DRAIN, "one")]) is None


def test_one_holds_until_its_time_is_over_or_it_is_lifted():
    one = closing(RestrictionKind.DRAIN, "node-0", NOW + 5)
    assert [one.is_in_force(NOW + 4.9, UTC), one.is_in_force(NOW + 5, UTC)] == [True, False]
    assert not replace(one, lifted_at=NOW).is_in_force(NOW, UTC)
    assert closing(RestrictionKind.DRAIN, "node-0").is_in_force(NOW + 1e9, UTC)
