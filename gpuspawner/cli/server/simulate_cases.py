"""Cases of a simulation: each workspace with its replay and its true use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuspawner.catalog import Catalog
from gpuspawner.core.errors import GpuspawnerError
from gpuspawner.core.idle.policies import LifecyclePolicy, Mode
from gpuspawner.service.store import recordings
from gpuspawner.simulate.probe import Looking
from gpuspawner.simulate.replay import Judged, Replay, Stop, Warned, simulate, warnings
from gpuspawner.simulate.sessions import sessions
from gpuspawner.simulate.timeline import Timeline

Told = Callable[[float, float], None]
"""Called with the amount that is done and the total."""


class NothingRecorded(GpuspawnerError):
    """The history has no readings in this time."""


@dataclass(frozen=True)
class Draft:
    """The draft policies. ``policy`` applies to all workspaces if it is named, else each has its own."""

    catalog: Catalog
    policy: str | None = None

    def of(self, name: str) -> LifecyclePolicy:
        """Return the policy of a workspace whose template asks for ``name``, as the service chooses it."""
        policies = self.catalog.policies
        return policies.get(self.policy or name) or policies["default"]


def mode_of(policy: LifecyclePolicy) -> Mode:
    """Return the mode of the simulation. Observe does nothing, so it is simulated as enforce."""
    return Mode.WARN if policy.mode is Mode.WARN else Mode.ENFORCE


@dataclass(frozen=True)
class Case:
    """One workspace. ``start`` is in seconds since the epoch, or None if generated. ``end`` is in seconds from it."""

    id: str
    user: str
    policy: LifecyclePolicy
    gpus: int
    start: float | None
    end: float
    work: Timeline
    replays: list[Replay]
    """One for each start: after a rightful stop its user is taken to start it again for the next GPU work."""
    judged: Judged
    warned: list[Warned]
    not_recorded: frozenset[str] = frozenset()
    """Softer evidence that was not recorded: while a policy counts it, the workspace is unknown."""
    stops_without: Mapping[str, tuple[Stop, ...]] = field(default_factory=dict)
    """The stops if a recorded source of evidence (not the probe) were missing, by source."""


def history(
    draft: Draft, url: str, since: float, now: float, told: Told, password_file: Path | None = None
) -> list[Case]:
    """Replay the recorded history.

    Raises:
        NothingRecorded: no reading since then.
        Unavailable: it cannot be read.
    """
    cases = []
    for one in recordings.recorded(url, since, told, password_file):
        policy = draft.of(one.lease.request.policy)
        work, end, gpus = recordings.work_of(one, policy.idle.sample_seconds, now), one.end - one.start, len(one.gpus)
        steps = list(recordings.steps_of(one, policy.idle.sample_seconds, now))
        claim_seconds = None if one.absent_until is None else policy.claim_seconds
        tried = (work, gpus, end, policy.idle, mode_of(policy), claim_seconds)
        result, replays = simulate(recordings.Looking(steps), *tried)
        lease = one.lease
        cases.append(
            Case(
                lease.id,
                lease.user,
                policy,
                gpus,
                one.start,
                end,
                work,
                replays,
                result,
                warnings(replays, work, end, policy.idle),
                recordings.not_recorded(one),
                {
                    source: simulate(recordings.Looking(fewer), *tried)[0].stops
                    for source, hidden in recordings.SOURCES.items()
                    if (fewer := [replace(step, sample=hidden(step.sample)) for step in steps]) != steps
                },
            )
        )
    if not cases:
        raise NothingRecorded(
            "Nothing is recorded in this time: readings come from workspaces with GPUs while the service runs. "
            "Try --days with more days, or --sessions 10000."
        )
    return cases


def generated(draft: Draft, seed: int, hours: float, told: Told) -> list[Case]:
    """Replay sessions drawn from a seed."""
    cases, policy, done = [], draft.of("default"), 0.0
    for one in sessions(seed, hours):
        told(done, hours)
        gpus, work = len(one.work), one.used
        result, replays = simulate(Looking(one, policy.idle), work, gpus, one.end, policy.idle, mode_of(policy))
        told_them = warnings(replays, work, one.end, policy.idle)
        kind = one.work_kind.value
        cases.append(Case(str(one.seed), kind, policy, gpus, None, one.end, work, replays, result, told_them))
        done += one.hours
    return cases
