"""Inbox and messages as documents: what API, pages and JupyterLab show."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.inbox.messages import Message
from gpuspawner.core.inbox.notices import Notice
from gpuspawner.core.units import show_time
from gpuspawner.service.inbox.inboxes import Inbox
from gpuspawner.service.parts import Parts

LISTED = 200
"""How many notices are listed, at most. Arbitrary: more than anybody reads."""


def message_view(one: Message, now: float) -> dict[str, Any]:
    """Return a message as administrators see it."""
    return {
        "id": one.id,
        "to": one.to,
        "to_words": one.to_words,
        "text": one.text,
        "by": one.by,
        "made_at": one.made_at,
        "until": one.until,
        "until_words": show_time(one.until, now),
        "state": one.state(now),
        "withdrawn_at": one.withdrawn_at,
        "withdrawn_by": one.withdrawn_by or None,
    }


def shown_view(one: Message, now: float) -> dict[str, Any]:
    """Return a message as those see it whom it is for. Its ``id`` is that of its notice."""
    until = show_time(one.until, now)
    return {
        "id": f"m{one.id}", "text": one.text, "by": one.by, "made_at": one.made_at,
        "until": one.until, "until_words": until,
    }  # fmt: skip


def notice_view(parts: Parts, one: Notice) -> dict[str, Any]:
    """Return a notice."""
    page = f"{parts.prefix.rstrip('/')}/workspaces/{one.lease}" if one.lease else None
    return {
        "id": one.id,
        "at": one.at,
        "kind": one.kind,
        "title": one.title,
        "text": one.text,
        "page": page,
        "server": one.server if one.lease else None,
        "by": one.by,
        "unread": one.unread,
    }


def inbox_view(parts: Parts, inbox: Inbox, *, unread: bool = False) -> dict[str, Any]:
    """Return an inbox; ``unread``: only what is not read."""
    now = parts.clock.now()
    listed = [one for one in inbox.notices if one.unread or not unread][:LISTED]
    return {
        "notices": [notice_view(parts, one) for one in listed],
        "unread": inbox.unread,
        "messages": [shown_view(one, now) for one in inbox.messages],
        "now": now,
    }
