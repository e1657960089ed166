"""A user calls an end wrong, and an administrator answers: each once for each end."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.disputes import Dispute
from gpuspawner.core.leases.lease import Lease


def dispute(lease: Lease, sentence: str, since: float, now: float) -> Lease:
    """Its user says that its end was wrong. Once for each end.

    Raises:
        Conflict: it has not ended, its end was called wrong before, or its user or its own failure ended it.
    """
    if lease.dispute is not None:
        raise Conflict("You have said so already. The administrator sees it; the answer comes on this page.")
    if not lease.disputable:
        what = "has not ended" if lease.live else f"ended as {lease.reason.value if lease.reason else 'unknown'}"
        raise Conflict(
            f"This workspace {what}: only an end that gpuspawner or the cluster decided can be called wrong."
        )
    return replace(lease, dispute=Dispute(now, sentence, since, lease.ended_at if lease.ended_at is not None else now))


def answer(lease: Lease, text: str, by: str, now: float) -> Lease:
    """An administrator answers a dispute: its user reads it as something new.

    Raises:
        Conflict: nobody called the end wrong, or it was answered before.
    """
    if lease.dispute is None:
        raise Conflict("Its user has not called this end wrong: there is nothing to answer.")
    if lease.dispute.answered_at is not None:
        raise Conflict(f"{lease.dispute.answered_by} has answered it already.")
    return replace(
        lease, seen_by_user=False, dispute=replace(lease.dispute, answer=text, answered_by=by, answered_at=now)
    )
