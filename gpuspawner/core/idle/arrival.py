"""Whether anybody comes to a workspace that came out of the queue while its user was away.

Such a one is to be claimed within its policy's ``claim``: opened in a browser, by SSH, or by GPU work. Until then its
idle time does not count, so that nobody loses a GPU to idleness that they did not know they had. Halfway its user is
warned; unclaimed, it is given back under ``enforce``, and under the other modes ordinary idleness begins then.

Pure. Time is added up by samples, as a streak's is: what nobody saw does not count, so that neither a restart nor a
clock that jumps ends anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gpuspawner.core.idle.evidence import Evidence
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import PROBED, GpuState
from gpuspawner.core.idle.verdicts import LEAST_GRACE_SAMPLES, LEAST_GRACE_SECONDS

OPENED = "opened in a browser"


@dataclass(frozen=True)
class Sign:
    """What one sample says of whether somebody has come; ``came`` None: it is not known. ``words`` say why."""

    came: bool | None
    words: str = ""


@dataclass(frozen=True)
class Arrival:
    """How long a workspace has been there for a user who was away. It is no more once somebody came.

    ``claim_seconds`` is the time to come in, as it was at the grant. Of the sampled time in which people could come,
    ``passed_seconds``, ``absent_seconds`` are known to have been without anybody. ``warned_after_seconds`` of the first
    had passed when its user was warned; None before.
    """

    claim_seconds: float
    passed_seconds: float = 0.0
    absent_seconds: float = 0.0
    warned_after_seconds: float | None = None

    @property
    def notice_seconds(self) -> float:
        """The least between the warning and the end."""
        return self.claim_seconds / 2

    def is_known(self, policy: IdlePolicy) -> bool:
        """Whether enough is known of the time that has passed to say that nobody was there in it."""
        return self.absent_seconds >= policy.coverage * self.passed_seconds

    @property
    def left_seconds(self) -> float:
        """What is left of the time to come in, were nothing unknown from now on."""
        left = self.claim_seconds - self.passed_seconds
        if self.warned_after_seconds is not None:
            left = max(left, self.notice_seconds - (self.passed_seconds - self.warned_after_seconds))
        return max(0.0, left)


class Turn(str, Enum):
    """What follows from a sample."""

    WAITS = "waits"
    CAME = "came"
    """Somebody came: from here on it is judged as every workspace."""
    WARN = "warn"
    """Half of the time has passed: tell its user."""
    NOBODY_CAME = "nobody came"
    """Give it back. Only in mode enforce, and after a warning."""
    OVER = "over"
    """The time has passed and nothing is given back for it: idle time counts from here on."""


def sign_of(evidence: Evidence) -> Sign:
    """Return what a sample says of whether somebody has come.

    A page that was loaded, an SSH session, a kernel or a terminal in use, a VS Code window, or a GPU in use is
    somebody. Nobody is there only where all of these are known.
    """
    if evidence.problem:
        return Sign(None, evidence.problem)
    if evidence.opened:
        return Sign(came=True, words=OPENED)
    if active := [one.words for one in evidence.probed if one.active]:
        return Sign(came=True, words=", ".join(active))
    if evidence.busy:
        return Sign(came=True, words=", ".join(gpu.words for gpu in evidence.busy))
    unread = {one.name for one in evidence.probed if one.active is False} != set(PROBED)
    gpus_known = evidence.gpus and all(gpu.state is GpuState.IDLE and not gpu.may_work for gpu in evidence.gpus)
    return Sign(None) if evidence.opened is None or unread or not gpus_known else Sign(came=False)


def wait_on(
    arrival: Arrival, sign: Sign, credit_seconds: float, policy: IdlePolicy, mode: Mode
) -> tuple[Arrival, Turn]:
    """Add one sample, and say what follows.

    Args:
        arrival: where it stood.
        sign: what the sample says.
        credit_seconds: the time that it stands for; 0 where nobody could have come, as the hub did not answer.
        policy: by which share of the time must be known.
        mode: whether anything is told and given back.
    """
    if sign.came:
        return arrival, Turn.CAME
    after = replace(
        arrival,
        passed_seconds=arrival.passed_seconds + credit_seconds,
        absent_seconds=arrival.absent_seconds + (credit_seconds if sign.came is False else 0.0),
    )
    known = after.is_known(policy)
    if after.passed_seconds >= after.claim_seconds and (not known or mode is not Mode.ENFORCE):
        return after, Turn.OVER
    if sign.came is None or not known or mode is Mode.OBSERVE or not after.absent_seconds:
        return after, Turn.WAITS
    if after.warned_after_seconds is None:
        if after.passed_seconds < after.claim_seconds - after.notice_seconds:
            return after, Turn.WAITS
        return replace(after, warned_after_seconds=after.passed_seconds), Turn.WARN
    return after, Turn.WAITS if after.left_seconds else Turn.NOBODY_CAME


def after_restart(arrival: Arrival, policy: IdlePolicy) -> Arrival:
    """Return where a workspace stands with a service that was away: enough is left for its user to object.

    At least two samples and a minute, as of a grace, but no more than the notice that was given.
    """
    least = min(LEAST_GRACE_SAMPLES * policy.sample_seconds + LEAST_GRACE_SECONDS, arrival.notice_seconds)
    back = max(0.0, least - arrival.left_seconds)
    if arrival.warned_after_seconds is None or not back:
        return arrival
    passed = max(0.0, arrival.passed_seconds - back)
    return replace(
        arrival,
        passed_seconds=passed,
        absent_seconds=min(arrival.absent_seconds, passed),
        warned_after_seconds=max(0.0, min(arrival.warned_after_seconds, passed)),
    )
