"""TCP ports of this machine: some free ones, picked for the demo and for tests, and what the product knows of them."""

from __future__ import annotations

import os
import secrets
import socket
from collections import deque

from gpuspawner.backends.machine import HOST, find_listener, first_free_after, is_free

__all__ = ["HOST", "find_listener", "first_free_after", "is_free", "pick_free"]
PICKED = range(20_000, 32_768)
"""Above the ports that browsers refuse to visit, below those that Linux gives to outgoing connections: none of these
takes one before its server listens."""


MOST_RESERVED = 200
"""Ports that a process reserves at once. The oldest reservation ends first. Arbitrary: more than one test uses."""
_reserved: deque[int] = deque()
"""The open files of the sockets that reserve ports until the process ends."""


def pick_free(count: int) -> list[int]:
    """Return ``count`` different free ports. Until this process ends, no other call on this machine picks them."""
    picked: set[int] = set()
    while len(picked) < count:
        candidate = secrets.choice(PICKED)
        if is_free(candidate) and _reserve(candidate):
            picked.add(candidate)
    return sorted(picked)


def _reserve(port: int) -> bool:
    """Reserve a port. Return False if it is reserved.

    A reservation is a bound UDP socket. It leaves the TCP port free for the server, which binds it later.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        reservation.bind((HOST, port))
    except OSError:
        reservation.close()
        return False
    _reserved.append(reservation.detach())
    while len(_reserved) > MOST_RESERVED:
        os.close(_reserved.popleft())
    return True
