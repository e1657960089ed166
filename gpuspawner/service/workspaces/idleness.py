"""What is judged of a workspace at this moment, and why, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuspawner.catalog.models import MONITOR
from gpuspawner.core.administration import Restriction
from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.core.leases.exits import FINAL_WARNINGS
from gpuspawner.core.leases.lease import UP, WAITING, Lease
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.parts import Parts

NO_MONITOR = "The GPU monitor does not run in this workspace. GPU work of a few seconds may be missed."
NO_MONITOR_IN_IMAGE = (
    "The GPU monitor does not run in this workspace, because its image has no nvidia-ml-py. GPU work of a few seconds "
    "may be missed."
)


def explained(lease: Lease, view: dict[str, Any], policy: IdlePolicy) -> list[str]:
    """Return the sentences. ``view`` is the lease as pages show it, as far as it is made."""
    if view["end"]:
        return list(_of_end(view["end"]))
    if lease.phase in WAITING:
        queue = view["queue"]
        why = filter(None, (queue["why"], queue["precedence"]))
        return [queue["sentence"], *why, *_of_holding_back(queue["held_back"], view)]
    if lease.phase not in UP:
        return ["It is starting. Idle time counts only once it runs."]
    hours = [view["policy"]["words"]] if view["policy"]["words"] and view["idle"] else []
    bound = [view["latest_end"]["sentence"]] if view["latest_end"] else []
    awaited = [view["arrival"]["words"]] if view["arrival"] else []
    return [
        *_of_what_is_decided(view["warning"]),
        *_of_adoption(lease, view["now"]),
        *awaited,
        *bound,
        *_of_use(lease, view["idle"], policy),
        *hours,
    ]


def _of_holding_back(held: dict[str, Any] | None, view: dict[str, Any]) -> Iterator[str]:
    if held is None:
        return
    if held["words"] not in view["queue"]["sentence"]:
        yield held["words"]
    since = "" if held["since"] is None else f" since {show_time(held['since'], view['now'])}"
    if held["owner"]:
        yield f"Held back by {held['owner']}{since}, by its rule {held['rule']}."
    else:
        yield f"Held back by the rule {held['rule']}{since}: that time does not count as waited."


def _of_what_is_decided(warning: dict[str, Any] | None) -> Iterator[str]:
    """Yield which end others have decided: by a stronger claim, an administrator or the cluster."""
    if warning is not None and warning["kind"] in FINAL_WARNINGS:
        yield warning["text"]


def _of_adoption(lease: Lease, now: float) -> Iterator[str]:
    if lease.unasked and lease.running_at is not None:
        yield (
            "It was started without the GPU service (before that came, or while it was away), which took it over at "
            f"{show_time(lease.running_at, now)}: it has no set end until it is started again, and no idle time from "
            "before counts."
        )


def _of_use(lease: Lease, idle: dict[str, Any] | None, policy: IdlePolicy) -> Iterator[str]:
    if idle is None:
        if lease.unasked:
            yield "Nothing is measured of it, and nothing stops it for being idle."
        else:
            yield "It has no GPU, and its policy does not judge such workspaces: nothing stops it for being idle."
        return
    yield f"{idle['words'][0].upper()}{idle['words'][1:]}."
    if idle["seen_by"]:
        yield f"Its GPUs are seen all of the time by {' and '.join(idle['seen_by'])}."
    yield from _of_monitor(lease, idle)
    if idle["state"] == "soft" and idle["soft_left_seconds"]:
        yield f"This counts as use for {show_duration(round(idle['soft_left_seconds']))} more."
    if idle["known_share"] < policy.coverage:
        yield (
            f"Only {100 * idle['known_share']:.0f} % of that time is known: below {100 * policy.coverage:.0f} % "
            "nobody is warned."
        )
    elif idle["state"] == "idle" and idle["mode"] != "observe":
        left = max(0.0, idle["for_seconds"] - idle["idle_seconds"])
        yield f"If nothing changes, a warning comes in {show_duration(round(left))}."
    if idle["mode"] != "enforce":
        yield "This policy stops nothing for being idle."
    for gpu in idle["unreadable"]:
        yield (
            f"We can't read {gpu['gpu']} for {show_duration(gpu['seconds'])} now. Nothing will be stopped because of "
            "it."
        )


def _of_monitor(lease: Lease, idle: dict[str, Any]) -> Iterator[str]:
    if idle["monitor"] is False:
        yield NO_MONITOR_IN_IMAGE if MONITOR in lease.lacks else NO_MONITOR


def _of_end(end: dict[str, Any]) -> Iterator[str]:
    yield end["why"]
    if dispute := end["dispute"]:
        said = f": “{dispute['sentence']}”" if dispute["sentence"] else "."
        yield f"Its user called this wrong{said}"
        yield f"{dispute['answered_by']} answered: {dispute['answer']}" if dispute["answer"] else "Not answered yet."


def exemption_words(one: Restriction, now: float) -> str:
    """Return until when, by whom and why a workspace is exempt."""
    until = "" if one.until is None else f" until {show_time(one.until, now)}"
    return f"exempt{until} by {one.by}: {one.reason.rstrip('.')}"


def kept_words(parts: Parts, lease: Lease, because: str) -> str:
    """Return why idle time does not count now, and what was measured last; ``because`` is "" where nothing was."""
    now, one = parts.clock.now(), parts.restrictions.exemption_of(lease)
    if one is not None and (one.until or 0.0) >= (lease.kept_until or 0.0):
        why = exemption_words(one, now)
    else:
        why = f"kept until {show_time(lease.kept_until or now, now)}"
    return f"{why}; {because or 'not measured yet'}"
