"""Quotas: what a user may hold at once. A hard one refuses, with both quantities and the next step."""

from __future__ import annotations

from collections.abc import Iterable

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.lease import Key, Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import Rules, What, Whom


def hard_gpus_each_user(rules: Rules) -> int | None:
    """Return the hard GPUs of the entry for each user, or None for no limit."""
    each = (quota for quota in rules.quotas if quota.whom is Whom.EACH_USER)
    bounds = (limit.hard for quota in each for limit in quota.limits if limit.what is What.GPUS)
    return next((int(hard) for hard in bounds if hard is not None), None)


def held_gpus(leases: Iterable[Lease], key: Key) -> int:
    """Return the GPUs that the owner of ``key`` holds or waits for, in all live leases but that of ``key`` itself."""
    return sum(x.request.count for x in leases if x.live and x.key.owner == key.owner and x.key != key)


def check_quota(request: Request, key: Key, leases: Iterable[Lease], hard_gpus_per_user: int | None) -> None:
    """Raise RequestRefused where the request would take its user above the hard quota."""
    if hard_gpus_per_user is None or request.count == 0:
        return
    held = held_gpus(leases, key)
    if held + request.count <= hard_gpus_per_user:
        return
    left = max(0, hard_gpus_per_user - held)
    remedy = f"Ask for {left}" if left else "Stop another of your workspaces first"
    raise RequestRefused(
        "count",
        str(request.count),
        f"{hard_gpus_per_user} per user, of which you use or wait for {held}",
        f"{remedy}, or ask an administrator to raise the quota.",
        status=403,
    )
