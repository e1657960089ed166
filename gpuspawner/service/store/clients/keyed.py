"""The idempotency key of the request that is served now: its first write stores the key in the same transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import Context, ContextVar
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.service.store.clients.answers import AnswerRow


@dataclass(eq=False)
class KeyedAct:
    """What a request with a key does.

    ``row`` has no answer until it is known. ``stored``: a write carried it. ``taken``: no write is to carry it now.
    """

    row: AnswerRow
    taken: bool = False
    stored: bool = False


_current: ContextVar[KeyedAct | None] = ContextVar("keyed act", default=None)


def begin(row: AnswerRow) -> KeyedAct:
    """Have the next write of this task, and of what it calls, store the key."""
    act = KeyedAct(row)
    _current.set(act)
    return act


def take_key() -> AnswerRow | None:
    """Return the row that a write is to store beside what it writes; None where there is none, or no more."""
    act = _current.get()
    if act is None or act.taken:
        return None
    act.taken = act.stored = True
    return act.row


def give_up_key() -> None:
    """Let no write store the key: what is written next is a refusal, which may be tried again by the same key."""
    if (act := _current.get()) is not None:
        act.taken = True


def announce(answer: Mapping[str, Any]) -> None:
    """Say what will be answered, before the write: then it is stored in the same transaction."""
    if (act := _open_act()) is not None:
        act.row = replace(act.row, text=json.dumps(answer))


def announce_about(name: str) -> None:
    """Say what the act is about, before the write: a repeated request answers that as it is by then."""
    if (act := _open_act()) is not None:
        act.row = replace(act.row, about=name)


def _open_act() -> KeyedAct | None:
    act = _current.get()
    return None if act is None or act.taken else act


def context_of_no_act() -> Context:
    """Return the context for a task that outlives the request that happens to begin it."""
    return Context()
