"""How the API server is reached: what a kubeconfig or the pod's service account says, by kubernetes_asyncio."""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration

from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable

TLS_END_SECONDS = 0.25
"""After the connections were closed. aiohttp tells nobody when their TLS has ended: one that outlives its event loop is
told as an unclosed transport."""
READ_BUFFER_BYTES = 2 * 1024 * 1024
"""Events of large objects exceed aiohttp's own: kubernetes_asyncio's figure."""


@dataclass(frozen=True)
class Connection:
    """One cluster's API server, at ``host``; ``how`` is what each request needs to get there."""

    host: str
    session: aiohttp.ClientSession
    how: dict[str, Any]
    client: ApiClient

    @classmethod
    async def opened(cls, settings: ClusterSettings) -> Connection:
        """Return the way there. Nothing is asked yet.

        Raises:
            Unavailable: it is not known.
        """
        configuration = Configuration()
        try:
            if settings.kubeconfig:
                await config.load_kube_config(settings.kubeconfig, settings.context or None, configuration)
            else:
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        except (config.ConfigException, OSError) as error:
            raise Unavailable(f"How to reach the cluster is not known: {error}.") from error
        configuration.connection_pool_maxsize = 2 * settings.probes_at_once + 16
        client, host = ApiClient(configuration), str(configuration.host)
        # The client's own session looks for a proxy and in ~/.netrc at each request, in a thread: a quarter of an
        # exec's CPU. The environment's proxy is the same for all, and who the service is, the kubeconfig says.
        session = aiohttp.ClientSession(
            connector=client.rest_client.pool_manager.connector, connector_owner=False, read_bufsize=READ_BUFFER_BYTES
        )
        how = {"proxy": configuration.proxy or proxy_to(host), "server_hostname": configuration.tls_server_name}
        return cls(host, session, how, client)

    async def headers(self) -> dict[str, str]:
        """Return what a request says of itself and of who asks: a service account's token is renewed."""
        headers = {"User-Agent": "gpuspawner"}  # an exec is refused to who accepts JSON alone
        await self.client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def close(self) -> None:
        """Close the connections, and give their TLS a moment to end."""
        await self.session.close()
        await self.client.close()
        await asyncio.sleep(TLS_END_SECONDS)


def proxy_to(host: str) -> str | None:
    """Return the proxy that the environment names for a URL: ``HTTPS_PROXY`` and the like, but for ``NO_PROXY``."""
    parts = urlsplit(host)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
