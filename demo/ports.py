"""TCP ports of this machine: some free ones, picked for the demo and for tests, and what the product knows of them."""

from __future__ import annotations

import secrets

from gpuspawner.backends.ports import HOST, find_listener, first_free_after, is_free

__all__ = ["HOST", "find_listener", "first_free_after", "is_free", "pick_free"]
PICKED = range(20_000, 32_768)
"""Above the ports that browsers refuse to visit, below those that Linux gives to outgoing connections: none of these
takes one before its server listens."""


def pick_free(count: int) -> list[int]:
    """Return ``count`` different free ports, chosen at random: who picks at the same moment gets others."""
    picked: set[int] = set()
    while len(picked) < count:
        candidate = secrets.choice(PICKED)
        if is_free(candidate):
            picked.add(candidate)
    return sorted(picked)
