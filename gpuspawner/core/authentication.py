"""How hub, service and pages prove who sends a request.

Hub and service share a secret that is never sent. Each signs its messages with it, because another program may answer
at the service's address: two hubs on one machine may use the same port. The pages of the hub and SSH share no cookie
with the service. They send signed tickets.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any, NamedTuple

from itsdangerous import BadData, URLSafeSerializer

# --- proofs of requests and answers


SCHEME = "spawner"
"""The scheme of ``Authorization`` before the proof of a request."""
NONCE_HEADER = "Gpuspawner-Nonce"
"""The header with a new random text for each request. The proof of the answer contains it."""
TIME_HEADER = "Gpuspawner-Time"
"""The header with the time of signing, in whole seconds since the epoch."""
WINDOW_SECONDS = 60
"""How long a signed request is valid, and how far the clocks of hub and service may differ. Arbitrary."""
DIGEST_HEADER = "Gpuspawner-Digest"
"""The header with the digest of the whole request."""
PROOF_HEADER = "Gpuspawner-Proof"
"""The header with the proof of an answer."""


class RequestTarget(NamedTuple):
    """The method of a request, and its path with the query as they are sent."""

    method: str
    target: str


def new_nonce() -> str:
    """Return a new random text."""
    return secrets.token_urlsafe(16)


def digest(method: str, target: str, body: bytes) -> str:
    """Return the digest of a whole request, for its header."""
    return _hashed(method, target, body).hex()


def prove_request(secret: bytes, nonce: str, signed_at: str, of_request: str) -> str:
    """Return the proof that the owner of the secret sends the request with this digest.

    It is checked with the headers alone, before the body is read. Then the digest of the body is checked. The service
    also checks that the time is within WINDOW_SECONDS and that the nonce is new, or the request may be a replay.
    """
    return _signature(secret, "request-2", nonce, signed_at, of_request)


def request_headers(secret: bytes, nonce: str, at: float, asked: RequestTarget, body: bytes) -> dict[str, str]:
    """Return the headers that prove a request to the service."""
    of_request, signed_at = digest(*asked, body), str(int(at))
    proof = prove_request(secret, nonce, signed_at, of_request)
    return {
        "Authorization": f"{SCHEME} {proof}",
        NONCE_HEADER: nonce,
        TIME_HEADER: signed_at,
        DIGEST_HEADER: of_request,
    }


def prove_answer(secret: bytes, nonce: str, asked: RequestTarget, status: int, body: bytes) -> str:
    """Return the proof that the owner of the secret answers the request with this nonce.

    It covers the target of the request. So a third party cannot use an answer for another request. It does not cover
    the body, because some requests are answered before their body is read.
    """
    return _signature(secret, "answer-2", nonce, *asked, str(status), body)


def proofs_match(proof: str, due: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), due.encode())


def derive_hub_token(secret: bytes) -> str:
    """Return the token of a service that the hub does not start, unless the configuration sets one."""
    return _signature(secret, "hub-token-1")


def derive_hub_id(secret: bytes) -> str:
    """Return the id of a hub that shares no folder with its service, unless the configuration sets one."""
    return _signature(secret, "hub-id-1")[:32]


def _signature(secret: bytes, use: str, *parts: str | bytes) -> str:
    # ``use`` keeps a signature from being valid for another use.
    return hmac.new(secret, _hashed(use, *parts), hashlib.sha256).hexdigest()


def _hashed(*parts: str | bytes) -> bytes:
    texts = (part if isinstance(part, bytes) else part.encode("utf-8", "replace") for part in parts)
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).digest()


# --- tickets


TICKET_SECONDS = 60.0
"""How long a ticket is valid. Open pages renew it after half of this time. After a logout the hub gives no new one."""
CONFIRM_PATH = "/gpuspawner/confirm"
"""The path below the hub's prefix on which administrators sign in again before they allow a token."""
CONFIRMED_SECONDS = 120.0
"""How long the second sign-in counts. The user presses one button in this time. Arbitrary."""
PAGE_SALT, SSH_SALT, CONFIRMATION_SALT = b"ticket-4", b"ssh-1", b"confirmation-1"


class TicketHolder(NamedTuple):
    """The user of a ticket: the name, and ``created``, which identifies the user (see ``core.leases.lease.Owner``).

    A ticket for a ``form`` only previews a start. The hub gives it to everybody who may start the user's server.
    """

    user: str
    created: str
    form: bool = False


def sign_ticket(secret: bytes, user: str, created: str, now: float, *, form: bool = False) -> str:
    """Return a ticket for ``user`` that is valid for TICKET_SECONDS from ``now`` (seconds since the epoch).

    ``created`` is the time at which the hub created the user, as its REST API writes it.
    """
    return _sign(secret, PAGE_SALT, user, created, form, int(now + TICKET_SECONDS))


def read_ticket(secret: bytes, ticket: str, now: float) -> TicketHolder | None:
    """Return the user of a ticket, or None if it is forged, damaged or expired."""
    holder = _read_signed(secret, PAGE_SALT, ticket, now)
    return None if holder is None else TicketHolder(*holder)


def sign_confirmation(secret: bytes, created: str, code: str, now: float) -> str:
    """Return the proof that a user signed in again to allow a login, valid for CONFIRMED_SECONDS.

    ``created`` is the time at which the hub created the user, ``code`` the code of the login.
    """
    return _sign(secret, CONFIRMATION_SALT, created, code, int(now + CONFIRMED_SECONDS))


def is_confirmed(secret: bytes, confirmation: str, created: str, code: str, now: float) -> bool:
    """Return whether this user has just signed in again for this login."""
    return _read_signed(secret, CONFIRMATION_SALT, confirmation, now) == [created, code]


def sign_ssh_ticket(secret: bytes, lease: str, user: str, now: float) -> str:
    """Return a ticket for SSH to a workspace, valid for TICKET_SECONDS from ``now``."""
    return _sign(secret, SSH_SALT, lease, user, int(now + TICKET_SECONDS))


def read_ssh_ticket(secret: bytes, lease: str, ticket: str, now: float) -> str | None:
    """Return the user of an SSH ticket. None: it is forged, expired, or for another workspace."""
    found = _read_signed(secret, SSH_SALT, ticket, now)
    return str(found[1]) if found is not None and found[0] == lease else None


def _sign(secret: bytes, salt: bytes, *parts: object) -> str:
    # The last part is the end of its validity, because the stamp of itsdangerous has no argument for the time.
    return str(_signer(secret, salt).dumps(parts))


def _read_signed(secret: bytes, salt: bytes, signed: str, now: float) -> list[Any] | None:
    """Return the parts of a signed text without its end, or None if it is forged, damaged or expired."""
    try:
        *parts, good_until = _signer(secret, salt).loads(signed)
    except (BadData, UnicodeError):  # UnicodeError: half a character, which itsdangerous does not expect
        return None
    return parts if now < good_until else None


def _signer(secret: bytes, salt: bytes) -> URLSafeSerializer:
    # The same secret signs texts for several uses. The salt keeps a text from being valid for another use.
    return URLSafeSerializer(secret, salt=salt, signer_kwargs={"digest_method": hashlib.sha256})
