"""Notices: which steps are notices, whether they are read, and announcements."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core import events
from gpuspawner.core.administration import (
    LONGEST_CHARACTERS,
    UNWATCHED_SECONDS,
    Announcement,
    AnnouncementAudience,
    LeaseStep,
    ReadMarks,
    merge_notices,
    notices_of,
    parse_announcement,
    parse_audience,
)
from gpuspawner.core.units import BadValue

NOW = 1_000_000.0


def step(number, event, actor="gpuspawner", **changes):
    usual = LeaseStep(number, NOW + number, "one", "", "alice", NOW - 3600, seen=False, actor=actor, event=event)
    return replace(usual, **changes)


GRANTED = events.Granted(("GPU-1",))
STOPPED = events.Stopped("stopped", "It was stopped by carol.")
ENDED = events.Stopped("idle", "Nothing was done on it.")


def test_an_end_has_the_title_of_its_reason_and_says_who_did_it():
    (notice,) = notices_of([step(1, STOPPED, actor="carol")], ReadMarks())
    assert (notice.kind, notice.title, notice.text, notice.by) == (
        STOPPED.name,
        "It was stopped",
        "It was stopped by carol.",
        "carol",
    )
    assert notice.unread
    assert notice.ends
    (unknown,) = notices_of([step(1, replace(STOPPED, reason="of another version"))], ReadMarks())
    assert (unknown.title, unknown.by) == ("Workspace ended", "")


def test_that_it_came_is_a_notice_to_who_waited_for_long():
    came = step(1, GRANTED)
    (notice,) = notices_of([came], ReadMarks())
    assert notice.text.startswith("The wait was 1 h")
    assert notices_of([replace(came, asked_at=came.at - UNWATCHED_SECONDS + 1)], ReadMarks()) == ()


def test_acting_marks_a_user_as_present_and_reading_an_end_marks_its_causes_read():
    came, left = step(1, GRANTED), step(3, ENDED)
    assert [one.unread for one in notices_of([came, left], ReadMarks())] == [True, True]
    did = step(2, events.Stopped("stopped", "By their own hand."), actor="alice")
    assert [one.unread for one in notices_of([came, did, left], ReadMarks())] == [True, False]
    assert [one.unread for one in notices_of([came, replace(left, seen=True)], ReadMarks())] == [False, False]
    other = step(4, GRANTED, lease="two")
    assert [one.unread for one in notices_of([came, replace(left, seen=True), other], ReadMarks())] == [
        True,
        False,
        False,
    ]


@given(until=st.floats(0, 2 * NOW), ids=st.sets(st.sampled_from(["s1", "s2", "m1"])))
def test_only_marked_messages_become_read(until, ids):
    marks = ReadMarks(until, frozenset(ids))
    steps = [step(1, GRANTED, lease="a"), step(2, ENDED, lease="b")]
    for one in notices_of(steps, marks):
        assert one.unread == (one.at > until and one.id not in ids)
    notice = message().notice(marks)
    assert notice.unread == (message().made_at > until and "m1" not in ids)


def message(**changes):
    usual = Announcement(
        "1", AnnouncementAudience.GROUP, "vision", frozenset({"alice born"}), "Friday", "carol", NOW, NOW + 60
    )
    return replace(usual, **changes)


def test_a_message_is_shown_to_its_recipients_until_its_end():
    own, to_all = message(), message(whom=AnnouncementAudience.ALL, name="", recipients=frozenset())
    assert (own.is_for("alice born"), own.is_for("bob born"), to_all.is_for("bob born")) == (True, False, True)
    assert (own.to, own.to_words, to_all.to, to_all.to_words) == (
        "group:vision",
        "the group vision",
        "all",
        "everybody",
    )
    withdrawn = message(withdrawn_at=NOW + 1, withdrawn_by="carol")
    assert [one.state(NOW + 2) for one in (own, withdrawn)] == ["shown", "withdrawn"]
    assert [one.is_shown(NOW + 2) for one in (own, withdrawn)] == [True, False]
    assert (own.state(NOW + 60), own.is_shown(NOW + 60)) == ("over", False)
    assert merge_notices([own.notice(ReadMarks())], notices_of([step(9, ENDED)], ReadMarks()))[0].kind == ENDED.name


def test_recipients_and_texts_are_parsed_strictly():
    assert parse_audience("all") == (AnnouncementAudience.ALL, "")
    assert parse_audience("user:a:b") == (AnnouncementAudience.USER, "a:b")
    assert parse_announcement("  one \n two ") == "one\ntwo"
    for wrong in ("", "everybody", "user:", "team:x", "group:" + "x" * 256, None, 3):
        with pytest.raises(BadValue):
            parse_audience(wrong)
    for wrong in ("", "  ", None, "x" * (LONGEST_CHARACTERS + 1), "a\x1b[2Jb", "a\u202eb"):
        with pytest.raises(BadValue):
            parse_announcement(wrong)
