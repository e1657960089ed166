"""Events: every one comes back from the store as it was, and tells the same in a version that knows less of it."""

import json

import pytest
from gpuspawner.core.events import EVENTS, Audience, Event, Other, WarnedIdle, WarnedOfEnd, event_of, fields_of
from hypothesis import given, settings
from hypothesis import strategies as st

EVERY_KIND = pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.name)


@EVERY_KIND
@settings(max_examples=5)
@given(st.data())
def test_an_event_comes_back_as_it_was_stored_and_tells_its_text_in_another_version(kind, data):
    event = data.draw(st.builds(kind, said=st.just("")))
    stored = json.loads(json.dumps(fields_of(event)))
    assert event_of(event.name, stored, event.why) == event
    for fields in (None, {**fields_of(event), "later": 1}):
        told = event_of(event.name, fields, "As it was.")
        assert (type(told), told.why) == (kind, "As it was.")
        assert fields_of(told) is None


def test_an_event_of_a_later_version_keeps_its_name():
    assert event_of("of a later version", {}, "As it was.").action == "of a later version"


@EVERY_KIND
def test_every_event_has_its_words(kind):
    assert kind.words[0].isupper()
    assert kind.name.islower() or "'" in kind.name
    assert issubclass(kind, Event)
    assert kind is not Other


def test_both_warnings_are_one_action_and_two_events():
    assert WarnedIdle("The GPU has been idle.").action == WarnedOfEnd(600.0).action == "warned"
    assert WarnedOfEnd(600.0).why == "ends in 10 min"
    assert {WarnedIdle.told, WarnedOfEnd.told} == {Audience.USER}
