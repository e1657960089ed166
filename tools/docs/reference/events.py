"""Workspace events and exit reasons, from the tables of the code."""

from __future__ import annotations

from dataclasses import fields

from gpuspawner.core.events import EVENTS
from gpuspawner.core.leases.exits import EXIT_KINDS, QueueReturn
from tools.docs.reference.written import docstring, table

HEAD = """\
# Events and ends

## Events

The history of a workspace has these events. You find it on its page and at `GET /api/v1/workspaces/ID/audit`. A message
goes out by mail or chat if `notify_users` is [set](configure.md#settings-of-the-service).

"""
ENDS = """
## Ends

Each workspace ends for exactly one reason. If the user did not decide, the user is told, and can report a wrong stop.

"""
BACK = {QueueReturn.NEVER: "no", QueueReturn.BY_POLICY: "as `preemption.back_in_queue` says", QueueReturn.ALWAYS: "yes"}


def events() -> str:
    """Return the page."""
    rows = []
    for name, kind in EVENTS.items():
        own = ", ".join(f"`{one.name}`" for one in fields(kind))
        rows.append((f"`{name}`", kind.words, docstring(kind), own, kind.told.value))
    happened = table(("event", "begins with", "when", "fields", "message to"), rows)
    ends = [
        (f"`{reason.value}`", end.words, "others" if end.by_others else "its user, or itself", BACK[end.returns])
        for reason, end in EXIT_KINDS.items()
    ]
    return HEAD + happened + ENDS + table(("reason", "what people read", "decided by", "back in the queue"), ends)
