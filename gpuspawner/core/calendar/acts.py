"""What users do about workspaces that are ready at a time, and what comes of it, as events of the audit."""

from __future__ import annotations

from gpuspawner.core.leases.events import Audience, TextEvent


class ReadyWished(TextEvent):
    """A user wishes a workspace to be ready at a time of some days; ``text`` says when."""

    name, words = "ready wished", "Wished a workspace ready"


class ReadyResumed(TextEvent):
    """A user has a paused one asked for again."""

    name, words = "ready resumed", "Resumed a workspace ready at a time"


class ReadyHalted(TextEvent):
    """A user has one asked for no more until they resume it."""

    name, words = "ready halted", "Paused a workspace ready at a time"


class ReadyRemoved(TextEvent):
    """A user wishes it no more."""

    name, words = "ready removed", "Removed a workspace ready at a time"


class ReadyPaused(TextEvent):
    """Nobody came on several days in a row: it is asked for no more; ``text`` says which, and on how many."""

    name, words, told = "ready paused", "Paused: nobody came", Audience.USER
