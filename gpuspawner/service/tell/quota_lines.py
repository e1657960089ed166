"""What bounds who asks, a line for each limit: how much of it is used, and how much may be."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.leases.lease import Key
from gpuspawner.core.rules import What, Whom
from gpuspawner.service.parts import Parts


def quota_lines(parts: Parts, key: Key) -> list[dict[str, Any]]:
    """Return every limit that binds the owner of a key: what is used of it now, and in words."""
    each = (quota for quota in parts.catalog.rules.quotas if quota.whom is Whom.EACH_USER)
    limits = (limit for quota in each for limit in quota.limits)
    hard = next((float(x.hard) for x in limits if x.what is What.GPUS and x.hard is not None), None)
    if hard is None:
        return []
    used = sum(lease.request.count for lease in parts.book if lease.key.owner == key.owner)
    words = f"{used} of {hard:g} GPUs used or waited for"
    return [{"words": words, "limit": "gpus", "used": used, "soft": None, "hard": hard}]
