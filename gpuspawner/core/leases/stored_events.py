"""Every event by the name under which it is stored, and events as they are written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuspawner.core import action_events
from gpuspawner.core.leases import events


@dataclass(frozen=True)
class Other(events.Event):
    """An event that another version stored, under a name that this version does not know."""

    called: str = ""
    name, words = "other", "Other"

    @property
    def action(self) -> str:
        """Its name there."""
        return self.called


EVENTS: Mapping[str, type[events.Event]] = {
    kind.name: kind
    for module in (events, action_events)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and "name" in vars(kind)
}


def fields_of(event: events.Event) -> dict[str, Any] | None:
    """Return the stored fields of an event, without name and text; None for an event that has only its text."""
    return None if event.said else {name: value for name, value in asdict(event).items() if name != "said"}


def event_of(name: str, fields: Mapping[str, Any] | None, text: str) -> events.Event:
    """Return a stored event; ``fields`` None where an older version stored it, or they are damaged: by its text."""
    kind = EVENTS.get(name)
    if kind is None:
        return Other(called=name, said=text)
    if not isinstance(fields, Mapping):
        return kind(said=text)
    known: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    try:
        return kind(**known)
    except TypeError:  # a field that another version has
        return kind(said=text)
