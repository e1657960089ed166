"""Inboxes and announcements as models. API, pages and JupyterLab show these models."""

from __future__ import annotations

from gpuspawner.core import administration
from gpuspawner.core.administration import Notice
from gpuspawner.core.units import show_time
from gpuspawner.service.announcements import models
from gpuspawner.service.announcements.inboxes import Inbox
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.permissions import Person

MAX_LISTED = 200
"""The most notices of a list. Arbitrary: more than anybody reads."""


async def inbox_of(state: Parts, person: Person) -> Inbox:
    """Return the inbox of a person, with the requests for extra quota that they answer."""
    return await state.inboxes.of(person.owner, person.name, person.teams_answered(state.catalog.rules))


def present_message(one: administration.Announcement, now: float) -> models.Message:
    """Return an announcement as administrators see it."""
    return models.Message(
        id=one.id,
        to=one.to,
        to_words=one.to_words,
        text=one.text,
        by=one.by,
        made_at=one.made_at,
        until=one.until,
        until_words=show_time(one.until, now),
        state=one.state(now),
        withdrawn_at=one.withdrawn_at,
        withdrawn_by=one.withdrawn_by or None,
    )


def present_shown(one: administration.Announcement, now: float) -> models.Shown:
    """Return an announcement as its readers see it. Its ``id`` is that of its notice."""
    return models.Shown(
        id=f"m{one.id}",
        text=one.text,
        by=one.by,
        made_at=one.made_at,
        until=one.until,
        until_words=show_time(one.until, now),
    )


def present_notice(state: Parts, one: Notice) -> models.Notice:
    """Return a notice."""
    return models.Notice(
        id=one.id,
        at=one.at,
        kind=one.kind,
        title=one.title,
        text=one.text,
        page=f"{state.prefix.rstrip('/')}/{one.page}" if one.page else None,
        server=one.server if one.lease else None,
        by=one.by,
        unread=one.unread,
    )


def present_inbox(state: Parts, inbox: Inbox, *, unread: bool = False) -> models.Inbox:
    """Return an inbox, with ``unread`` only the notices that are not read."""
    now = state.clock.now()
    listed = [one for one in inbox.notices if one.unread or not unread][:MAX_LISTED]
    return models.Inbox(
        notices=[present_notice(state, one) for one in listed],
        unread=inbox.unread,
        messages=[present_shown(one, now) for one in inbox.messages],
        now=now,
    )
