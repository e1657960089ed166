"""``gpuspawner kube operate``: custom resources are read and written for the service, round by round."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import click
from tornado.web import Application

from gpuspawner.backends.custom_resources.base import Resource, Resources
from gpuspawner.backends.custom_resources.cluster import CustomResources
from gpuspawner.backends.kubernetes.settings import ClusterSettings, cluster_settings
from gpuspawner.cli import base
from gpuspawner.cli.errors import InvalidError
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.text_fields import LOG_FORMATS
from gpuspawner.service.custom_resources.controller import AT_ONCE, ROUND_SECONDS
from gpuspawner.service.custom_resources.decisions import visible_requests
from gpuspawner.service.log import TEXT, set_up_log
from gpuspawner.service.loops import ROUTES, Health
from gpuspawner.service.process.serve_options import (
    SERVICE,
    StartError,
    check_address,
    read_listen,
    read_mapping,
    secret_in,
)
from gpuspawner.spawner.client import LeaseClient

log = logging.getLogger("gpuspawner")

MISSING = "add custom_resources: NAMESPACE, the namespace of the requests."
Write = Mapping[str, Any]


@base.command(
    "operate",
    examples="""\
gpuspawner kube operate --service-url http://gpuspawner:9470 --secret-file /etc/gpuspawner/secret --cluster cluster.yaml

cluster.yaml, the same for this process and for the service:
  namespace: jhub              # the workspaces' namespace
  custom_resources: jhub       # the requests' namespace
  operated_elsewhere: true     # this process reads and writes requests, not the service
  kubeconfig: /etc/kubeconfig  # only outside a pod""",
)
@click.option("--service-url", metavar="URL", required=True, help="Where this process reaches the service.")
@click.option("--base-url", metavar="PATH", default="/", show_default=True, help="The hub's base_url.")
@click.option("--secret-file", metavar="FILE", required=True, help="The secret that hub and service share.")
@click.option("--cluster", metavar="FILE", required=True, help="YAML: the cluster's settings, as serve takes them.")
@click.option("--listen", metavar="ADDRESS:PORT", default="127.0.0.1:9471", show_default=True, help="Where it listens.")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default=TEXT,
    show_default=True,
    help="Text, or one JSON object for each line.",
)
def operate(service_url: str, base_url: str, secret_file: str, cluster: str, listen: str, log_format: str) -> None:
    """Read and write custom resources for a service that has no right to.

    This process sees DevGPUVMRequests and writes their status and finalizers. The service decides and
    needs no right to them. Its settings of the cluster say operated_elsewhere: true. Without that, a service does both.
    The process keeps nothing and may be stopped at any time. If several run, one of them leads.

    On its own port it answers /healthz to everybody: 200 while rounds go on.
    """
    set_up_log(log_format)
    base_path = f"/{base_url.strip('/')}/".replace("//", "/")
    try:
        check_address("--service-url", service_url)
        address, port = read_listen(listen)
        settings, secret = _settings(cluster), secret_in(secret_file)
        client = LeaseClient(f"{service_url.rstrip('/')}{base_path}{SERVICE}", secret)
        asyncio.run(_run(Rounds(CustomResources(settings), client), address, port))
    except (StartError, OSError) as error:
        raise InvalidError(f"gpuspawner kube operate: {error}") from error


def _settings(file: str) -> ClusterSettings:
    """Return the settings of the cluster. Raises StartError."""
    try:
        settings = cluster_settings(read_mapping("--cluster", file))
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
    health.note_round("round", ROUND_SECONDS)
    try:
        while not ended.is_set():
            if await rounds.round():
                health.note_round("round", ROUND_SECONDS)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), ROUND_SECONDS)
    finally:
        server.stop()
        await rounds.close()


class Rounds:
    """Rounds of reading and writing. Each begins with everything that the cluster has now."""

    def __init__(self, resources: Resources, client: LeaseClient) -> None:
        """Read nothing yet."""
        self._resources, self._client = resources, client
        self._identity, self._logged = f"{socket.gethostname()[:100]}-{uuid4().hex[:8]}", ""
        self.waits_for = "its first round"
        """The missing part of the last round, for the readiness probe; "" after a good round."""
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Stop watching the cluster."""
        await self._resources.close()

    async def round(self) -> bool:
        """Send the service what the cluster has, and write what it answers. Return False after an unexpected error.

        An error is logged once, and the next round tries again.
        """
        words, broke = "", False
        try:
            await self._round()
        except (Unavailable, Conflict, RequestRefused) as error:
            words = str(error)
            if words != self._logged:
                log.warning(words)
        except Exception:
            log.exception("a round failed and is tried again")
            broke = True
        self._logged = words
        self.waits_for = words or ("a round that works" if broke else "")
        return not broke

    async def _round(self) -> None:
        seen = {one.uid: one for one in await self._resources.requests()}
        refuses = await self._resources.refuses()
        going = await self._resources.going()
        told = {
            "who": self._identity,
            "requests": [asdict(one) for one in visible_requests(seen.values())],
            "refuses": refuses,
        }
        answer = await self._client.operate({**told, "going": going})
        of_each: dict[str, list[Write]] = {}
        for write in answer["writes"]:
            of_each.setdefault(write.get("uid") or write["name"], []).append(write)
        steps = [self._carry_out_all(writes, seen) for writes in of_each.values()]
        done = await asyncio.gather(*steps, return_exceptions=True)
        for error in filter(None, done):
            raise error

    async def _carry_out_all(self, writes: Sequence[Write], seen: Mapping[str, Resource]) -> None:
        """Write everything of one request in order. Stop at the first error."""
        async with self._at_once:
            for write in writes:
                await _carry_out(self._resources, write, seen.get(write.get("uid", "")))


async def _carry_out(there: Resources, write: Write, resource: Resource | None) -> None:
    if write["do"] == "make":
        await there.make(write["name"], write["lease_id"], write["spec"])
    elif resource is not None and write["do"] == "tell":
        await there.tell(resource, write["status"])
    elif resource is not None:
        await {"hold": there.hold, "release": there.release, "delete": there.delete}[write["do"]](resource)
