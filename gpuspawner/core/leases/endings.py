"""Why workspaces end: the table of reasons, and each end that there is, with who decided and in which words.

A new reason is a line of ENDINGS, a new end a function here, called where it is decided. ``lease.finish`` carries them
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpuspawner.core.units import show_duration


class Reason(str, Enum):
    """Why a lease ended. Exactly one."""

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
"""Kinds of warnings of an end that others decided. The workspace's user cannot move it."""


class Return(Enum):
    """Whether what ended goes back to its place in the queue."""

    NEVER = "never"
    BY_POLICY = "by policy"
    ALWAYS = "always"


@dataclass(frozen=True)
class Ending:
    """What holds for every end of one reason.

    ``by_others``: gpuspawner or the cluster decided. Its user is told, and may call it wrong. ``decider`` is what
    decided where gpuspawner did, as pages name it; it may hold ``{policy}``.
    """

    words: str
    by_others: bool = False
    returns: Return = Return.NEVER
    decider: str = "gpuspawner"


ENDINGS = {
    Reason.STOPPED: Ending("It was stopped"),
    Reason.IDLE: Ending("It was idle", by_others=True, decider="the idle policy “{policy}”"),
    Reason.EXPIRED: Ending("Its time was over", by_others=True, decider="the lifetime it was asked with"),
    Reason.PREEMPTED: Ending("The cluster ended it", by_others=True, returns=Return.BY_POLICY),
    Reason.MOVED: Ending("It was moved to other GPUs", returns=Return.ALWAYS),
    Reason.CHANGED: Ending("It was stopped to go on otherwise", returns=Return.ALWAYS),
    Reason.FAILED: Ending("It failed"),
    Reason.CANCELLED: Ending("Its start was cancelled"),
    Reason.ORPHANED: Ending("The hub had lost sight of it", by_others=True),
    Reason.BUDGET: Ending("Its budget was used up", by_others=True, decider="a budget"),
    Reason.MADE_ROOM: Ending(
        "It made room for a stronger claim", by_others=True, returns=Return.BY_POLICY, decider="a stronger claim"
    ),
    Reason.NOT_ALLOWED: Ending("It is not allowed any more", by_others=True),
    Reason.NOBODY_CAME: Ending("Nobody came", by_others=True, decider="the claim of the policy “{policy}”"),
}


@dataclass(frozen=True)
class End:
    """One end: its reason, who or what decided, and what its user reads.

    ``by`` is a user's name, ``gpuspawner``, ``hub``, ``cluster`` or another part. ``unseen``: it waited, and nobody may
    be looking, so that its user is to be told. ``where`` is from where a person did it, in words.
    """

    reason: Reason
    by: str
    message: str
    unseen: bool = False
    where: str = ""

    def saying(self, why: str) -> End:
        """Return it with a reason that its user reads; "" for none."""
        return replace(self, message=f"{self.message.rstrip('.')}: {why.rstrip('.')}.") if why else self


GPUSPAWNER, HUB, CLUSTER = "gpuspawner", "hub", "cluster"
UNKNOWN = "It was stopped from the hub; by whom is not known."
CANCELLED = "The start was cancelled."

DIED = End(Reason.FAILED, HUB, "Its server ended by itself. Your files are untouched.")
ORPHANED = End(Reason.ORPHANED, GPUSPAWNER, "The hub no longer knew its server. Your files are untouched.")
STARTED_AGAIN = End(
    Reason.ORPHANED,
    GPUSPAWNER,
    "The hub started it again and no longer knew the server that ran. Your files are untouched.",
)
FORGOTTEN = End(Reason.CANCELLED, HUB, "The hub deleted its server or cancelled its start, and with it its place.")


def released(outcome: str, *, user: str, up: bool, disruption: str, stopper: str) -> End:
    """Return the end that the spawner tells.

    Args:
        outcome: one of ``release.OUTCOMES``.
        user: the workspace's user.
        up: whether it ran.
        disruption: why the cluster was about to end it, "" where it was not.
        stopper: whose request stopped it, "" where that is not known.
    """
    if outcome == "preempted" or (outcome == "died" and disruption):  # it was seen coming
        return preempted(disruption)
    if outcome == "cancelled":
        return End(Reason.CANCELLED, user, CANCELLED)
    if outcome == "stopped" and up:
        return stopped_from_hub(stopper)
    return _OF_RELEASE[outcome]


_OF_RELEASE = {
    "failed": End(Reason.FAILED, HUB, "The server did not start. Nothing was charged; your files are safe."),
    "stopped": End(Reason.FAILED, HUB, "Its server was stopped before it answered: cancelled, or too slow to start."),
    "quit": End(
        Reason.STOPPED,
        "its own server",
        "It was shut down from inside, for example from JupyterLab's menu. Your files are untouched.",
    ),
    "died": DIED,
    "shutdown": End(
        Reason.STOPPED, "hub shutdown", "It was stopped because the hub was shut down. Your files are untouched."
    ),
}


def vanished(*, disruption: str, newer_server: bool, adopted: bool) -> End:
    """Return the end of a workspace that neither hub nor backend show any more, and of which nobody told."""
    if disruption:
        return preempted(disruption)
    if newer_server:
        words = "A newer server runs in its place, and how this one ended was not seen. Your files are untouched."
        return End(Reason.ORPHANED, HUB, words)
    return End(Reason.STOPPED, HUB, "It was stopped from the hub.") if adopted else DIED


def preempted(why: str) -> End:
    """Return the end by the backend that a workspace ran on."""
    words = why or "The cluster ended it for something more important. Your files are untouched."
    return End(Reason.PREEMPTED, CLUSTER, words)


def stopped_from_hub(stopper: str) -> End:
    """Return the end by a stop of the hub's; ``stopper`` is whose request that was, "" where it is not known."""
    if not stopper:
        return End(Reason.STOPPED, HUB, UNKNOWN)
    return End(Reason.STOPPED, stopper, f"It was stopped by {stopper}, from the hub.")


def named(told: End, user: str, stopper: str) -> End | None:
    """Return an end of ``user``'s workspace by its name, once it is known whose request it was; None for no change.

    An end was told without a name, or with the most likely one, its user's, and it was another's.
    """
    if told.reason is Reason.STOPPED and told.message == UNKNOWN:
        return stopped_from_hub(stopper)
    if told.reason is Reason.CANCELLED and told.message == CANCELLED and stopper != user:
        return End(Reason.CANCELLED, stopper, f"The start was cancelled by {stopper}.")
    return None


def stopped_by(who: str, where: str, why: str = "") -> End:
    """Return the end by a person, from a page, the API or the command line; ``why`` is what an administrator says."""
    return End(Reason.STOPPED, who, f"It was stopped by {who}, from {where}.", where=where).saying(why)


def withdrawn(who: str, where: str = "", why: str = "") -> End:
    """Return the end of a request that a person takes back while it waits; ``why`` is what an administrator says."""
    words = f"The request was withdrawn by {who}." if why else "The request was withdrawn."
    return End(Reason.CANCELLED, who, words, unseen=bool(why), where=where).saying(why)


def moved_by(who: str, where: str, why: str) -> End:
    """Return the end of a workspace that an administrator moves to other GPUs."""
    end = End(Reason.MOVED, who, f"{who} moved it, from {where}.", where=where).saying(why)
    then = "It starts again by itself, elsewhere where there is room. Your files are untouched."
    return replace(end, message=f"{end.message} {then}")


def moved(who: str, where: str, unhealthy: Sequence[str]) -> End:
    """Return the end of a workspace that its user moves off GPUs that failed."""
    words = (
        f"{who} moved it, from {where}, because {', '.join(unhealthy)} was reported unhealthy. "
        "It starts again by itself on another GPU. Your files are untouched."
    )
    return End(Reason.MOVED, who, words, where=where)


def goes_on(who: str, where: str, gpus: str) -> End:
    """Return the end of a workspace that goes on with other GPUs, or none, in its user's words: ``gpus``."""
    words = f"{who} goes on with {gpus}, from {where}. It starts again by itself. Your files are untouched."
    return End(Reason.CHANGED, who, words, where=where)


def idle(measured: str, grace_seconds: float) -> End:
    """Return the end of an idle workspace; ``measured`` is what was, in a sentence."""
    words = f"{measured} Nobody kept it in the {show_duration(grace_seconds)} after the warning."
    return End(Reason.IDLE, GPUSPAWNER, words)


def nobody_came(claim_seconds: float) -> End:
    """Return the end of a workspace that came while its user was away, and to which nobody came."""
    words = (
        f"In the {show_duration(claim_seconds)} since it was ready nobody opened it, connected to it or used its GPU, "
        "so it goes to who waits next. Asking again joins the end of the queue. Your files are untouched."
    )
    return End(Reason.NOBODY_CAME, GPUSPAWNER, words)


def expired(lifetime_seconds: float) -> End:
    """Return the end of a workspace whose time is over."""
    return End(Reason.EXPIRED, GPUSPAWNER, f"Its lifetime was {show_duration(lifetime_seconds)}.")


def not_started(tries: int) -> End:
    """Return the end of a request whose starts the hub dropped."""
    words = f"The hub did not start it in {tries} tries. Press Start to ask again; your files are untouched."
    return End(Reason.FAILED, GPUSPAWNER, words)


def not_offered(why: str) -> End:
    """Return the end of a waiting request that the catalog offers no more."""
    words = f"What it waited for is not offered any more. {why} Press Start to ask anew."
    return End(Reason.FAILED, GPUSPAWNER, words, unseen=True)


def refused(why: str) -> End:
    """Return the end of a waiting request that its scheduler never grants; ``why`` in the scheduler's words."""
    return End(Reason.FAILED, "scheduler", f"Its scheduler refused it: {why} Press Start to ask anew.", unseen=True)


def refused_by_hub(why: str) -> End:
    """Return the end of a request for a named workspace that the hub does not have; ``why`` in the hub's words."""
    words = f"The hub does not start it: {why.rstrip('.')}. Start it without a name, or stop and delete another one."
    return End(Reason.FAILED, HUB, words, unseen=True)


def impossible(why: str, waited_seconds: float) -> End:
    """Return the end of a waiting request that could not start, however much was free."""
    words = f"It waited {show_duration(waited_seconds)} and could not start: {why} Press Start to ask anew."
    return End(Reason.FAILED, GPUSPAWNER, words, unseen=True)


def budget_used_up(words: str) -> End:
    """Return the end of a workspace whose budget is used up; ``words`` name it, in a sentence."""
    return End(Reason.BUDGET, GPUSPAWNER, words)


def made_room(why: str, by: str) -> End:
    """Return the end of a workspace whose GPUs a stronger claim needed; ``why`` is what its user was told."""
    return End(Reason.MADE_ROOM, by, f"{why} Your files are untouched.")


def not_allowed(group: str) -> End:
    """Return the end of a waiting request whose user has left the group that it needs."""
    words = f"You are no longer in {group}. Press Start to ask anew, for another team or template."
    return End(Reason.NOT_ALLOWED, GPUSPAWNER, words, unseen=True)
