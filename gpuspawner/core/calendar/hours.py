"""Which policy judges a workspace now: hours switch it, and what it was granted by stays for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import Opening, Window, opening
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.rules import Rules

MINUTE_SECONDS = 60
"""Windows open and close on whole minutes, and so do the clocks of every zone change."""

Policies = Mapping[str, LifecyclePolicy]


class ByHours(NamedTuple):
    """The policy that judges now ``instead_of`` the one that was asked for, "" for itself.

    ``until`` is when hours change that next, in seconds since the epoch; None where none do.
    """

    policy: LifecyclePolicy
    instead_of: str = ""
    until: float | None = None


def by_hours(name: str, policies: Policies, rules: Rules, now: float) -> ByHours:
    """Return the policy that judges now what was asked for by the one called ``name``.

    The default one stands for one that left the catalog. Of several hours that are open, the first written counts.
    """
    own = policies.get(name) or policies["default"]
    changes: list[float] = []
    found: ByHours | None = None
    for hours in rules.hours:
        if hours.instead_of != own.name:
            continue
        one = _opening(hours.window, int(now // MINUTE_SECONDS), rules.timezone)
        if one is None:
            continue
        is_open = one.covers(now)
        changes.append(one.ends_at if is_open else one.opens_at)
        if is_open:
            found = ByHours(policies[hours.policy], own.name)
            break
    until = min(changes, default=None)
    return (found or ByHours(own))._replace(until=until if until is not None and isfinite(until) else None)


def policy_for(lease: Lease, policies: Policies, rules: Rules, now: float) -> LifecyclePolicy:
    """Return the policy of a lease: as it is now, but for what stays as it was granted."""
    return by_hours(lease.request.policy, policies, rules, now).policy.with_terms(lease.terms)


@lru_cache(maxsize=1024)
def _opening(window: Window, minute: int, zone: str) -> Opening | None:
    """Return what every lease asks in every tick: it is the same for a minute."""
    return opening(window, minute * MINUTE_SECONDS, ZoneInfo(zone))
