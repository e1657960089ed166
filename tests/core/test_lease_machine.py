"""Leases under hypothesis: no interleaving of starts, grants, timeouts, stops and left-over processes breaks them."""

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from lease_builders import KINDS, a_request, fleet, gpu

from gpuspawner.core.errors import Conflict
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.gpus.placement import largest_fit, pool_of, unleased_slots, used_shares
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import HOLDING, JOINABLE, UP, WAITING, Key, Lease, Phase
from gpuspawner.core.queue.decisions import decide, starts_under_way
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import Snapshot

KEYS = [Key("hub", "user 0", "second"), *(Key("hub", f"user {i}", "") for i in range(3))]
WANTED = st.sampled_from([("a100", 1), ("a100", 1), ("a100", 2), ("a100", 3), ("half", 1), ("half", 2), (None, 0)])
WHO = st.sampled_from(KEYS)


def waiting_in_order(found):
    return sorted((x for x in found if x.phase in WAITING), key=lambda x: (x.asked_at, x.id))


@dataclass(frozen=True)
class Process:
    """The process of one attempt of a lease, on the GPUs that the lease held when it was created."""

    lease: str
    attempt: int
    slots: tuple[Slot, ...]


class Leases(RuleBasedStateMachine):
    """The world in plain sight: live leases by key, and all that runs, also what no lease knows of any more."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.live: dict[Key, Lease] = {}
        self.processes: set[Process] = set()
        self.asked_at: dict[Key, float] = {}
        self.ended: list[Lease] = []
        self.hub_answers = True
        self.fleet = fleet(gpu(0), gpu(1), gpu(2, node="node-2"))
        self.made = 0

    def others(self):
        return unleased_slots(((p.lease, slot) for p in self.processes for slot in p.slots), self.live.values())

    def of(self, key, *phases):
        lease = self.live.get(key)
        return lease if lease is not None and lease.phase in phases else None

    def put(self, lease):
        if lease.live:
            self.live[lease.key] = lease
        else:
            self.ended.append(lease)
            del self.live[lease.key], self.asked_at[lease.key]

    def own(self, lease, **which):
        return {p for p in self.processes if p.lease == lease.id and all(getattr(p, k) == v for k, v in which.items())}

    @rule(key=WHO, wanted=WANTED)
    def a_user_starts(self, key, wanted):
        kind, count = wanted
        request, lease = a_request(key.user_created, kind, count), self.live.get(key)
        self.made += 1
        if lease is None:
            lease = Lease(f"lease {self.made:03}", key, request.user, request, {}, self.now, start_id=str(self.made))
            self.asked_at[key] = self.now
            self.put(lease)
            return
        join = lambda: transitions.join(lease, request, {}, start_id=str(self.made), boot_id="b", now=self.now)  # noqa: E731
        if lease.phase not in JOINABLE:
            with pytest.raises(Conflict):
                join()
            return
        if kind != lease.request.gpu or count > lease.request.count:
            self.asked_at[key] = self.now
        self.put(join())
        assert self.live[key].attempt == lease.attempt + 1

    @rule(key=WHO)
    def a_message_comes_twice(self, key):
        if lease := self.of(key, *JOINABLE):
            again = transitions.join(lease, lease.request, {}, start_id=lease.start_id, boot_id="b", now=self.now)
            assert (again.attempt, again.slots, again.asked_at) == (lease.attempt, lease.slots, lease.asked_at)
            self.put(again)

    def snapshot(self):
        return Snapshot(self.now, KINDS, tuple(self.live.values()), self.fleet, tuple(self.others()))

    @rule(most=st.sampled_from([1, 2, 100]), each=st.sampled_from([1, 100]))
    def grants_are_made(self, most=100, each=100):
        before = {x.id: x for x in self.live.values()}
        seen = replace(self.snapshot(), hub_answers=self.hub_answers, most_starts=most, most_starts_each=each)
        decision = decide(seen)
        grants = [(one.claim, one.slots) for one in decision.grants]
        under_way = starts_under_way(before.values())
        assert len(grants) <= max(0, most - under_way.total())
        for claim, given in grants:
            assert len(given) == claim.request.count
            under_way[claim.user_created] += 1
            assert under_way[claim.user_created] <= each
            self.put(transitions.grant(before[claim.id], given, self.now))
        limited = {u for u, n in under_way.items() if n >= each}
        self._nobody_was_overtaken(before, decision, limited, all_start=under_way.total() >= most)

    def _nobody_was_overtaken(self, before, decision, limited, *, all_start):
        """If a pool's claim fits and gets no grant, GPUs are reserved for the first such claim.

        Or they may not start more at once. ``limited`` are users who start as many as one may.
        """
        got = {one.claim.id for one in decision.grants}
        kept_for = {pool_of(before[name], KINDS) for kept in decision.reservations for name in kept.claim_ids}
        for lease in waiting_in_order(before.values()):
            pool = pool_of(lease, KINDS)
            if pool is not None and lease.id not in got:
                backs_off = lease.not_before > self.now
                unheard = lease.phase is Phase.PARKED and not self.hub_answers
                too_large = lease.request.count > largest_fit(KINDS["a100"], self.fleet)
                may_not_start = all_start or lease.key.user_created in limited
                assert backs_off or unheard or too_large or may_not_start or pool in kept_for

    @rule(key=WHO, creates=st.booleans())
    def the_waiter_takes_its_grant(self, key, creates):
        if lease := self.of(key, Phase.RESERVED, Phase.STARTING):
            self.processes -= self.own(lease) - self.own(lease, attempt=lease.attempt)  # as the service does first
            self.put(transitions.acknowledge(lease, "hash", self.now))
            if creates:
                self.processes.add(Process(lease.id, lease.attempt, lease.slots))

    @rule(key=WHO, wanted=WANTED, creates=st.booleans())
    def a_start_goes_straight_through(self, key, wanted, creates):
        self.a_user_starts(key, wanted)
        self.grants_are_made()
        self.the_waiter_takes_its_grant(key, creates)

    @rule(key=WHO, wanted=WANTED, then=WANTED)
    def a_hub_dies_in_a_start_and_its_user_asks_for_something_else(self, key, wanted, then):
        self.a_start_goes_straight_through(key, wanted, creates=True)
        self.a_user_starts(key, then)
        self.grants_are_made()

    @rule(key=WHO)
    def its_server_answers(self, key):
        lease = self.of(key, Phase.STARTING)
        if lease and self.own(lease, attempt=lease.attempt):
            self.put(transitions.run(lease, f"started {self.now}", self.now))

    @rule(key=WHO)
    def nobody_listens(self, key):
        if lease := self.of(key, Phase.QUEUED, Phase.RESERVED):
            self.put(transitions.park(lease, self.now))

    @rule(key=WHO)
    def it_is_heard_again(self, key):
        if lease := self.of(key, *JOINABLE):
            self.put(transitions.note_heard(lease, self.now))

    @rule(key=WHO)
    def its_start_is_dropped(self, key):
        lease = self.of(key, Phase.RESERVED, Phase.STARTING)
        if lease and (lease.phase is Phase.RESERVED or not self.own(lease)):
            self.put(transitions.drop_start(lease, self.now))
            assert (key in self.live) == (lease.failed_starts < 2)

    @rule(key=WHO)
    def its_grace_begins(self, key):
        if lease := self.of(key, Phase.RUNNING):
            self.put(transitions.begin_grace(lease, self.now))

    @rule(key=WHO, by_keep=st.booleans())
    def its_grace_ends(self, key, by_keep):
        if lease := self.of(key, Phase.RECLAIMING):
            self.put(
                transitions.keep(lease, self.now + 60, self.now) if by_keep else transitions.end_grace(lease, self.now)
            )

    @rule(key=WHO, reason=st.sampled_from(ExitReason))
    def it_is_to_stop(self, key, reason):
        if lease := self.live.get(key):
            self.put(transitions.stop(lease, reason, "somebody", "", self.now))
            assert self.live[key].reason is (lease.reason or reason)

    @rule(key=WHO)
    def what_is_left_of_it_is_ended(self, key):
        if lease := self.of(key, *WAITING):
            self.processes -= {p for p in self.own(lease) if p.attempt < lease.attempt}

    @rule(key=WHO, outlives=st.booleans())
    def its_stop_ends(self, key, outlives):
        if lease := self.of(key, Phase.STOPPING):
            if not outlives:
                self.processes -= self.own(lease)
            if not self.own(lease):
                self.put(transitions.end(lease, self.now))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def a_process_dies(self, data):
        dying = data.draw(st.sampled_from(sorted(self.processes, key=lambda p: (p.lease, p.attempt))))
        self.processes.discard(dying)

    @rule(answers=st.booleans())
    def the_hub_comes_and_goes(self, answers):
        self.hub_answers = answers

    @rule(number=st.integers(0, 2), healthy=st.booleans())
    def a_gpu_breaks_or_is_mended(self, number, healthy):
        gpus = tuple(replace(g, healthy=healthy) if g.index == number else g for g in self.fleet.gpus)
        self.fleet = replace(self.fleet, gpus=gpus)

    @rule(seconds=st.sampled_from([1.0, 30.0, 301.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def promise_1_no_gpu_is_given_twice(self):
        holding = [x for x in self.live.values() if x.phase in HOLDING]
        used = used_shares(holding, self.others())
        assert all(share <= 1 for share in used.values()), used
        # The same by hand: a lease or a process uses a GPU; a process on a GPU of its own lease is that lease.
        users: dict[str, dict[str, Fraction]] = {}
        for name, slots in [(x.id, x.slots) for x in holding] + [(p.lease, p.slots) for p in self.processes]:
            for slot in slots:
                shares = users.setdefault(slot.gpu, {})
                shares[name] = max(shares.get(name, Fraction(0)), slot.share)
        assert all(sum(shares.values()) <= 1 for shares in users.values()), users

    @invariant()
    def a_place_is_lost_only_to_a_larger_request(self):
        assert {key: lease.asked_at for key, lease in self.live.items()} == self.asked_at

    @invariant()
    def what_waits_holds_nothing_and_what_holds_has_what_it_asked_for(self):
        for lease in self.live.values():
            assert len(lease.slots) == (lease.request.count if lease.granted_at is not None else 0)
            if lease.phase in WAITING:
                assert lease.granted_at is None
            if lease.phase in UP:
                assert lease.deadline_at is not None

    @invariant()
    def places_are_numbered_without_gaps(self):
        lines = {}
        places = queue_positions(self.snapshot())
        for lease in waiting_in_order(self.live.values()):
            there = places[lease.id]
            lines.setdefault(pool_of(lease, KINDS), []).append(there)
        for line in lines.values():
            assert sorted((p.number, p.of) for p in line) == [(i, len(line)) for i in range(1, len(line) + 1)]

    @invariant()
    def an_end_has_one_reason(self):
        for lease in self.ended:
            assert (lease.reason is not None, lease.ended_at is not None, lease.token_hash) == (True, True, "")


Leases.TestCase.settings = settings(stateful_step_count=40)
test_leases = Leases.TestCase
