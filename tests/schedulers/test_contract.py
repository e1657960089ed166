"""What every scheduler adapter must do, whatever is behind it: one suite over all of them."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from lease_builders import KINDS, NOW, a_lease, a_request, slots

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.core import lease as leases
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.lease import Phase
from gpuspawner.core.queue import Conditions
from gpuspawner.schedulers.memory import InMemoryScheduler


def over_fake(_folder, _monkeypatch):
    backend = FakeBackend(fake_gpus("a100", 3))

    def cut_off():
        backend.unreachable = "The machine does not answer."

    return InMemoryScheduler(backend, KINDS), cut_off


def over_simulated(folder, monkeypatch):
    monkeypatch.setattr(nvidia, "find", lambda: None)  # whatever machine this is
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    backend = LocalBackend(KINDS.values(), {"a100": 3}, folder)

    async def fleet():
        raise Unavailable("The machine does not answer.")

    return InMemoryScheduler(backend, KINDS), lambda: setattr(backend, "fleet", fleet)


@pytest.fixture(
    params=[over_fake, over_simulated], ids=["in memory, fake GPUs", "in memory, one machine's simulated GPUs"]
)
def adapter(request, tmp_path, monkeypatch):
    """A scheduler with three whole A100, and a way to cut it off from them."""
    return request.param(tmp_path, monkeypatch)


@pytest.fixture
async def scheduler(adapter):
    scheduler, _ = adapter
    await scheduler.observe(NOW)
    return scheduler


def waits(name, asked_at=NOW, gpu="a100", count=1, **changes):
    return a_lease(name, asked_at=asked_at, request=a_request(gpu=gpu, count=count), **changes)


def granted(scheduler, line, **conditions):
    """The leases as they are once the scheduler's decisions are carried out."""
    found = {lease.id: lease for lease in line}
    for grant in scheduler.decide(line, Conditions(NOW, **conditions)):
        found[grant.lease.id] = leases.grant(grant.lease, grant.slots, NOW)
    return list(found.values())


def offers(scheduler, line, others=()):
    return {offer.kind: offer for offer in scheduler.offers(line, others)}


def test_nothing_is_known_or_granted_before_the_first_look(adapter):
    scheduler, _ = adapter
    assert not scheduler.fleet.complete
    assert granted(scheduler, [waits("a")])[0].phase is Phase.QUEUED
    assert {(o.free, o.total, o.largest) for o in scheduler.offers([], ())} == {(None, None, None)}
    assert scheduler.place(waits("a"), [waits("a")], (), NOW).at_most_seconds is None


async def test_a_look_tells_when_it_was_and_one_that_fails_leaves_the_last_in_force(adapter):
    scheduler, cut_off = adapter
    seen = await scheduler.observe(NOW)
    assert (seen, seen.observed_at, seen.complete, len(seen.gpus)) == (scheduler.fleet, NOW, True, 3)
    cut_off()
    with pytest.raises(Unavailable):
        await scheduler.observe(NOW + 5)
    assert scheduler.fleet == seen


async def test_deciding_again_after_a_decision_decides_nothing_new(scheduler):
    line = [waits("a", NOW), waits("b", NOW + 1, count=2), waits("c", NOW + 2)]
    once = granted(scheduler, line)
    assert [(x.id, x.phase, len(x.slots)) for x in once] == [
        ("a", Phase.RESERVED, 1),
        ("b", Phase.RESERVED, 2),
        ("c", Phase.QUEUED, 0),
    ]
    assert granted(scheduler, once) == once
    assert len({slot.gpu for lease in once for slot in lease.slots}) == 3


async def test_what_others_use_is_neither_offered_nor_granted(scheduler):
    others = slots(scheduler.fleet.gpus[0].id)
    assert offers(scheduler, [], others)["a100"].free == 2
    assert granted(scheduler, [waits("a", count=3)], others=others)[0].phase is Phase.QUEUED


async def test_offers_are_what_could_be_had_of_each_kind_in_the_catalog_s_order(scheduler):
    line = granted(scheduler, [waits("a", gpu="half"), waits("b", NOW + 1, count=3), waits("n", NOW + 2, gpu=None)])
    now = offers(scheduler, line)
    assert list(now) == list(KINDS)
    assert [(o.free, o.total, o.largest, o.waiting) for o in now.values()] == [(2, 3, 3, 1), (5, 6, 3, 1), (0, 0, 0, 0)]
    assert [o.simulated for o in now.values()] == [True, True, False]


async def test_what_is_offered_can_be_had(scheduler):
    for kind, offer in offers(scheduler, []).items():
        if offer.largest:
            most = granted(scheduler, [waits("a", gpu=kind, count=offer.largest)])
            assert (most[0].phase, len(most[0].slots)) == (Phase.RESERVED, offer.largest)
        more = granted(scheduler, [waits("a", gpu=kind, count=offer.largest + 1)])
        assert more[0].phase is Phase.QUEUED


async def test_places_count_from_one_in_the_order_of_asking(scheduler):
    assert scheduler.owns_queue
    line = granted(scheduler, [waits("x", NOW - 9, count=3), waits("b", NOW + 1), waits("a", NOW + 2), waits("c", NOW)])
    places = {x.id: scheduler.place(x, line, (), NOW).number for x in line if x.phase is Phase.QUEUED}
    assert places == {"c": 1, "b": 2, "a": 3}


async def test_a_place_is_zero_seconds_away_exactly_when_it_is_granted_now(scheduler):
    first, second = waits("a", count=2), waits("b", NOW + 1, count=2)
    line = [first, second]
    assert scheduler.place(first, line, (), NOW).at_most_seconds == 0
    assert scheduler.place(second, line, (), NOW).at_most_seconds == first.request.lifetime_seconds
    assert [x.phase for x in granted(scheduler, line)] == [Phase.RESERVED, Phase.QUEUED]


async def test_a_patch_is_json_that_shows_the_lease_s_gpus_and_no_other(scheduler):
    lease = granted(scheduler, [waits("a", count=2)])[0]
    patch = scheduler.patch(lease)
    assert json.loads(json.dumps(patch)) == patch
    assert set(patch) == {"environment", "path_prefix"}
    assert patch["environment"]["CUDA_VISIBLE_DEVICES"] == ",".join(slot.gpu for slot in lease.slots)
    assert scheduler.patch(replace(lease, slots=()))["environment"]["CUDA_VISIBLE_DEVICES"] == ""


async def test_shares_of_a_kind_are_slots_of_that_share(scheduler):
    lease = granted(scheduler, [waits("a", gpu="half", count=2)])[0]
    assert {slot.share for slot in lease.slots} == {Fraction(1, 2)}
    assert len({slot.gpu for slot in lease.slots}) == 2


async def test_no_decision_changes_the_leases_it_was_given(scheduler):
    line = [waits("a"), waits("b", NOW + 1)]
    copies = [replace(lease) for lease in line]
    scheduler.decide(line, Conditions(NOW))
    assert line == copies
