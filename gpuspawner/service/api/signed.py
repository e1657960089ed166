"""Replay protection: each signed request of the hub is served once, and only soon after it was signed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gpuspawner.core.authentication import NONCE_HEADER, TIME_HEADER, WINDOW_SECONDS
from gpuspawner.core.units import show_duration

log = logging.getLogger("gpuspawner.api")

CLOCKS = (
    "The clocks of the hub and of the GPU service differ by {}, and at most {} is accepted. Set both by NTP: chronyc "
    "tracking, or timedatectl, tells which is off."
)
REPLAYED = "This request was served before. Send a new one."
TOLD_SECONDS = 60.0
"""The interval of the log message that the clocks differ. Each call of the hub is refused meanwhile."""


class SignedRequests:
    """The nonces of the last WINDOW_SECONDS. They are lost with the process: a replay may succeed after a restart."""

    def __init__(self) -> None:
        """Start without nonces."""
        self._expires_at: dict[str, float] = {}
        self._forgot_at = self._told_at = float("-inf")

    def refuse(self, headers: Mapping[str, str], now: float) -> str:
        """Return why a request with a valid proof is refused, "" if it is served. Its nonce is then used up."""
        try:
            signed_at = int(headers.get(TIME_HEADER, ""))
        except ValueError:
            return "The request does not say when it was signed. Is the hub's version of gpuspawner the same?"
        if abs(now - signed_at) > WINDOW_SECONDS + 1:  # the header has whole seconds
            why = CLOCKS.format(show_duration(abs(now - signed_at)), show_duration(WINDOW_SECONDS))
            if now - self._told_at >= TOLD_SECONDS:
                self._told_at = now
                log.error("a call of the hub is refused: %s", why)
            return why
        self._forget(now)
        if headers[NONCE_HEADER] in self._expires_at:
            log.warning("a signed call of the hub came a second time, and is refused")
            return REPLAYED
        self._expires_at[headers[NONCE_HEADER]] = signed_at + WINDOW_SECONDS + 1
        return ""

    def _forget(self, now: float) -> None:
        """Forget the nonces of requests that are too old by now, once a second at most."""
        if abs(now - self._forgot_at) >= 1:
            self._forgot_at = now
            self._expires_at = {nonce: at for nonce, at in self._expires_at.items() if at >= now}
