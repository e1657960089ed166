"""Signed tickets: how the hub's pages, which cannot share the service's cookie, say for whom they ask."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

TICKET_SECONDS = 600.0
"""Ten minutes: a page renews it while it is open (design, section 6)."""


def sign_ticket(secret: bytes, user: str, now: float) -> str:
    """Return a ticket for ``user``, good for TICKET_SECONDS from ``now`` (seconds since the epoch)."""
    body = base64.urlsafe_b64encode(json.dumps([user, int(now + TICKET_SECONDS)]).encode()).decode()
    return f"{body}.{_signature(secret, body)}"


def ticket_user(secret: bytes, ticket: str, now: float) -> str | None:
    """Return for whom a ticket is, None where it is forged, torn or over."""
    body, _, signature = ticket.partition(".")
    if not hmac.compare_digest(_signature(secret, body).encode(), signature.encode("utf-8", "replace")):
        return None
    user, good_until = json.loads(base64.urlsafe_b64decode(body))
    return str(user) if now < good_until else None


def _signature(secret: bytes, body: str) -> str:
    # The secret serves the spawner too: a prefix keeps what is signed for one use from serving another.
    return hmac.new(secret, b"ticket:" + body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
