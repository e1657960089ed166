"""Why idle time of a workspace does not count: its user keeps it, or an administrator exempts it."""

from __future__ import annotations

from gpuspawner.core.administration import Restriction
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.units import show_time
from gpuspawner.service.parts import Parts


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
