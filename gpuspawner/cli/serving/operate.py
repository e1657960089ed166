"""Shows the service what the cluster has, round by round, and writes there what it answers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from tornado.web import Application

from gpuspawner.backends.kubernetes.resources import CustomResources
from gpuspawner.backends.kubernetes.settings import ClusterSettings, cluster_settings
from gpuspawner.backends.resources import Resources
from gpuspawner.cli.serving.started import SERVICE, StartError, check_address, listen_at, mapping_in, secret_in
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.resources.resource import Resource
from gpuspawner.core.resources.showing import shown
from gpuspawner.service.health import ROUTES, Health
from gpuspawner.service.log import begin_log
from gpuspawner.service.operator.operator import AT_ONCE, ROUND_SECONDS
from gpuspawner.spawner.client import LeaseClient

log = logging.getLogger("gpuspawner")

INVALID = 1
MISSING = "add custom_resources: NAMESPACE, where the requests are."
Write = Mapping[str, Any]


def operate(arguments: argparse.Namespace) -> int:
    """Run until it is ended."""
    begin_log(arguments.log_format)
    base = f"/{arguments.base_url.strip('/')}/".replace("//", "/")
    try:
        check_address("--service-url", arguments.service_url)
        address, port = listen_at(arguments.listen)
        settings, secret = _settings(arguments.cluster), secret_in(arguments.secret_file)
        client = LeaseClient(f"{arguments.service_url.rstrip('/')}{base}{SERVICE}", secret)
        asyncio.run(_run(Rounds(CustomResources(settings), client), address, port))
    except (StartError, OSError) as error:
        print(f"gpuspawner operate: {error}", file=sys.stderr)
        return INVALID
    return 0


def _settings(file: str) -> ClusterSettings:
    """Return the settings of the cluster. Raises StartError."""
    try:
        settings = cluster_settings(mapping_in("--cluster", file))
    except ValueError as error:
        raise StartError(f"--cluster: {file}: {error}.") from error
    if not settings.custom_resources:
        raise StartError(f"--cluster: {file} names no namespace: {MISSING}")
    return settings


async def _run(rounds: Rounds, address: str, port: int) -> None:
    health, ended = Health(lambda: rounds.waits_for), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = Application([(path, handler, {"health": health}) for path, handler in ROUTES]).listen(port, address)
    health.went_round("round", ROUND_SECONDS)
    try:
        while not ended.is_set():
            if await rounds.round():
                health.went_round("round", ROUND_SECONDS)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), ROUND_SECONDS)
    finally:
        server.stop()
        await rounds.close()


class Rounds:
    """Level-triggered: each round begins with all that the cluster has now."""

    def __init__(self, resources: Resources, client: LeaseClient) -> None:
        """Look at nothing yet."""
        self._resources, self._client = resources, client
        self._who, self._said = f"{socket.gethostname()[:100]}-{uuid4().hex[:8]}", ""
        self.waits_for = "its first round"
        """What the last round lacked, "" after one that worked: for the readiness probe."""
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Follow the cluster no longer."""
        await self._resources.close()

    async def round(self) -> bool:
        """Show what is there, and write what is answered. What fails is said once, and tried again by the next.

        Returns False where it broke: cluster and service answered, or refused.
        """
        said, broke = "", False
        try:
            await self._round()
        except (Unavailable, Conflict, RequestRefused) as error:
            said = str(error)
            if said != self._said:
                log.warning(said)
        except Exception:
            log.exception("a round failed and is tried again")
            broke = True
        self._said = said
        self.waits_for = said or ("a round that works" if broke else "")
        return not broke

    async def _round(self) -> None:
        seen = {one.uid: one for one in await self._resources.requests()}
        refuses = await self._resources.refuses()
        going = await self._resources.going()
        told = {"who": self._who, "requests": [asdict(one) for one in shown(seen.values())], "refuses": refuses}
        answer = await self._client.operate({**told, "going": going})
        of_each: dict[str, list[Write]] = {}
        for write in answer["writes"]:
            of_each.setdefault(write.get("uid") or write["name"], []).append(write)
        steps = [self._carry_out_all(writes, seen) for writes in of_each.values()]
        done = await asyncio.gather(*steps, return_exceptions=True)
        for error in filter(None, done):
            raise error

    async def _carry_out_all(self, writes: Sequence[Write], seen: Mapping[str, Resource]) -> None:
        """Write all of one request, in order: after what fails nothing more."""
        async with self._at_once:
            for write in writes:
                await _carry_out(self._resources, write, seen.get(write.get("uid", "")))


async def _carry_out(there: Resources, write: Write, resource: Resource | None) -> None:
    if write["do"] == "make":
        await there.make(write["name"], write["lease_id"], write["spec"])
    elif resource is None:
        return
    elif write["do"] == "tell":
        await there.tell(resource, write["status"])
    elif write["do"] == "hold":
        await there.hold(resource)
    elif write["do"] == "release":
        await there.release(resource)
    elif write["do"] == "delete":
        await there.delete(resource)
