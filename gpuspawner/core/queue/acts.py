"""Events in the history of waiting requests."""

from __future__ import annotations

from gpuspawner.core.leases.events import TextEvent


class Passed(TextEvent):
    """A later request was granted GPUs before this one. ``text`` is the rule of the order."""

    name, words = "passed", "A later request went first"
