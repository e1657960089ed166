"""Reasons for changed queue positions: counted right for all who join or leave, and reported without names."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from page_world import CATALOG, NOW, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.waiting.reasons import PositionChanges

KINDS = load_catalog(CATALOG).gpus


def line(*names, **asked_at):
    """Leases that wait in this order, and their numbers."""
    leases = [waiting(name, count=1, asked_at=asked_at.get(name, NOW - 1000 + at)) for at, name in enumerate(names)]
    return {name: number for number, name in enumerate(names, 1)}, leases


def told(before, after, name, *, also=(), **asked_at):
    changes = PositionChanges()
    numbers, leases = line(*before, **asked_at)
    changes.see(numbers, leases, KINDS, NOW)
    numbers, leases = line(*after, **asked_at)
    changes.see(numbers, [*leases, *also], KINDS, NOW + 60)
    return changes.words(name, NOW + 60).partition(": ")[2]


def test_granted_and_departed_requests_are_reported_apart():
    assert told("abcd", "d", "d", also=[running("a"), running("b")]) == (
        "2 before you had their turn; 1 before you waits no more."
    )
    assert told("ab", "b", "b", also=[running("a")]) == "1 before you had its turn."


def test_returning_requests_and_those_with_priority_are_reported_apart():
    assert told("b", "ab", "b", a=NOW - 2000) == "1 came back to an old place."
    assert told("b", "xb", "b", x=NOW - 1) == "1 goes first by priority, share or use."
    assert told("ab", "ba", "a") == "1 goes first by priority, share or use."
    assert told("ab", "ba", "b") == "you go before 1 by priority, share or use."


def test_a_changed_queue_position_names_the_earlier_one():
    assert told("ab", "ab", "b") == ""
    changes = PositionChanges()
    changes.see(*line("a", "b"), KINDS, NOW)
    changes.see({"b": 1}, [replace(line("b")[1][0]), running("a")], KINDS, NOW)
    assert changes.words("b", NOW).startswith("Place 2 became 1 at ")
    changes.see({}, [], KINDS, NOW)
    assert changes.words("b", NOW) == ""


def test_requests_for_other_gpus_do_not_count():
    changes = PositionChanges()
    numbers, leases = line("a", "b", "c")
    other = replace(leases[0], request=replace(leases[0].request, gpu="t4"))
    changes.see({"a": 1, "b": 1, "c": 2}, [other, *leases[1:]], KINDS, NOW)
    changes.see({"c": 1}, [leases[2], replace(leases[1], phase=Phase.RESERVED)], KINDS, NOW)
    assert numbers["c"] == 3
    assert changes.words("c", NOW).endswith(": 1 before you had its turn.")


@given(st.permutations("abcdef"), st.permutations("cdefgh"), st.sets(st.sampled_from("ab")))
def test_the_reported_reasons_add_up_to_the_change(before, after, started):
    """Each before who is not after is told as gone, each who is new as come, and those who changed sides as passing."""
    for name in "cdef":
        old, new = before.index(name) + 1, after.index(name) + 1
        words = told(before, after, name, also=[running(one) for one in started])
        counts = {"gone": 0, "come": 0, "fell": 0}
        for part in filter(None, words.removesuffix(".").split("; ")):
            number = next(int(word) for word in part.split() if word.isdigit())
            which = "gone" if "before you h" in part or "no more" in part else "come"
            counts["fell" if part.startswith("you go before") else which] += number
        assert new == old - counts["gone"] + counts["come"] - counts["fell"] or (old == new and not words)
