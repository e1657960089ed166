"""Sentences about the idleness of a workspace, and about the policy that judges it."""

from __future__ import annotations

from gpuspawner.core.idle.policies import LifecyclePolicy, Mode
from gpuspawner.core.idle.verdicts import Explanation, IdleState
from gpuspawner.core.units import show_duration, show_time


def idle_words(seen: Explanation, stops_at: str | None = None) -> str:
    """Return the idleness of a workspace and its reason: ``idle for 12 min of 30 min: GPU 0 at 1 %``.

    ``stops_at`` is when a grace that will be carried out is over, as people read it.
    """
    if seen.state is IdleState.UNMEASURED:
        return "not measured yet"
    if seen.state is IdleState.BUSY:
        return f"in use: {seen.because}"
    so_far = f"idle for {show_duration(round(seen.idle_seconds))}"
    if seen.grace_left_seconds is None:
        so_far += f" of {show_duration(seen.for_seconds)}"
    if stops_at is not None:
        so_far += f", stops at {stops_at}"
    if seen.state in {IdleState.IDLE, IdleState.GRACE}:
        return f"{so_far}: {seen.because}"
    if seen.idle_seconds:
        return f"{so_far}, paused now: {seen.because}"
    return f"not measured now: {seen.because}" if seen.state is IdleState.UNKNOWN else f"in use: {seen.because}"


def rule_words(policy: LifecyclePolicy, *, gpus: bool) -> str:
    """Return in a sentence what a policy does with idle workspaces."""
    idle = policy.idle_of(gpus=gpus)
    if idle is None:
        return "Nothing stops it for being idle."
    below = f" below {idle.below_percent:g} %" if gpus else " without activity"
    warns = f"Warns after {show_duration(idle.for_seconds)}{below}"
    if policy.mode is Mode.ENFORCE:
        return f"{warns}, stops {show_duration(idle.grace_seconds)} later."
    return f"{warns}, stops nothing." if policy.mode is Mode.WARN else "Records idle time, stops nothing."


def hours_words(policy: str, instead_of: str, until: float | None, now: float) -> str:
    """Return which policy judges by the hour, and until when; "" where no hours change it."""
    if until is None and not instead_of:
        return ""
    end = "" if until is None else f" until {show_time(until, now)}"
    instead = f" instead of {instead_of}" if instead_of else ""
    return f"By the hours of the catalog, the policy {policy} applies{end}{instead}."
