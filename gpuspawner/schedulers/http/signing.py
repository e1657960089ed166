"""What proves that a callback is the scheduler's, is new, and was not had before. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict

OLDEST_SECONDS = 300.0
"""What was signed longer ago, or so far in the future, is refused."""
MOST_REMEMBERED = 10_000
"""Deliveries within five minutes. Arbitrary: 33 a second, and each is one look at what stands."""

_SIGNATURE = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")
_DELIVERY = re.compile(r"[!-~]{8,100}")


def signature(token: str, at: int, body: bytes) -> str:
    """Return what the scheduler writes into ``X-Signature`` at a time, in seconds since the epoch."""
    digest = hmac.new(token.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class Deliveries:
    """Those that were had within five minutes, so that none counts twice."""

    def __init__(self) -> None:
        """Remember none."""
        self._had: OrderedDict[str, float] = OrderedDict()

    def why_refused(self, token: str, signed: str, delivery: str, body: bytes, now: float) -> str:
        """Return why a callback is refused, in a sentence; "" for one that is taken, which counts once."""
        found = _SIGNATURE.fullmatch(signed)
        if not token or found is None or not _DELIVERY.fullmatch(delivery):
            return "X-Signature (t=SECONDS,v1=HEX) and X-Delivery (8 to 100 characters) are needed."
        if not hmac.compare_digest(signature(token, int(found[1]), body), signed):
            return "The signature is not that of this body and the token of both sides."
        if abs(now - int(found[1])) > OLDEST_SECONDS:
            return f"It was signed more than {OLDEST_SECONDS:g} s ago, or the two clocks differ by so much."
        while self._had and next(iter(self._had.values())) < now - 2 * OLDEST_SECONDS:
            self._had.popitem(last=False)
        names = delivery, signed  # nobody signs what a delivery is called: who replays one may call it otherwise
        if any(name in self._had for name in names):
            return "This delivery was had before."
        if len(self._had) >= len(names) * MOST_REMEMBERED:
            return f"More than {MOST_REMEMBERED} deliveries came within {2 * OLDEST_SECONDS:g} s."
        self._had.update(dict.fromkeys(names, now))
        return ""
