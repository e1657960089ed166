"""How a hub and its service prove to each other that they know the same secret, which is never sent.

Something else may answer at the service's address: the service of another hub, where two have the same port.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

SCHEME = "spawner"
"""Of ``Authorization``, before the proof of a request."""
NONCE = "Gpuspawner-Nonce"
"""The header by which whoever asks wants a proof: a text that no answer before can have been signed for."""
TIME = "Gpuspawner-Time"
"""The header of when a request was signed, in whole seconds since the epoch."""
WINDOW_SECONDS = 60
"""A signed request is good for so long, and so far may the clocks of hub and service differ. Arbitrary: as long as a
ticket of the hub's pages; NTP keeps clocks within a second."""
DIGEST = "Gpuspawner-Digest"
"""The header of what a request asks, all of it."""
PROOF = "Gpuspawner-Proof"
"""The header of an answer's proof."""


class Asked(NamedTuple):
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


def request_headers(secret: bytes, nonce: str, at: float, asked: Asked, body: bytes) -> dict[str, str]:
    """Return the headers by which the service of this secret takes a request for its hub's, at a time."""
    of_request, signed_at = digest(*asked, body), str(int(at))
    proof = prove_request(secret, nonce, signed_at, of_request)
    return {"Authorization": f"{SCHEME} {proof}", NONCE: nonce, TIME: signed_at, DIGEST: of_request}


def prove_answer(secret: bytes, nonce: str, asked: Asked, status: int, body: bytes) -> str:
    """Return what shows that the service of this secret answers this to the request of this nonce.

    It is for what was ``asked`` alone: whoever took a request for the service's cannot have another one answered with
    its nonce, and pass that on. The body is left out: some requests are answered before theirs is read.
    """
    return _signature(secret, "answer-2", nonce, *asked, str(status), body)


def is_same(proof: str, due: str) -> bool:
    """Compare a proof that came with the one that is due, in constant time."""
    return hmac.compare_digest(proof.encode("utf-8", "replace"), due.encode())


def hub_token(secret: bytes) -> str:
    """Return the token by which the hub knows a service that it does not start, where nobody chose another."""
    return _signature(secret, "hub-token-1")


def hub_id_of(secret: bytes) -> str:
    """Return the id of a hub that shares no folder with its service, where nobody chose another."""
    return _signature(secret, "hub-id-1")[:32]


def _signature(secret: bytes, use: str, *parts: str | bytes) -> str:
    # ``use`` keeps what is signed for one use from serving another.
    return hmac.new(secret, _hashed(use, *parts), hashlib.sha256).hexdigest()


def _hashed(*parts: str | bytes) -> bytes:
    """Hash each part, so that none can end where another begins, and then all."""
    texts = (part if isinstance(part, bytes) else part.encode("utf-8", "replace") for part in parts)
    return hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).digest()
