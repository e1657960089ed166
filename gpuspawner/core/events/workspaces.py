"""Events of running workspaces: warnings, and how they end."""

from __future__ import annotations

from dataclasses import dataclass

from gpuspawner.core.events.base import Audience, ClaimEvent, Event, IdleEvent, show_span
from gpuspawner.core.units import show_bytes, show_duration, show_time


@dataclass(frozen=True)
class WarnedOfClaim(Event, name="warned of claim", words="Warned", told=Audience.USER, marked=True):
    """A stronger claim needs the GPUs of the workspace.

    Args:
        need: who needs them, in a sentence.
        ends_at: when it ends for that.
        late: whether the claim was told only when its time was over.
    """

    need: str = ""
    ends_at: float = 0.0
    late: bool = False

    def describe(self, at: float) -> str:
        """Return the claim and the time of the end."""
        return f"{self.need} It ends {'now' if self.late else f'at {show_time(self.ends_at, at)}'}."


@dataclass(frozen=True)
class ClaimGone(Event, name="claim gone", words="Left running", told=Audience.USER):
    """No stronger claim needs the GPUs any more. ``scheduler`` made the claim, or "" if a person did."""

    scheduler: str = ""

    def describe(self, at: float) -> str:
        """Return a sentence about the end of the claim."""
        whose = f"{self.scheduler} does not need" if self.scheduler else "Nobody with a stronger claim needs"
        return f"{whose} its GPUs any more."


@dataclass(frozen=True)
class Bounded(Event, name="bounded", words="Ends earlier", details="It {bound}."):
    """A rule bounds the end of the workspace (``core.rules.LatestEnd``). ``bound`` are the words of that rule."""

    rule: str = ""
    bound: str = ""


@dataclass(frozen=True)
class ReachesInto(
    ClaimEvent, name="reaches into", words="Asked to make room for a class", told=Audience.USER, marked=True
):
    """The workspace runs into a time for which its GPUs are reserved for a class. Nothing ends it for that.

    ``whom`` is the class, or the account of an administrator's reservation. ``begins_at`` is None if the reservation
    has begun. ``until_at`` is None if it never ends.
    """

    begins_at: float | None = None
    until_at: float | None = None

    def describe(self, at: float) -> str:
        """Return the reservation."""
        span = show_span(self.begins_at, self.until_at, at)
        return f"{self.count} {self.kind} {'is' if self.count == 1 else 'are'} reserved for {self.whom}{span}."


@dataclass(frozen=True)
class MaintenanceNear(Event, name="maintenance near", words="Told of maintenance", told=Audience.USER, marked=True):
    """The workspace runs on a node that has maintenance before the workspace ends.

    Args:
        node: the node.
        begins_at: when the maintenance begins; None if it has begun.
        until_at: when it ends; None if that is not known.
    """

    node: str = ""
    begins_at: float | None = None
    until_at: float | None = None

    def describe(self, at: float) -> str:
        """Return the node and the time of its maintenance."""
        return f"{self.node} has maintenance{show_span(self.begins_at, self.until_at, at)}."


class WarnedIdle(IdleEvent, name="warned", words="Warned", told=Audience.USER, marked=True):
    """The workspace was idle. Its grace period begins."""


@dataclass(frozen=True)
class WarnedOfEnd(
    Event, name="warned of end", words="Warned", details="ends in {left_seconds}", told=Audience.USER, marked=True
):
    """The run time of the workspace is over in ``left_seconds``."""

    left_seconds: float = 0.0

    @property
    def action(self) -> str:
        """How the API calls every warning."""
        return WarnedIdle.name


@dataclass(frozen=True)
class WarnedNobodyCame(
    Event,
    name="warned nobody came",
    words="Warned",
    details="Nobody has opened it yet. Open it by {claim_by_at}.",
    told=Audience.USER,
    marked=True,
):
    """The workspace became ready while its user was away. Half of the time to open it has passed."""

    claim_by_at: float = 0.0


@dataclass(frozen=True)
class Came(Event, name="came", words="Claimed", details="{how}", marked=True):
    """The user came to the workspace. ``how`` is what was seen of the user."""

    how: str = ""


@dataclass(frozen=True)
class NobodyCameYet(Event, name="nobody came yet", words="Not opened yet", marked=True):
    """The user was not seen in ``claim_seconds``, or an administrator exempts the workspace.

    Idle time counts from here on.
    """

    claim_seconds: float = 0.0
    exempt: bool = False

    def describe(self, at: float) -> str:
        """Return why its GPUs are not released."""
        if self.exempt:
            return "An administrator exempts it from idle stops. Nobody has to open it."
        return f"Within {show_duration(self.claim_seconds)} nobody was seen. Idle time counts from here on."


@dataclass(frozen=True)
class GraceEnded(Event, name="grace ended", words="No longer idle", details="{because}", marked=True, ends_grace=True):
    """The workspace is used again, or its policy no longer judges it."""

    because: str = ""


class WouldWarn(IdleEvent, name="would warn", words="Would have warned (this policy only records)", marked=True):
    """A policy that only records would have sent a warning."""


class WouldStop(
    IdleEvent, name="would stop", words="Would have stopped (this policy only records or warns)", marked=True
):
    """A policy that only records or warns would have stopped it."""


# --- running and ending


@dataclass(frozen=True)
class Kept(Event, name="kept", words="Kept", details="for {kept_seconds}", marked=True, ends_grace=True):
    """The user keeps the workspace for ``kept_seconds``."""

    kept_seconds: float = 0.0


@dataclass(frozen=True)
class Extended(Event, name="extended", words="Extended", told=Audience.USER, marked=True):
    """The deadline moves by ``more_seconds``. ``reason`` is the reason of an administrator."""

    more_seconds: float = 0.0
    reason: str = ""

    def describe(self, at: float) -> str:
        """Return the time and the reason."""
        return f"by {show_duration(self.more_seconds)}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class EndPlanned(Event, name="end planned", words="Planned end"):
    """The user said when they will be done, for the estimates of waiting requests. None means "not soon"."""

    done_seconds: float | None = None

    def describe(self, at: float) -> str:
        """Return the time."""
        return "not soon" if self.done_seconds is None else f"in {show_duration(self.done_seconds)}"


@dataclass(frozen=True)
class Stopped(
    Event, name="stop", words="Stopped", details="{message}", told=Audience.USER, marked=True, ends_grace=True
):
    """The end begins, with the reason (``exits.ExitReason``) and the message of the exit."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class StopperNamed(Event, name="stopper", words="Who stopped it", details="{message}", told=Audience.USER):
    """The hub reported after the end which person stopped it."""

    message: str = ""


@dataclass(frozen=True)
class Disrupted(Event, name="disrupted", words="To be ended by the cluster", details="{reported}", told=Audience.USER):
    """The cluster is about to end the workspace, and reported why."""

    reported: str = ""


class Spared(Event, name="spared", words="Left running", details="The cluster ends it no more."):
    """The cluster does not end the workspace any more."""


@dataclass(frozen=True)
class Health(Event, name="health", words="Health"):
    """The backend reported other GPUs of the workspace as unhealthy than before."""

    unhealthy: tuple[str, ...] = ()

    def describe(self, at: float) -> str:
        """Return the unhealthy GPUs. Of several, it names the first: a machine may lose all of its GPUs at once."""
        if not self.unhealthy:
            return "its GPUs reported as healthy again"
        first, *others = self.unhealthy
        return f"{first}{f' and {len(others)} more' if others else ''} reported as unhealthy"


@dataclass(frozen=True)
class KilledForMemory(
    Event, name="killed for memory", words="A program was killed because memory ran out", told=Audience.USER
):
    """Processes were killed because the workspace had used all of its memory. Its server lives on."""

    count: int = 0
    memory_bytes: int = 0

    def describe(self, at: float) -> str:
        """Return the number of programs and the memory."""
        programs = "1 program" if self.count == 1 else f"{self.count} programs"
        return f"{programs} killed: the workspace had used all of its {show_bytes(self.memory_bytes)}"


class OutputShared(Event, name="shared", words="Its last output was shared with administrators"):
    """The user lets administrators read the last output."""


@dataclass(frozen=True)
class Disputed(Event, name="disputed", words="Called wrong", details="{text}", told=Audience.ADMINISTRATORS):
    """The user disputes the end of the workspace, and wrote ``text``."""

    text: str = ""


@dataclass(frozen=True)
class Answered(Event, name="answered", words="Answered", details="{text}", told=Audience.USER):
    """An administrator answers a dispute."""

    text: str = ""
