"""Workspace events and exit reasons, from the tables of the code."""

from __future__ import annotations

from dataclasses import fields

from gpuspawner.core.events import EVENTS
from gpuspawner.core.leases.exits import EXIT_KINDS, QueueReturn
from tools.docs.reference.written import docstring, table

HEAD = """\
# Events and ends

## Events

What a workspace's history on its page, `GET /workspaces/ID/audit` and the store have, in the order of a workspace's
life. A message goes out by mail or chat where [notify](configure.md#settings-of-the-service) is set.

"""
ENDS = """
## Ends

Each workspace ends for exactly one reason. Where gpuspawner or the cluster decided, its user is told, and may call it
wrong.

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
