"""The report of a simulation: each workspace as a case, and the results as JSON and as text for people."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuspawner.catalog import Catalog
from gpuspawner.cli.output import Column, counted, format_table, short_id
from gpuspawner.core.errors import GpuspawnerError
from gpuspawner.core.idle.policies import LifecyclePolicy, Mode
from gpuspawner.core.units import show_duration
from gpuspawner.service.store.database import recordings
from gpuspawner.simulate.probe import GeneratedSampler
from gpuspawner.simulate.replay import (
    Replay,
    SessionResult,
    Stop,
    WarningOutcome,
    WarningResult,
    simulate,
    totals,
    warnings,
)
from gpuspawner.simulate.sessions import sessions
from gpuspawner.simulate.timeline import Timeline

ProgressCallback = Callable[[float, float], None]
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
    judged: SessionResult
    warned: list[WarningResult]
    not_recorded: frozenset[str] = frozenset()
    """Softer evidence that was not recorded: while a policy counts it, the workspace is unknown."""
    stops_without: Mapping[str, tuple[Stop, ...]] = field(default_factory=dict)
    """The stops if a recorded source of evidence (not the probe) were missing, by source."""


def history(
    draft: Draft, url: str, since: float, now: float, told: ProgressCallback, password_file: Path | None = None
) -> list[Case]:
    """Replay the recorded history.

    Raises:
        NothingRecorded: no reading since then.
        Unavailable: it cannot be read.
    """
    cases = []
    for one in recordings.read_recordings(url, since, told, password_file):
        policy = draft.of(one.lease.request.policy)
        work, end, gpus = (
            recordings.busy_timeline(one, policy.idle.sample_seconds, now),
            one.end - one.start,
            len(one.gpus),
        )
        steps = list(recordings.replay_steps(one, policy.idle.sample_seconds, now))
        claim_seconds = None if one.absent_until is None else policy.claim_seconds
        tried = (work, gpus, end, policy.idle, mode_of(policy), claim_seconds)
        result, replays = simulate(recordings.RecordedSamples(steps), *tried)
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
                recordings.missing_evidence(one),
                {
                    source: simulate(recordings.RecordedSamples(fewer), *tried)[0].stops
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


def generated(draft: Draft, seed: int, hours: float, told: ProgressCallback) -> list[Case]:
    """Replay sessions drawn from a seed."""
    cases, policy, done = [], draft.of("default"), 0.0
    for one in sessions(seed, hours):
        told(done, hours)
        gpus, work = len(one.work), one.used
        result, replays = simulate(
            GeneratedSampler(one, policy.idle), work, gpus, one.end, policy.idle, mode_of(policy)
        )
        told_them = warnings(replays, work, one.end, policy.idle)
        kind = one.work_kind.value
        cases.append(Case(str(one.seed), kind, policy, gpus, None, one.end, work, replays, result, told_them))
        done += one.hours
    return cases


ROWS = 40
"""Rows of a table in the text. Arbitrary: a screen. JSON has all."""


def report(cases: Sequence[Case], source: str, file: str) -> dict[str, Any]:
    """Return everything as plain JSON values. Times are seconds since the epoch, or since the session's start."""
    total = totals((case.judged, case.end) for case in cases)
    stops = sorted(((case, stop) for case in cases for stop in case.judged.stops), key=_when)
    warned = sorted(((case, one) for case in cases for one in case.warned), key=_when)
    only = [_warned(case, one) for case, one in warned if one.then is not WarningOutcome.STOPPED]
    policies = {case.policy.name: case.policy for case in cases}
    blind = sum(bool(case.not_recorded & set(case.policy.idle.soft_names)) for case in cases)
    return {
        "catalog": file,
        "source": source,
        "policies": [_policy(policy) for policy in policies.values()],
        "workspaces": total.workspaces,
        "session_hours": round(total.session_hours, 2),
        "gpu_hours": round(total.gpu_hours, 2),
        "warned": len(warned),
        "warned_in_use": sum(one.wrong for _, one in warned),
        "stopped": total.stops,
        "workspaces_stopped": sum(bool(case.judged.stops) for case in cases),
        "stopped_in_use": total.wrong,
        "nobody_came": sum(one.nobody_came for case in cases for one in case.replays),
        "stopped_in_use_per_100000_session_hours": round(total.wrong_per_100k_hours, 2),
        "gpu_hours_won": round(total.won_hours, 2),
        "gpu_hours_winnable": round(total.winnable_hours, 2),
        "recovered_share": round(total.recovered_share, 4),
        "freed_after_seconds": {"median": _rounded(total.freed_after(0.5)), "p95": _rounded(total.freed_after(0.95))},
        "wanted_again": sum(stop.wanted_at is not None for _, stop in stops),
        "without_evidence": blind,
        "without_sources": [
            _without(source, cases) for source in dict.fromkeys(s for c in cases for s in c.stops_without)
        ],
        "stops": [_stop(case, stop) for case, stop in stops],
        "warned_only": only,
    }


def _without(source: str, cases: Sequence[Case]) -> dict[str, Any]:
    """Return the stops if a source of evidence were missing."""
    stops = [stop for case in cases for stop in case.stops_without.get(source, case.judged.stops)]
    return {"source": source, "stopped": len(stops), "stopped_in_use": sum(stop.wrong for stop in stops)}


def _policy(policy: LifecyclePolicy) -> dict[str, Any]:
    idle = policy.idle
    return {
        "name": policy.name,
        "mode": policy.mode.value,
        "below_percent": idle.below_percent,
        "for_seconds": idle.for_seconds,
        "grace_seconds": idle.grace_seconds,
        "sample_seconds": idle.sample_seconds,
        "claim_seconds": policy.claim_seconds,
    }


def _when(pair: tuple[Case, Stop | WarningResult]) -> tuple[float, str]:
    case, one = pair
    return (case.start or 0.0) + one.at, case.id


def _event(case: Case, warned_at: float | None, *, wrong: bool) -> dict[str, Any]:
    """Return the fields that warnings and stops have in common."""
    return {
        "workspace": case.id,
        "user": case.user,
        "policy": case.policy.name,
        "gpus": case.gpus,
        "warned_at": _rounded(warned_at, case.start),
        "rightly": not wrong,
    }


def _warned(case: Case, one: WarningResult) -> dict[str, Any]:
    event = _event(case, one.at, wrong=one.wrong)
    return {**event, "then": one.then.value, "then_at": _rounded(one.then_at, case.start)}


def _stop(case: Case, stop: Stop) -> dict[str, Any]:
    return {
        **_event(case, stop.warned_at, wrong=stop.wrong),
        "stopped_at": _rounded(stop.at, case.start),
        "gpu_hours_won": round(stop.won_hours, 2),
        "freed_after_seconds": _rounded(stop.freed_after_seconds),
        "wanted_again_after_seconds": _rounded(stop.wanted_at, -stop.at),
    }


def _rounded(seconds: float | None, start: float | None = None) -> float | None:
    return None if seconds is None else round((start or 0.0) + seconds, 1)


def text(report: dict[str, Any]) -> str:
    """Return the report for people."""
    lines = [f"{heading(report)}; nothing is changed."]
    lines += [policy_sentence(policy) for policy in report["policies"]]
    lines += ["", *sentences(report)]
    generated = report["source"].startswith("generated")
    who = Column("DOES" if generated else "USER", ("user",))
    lines += _table((WORKSPACE, who, *STOP_COLUMNS), report["stops"], generated=generated)
    lines += _table((WORKSPACE, who, *WARNING_COLUMNS), report["warned_only"], generated=generated)
    return "\n".join(lines)


def _table(columns: Sequence[Column], rows: Sequence[dict[str, Any]], *, generated: bool) -> list[str]:
    if not rows:
        return []
    lines = ["", format_table(columns, [{**row, "generated": generated} for row in rows[:ROWS]])]
    if len(rows) > ROWS:
        lines.append(f"... and {len(rows) - ROWS} more: see --json or --html.")
    return lines


def heading(report: dict[str, Any]) -> str:
    """Return the draft, the source of the sessions, and the mode, in words."""
    warns = any(policy["mode"] == Mode.WARN.value for policy in report["policies"])
    how = "mode warn as it is, others as if they enforced" if warns else "as if it enforced"
    return f"{report['catalog']} against {report['source']}, {how}"


def policy_sentence(policy: dict[str, Any]) -> str:
    """Return one policy in words."""
    return (
        f"Policy {policy['name']} (mode {policy['mode']}): idle below {policy['below_percent']:g} % for "
        f"{show_duration(policy['for_seconds'])}, then {show_duration(policy['grace_seconds'])} of grace, sampled "
        f"every {show_duration(policy['sample_seconds'])}; {show_duration(policy['claim_seconds'])} to open a "
        "workspace that started from the queue."
    )


def sentences(report: dict[str, Any]) -> list[str]:
    """Return the results in sentences."""
    freed = report["freed_after_seconds"]
    stopped = f"stopped {report['workspaces_stopped']} of the workspaces: {counted(report['stopped'], 'stop')}"
    won, winnable = f"{report['gpu_hours_won']:.1f}", f"{report['gpu_hours_winnable']:.1f}"
    warned = counted(report["warned"], "time")
    said = [
        f"{counted(report['workspaces'], 'workspace')} held GPUs for {report['gpu_hours']:.1f} GPU hours.",
        f"The policy would have warned {warned} and {stopped}, {report['stopped_in_use']} of them while in use.",
        f"GPU hours won: {won} of the {winnable} that this policy can win ({100 * report['recovered_share']:.1f} %).",
    ]
    if report["nobody_came"]:
        were = "was" if report["nobody_came"] == 1 else "were"
        said.append(
            f"{counted(report['nobody_came'], 'stop')} {were} because the user did not open a workspace that started "
            "while they were away."
        )
    if report["warned_only"]:
        then = Counter(one["then"] for one in report["warned_only"])
        wrong = sum(not one["rightly"] for one in report["warned_only"])
        said.append(
            f"Only warned: {counted(len(report['warned_only']), 'time')}, {wrong} while in use. Outcomes: "
            f"{', '.join(f'{what} {count}' for what, count in then.most_common())}."
        )
    if freed["median"] is not None:
        said.append(
            f"From the last GPU work to the stop: median {show_duration(freed['median'])}, "
            f"95th percentile {show_duration(freed['p95'])}."
        )
    said += [
        f"Without {one['source']}: {counted(one['stopped'], 'stop')}, {one['stopped_in_use']} of them while in use."
        for one in report["without_sources"]
    ]
    if report["wanted_again"]:
        said.append(
            f"After {report['wanted_again']} of the stops the same workspace used a GPU again later. It counts as "
            "started again for that."
        )
    if report["without_evidence"]:
        said.append(
            f"For {counted(report['without_evidence'], 'workspace')}, soft evidence that the policy counts was not "
            "recorded. Where it would count, they are unknown and not stopped."
        )
    return said


def show_moment(at: float, *, generated: bool) -> str:
    """Return a time for people: local time, or the time since a generated session's start."""
    return f"+{show_duration(at)}" if generated else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def show_outcome(one: dict[str, Any]) -> str:
    """Return the outcome of a warning: ``used again after 4 min``."""
    return _outcome(one["then"], one["then_at"], one["warned_at"])


def _outcome(then: str, then_at: float | None, warned_at: float) -> str:
    return then if then_at is None else f"{then} after {show_duration(then_at - warned_at)}"


def _moment(at: float, generated: bool) -> str:
    return show_moment(at, generated=generated)


def _yes_or_no(rightly: bool) -> str:
    return "yes" if rightly else "NO"


WORKSPACE = Column("WORKSPACE", ("workspace",), short_id)
STOP_COLUMNS = (
    Column("GPUS", ("gpus",)),
    Column("WARNED", ("warned_at", "generated"), _moment),
    Column("STOPPED", ("stopped_at", "generated"), _moment),
    Column("RIGHTLY", ("rightly",), _yes_or_no),
    Column("GPU H WON", ("gpu_hours_won",), "{:.1f}".format),
)
WARNING_COLUMNS = (
    Column("GPUS", ("gpus",)),
    Column("ONLY WARNED", ("warned_at", "generated"), _moment),
    Column("RIGHTLY", ("rightly",), _yes_or_no),
    Column("THEN", ("then", "then_at", "warned_at"), _outcome),
)
