"""Live leases in chunks are what a mapping of them holds, and what is not compared is the same."""

from dataclasses import replace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from lease_builders import a_lease

from gpuspawner.core.queue import snapshot
from gpuspawner.core.queue.snapshot import LiveLeases, changed_leases

STEPS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["put", "put", "remove", "see"])), max_size=40)


@given(STEPS)
def test_chunks_hold_through_any_history_what_a_mapping_does_and_tell_what_changed(steps):
    kept, plain, before = LiveLeases(), {}, ()
    with mock.patch.object(snapshot, "CHUNK_LEASES", 3):
        for number, (name, what) in enumerate(steps):
            if what == "put":
                plain[name] = a_lease(name, asked_at=float(number))
                kept.put(plain[name])
            elif what == "remove":
                plain.pop(name, None)
                kept.remove(name)
            else:
                now = kept.seen()
                assert (list(now), len(now)) == (list(plain.values()), len(plain))
                old, new = changed_leases(before, now)
                gone, come = (set(map(id, some)) for some in (old, new))
                assert {id(x) for x in before if plain.get(x.id) is not x} <= gone
                assert {id(x) for x in now if x not in before} <= come
                assert [x for x in before if id(x) not in gone] == [x for x in now if id(x) not in come]
                before = now
            assert kept.get(name) is plain.get(name)


def test_a_changed_lease_is_searched_only_in_its_chunk_and_an_instant_stays_unchanged():
    leases = [a_lease(f"w{number}") for number in range(3 * snapshot.CHUNK_LEASES)]
    kept = LiveLeases(leases)
    before = kept.seen()
    kept.put(replace(leases[0], attempt=2))
    kept.remove(leases[1].id)
    old, new = changed_leases(before, kept.seen())
    assert (len(old), len(new), len(before)) == (
        snapshot.CHUNK_LEASES,
        snapshot.CHUNK_LEASES - 1,
        3 * snapshot.CHUNK_LEASES,
    )
    assert list(before) == leases
    assert leases[1] in before
    assert leases[1] not in kept.seen()
    assert changed_leases(before, tuple(leases)) == (leases, leases), (
        "of what is not in chunks nothing is known to be the same"
    )
