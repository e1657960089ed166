"""Idempotency keys: a repeated request with the same key acts once, and gets the first answer again."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.service.store.idempotency import KeyRow, begin_act

log = logging.getLogger("gpuspawner.api")

KEY, REPLAYED = "Idempotency-Key", "Idempotency-Replayed"
LONGEST_KEY = 255
KEPT_SECONDS = 86400.0
"""How long an answer is kept. Arbitrary: longer than any client repeats a request."""
USED = "This Idempotency-Key was sent with another request before. Make a new one for each thing to be done."
LOST = (
    "The request with this Idempotency-Key was done, or begun, and the service ended before it answered. Look at what "
    "is there now; make a new key to do something more."
)
UNDER_WAY = "The request with this Idempotency-Key is still under way. Ask again in a second."


async def once(
    handler: Any, key: str, status: int, act: Callable[[], Awaitable[None]], path: Sequence[str], *, repeatable: bool
) -> None:
    """Act once for each key. A repeated request gets the answer of the first one.

    The key is stored in the transaction of the act's first write, with the answer if it is known by then. A refused
    request stores nothing, so it may be sent again with the same key.

    Args:
        handler: the handler of the request. Its method ``replay``, if it has one, makes an answer that was lost.
        key: the idempotency key.
        status: the status of a success.
        act: carries out the request.
        path: the arguments in the address, for ``replay``.
        repeatable: whether acting twice has the effect of acting once. Then a lost answer is made by acting again.

    Raises:
        RequestRefused: the key is malformed.
        HTTPError: 422, the key was used for another request.
        Conflict: the same request is under way, or its answer was lost.
    """
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        right = f"1 to {LONGEST_KEY} printable letters"
        raise RequestRefused(KEY, quoted(key), right, "Use a random one, for example a UUID.")
    person, parts, request = handler.must(), handler.parts, handler.request
    digest = hashlib.sha256(f"{request.method} {request.uri}\n".encode() + request.body).hexdigest()
    # Not by the token: a script that signed in again is the same person.
    who = "\n".join([*person.owner, person.name])
    name = hashlib.sha256(f"{who}\n{key}".encode()).hexdigest()
    if name in parts.under_way:
        raise Conflict(UNDER_WAY)
    parts.under_way.add(name)
    try:
        known = await parts.store.read(parts.store.idempotency_keys.get, name)
        if known is not None and known.request != digest:
            raise HTTPError(422, reason=USED)
        if known is not None and (known.answer or not repeatable):
            await _replay(handler, known, path)
            return
        row = KeyRow(name, hashlib.sha256(who.encode()).hexdigest(), parts.clock.now(), digest, status)
        await _act(handler, row, act)
    finally:
        handler.holds = False
        parts.under_way.discard(name)
    handler.send(*handler.held)


async def _replay(handler: Any, known: KeyRow, path: Sequence[str]) -> None:
    """Answer the stored answer, or an answer that is made from the present state."""
    handler.set_header(REPLAYED, "true")
    if known.answer:
        handler.send(known.status, known.answer)
    elif hasattr(handler, "replay"):
        await handler.replay(known.about, *path)
    else:
        raise Conflict(LOST)


async def _act(handler: Any, row: KeyRow, act: Callable[[], Awaitable[None]]) -> None:
    """Act, and hold the answer back until it is stored."""
    store, keyed = handler.parts.store, begin_act(row)
    handler.holds = True
    try:
        await act()
    except (Conflict, RequestRefused, HTTPError):
        if keyed.stored:
            await store.write(store.idempotency_keys.delete, row.id)
        raise
    finally:
        keyed.closed = True
    status, text = handler.held
    if keyed.stored and (status, text) == (keyed.row.status, keyed.row.answer):
        return  # it was stored with the act
    try:
        await store.write(store.idempotency_keys.save, replace(keyed.row, status=status, answer=text))
    except Unavailable as error:  # the act is done, so its sender gets the answer
        log.warning("what was answered by an Idempotency-Key is not kept: %s", error)
