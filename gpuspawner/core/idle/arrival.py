"""Arrival: a workspace that became ready while its user was away waits for them for a time.

The same samples decide as for idleness. Idle time counts from the arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gpuspawner.core.idle.evidence import Evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import PROBED, GpuState
from gpuspawner.core.idle.verdicts import least_remaining_seconds

OPENED = "opened in a browser"


@dataclass(frozen=True)
class ArrivalSign:
    """Whether a sample shows the user's arrival. ``came`` is None if it is not known. ``words`` have the reason."""

    came: bool | None
    words: str = ""


@dataclass(frozen=True)
class Arrival:
    """The time that a workspace has waited for a user who was away, until the arrival.

    ``claim_seconds`` is the user's time to come, as it was at the grant. ``passed_seconds`` of it have passed while the
    user could come. In ``absent_seconds`` of these the user was certainly absent. ``warned_after_seconds`` had passed
    at the warning, or None.
    """

    claim_seconds: float
    passed_seconds: float = 0.0
    absent_seconds: float = 0.0
    warned_after_seconds: float | None = None

    @property
    def notice_seconds(self) -> float:
        """The least time between the warning and the release."""
        return self.claim_seconds / 2

    def is_known(self, policy: IdlePolicy) -> bool:
        """Return whether the user was certainly absent for enough of the time."""
        return self.absent_seconds >= policy.coverage * self.passed_seconds

    @property
    def left_seconds(self) -> float:
        """The rest of the user's time to come, if every later sample is known."""
        left = self.claim_seconds - self.passed_seconds
        if self.warned_after_seconds is not None:
            left = max(left, self.notice_seconds - (self.passed_seconds - self.warned_after_seconds))
        return max(0.0, left)


class ArrivalStep(str, Enum):
    """The consequence of a sample."""

    WAITS = "waits"
    CAME = "came"
    """The user came. The workspace is judged like any other."""
    WARN = "warn"
    """Half of the time has passed: warn the user."""
    NOBODY_CAME = "nobody came"
    """Release the GPUs. Only in mode enforce, and after a warning."""
    OVER = "over"
    """The time has passed and the GPUs are not released: idle time counts from now on."""


def arrival_sign(evidence: Evidence) -> ArrivalSign:
    """Return whether a sample shows the user's arrival.

    A loaded page, an SSH session, a kernel or terminal in use, a VS Code window, or a GPU in use is an arrival. The
    user is absent only if all of these are known.
    """
    if evidence.problem:
        return ArrivalSign(None, evidence.problem)
    if evidence.opened:
        return ArrivalSign(came=True, words=OPENED)
    if active := [one.words for one in evidence.probed if one.active]:
        return ArrivalSign(came=True, words=", ".join(active))
    if evidence.busy:
        return ArrivalSign(came=True, words=", ".join(gpu.words for gpu in evidence.busy))
    unread = {one.name for one in evidence.probed if one.active is False} != set(PROBED)
    gpus_known = evidence.gpus and all(gpu.state is GpuState.IDLE and not gpu.may_work for gpu in evidence.gpus)
    return ArrivalSign(None) if evidence.opened is None or unread or not gpus_known else ArrivalSign(came=False)


def advance_arrival(
    arrival: Arrival, sign: ArrivalSign, credit_seconds: float, policy: IdlePolicy, mode: Mode
) -> tuple[Arrival, ArrivalStep]:
    """Add one sample and return the consequence.

    Args:
        arrival: the time before the sample.
        sign: the result of the sample.
        credit_seconds: the time that it counts for, 0 if the hub did not answer and the user could not come.
        policy: its ``coverage`` is the part of the time that must be known.
        mode: only enforce releases GPUs, and observe does not warn.
    """
    if sign.came:
        return arrival, ArrivalStep.CAME
    after = replace(
        arrival,
        passed_seconds=arrival.passed_seconds + credit_seconds,
        absent_seconds=arrival.absent_seconds + (credit_seconds if sign.came is False else 0.0),
    )
    known = after.is_known(policy)
    if after.passed_seconds >= after.claim_seconds and (not known or mode is not Mode.ENFORCE):
        return after, ArrivalStep.OVER
    if sign.came is None or not known or mode is Mode.OBSERVE or not after.absent_seconds:
        return after, ArrivalStep.WAITS
    if after.warned_after_seconds is None:
        if after.passed_seconds < after.claim_seconds - after.notice_seconds:
            return after, ArrivalStep.WAITS
        return replace(after, warned_after_seconds=after.passed_seconds), ArrivalStep.WARN
    return after, ArrivalStep.WAITS if after.left_seconds else ArrivalStep.NOBODY_CAME


def resume_arrival(arrival: Arrival, policy: IdlePolicy) -> Arrival:
    """Return the arrival for a restarted service, with enough time left for the user to come.

    At least two samples and a minute remain, but no more than the notice.
    """
    least_seconds = min(least_remaining_seconds(policy), arrival.notice_seconds)
    missing_seconds = max(0.0, least_seconds - arrival.left_seconds)
    if arrival.warned_after_seconds is None or not missing_seconds:
        return arrival
    passed = max(0.0, arrival.passed_seconds - missing_seconds)
    return replace(
        arrival,
        passed_seconds=passed,
        absent_seconds=min(arrival.absent_seconds, passed),
        warned_after_seconds=max(0.0, min(arrival.warned_after_seconds, passed)),
    )
