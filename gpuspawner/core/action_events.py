"""Audit events of what administrators and users do."""

from __future__ import annotations

from gpuspawner.core.leases.events import Audience, TextEvent

# --- administrators


class EndAnnounced(TextEvent):
    """An administrator ends it, or moves it, a little later; ``text`` is when and why."""

    name, words, told, marked = "end announced", "Told that it ends", Audience.USER, True


class GpuClosed(TextEvent):
    """A GPU of it, or its node, is given to nobody new; ``text`` is which and why."""

    name, words, told = "gpu closed", "Its GPU is taken out of service", Audience.USER


class Drained(TextEvent):
    """An administrator lets nobody new have a node."""

    name, words = "drained", "Drained a node"


class Quarantined(TextEvent):
    """An administrator lets nobody new have a GPU."""

    name, words = "quarantined", "Put a GPU in quarantine"


class GrantsPaused(TextEvent):
    """An administrator lets nobody have a kind of GPU, or anything."""

    name, words = "grants paused", "Paused grants"


class GpusReserved(TextEvent):
    """An administrator keeps GPUs free for somebody."""

    name, words = "gpus reserved", "Reserved GPUs"


class Exempted(TextEvent):
    """An administrator has a workspace, or those of a user, not judged as idle."""

    name, words = "exempted", "Exempted from idleness"


class Lifted(TextEvent):
    """An administrator lifts a restriction."""

    name, words = "lifted", "Lifted a restriction"


class CatalogChanged(TextEvent):
    """Another catalog is in force; ``text`` is which entries differ."""

    name, words = "catalog changed", "Changed the catalog"


class ActionRefused(TextEvent):
    """An administrator asked for what was refused; ``text`` is what and why."""

    name, words = "refused", "Refused"


class ClaimMade(TextEvent):
    """An administrator claims GPUs that others use; ``text`` is how many, of what and for whom."""

    name, words = "claim made", "Claimed GPUs"


class ClaimGivenUp(TextEvent):
    """An administrator gives such a claim up."""

    name, words = "claim given up", "Gave a claim up"


class ClaimServed(TextEvent):
    """Whom it is for has the GPUs that were claimed."""

    name, words = "claim served", "Took GPUs that were claimed"


# --- announcements


class AnnouncementSent(TextEvent):
    """An administrator sends people a message; ``text`` says to whom, until when, and what."""

    name, words = "message sent", "Sent a message"


class AnnouncementWithdrawn(TextEvent):
    """An administrator takes it from the pages."""

    name, words = "message withdrawn", "Withdrew a message"


# --- schedules


class ScheduleAdded(TextEvent):
    """A user wishes a workspace to be ready at a time of some days; ``text`` says when."""

    name, words = "ready wished", "Wished a workspace ready"


class ScheduleResumed(TextEvent):
    """A user has a paused one asked for again."""

    name, words = "ready resumed", "Resumed a workspace ready at a time"


class SchedulePaused(TextEvent):
    """A user has one asked for no more until they resume it."""

    name, words = "ready halted", "Paused a workspace ready at a time"


class ScheduleRemoved(TextEvent):
    """A user wishes it no more."""

    name, words = "ready removed", "Removed a workspace ready at a time"


class ScheduleSuspended(TextEvent):
    """Nobody came on several days in a row: it is asked for no more; ``text`` says which, and on how many."""

    name, words, told = "ready paused", "Paused: nobody came", Audience.USER


# --- the queue


class Passed(TextEvent):
    """A later request was granted GPUs before this one. ``text`` is the rule of the order."""

    name, words = "passed", "A later request went first"
