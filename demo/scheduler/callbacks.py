"""Signed callbacks: what changed, to the address that a hub named."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

TRIES = 3
ANSWER_SECONDS = 5


def signature(token: str, body: bytes, at: int) -> str:
    """Return X-Signature for a body sent at a time, in seconds since the epoch."""
    signed = hmac.new(token.encode(), f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={signed.hexdigest()}"


def is_on_this_machine(url: str) -> bool:
    """Whether an address is of this machine: a client may not make this server ask others."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def send(url: str, token: str, hub: str, claims: list[dict[str, Any]], *, twice: bool = False) -> bool:
    """Tell a hub what changed; whether it took it. A repeat has the same delivery id and a new signature."""
    body = json.dumps({"hub": hub, "claims": claims}).encode()
    delivery = uuid.uuid4().hex
    taken = False
    for attempt in range(TRIES):
        headers = {
            "Content-Type": "application/json",
            "X-Delivery": delivery,
            "X-Signature": signature(token, body, int(time.time())),
        }
        request = HTTPRequest(
            url, "POST", headers, body, request_timeout=ANSWER_SECONDS, follow_redirects=False, validate_cert=True
        )
        try:
            answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        except (OSError, ValueError):
            answer = None
        taken = taken or (answer is not None and answer.code // 100 == 2)  # noqa: PLR2004 - any 2xx
        if taken and not (twice and attempt == 0):
            return True
        await asyncio.sleep(attempt * 0.5)
    return taken
