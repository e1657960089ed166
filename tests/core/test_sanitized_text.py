"""Words of other programs: what could show them as another text is gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.leases.reports import sanitize_text
from gpuspawner.schedulers.http.models import Capabilities, Reason


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Job \u202etxt.exe\u202c waits", "Job txt.exe waits"),
        ("a\u2066b\u2069\u200b", "ab"),
        ("two\nlines\r\x1b[31m", "two lines [31m"),
        ("Zürich, 東京, שלום", "Zürich, 東京, שלום"),
    ],
)
def test_characters_that_change_the_display_of_text_are_removed(text, shown):
    assert sanitize_text(text) == shown


@given(st.text())
def test_every_letter_that_is_left_is_one_that_people_see(text):
    assert sanitize_text(text).isprintable()
    assert sanitize_text(sanitize_text(text)) == sanitize_text(text)


def test_a_schedulers_words_and_name_reach_no_page_as_they_came():
    assert Reason(code="busy", words="by \u202eboss\u202c").words == "by boss"
    told = {"contract": "1", "version": "1", "positions": True, "estimates": True, "substitutes": False}
    told |= {"preemption_notice_seconds": None, "hold_seconds": 60, "callbacks": False}
    assert Capabilities(name="Slurm\u202e", **told).name == "Slurm"
