"""Events: every one comes back from the store as it was, with its fields and no sentence."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspawner.core.events import EVENTS, Audience, Event, Other, WarnedIdle, WarnedOfEnd, event_of, fields_of

EVERY_KIND = pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.name)


@EVERY_KIND
@settings(max_examples=5)
@given(st.data())
def test_an_event_comes_back_as_it_was_stored(kind, data):
    event = data.draw(st.builds(kind))
    stored = json.loads(json.dumps(fields_of(event)))
    assert event_of(event.name, stored) == event
    assert event_of(event.name, {**stored, "later": 1}) == event


@pytest.mark.parametrize(("name", "stored"), [("of a later version", {}), ("granted", None), ("granted", ["damaged"])])
def test_an_event_that_is_not_known_keeps_its_name(name, stored):
    event = event_of(name, stored)
    assert (event.action, event.describe(0.0)) == (name, "")


@EVERY_KIND
def test_every_event_has_its_words_and_details(kind):
    assert kind.words[0].isupper()
    assert kind.name.islower() or "'" in kind.name
    assert issubclass(kind, Event)
    assert kind is not Other
    assert "{" not in kind().describe(0.0)


def test_both_warnings_are_one_action_and_two_events():
    assert WarnedIdle(1, 1800.0).action == WarnedOfEnd(600.0).action == "warned"
    assert WarnedOfEnd(600.0).describe(0.0) == "ends in 10 min"
    assert WarnedIdle(1, 1800.0, "", 1.0).describe(0.0) == "The GPU has been idle for 30 min. Its highest use was 1 %."
    assert {WarnedIdle.told, WarnedOfEnd.told} == {Audience.USER}
