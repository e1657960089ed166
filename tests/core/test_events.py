"""Events: every one comes back from the store as it was, and tells the same in a version that knows less of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.leases.events import Event, Told, WarnedIdle, WarnedOfEnd
from gpuspawner.core.leases.stored_events import EVENTS, Other, event_of, fields_of

EVERY = st.sampled_from(sorted(EVENTS.values(), key=lambda kind: kind.name)).flatmap(
    lambda kind: st.builds(kind, said=st.just(""))
)


@given(EVERY)
def test_an_event_comes_back_as_it_was_stored(event):
    stored = json.loads(json.dumps(fields_of(event)))
    assert event_of(event.name, stored, event.why) == event


@given(EVERY)
def test_what_another_version_stored_tells_its_text(event):
    for fields in (None, {**fields_of(event), "later": 1}):
        told = event_of(event.name, fields, "As it was.")
        assert (type(told), told.why) == (type(event), "As it was.")
        assert fields_of(told) is None
    assert event_of("of a later version", {}, "As it was.").action == "of a later version"


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.name)
def test_every_event_has_its_words(kind):
    assert kind.words[0].isupper()
    assert kind.name.islower() or "'" in kind.name
    assert issubclass(kind, Event)
    assert kind is not Other


def test_both_warnings_are_one_action_and_two_events():
    assert WarnedIdle("GPU 0 has done nothing.").action == WarnedOfEnd(600.0).action == "warned"
    assert WarnedOfEnd(600.0).why == "ends in 10 min"
    assert {WarnedIdle.told, WarnedOfEnd.told} == {Told.USER}
