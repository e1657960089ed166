"""The exits of workspaces: the table of exit reasons, and every exit with its actor and its message.

A new reason is a line of EXIT_KINDS. A new exit is a function here, called where it is decided.
``transitions.finish`` applies an exit to a lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpuspawner.core.units import show_duration


class ExitReason(str, Enum):
    """The reason why a lease ended."""

    STOPPED = "stopped"
    IDLE = "idle"
    EXPIRED = "expired"
    PREEMPTED = "preempted"
    MOVED = "moved"
    CHANGED = "changed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"
    BUDGET = "budget"
    MADE_ROOM = "made room"
    NOT_ALLOWED = "not allowed"
    NOBODY_CAME = "nobody came"


FINAL_WARNINGS = frozenset({"claim", "preempted"})
"""Warnings of an end that the workspace's user cannot move."""


class QueueReturn(Enum):
    """When an ended workspace goes back to its queue position."""

    NEVER = "never"
    BY_POLICY = "by policy"
    ALWAYS = "always"


@dataclass(frozen=True)
class ExitKind:
    """The properties of all exits with one reason.

    ``by_others`` is set if gpuspawner or the cluster decided. Then the user gets a message and may dispute the exit.
    ``decider`` is the rule of gpuspawner that decided, for display. It may contain ``{policy}``.
    """

    words: str
    by_others: bool = False
    returns: QueueReturn = QueueReturn.NEVER
    decider: str = "gpuspawner"


EXIT_KINDS = {
    ExitReason.STOPPED: ExitKind("It was stopped"),
    ExitReason.IDLE: ExitKind("Stopped as idle", by_others=True, decider="the idle policy “{policy}”"),
    ExitReason.EXPIRED: ExitKind("It reached its end time", by_others=True, decider="its run time"),
    ExitReason.PREEMPTED: ExitKind("The cluster ended it", by_others=True, returns=QueueReturn.BY_POLICY),
    ExitReason.MOVED: ExitKind("It was moved to other GPUs", returns=QueueReturn.ALWAYS),
    ExitReason.CHANGED: ExitKind("It was restarted with other resources", returns=QueueReturn.ALWAYS),
    ExitReason.FAILED: ExitKind("It failed"),
    ExitReason.CANCELLED: ExitKind("Its start was cancelled"),
    ExitReason.ORPHANED: ExitKind("The hub no longer knew its server", by_others=True),
    ExitReason.BUDGET: ExitKind("Its budget was used up", by_others=True, decider="a budget"),
    ExitReason.MADE_ROOM: ExitKind(
        "It made room for a request with priority",
        by_others=True,
        returns=QueueReturn.BY_POLICY,
        decider="a request with priority",
    ),
    ExitReason.NOT_ALLOWED: ExitKind("It is not allowed any more", by_others=True),
    ExitReason.NOBODY_CAME: ExitKind("Not opened", by_others=True, decider="the claim of the policy “{policy}”"),
}


@dataclass(frozen=True)
class Exit:
    """One exit: its reason, its actor, and the message for the user.

    ``by`` is a user's name, ``gpuspawner``, ``hub``, ``cluster`` or another part. ``unseen`` is set for a waiting
    request whose user may be away and gets a message. ``where`` is the place of a person's action, for display.
    """

    reason: ExitReason
    by: str
    message: str
    unseen: bool = False
    where: str = ""

    def saying(self, why: str) -> Exit:
        """Return the exit with a reason for its user. "" adds no reason."""
        return replace(self, message=f"{self.message.rstrip('.')}: {why.rstrip('.')}.") if why else self


GPUSPAWNER, HUB, CLUSTER = "gpuspawner", "hub", "cluster"
UNKNOWN = "It was stopped from the hub. It is not known who stopped it."
CANCELLED = "The start was cancelled."

DIED = Exit(ExitReason.FAILED, HUB, "Its server ended by itself. Your files are untouched.")
ORPHANED = Exit(ExitReason.ORPHANED, GPUSPAWNER, "The hub no longer knew its server. Your files are untouched.")
STARTED_AGAIN = Exit(
    ExitReason.ORPHANED,
    GPUSPAWNER,
    "The hub started it again and no longer knew the server that ran. Your files are untouched.",
)
FORGOTTEN = Exit(
    ExitReason.CANCELLED, HUB, "The hub deleted its server or cancelled its start, so it lost its queue position."
)


def released(outcome: str, *, user: str, up: bool, disruption: str, stopper: str) -> Exit:
    """Return the exit that the spawner reports.

    Args:
        outcome: one of ``release.OUTCOMES``.
        user: the workspace's user.
        up: whether it ran.
        disruption: why the cluster was about to end it, or "".
        stopper: the person who stopped it, or "" if that is not known.
    """
    if outcome == "preempted" or (outcome == "died" and disruption):  # it was seen coming
        return preempted(disruption)
    if outcome == "cancelled":
        return Exit(ExitReason.CANCELLED, user, CANCELLED)
    if outcome == "stopped" and up:
        return stopped_from_hub(stopper)
    return _OF_RELEASE[outcome]


_OF_RELEASE = {
    "failed": Exit(ExitReason.FAILED, HUB, "The server did not start. Nothing was charged; your files are safe."),
    "stopped": Exit(
        ExitReason.FAILED, HUB, "Its server was stopped before it answered: cancelled, or too slow to start."
    ),
    "quit": Exit(
        ExitReason.STOPPED,
        "its own server",
        "It was shut down from inside, for example from JupyterLab's menu. Your files are untouched.",
    ),
    "died": DIED,
    "shutdown": Exit(
        ExitReason.STOPPED, "hub shutdown", "It was stopped because the hub was shut down. Your files are untouched."
    ),
}


def vanished(*, disruption: str, newer_server: bool, adopted: bool) -> Exit:
    """Return the exit of a workspace that vanished from hub and backend without a report."""
    if disruption:
        return preempted(disruption)
    if newer_server:
        words = "A newer server runs in its place. The hub did not see how this one ended. Your files are untouched."
        return Exit(ExitReason.ORPHANED, HUB, words)
    return Exit(ExitReason.STOPPED, HUB, "It was stopped from the hub.") if adopted else DIED


def preempted(why: str) -> Exit:
    """Return the exit of a workspace that its backend ended."""
    words = why or "The cluster ended it for something more important. Your files are untouched."
    return Exit(ExitReason.PREEMPTED, CLUSTER, words)


def stopped_from_hub(stopper: str) -> Exit:
    """Return the exit of a workspace that ``stopper`` stopped in the hub. "" means that the person is not known."""
    if not stopper:
        return Exit(ExitReason.STOPPED, HUB, UNKNOWN)
    return Exit(ExitReason.STOPPED, stopper, f"It was stopped by {stopper}, from the hub.")


def named(told: Exit, user: str, stopper: str) -> Exit | None:
    """Return the corrected exit of ``user``'s workspace once its stopper is known, or None if nothing changes.

    The first report had no name, or assumed that the user stopped it.
    """
    if told.reason is ExitReason.STOPPED and told.message == UNKNOWN:
        return stopped_from_hub(stopper)
    if told.reason is ExitReason.CANCELLED and told.message == CANCELLED and stopper != user:
        return Exit(ExitReason.CANCELLED, stopper, f"The start was cancelled by {stopper}.")
    return None


def stopped_by(who: str, where: str, why: str = "") -> Exit:
    """Return the exit by a person from a page, the API or the command line. ``why`` is an administrator's reason."""
    return Exit(ExitReason.STOPPED, who, f"It was stopped by {who}, from {where}.", where=where).saying(why)


def withdrawn(who: str, where: str = "", why: str = "") -> Exit:
    """Return the exit of a waiting request that a person withdraws. ``why`` is an administrator's reason."""
    words = f"The request was withdrawn by {who}." if why else "The request was withdrawn."
    return Exit(ExitReason.CANCELLED, who, words, unseen=bool(why), where=where).saying(why)


def moved_by(who: str, where: str, why: str) -> Exit:
    """Return the exit of a workspace that an administrator moves to other GPUs."""
    end = Exit(ExitReason.MOVED, who, f"{who} moved it, from {where}.", where=where).saying(why)
    then = "It starts again by itself, elsewhere where there is room. Your files are untouched."
    return replace(end, message=f"{end.message} {then}")


def moved(who: str, where: str, unhealthy: Sequence[str]) -> Exit:
    """Return the exit of a workspace that its user moves away from failed GPUs."""
    words = (
        f"{who} moved it, from {where}, because {', '.join(unhealthy)} was reported unhealthy. "
        "It starts again by itself on another GPU. Your files are untouched."
    )
    return Exit(ExitReason.MOVED, who, words, where=where)


def goes_on(who: str, where: str, gpus: str) -> Exit:
    """Return the exit of a workspace that its user restarts with ``gpus``, which are other GPUs or no GPU, in words."""
    words = f"{who} goes on with {gpus}, from {where}. It starts again by itself. Your files are untouched."
    return Exit(ExitReason.CHANGED, who, words, where=where)


def idle(measured: str, grace_seconds: float) -> Exit:
    """Return the exit of an idle workspace. ``measured`` is a sentence about its idleness."""
    words = f"{measured} Nobody kept it in the {show_duration(grace_seconds)} after the warning."
    return Exit(ExitReason.IDLE, GPUSPAWNER, words)


def nobody_came(claim_seconds: float) -> Exit:
    """Return the exit of a workspace that became ready while its user was away and was never opened."""
    words = (
        f"In the {show_duration(claim_seconds)} since it was ready nobody opened it, connected to it or used its GPU, "
        "so its GPU goes to the next request in the queue. Asking again joins the end of the queue. "
        "Your files are untouched."
    )
    return Exit(ExitReason.NOBODY_CAME, GPUSPAWNER, words)


def expired(lifetime_seconds: float) -> Exit:
    """Return the exit of a workspace whose lifetime is over."""
    return Exit(ExitReason.EXPIRED, GPUSPAWNER, f"Its lifetime was {show_duration(lifetime_seconds)}.")


def not_started(tries: int) -> Exit:
    """Return the exit of a request whose starts the hub dropped."""
    words = f"The hub did not start it in {tries} tries. Press Start to ask again; your files are untouched."
    return Exit(ExitReason.FAILED, GPUSPAWNER, words)


def not_offered(why: str) -> Exit:
    """Return the exit of a waiting request that the catalog no longer offers."""
    words = f"The catalog no longer offers what this request asked for. {why} Press Start to request it again."
    return Exit(ExitReason.FAILED, GPUSPAWNER, words, unseen=True)


def refused(why: str) -> Exit:
    """Return the exit of a waiting request that its scheduler never grants. ``why`` is the scheduler's sentence."""
    return Exit(
        ExitReason.FAILED, "scheduler", f"Its scheduler refused it: {why} Press Start to request it again.", unseen=True
    )


def refused_by_hub(why: str) -> Exit:
    """Return the exit of a request for a named workspace that the hub refuses. ``why`` is the hub's sentence."""
    words = f"The hub does not start it: {why.rstrip('.')}. Start it without a name, or stop and delete another one."
    return Exit(ExitReason.FAILED, HUB, words, unseen=True)


def impossible(why: str, waited_seconds: float) -> Exit:
    """Return the exit of a waiting request that could not start, however many GPUs were free."""
    words = f"It waited {show_duration(waited_seconds)} and could not start: {why} Press Start to request it again."
    return Exit(ExitReason.FAILED, GPUSPAWNER, words, unseen=True)


def budget_used_up(words: str) -> Exit:
    """Return the exit of a workspace whose budget is used up. ``words`` is a sentence that names the budget."""
    return Exit(ExitReason.BUDGET, GPUSPAWNER, words)


def made_room(why: str, by: str) -> Exit:
    """Return the exit of a workspace whose GPUs a stronger claim needed. ``why`` is the sentence of its warning."""
    return Exit(ExitReason.MADE_ROOM, by, f"{why} Your files are untouched.")


def not_allowed(group: str) -> Exit:
    """Return the exit of a waiting request whose user has left the group that it needs."""
    words = f"You are no longer in {group}. Press Start to request one for another team or template."
    return Exit(ExitReason.NOT_ALLOWED, GPUSPAWNER, words, unseen=True)
