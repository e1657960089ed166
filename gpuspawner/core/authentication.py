"""How hub, service and pages prove who sends a request."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

from itsdangerous import BadData, URLSafeSerializer

# --- proofs of requests and answers


SCHEME = "spawner"
"""Of ``Authorization``, before the proof of a request."""
NONCE_HEADER = "Gpuspawner-Nonce"
"""The header by which whoever asks wants a proof: a text that no answer before can have been signed for."""
TIME_HEADER = "Gpuspawner-Time"
"""The header of when a request was signed, in whole seconds since the epoch."""
WINDOW_SECONDS = 60
"""A signed request is good for so long, and so far may the clocks of hub and service differ. Arbitrary: as long as a
ticket of the hub's pages; NTP keeps clocks within a second."""
DIGEST_HEADER = "Gpuspawner-Digest"
"""The header of what a request asks, all of it."""
PROOF_HEADER = "Gpuspawner-Proof"
"""The header of an answer's proof."""


class RequestTarget(NamedTuple):
    """What a request asks, but for its body. ``target`` is path and query as they are sent."""

    method: str
    target: str


def new_nonce() -> str:
    """Return a text that nobody used before."""
    return secrets.token_urlsafe(16)


def digest(method: str, target: str, body: bytes) -> str:
    """Return what stands for a whole request in its headers. ``target`` is path and query as they are sent."""
    return _hashed(method, target, body).hex()


def prove_request(secret: bytes, nonce: str, signed_at: str, of_request: str) -> str:
    """Return what shows that the hub of this secret sends the request of this ``digest``, signed at a time.

    It is checked by the headers alone, before a body is read; then the body must have that digest. Whether the time is
    within WINDOW_SECONDS and the nonce is new is for the service to check: else the request may be a replay.
    """
    return _signature(secret, "request-2", nonce, signed_at, of_request)


def request_headers(secret: bytes, nonce: str, at: float, asked: RequestTarget, body: bytes) -> dict[str, str]:
    """Return the headers by which the service of this secret takes a request for its hub's, at a time."""
    of_request, signed_at = digest(*asked, body), str(int(at))
    proof = prove_request(secret, nonce, signed_at, of_request)
    return {
        "Authorization": f"{SCHEME} {proof}",
        NONCE_HEADER: nonce,
        TIME_HEADER: signed_at,
        DIGEST_HEADER: of_request,
    }


def prove_answer(secret: bytes, nonce: str, asked: RequestTarget, status: int, body: bytes) -> str:
    """Return what shows that the service of this secret answers this to the request of this nonce.

    It is for what was ``asked`` alone: whoever took a request for the service's cannot have another one answered with
    its nonce, and pass that on. The body is left out: some requests are answered before theirs is read.
    """
    return _signature(secret, "answer-2", nonce, *asked, str(status), body)


def proofs_match(proof: str, due: str) -> bool:
    """Compare a proof that came with the one that is due, in constant time."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), due.encode())


def derive_hub_token(secret: bytes) -> str:
    """Return the token by which the hub knows a service that it does not start, where nobody chose another."""
    return _signature(secret, "hub-token-1")


def derive_hub_id(secret: bytes) -> str:
    """Return the id of a hub that shares no folder with its service, where nobody chose another."""
    return _signature(secret, "hub-id-1")[:32]


def _signature(secret: bytes, use: str, *parts: str | bytes) -> str:
    # ``use`` keeps what is signed for one use from serving another.
    return hmac.new(secret, _hashed(use, *parts), hashlib.sha256).hexdigest()


def _hashed(*parts: str | bytes) -> bytes:
    """Hash each part, so that none can end where another begins, and then all."""
    texts = (part if isinstance(part, bytes) else part.encode("utf-8", "replace") for part in parts)
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).digest()


# --- tickets


TICKET_SECONDS = 60.0
"""An open page asks the hub for a new one every half of it. After a logout none comes (see ``spawner.web.renewal``)."""
CONFIRM_PATH = "/gpuspawner/confirm"
"""Below the hub's prefix: where a user signs in anew for an administrator's token."""
CONFIRMED_SECONDS = 120.0
"""How long a fresh sign-in counts: its user presses one button meanwhile. Arbitrary."""
PAGE_SALT, SSH_SALT = b"ticket-4", b"ssh-1"


class TicketHolder(NamedTuple):
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


def read_ticket(secret: bytes, ticket: str, now: float) -> TicketHolder | None:
    """Return for whom a ticket is, None where it is forged, torn or over."""
    try:
        *holder, good_until = _signer(secret).loads(ticket)
    except (BadData, UnicodeError):  # UnicodeError: half a character, which itsdangerous does not expect
        return None
    return TicketHolder(*holder) if now < good_until else None


def sign_confirmation(secret: bytes, created: str, code: str, now: float) -> str:
    """Return what says that a user signed in anew for a login, good for CONFIRMED_SECONDS from ``now``.

    ``created`` is when the hub made the user, ``code`` the login's.
    """
    return str(_signer(secret, b"confirmation-1").dumps([created, code, int(now + CONFIRMED_SECONDS)]))


def is_confirmed(secret: bytes, confirmation: str, created: str, code: str, now: float) -> bool:
    """Return whether this user signed in anew for this login a moment ago."""
    try:
        user_created, of_code, good_until = _signer(secret, b"confirmation-1").loads(confirmation)
    except (BadData, UnicodeError, ValueError, TypeError):
        return False
    return (user_created, of_code) == (created, code) and bool(now < good_until)


def sign_ssh_ticket(secret: bytes, lease: str, user: str, now: float) -> str:
    """Return a ticket by which a user gets into a workspace by SSH, good for TICKET_SECONDS from ``now``."""
    return str(_signer(secret, SSH_SALT).dumps([lease, user, int(now + TICKET_SECONDS)]))


def read_ssh_ticket(secret: bytes, lease: str, ticket: str, now: float) -> str | None:
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
