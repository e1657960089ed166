"""The connection to a cluster's API server by a kubeconfig or the pod's service account."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME as SERVICE_HOST

from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable

TLS_END_SECONDS = 0.25
"""Wait after closing connections. aiohttp does not tell when TLS has ended, and an open transport would be reported
when the event loop ends."""
READ_BUFFER_BYTES = 2 * 1024 * 1024
"""Events of large objects exceed aiohttp's default. This is kubernetes_asyncio's value."""
OTHER_CONNECTIONS = 16
"""Connections for watches, ends and all other calls except execs."""
TOKEN_SECONDS = 30.0
"""Time limit for a kubeconfig's command that returns a token."""
RENEW_SECONDS = 60.0
"""Interval between checks of the token's age, as in kubernetes_asyncio. A kubeconfig's command runs again five minutes
before its token ends."""


NO_KUBECONFIG = (
    "There is no connection to a cluster: no kubeconfig ($KUBECONFIG, ~/.kube/config) exists, and this is not a pod."
)


@dataclass(frozen=True)
class Connection:
    """A connection to the API server at ``host``. ``options`` are passed to each request."""

    host: str
    session: aiohttp.ClientSession
    options: dict[str, Any]
    client: ApiClient
    renew: Callable[[], Awaitable[None]]

    @classmethod
    async def open(cls, settings: ClusterSettings) -> Connection:
        """Return a connection. Nothing is requested yet.

        Raises:
            Unavailable: The configuration cannot be read.
        """
        configuration = Configuration()
        configuration.connection_pool_maxsize = (
            2 * settings.probes_at_once + settings.scripts_at_once + OTHER_CONNECTIONS
        )
        try:
            renew = await _read(settings, configuration)
            host = str(configuration.host)
            proxy = _check_proxy(str(configuration.proxy)) if configuration.proxy else find_proxy(host)
            client = ApiClient(configuration)
        except Exception as error:  # kubernetes_asyncio raises anything for a wrong file
            raise _unreadable(settings, error) from error
        # The client's own session would look for a proxy and in ~/.netrc at each request, in a thread, which takes a
        # quarter of an exec's CPU. The environment's proxy is always the same, and the kubeconfig has the credentials.
        session = aiohttp.ClientSession(
            connector=client.rest_client.pool_manager.connector, connector_owner=False, read_bufsize=READ_BUFFER_BYTES
        )
        options = {"proxy": proxy, "server_hostname": configuration.tls_server_name}
        return cls(host, session, options, client, renew)

    async def headers(self) -> dict[str, str]:
        """Return the headers of a request. A token is renewed before it ends.

        Raises:
            Unavailable: The token cannot be renewed.
        """
        headers = {"User-Agent": "gpuspawner"}  # An exec is refused to a client that accepts only JSON.
        await self.renew()
        await self.client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def close(self) -> None:
        """Close the connections and wait for the end of TLS."""
        await self.session.close()
        await self.client.close()
        await asyncio.sleep(TLS_END_SECONDS)


def find_proxy(host: str) -> str | None:
    """Return the proxy for a URL from ``HTTPS_PROXY``, ``NO_PROXY`` and so on.

    Raises:
        ValueError: The proxy cannot be used.
    """
    parts = urlsplit(host)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    named = urllib.request.getproxies().get(parts.scheme, "")
    proxy = named if "://" in named or not named else f"http://{named}"  # as curl and kubectl do
    # A proxy with TLS is ignored, as in KubeSpawner, because the cluster's authority did not sign its certificate.
    return None if not proxy or proxy.startswith("https:") else _check_proxy(proxy)


def _check_proxy(proxy: str) -> str:
    scheme = urlsplit(proxy).scheme
    if scheme not in {"http", "https"}:  # aiohttp would speak HTTP to any proxy
        raise ValueError(f"the proxy has {scheme or 'no scheme'}://, but only an http:// proxy can be used")
    return proxy


async def _read(settings: ClusterSettings, configuration: Configuration) -> Callable[[], Awaitable[None]]:
    """Fill in ``configuration`` and return a function that renews its token."""
    if not settings.kubeconfig:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return _nothing  # kubernetes_asyncio reads the token again itself
    loading = config.load_kube_config(settings.kubeconfig, settings.context or None, configuration)
    loader = await asyncio.wait_for(loading, TOKEN_SECONDS)
    renewed_at = time.monotonic()

    async def renew() -> None:
        nonlocal renewed_at
        if time.monotonic() - renewed_at < RENEW_SECONDS:
            return
        renewed_at = time.monotonic()  # Other requests use the old token meanwhile, so only one command runs.
        try:
            await asyncio.wait_for(loader.load_and_set(configuration), TOKEN_SECONDS)
        except Exception as error:
            raise _unreadable(settings, error) from error

    return renew


async def _nothing() -> None:
    pass


def _unreadable(settings: ClusterSettings, error: Exception) -> Unavailable:
    if not settings.kubeconfig and SERVICE_HOST not in os.environ:
        return Unavailable(NO_KUBECONFIG)
    source = f"the kubeconfig {settings.kubeconfig}" if settings.kubeconfig else "the pod's service account"
    is_invalid = settings.kubeconfig and isinstance(error, TypeError | AttributeError | KeyError)
    words = "it is not a kubeconfig" if is_invalid else str(error).rstrip(".") or type(error).__name__
    return Unavailable(f"The connection to the cluster cannot be read from {source}: {words}.")
