"""Signed tickets: how the hub's pages, and SSH by a login, say for whom they ask: they share no cookie with us."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from itsdangerous import BadData, URLSafeSerializer

TICKET_SECONDS = 60.0
"""An open page asks the hub for a new one every half of it. After a logout none comes (see ``spawner.web.renewal``)."""


PAGE_SALT, SSH_SALT = b"ticket-4", b"ssh-1"


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
    return str(_signer(secret).dumps([user, created, form, int(now + TICKET_SECONDS)]))


def ticket_holder(secret: bytes, ticket: str, now: float) -> Holder | None:
    """Return for whom a ticket is, None where it is forged, torn or over."""
    try:
        *holder, good_until = _signer(secret).loads(ticket)
    except (BadData, UnicodeError):  # UnicodeError: half a character, which itsdangerous does not expect
        return None
    return Holder(*holder) if now < good_until else None


def sign_ssh_ticket(secret: bytes, lease: str, user: str, now: float) -> str:
    """Return a ticket by which a user gets into a workspace by SSH, good for TICKET_SECONDS from ``now``."""
    return str(_signer(secret, SSH_SALT).dumps([lease, user, int(now + TICKET_SECONDS)]))


def ssh_ticket_user(secret: bytes, lease: str, ticket: str, now: float) -> str | None:
    """Return whose ticket it is; None where it is forged, over, or of another workspace."""
    try:
        of, user, good_until = _signer(secret, SSH_SALT).loads(ticket)
    except (BadData, UnicodeError):
        return None
    return str(user) if of == lease and now < good_until else None


def _signer(secret: bytes, salt: bytes = PAGE_SALT) -> URLSafeSerializer:
    # The secret serves the spawner too: the salt keeps what is signed for one use from serving another, and a ticket
    # of the version before, which had other parts, from serving at all. The time of its end is one of its parts, and
    # not itsdangerous' own stamp, since ``now`` is an argument here.
    return URLSafeSerializer(secret, salt=salt, signer_kwargs={"digest_method": hashlib.sha256})
