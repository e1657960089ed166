"""How the API server is reached: what a kubeconfig or the pod's service account says, by kubernetes_asyncio."""

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
"""After the connections were closed. aiohttp tells nobody when their TLS has ended: one that outlives its event loop is
told as an unclosed transport."""
READ_BUFFER_BYTES = 2 * 1024 * 1024
"""Events of large objects exceed aiohttp's own: kubernetes_asyncio's figure."""
OTHERS_AT_ONCE = 16
"""Connections that are kept for watches, ends and all else beside execs."""
KNOWN_SECONDS = 30.0
"""A kubeconfig's own command that takes longer for a token gives none."""
RENEW_SECONDS = 60.0
"""Between two looks whether a token must be renewed: kubernetes_asyncio's own figure, which does so within a pod alone.
A kubeconfig's command is run again five minutes before its token's end.
"""


NO_KUBECONFIG = (
    "How to reach the cluster is not known: there is no kubeconfig ($KUBECONFIG, ~/.kube/config), and this is no pod."
)


@dataclass(frozen=True)
class Connection:
    """One cluster's API server, at ``host``; ``how`` is what each request needs to get there."""

    host: str
    session: aiohttp.ClientSession
    how: dict[str, Any]
    client: ApiClient
    renew: Callable[[], Awaitable[None]]

    @classmethod
    async def opened(cls, settings: ClusterSettings) -> Connection:
        """Return the way there. Nothing is asked yet.

        Raises:
            Unavailable: it is not known.
        """
        configuration = Configuration()
        configuration.connection_pool_maxsize = 2 * settings.probes_at_once + settings.scripts_at_once + OTHERS_AT_ONCE
        try:
            renew = await _read(settings, configuration)
            host = str(configuration.host)
            proxy = _understood(str(configuration.proxy)) if configuration.proxy else proxy_to(host)
            client = ApiClient(configuration)
        except Exception as error:  # kubernetes_asyncio raises whatever comes of a file that is wrong
            raise _not_known(settings, error) from error
        # The client's own session looks for a proxy and in ~/.netrc at each request, in a thread: a quarter of an
        # exec's CPU. The environment's proxy is the same for all, and who the service is, the kubeconfig says.
        session = aiohttp.ClientSession(
            connector=client.rest_client.pool_manager.connector, connector_owner=False, read_bufsize=READ_BUFFER_BYTES
        )
        how = {"proxy": proxy, "server_hostname": configuration.tls_server_name}
        return cls(host, session, how, client, renew)

    async def headers(self) -> dict[str, str]:
        """Return what a request says of itself and of who asks. A token is renewed before it ends.

        Raises:
            Unavailable: it could not be renewed.
        """
        headers = {"User-Agent": "gpuspawner"}  # an exec is refused to who accepts JSON alone
        await self.renew()
        await self.client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def close(self) -> None:
        """Close the connections, and give their TLS a moment to end."""
        await self.session.close()
        await self.client.close()
        await asyncio.sleep(TLS_END_SECONDS)


def proxy_to(host: str) -> str | None:
    """Return the proxy that the environment names for a URL: ``HTTPS_PROXY`` and the like, but for ``NO_PROXY``.

    Raises:
        ValueError: no request can go by it.
    """
    parts = urlsplit(host)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    named = urllib.request.getproxies().get(parts.scheme, "")
    proxy = named if "://" in named or not named else f"http://{named}"  # as curl and kubectl read it
    # One reached by TLS is passed by, as by KubeSpawner: its certificate is not by the cluster's authority.
    return None if not proxy or proxy.startswith("https:") else _understood(proxy)


def _understood(proxy: str) -> str:
    scheme = urlsplit(proxy).scheme
    if scheme not in {"http", "https"}:  # aiohttp would speak HTTP to it, whatever it is
        raise ValueError(f"the proxy is one of {scheme or 'no scheme'}://, and only one of http:// can be used")
    return proxy


async def _read(settings: ClusterSettings, configuration: Configuration) -> Callable[[], Awaitable[None]]:
    """Fill in ``configuration``; return what renews it before a request."""
    if not settings.kubeconfig:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        return _nothing  # its token is read again by kubernetes_asyncio itself
    loading = config.load_kube_config(settings.kubeconfig, settings.context or None, configuration)
    loader = await asyncio.wait_for(loading, KNOWN_SECONDS)
    renewed_at = time.monotonic()

    async def renew() -> None:
        nonlocal renewed_at
        if time.monotonic() - renewed_at < RENEW_SECONDS:
            return
        renewed_at = time.monotonic()  # the others go on with the token there is, and one command runs
        try:
            await asyncio.wait_for(loader.load_and_set(configuration), KNOWN_SECONDS)
        except Exception as error:
            raise _not_known(settings, error) from error

    return renew


async def _nothing() -> None:
    pass


def _not_known(settings: ClusterSettings, error: Exception) -> Unavailable:
    if not settings.kubeconfig and SERVICE_HOST not in os.environ:
        return Unavailable(NO_KUBECONFIG)
    source = f"the kubeconfig {settings.kubeconfig}" if settings.kubeconfig else "the pod's service account"
    is_none = settings.kubeconfig and isinstance(error, TypeError | AttributeError | KeyError)
    words = "it is no kubeconfig" if is_none else str(error).rstrip(".") or type(error).__name__
    return Unavailable(f"How to reach the cluster is not known from {source}: {words}.")
