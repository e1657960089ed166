"""Sentences about claims: why a workspace ends, how it comes back, and the state of a claim."""

from __future__ import annotations

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.successors import is_by_share
from gpuspawner.core.queue.preemption import Preemption, PreemptionState
from gpuspawner.core.rules import EndNotice, LatestEnd
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.schedulers.base import Scheduler


def claim_reason(claim: Preemption, catalog: Catalog) -> str:
    """Return the claimant and the GPUs in a sentence for users whose workspaces end. It names no user."""
    who = claim.external or "Another request"
    if claim.account is not None and claim.account.team:
        team = catalog.rules.teams.get(claim.account.team)
        who = f"Team {(team and team.title) or claim.account.team}"
    gpus = f"{claim.asked} {gpu_title(claim.kind, catalog)}"
    if claim.lease:
        return f"A request within its share has waited for {gpus} for long, and you use more than your share."
    return f"{who} needs {gpus}."


def notice_words(notice: EndNotice, now: float, *, returns: str, mail: bool) -> str:
    """Return the warning before a workspace ends for a claim, or by an administrator.

    ``returns`` is how the workspace comes back, without a full stop, "" if it does not.
    """
    left = max(0.0, notice.at - now)
    then = "Running kernels are lost; files stay."
    if returns:
        tells = ", and you get a message when it runs" if mail else ""
        then += f" {returns}{tells}."
    else:
        then += " Start it again when you need it."
    end = f"Your workspace ends at {show_time(notice.at, now)} ({show_duration(left)}). Save now."
    why = notice.why if notice.preemption else f"{notice.by} {'moves' if notice.moves else 'stops'} it: {notice.why}."
    return f"{why} {end} {then}"


def reaches_into_words(hold: LatestEnd, ends_at: float | None, now: float) -> str:
    """Return the warning that a workspace runs into the time of a class."""
    end = "" if ends_at is None else f" until {show_time(ends_at, now)}"
    return (
        f"{hold.words} This workspace runs on these GPUs{end}. Nothing ends it for that, and it can't be extended. "
        "Please stop it before, if you can: files stay."
    )


def state_words(claim: Preemption, coming: int, now: float) -> str:
    """Return the state of a claim in a sentence. ``coming`` is the number of workspaces that end for it."""
    if claim.state is PreemptionState.COMING:
        if not coming or claim.ends_at is None:
            return "Its GPUs become free soon."
        who = "1 workspace ends" if coming == 1 else f"{coming} workspaces end"
        return f"{who} for it at {show_time(claim.ends_at, now)}."
    if claim.state is PreemptionState.HELD:
        return f"Its GPUs are free and kept for it until {show_time(claim.kept_until, now)}."
    return {
        PreemptionState.CLAIMED: "Its GPUs were claimed.",
        PreemptionState.GIVEN_UP: "Its administrator gave it up.",
        PreemptionState.LAPSED: "Nobody claimed its GPUs in time: they went to the queue.",
    }[claim.state]


BEFORE_LATER = "It returns to the queue before later requests of its priority, and starts again by itself"
BY_SHARE = "It returns to the queue, where its share decides its place, and starts again by itself"
ELSEWHERE = "It returns to the queue, and starts again by itself"


def return_words(scheduler: Scheduler, lease: Lease) -> str:
    """Return how a workspace comes back that ends for others or moves, in a sentence without its full stop."""
    if scheduler.capabilities_of(lease.request.gpu).owns_queue:
        return ELSEWHERE
    return BY_SHARE if is_by_share(lease) else BEFORE_LATER
