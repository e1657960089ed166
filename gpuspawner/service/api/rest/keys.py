"""Idempotency keys: what is asked again by the same key is done once, and answered as it was the first time."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.service.store.clients.answers import AnswerRow

log = logging.getLogger("gpuspawner.api")

KEY, REPLAYED = "Idempotency-Key", "Idempotency-Replayed"
LONGEST_KEY = 255
KEPT_SECONDS = 86400.0
"""For how long an answer is kept. Arbitrary: more than any client goes on trying."""
USED = "This Idempotency-Key was sent with another request before. Make a new one for each thing to be done."
UNDER_WAY = "The request with this Idempotency-Key is still under way. Ask again in a second."


async def once(handler: Any, key: str, act: Callable[[], Awaitable[None]]) -> None:
    """Do what a request asks for, unless it was done by this key before; answer as then.

    Only what was done is kept: who was refused may try again by the same key.

    Raises:
        RequestRefused: it is no key.
        HTTPError: 422, the key was used for something else.
        Conflict: the same is under way.
    """
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        right = f"1 to {LONGEST_KEY} printable letters"
        raise RequestRefused(KEY, quoted(key), right, "Make one at random, such as a UUID.")
    person, parts, request = handler.must(), handler.parts, handler.request
    asked = hashlib.sha256(f"{request.method} {request.uri}\n".encode() + request.body).hexdigest()
    # Not by the token: a script that signs in anew meanwhile is the same person.
    of = hashlib.sha256("\n".join([*person.owner, person.name, key]).encode()).hexdigest()
    if of in parts.under_way:
        raise Conflict(UNDER_WAY)
    parts.under_way.add(of)
    try:
        known = await parts.store.read(parts.store.answers.of, of)
        if known is not None:
            if known.asked != asked:
                raise HTTPError(422, reason=USED)
            handler.set_header(REPLAYED, "true")
            handler.send(known.status, known.text)
            return
        handler.holds = True
        await act()
        status, text = handler.held
        try:
            await parts.store.write(parts.store.answers.keep, AnswerRow(of, parts.clock.now(), asked, status, text))
        except Unavailable as error:  # it is done: who asked is to know
            log.warning("what was answered by an Idempotency-Key is not kept: %s", error)
    finally:
        handler.holds = False
        parts.under_way.discard(of)
    handler.send(status, text)
