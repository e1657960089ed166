"""Audit events of actions by administrators and users."""

from __future__ import annotations

from gpuspawner.core.leases.events import Audience, TextEvent

# --- administrators


class EndAnnounced(TextEvent):
    """An administrator announced the end or the move of a workspace. ``text`` has the time and the reason."""

    name, words, told, marked = "end announced", "End announced", Audience.USER, True


class GpuClosed(TextEvent):
    """A GPU of the workspace, or its node, takes no new workspaces. ``text`` says which and why."""

    name, words, told = "gpu closed", "Its GPU is taken out of service", Audience.USER


class Drained(TextEvent):
    """An administrator drained a node."""

    name, words = "drained", "Drained a node"


class Quarantined(TextEvent):
    """An administrator put a GPU in quarantine."""

    name, words = "quarantined", "Put a GPU in quarantine"


class GrantsPaused(TextEvent):
    """An administrator paused a GPU kind or all grants."""

    name, words = "grants paused", "Paused grants"


class GpusReserved(TextEvent):
    """An administrator reserved GPUs for a user or a team."""

    name, words = "gpus reserved", "Reserved GPUs"


class Exempted(TextEvent):
    """An administrator exempted a workspace or a user from idle stops."""

    name, words = "exempted", "Exempted from idle stops"


class Lifted(TextEvent):
    """An administrator lifted a restriction."""

    name, words = "lifted", "Lifted a restriction"


class CatalogChanged(TextEvent):
    """A changed catalog is in force. ``text`` lists the changed entries."""

    name, words = "catalog changed", "Changed the catalog"


class ActionRefused(TextEvent):
    """An action of an administrator was refused. ``text`` says which and why."""

    name, words = "refused", "Refused"


class ClaimMade(TextEvent):
    """An administrator claimed GPUs in use. ``text`` has their number, their kind and the claimant."""

    name, words = "claim made", "Claimed GPUs"


class ClaimGivenUp(TextEvent):
    """An administrator gave up a claim."""

    name, words = "claim given up", "Gave up a claim"


class ClaimServed(TextEvent):
    """The claimed GPUs are in use by the claimant."""

    name, words = "claim served", "Used claimed GPUs"


# --- announcements


class AnnouncementSent(TextEvent):
    """An administrator sent an announcement. ``text`` has its readers, its end and its text."""

    name, words = "message sent", "Sent an announcement"


class AnnouncementWithdrawn(TextEvent):
    """An administrator withdrew an announcement."""

    name, words = "message withdrawn", "Withdrew an announcement"


# --- schedules


class ScheduleAdded(TextEvent):
    """A user added a schedule. ``text`` has its times."""

    name, words = "ready wished", "Added a schedule"


class ScheduleResumed(TextEvent):
    """A user resumed a paused schedule."""

    name, words = "ready resumed", "Resumed a schedule"


class SchedulePaused(TextEvent):
    """A user paused a schedule."""

    name, words = "ready halted", "Paused a schedule"


class ScheduleRemoved(TextEvent):
    """A user removed a schedule."""

    name, words = "ready removed", "Removed a schedule"


class ScheduleSuspended(TextEvent):
    """The service paused a schedule because the user missed several days. ``text`` says which and how many."""

    name, words, told = "ready paused", "Schedule paused: you missed it", Audience.USER


# --- the queue


class Passed(TextEvent):
    """A later request was granted GPUs first. ``text`` is the rule of the order."""

    name, words = "passed", "A later request went first"


# --- quotas and sign-in


class QuotaGranted(TextEvent):
    """An administrator adds to a quota or a budget for a time. ``text`` says how much, for whom and why."""

    name, words = "quota granted", "Granted more"


class QuotaTakenBack(TextEvent):
    """An administrator takes that back."""

    name, words = "quota taken back", "Took a grant back"


class SignedIn(TextEvent):
    """A user let a machine's command line act for them."""

    name, words = "signed in", "Let the command line act"


class SignedOut(TextEvent):
    """A user ended a token of the command line."""

    name, words = "signed out", "Ended a token of the command line"


class UsageCorrected(TextEvent):
    """An administrator corrects what was charged."""

    name, words = "usage corrected", "Corrected the use"
