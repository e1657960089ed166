"""Signed tickets: how the hub's pages, which cannot share the service's cookie, say for whom they ask."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import NamedTuple

TICKET_SECONDS = 60.0
"""An open page asks the hub for a new one every half of it. After a logout none comes (see ``spawner.web.renewal``)."""


class Holder(NamedTuple):
    """For whom a ticket is: the name is shown, ``created`` is who it is (see ``core.leases.lease.Owner``).

    ``form``: it only says what a start of theirs would do. Whoever may start a user's server is shown that user's form.
    """

    user: str
    created: str
    form: bool = False


def sign_ticket(secret: bytes, user: str, created: str, now: float, *, form: bool = False) -> str:
    """Return a ticket for ``user``, good for TICKET_SECONDS from ``now`` (seconds since the epoch).

    ``created`` is when the hub made the user, as its REST API writes it.
    """
    body = base64.urlsafe_b64encode(json.dumps([user, created, form, int(now + TICKET_SECONDS)]).encode()).decode()
    return f"{body}.{_signature(secret, body)}"


def ticket_holder(secret: bytes, ticket: str, now: float) -> Holder | None:
    """Return for whom a ticket is, None where it is forged, torn or over."""
    body, _, signature = ticket.partition(".")
    if not hmac.compare_digest(_signature(secret, body).encode(), signature.encode("utf-8", "replace")):
        return None
    *holder, good_until = json.loads(base64.urlsafe_b64decode(body))
    return Holder(*holder) if now < good_until else None


def _signature(secret: bytes, body: str) -> str:
    # The secret serves the spawner too: a prefix keeps what is signed for one use from serving another, and a ticket
    # of the version before, which had other parts, from serving at all.
    return hmac.new(secret, b"ticket-3:" + body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
