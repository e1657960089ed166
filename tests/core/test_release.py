"""How a server ended, as text: what was written is read again, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.leases.reports import MESSAGE_CHARACTERS, OUTCOMES, ReleaseReport, storable

RELEASES = st.builds(
    ReleaseReport, lease=st.text(), attempt=st.integers(), outcome=st.sampled_from(sorted(OUTCOMES)), message=st.text()
)


@given(RELEASES)
def test_a_written_report_is_read_again(release):
    assert ReleaseReport.from_json(release.to_json()) == release


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="half of it"),
        pytest.param("7", id="a number"),
        pytest.param("[" * 100_000, id="lists in lists"),
        pytest.param('{"lease": "one"}', id="too little"),
        pytest.param(json.dumps({"lease": "one", "attempt": 1, "outcome": "stopped", "more": 1}), id="too much"),
        pytest.param(json.dumps({"lease": "one", "attempt": "1", "outcome": "stopped"}), id="another type"),
        pytest.param(json.dumps({"lease": "one", "attempt": True, "outcome": "stopped"}), id="a truth for a number"),
        pytest.param(json.dumps({"lease": "one", "attempt": 1, "outcome": "other"}), id="an outcome there is not"),
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        ReleaseReport.from_json(text)


def test_stored_messages_are_limited_to_text_of_every_store():
    assert storable("a\0b\ud800") == "a?b?"
    assert storable("x" * (MESSAGE_CHARACTERS + 1)) == "x" * MESSAGE_CHARACTERS
