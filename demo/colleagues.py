"""Two scripted colleagues, so that the fleet is not empty: carol-demo works on two GPUs, dave-demo leaves his idle.

Carol asks for her next workspace before she stops the present one. If a user is waiting, she asks once that user has
the GPUs. So a request for all four A100 always meets a queue, and starts when she stops.

Their workspaces are real, started through the hub's REST API with a token that reaches only these two users' servers,
and what is free.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

WORK_SECONDS = 120
WORK_PERCENT = 30
"""Of two simulated GPUs: it burns as much of one processor core, and a laptop shall stay quiet."""
PAUSE_SECONDS = 45
"""The most seconds for which carol leaves her GPUs to waiting users. Also the pause between two rounds of dave."""
RETRY_SECONDS = 5
"""Between a refusal and the next try. Until then a request for all A100 may meet no queue."""
CAROLS_SERVERS = ("train", "evaluate")
POLL_SECONDS = 1
READY_WITHIN_SECONDS = 600
"""A start may wait in the queue; past this it is left to it."""
CODE = f"from gpuspawner.backends.local import busy\nbusy({WORK_SECONDS}, percent={WORK_PERCENT})"
CAROL: dict[str, Any] = {"template": "pytorch", "gpu": "a100", "count": 2}
CAROL_LIFETIME_FAST = "3m"
"""A round, and the time to start and stop. Users who wait for her GPUs see this time, not the template's 8 hours."""
DAVE = {"template": "pytorch", "gpu": "h100", "count": 1}


class Hub:
    """The hub's API and its users' servers, for one token."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send one request and return its JSON, or None if the answer is empty.

        Raises:
            HTTPClientError: it was refused.
            OSError: there was no answer.
        """
        text = json.dumps(body) if body is not None else "" if method == "POST" else None
        request = HTTPRequest(f"{self.url}{path}", method, self.headers, text, request_timeout=60)
        answer = (await AsyncHTTPClient().fetch(request)).body
        return json.loads(answer) if answer else None

    async def start(self, user: str, options: dict[str, Any], name: str = "") -> bool:
        """Start a user's workspace; tell whether it was ready in time."""
        await self.request_start(user, options, name)
        for _ in range(READY_WITHIN_SECONDS // POLL_SECONDS):
            server = await self.server(user, name)
            if server is None or server["ready"]:
                return server is not None
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def request_start(self, user: str, options: dict[str, Any], name: str = "") -> None:
        """Ask for a user's workspace, unless it runs or starts."""
        if await self.server(user, name) is None:
            await self.ask("POST", _path(f"/hub/api/users/{user}/server", name), options)

    async def is_awaited(self, kind: str) -> bool:
        """Return whether a user is waiting for this kind of GPU."""
        offers = (await self.ask("GET", "/services/gpu/api/v1/offers"))["offers"]
        return any(offer["kind"] == kind and offer["waiting"] for offer in offers)

    async def stop(self, user: str, name: str = "") -> None:
        """Stop a user's workspace."""
        await self.ask("DELETE", _path(f"/hub/api/users/{user}/server", name))

    async def server(self, user: str, name: str = "") -> dict[str, Any] | None:
        """Return the hub's record of a user's workspace, if one runs or starts."""
        found: dict[str, Any] | None = (await self.ask("GET", f"/hub/api/users/{user}"))["servers"].get(name)
        return found

    async def run(self, user: str, code: str, name: str = "") -> str:
        """Run ``code`` in a new kernel of a user's workspace; return how that ended, "cut off" with the workspace."""
        base = f"/user/{user}/{name}".rstrip("/")
        kernel = await self.ask("POST", f"{base}/api/kernels", {"name": "python3"})
        address = f"{self.url.replace('http', 'ws', 1)}{base}/api/kernels/{kernel['id']}/channels"
        channel = await websocket_connect(HTTPRequest(address, headers=self.headers))
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3"}
        content = {"code": code, "silent": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await channel.write_message(json.dumps(message))
        while (text := await channel.read_message()) is not None:
            reply = json.loads(text)
            if reply["msg_type"] == "execute_reply" and reply["parent_header"].get("msg_id") == header["msg_id"]:
                channel.close()
                outcome = reply["content"]
                return f"{outcome['status']} {outcome.get('evalue', '')}".strip()
        return "cut off"


def _path(path: str, name: str) -> str:
    return f"{path}s/{name}" if name else path


async def carol(hub: Hub, *, fast: bool) -> None:
    """Play one round: start, work, ask for the next workspace if the queue is empty, stop."""
    options = CAROL | ({"lifetime": CAROL_LIFETIME_FAST} if fast else {})
    for present, following in zip(CAROLS_SERVERS, reversed(CAROLS_SERVERS), strict=True):
        if await hub.start("carol-demo", options, present):
            print(f"demo colleague carol: worked, {await hub.run('carol-demo', CODE, present)}", flush=True)
            awaited = await hub.is_awaited(CAROL["gpu"])
            if not awaited:
                await hub.request_start("carol-demo", options, following)
            await hub.stop("carol-demo", present)
            for _ in range(PAUSE_SECONDS // POLL_SECONDS if awaited else 0):
                await asyncio.sleep(POLL_SECONDS)
                if not await hub.is_awaited(CAROL["gpu"]):
                    break


async def dave(hub: Hub, *, fast: bool) -> None:  # noqa: ARG001 - played like carol
    """One round: start unless it runs, and do nothing with it."""
    if await hub.server("dave-demo") is None:
        await hub.start("dave-demo", DAVE)


async def main(url: str) -> None:
    """Play both for as long as the demo runs."""
    demo = json.loads(os.environ["GPUSPAWNER_DEMO"])
    kept = json.loads((Path(demo["data"]) / "secrets.json").read_text())
    hub = Hub(url, kept["colleagues_token"])

    async def in_rounds(play: Any, pause_seconds: float) -> None:
        while True:
            try:
                await play(hub, fast=demo["fast"] is not None)
            except (HTTPClientError, OSError) as error:  # an ending hub, a queue, a stop by the administrator
                print(f"demo colleague {play.__name__}: {error}", flush=True)
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(pause_seconds)

    await asyncio.gather(in_rounds(carol, 0), in_rounds(dave, PAUSE_SECONDS))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
