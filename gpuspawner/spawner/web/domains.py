"""Where browsers find the service, and the way there from the hub's other domains.

With ``c.JupyterHub.subdomain_host`` each user and each service has a domain of its own, so that no script of one user's
server acts for another. The hub answers on every domain that belongs to no user and no service.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlparse

from jupyterhub.utils import subdomain_hook_idna, subdomain_hook_legacy
from tornado.web import RequestHandler

HOOKS = {"idna": subdomain_hook_idna, "legacy": subdomain_hook_legacy}
"""JupyterHub's own, by the names that its configuration has for them."""


def service_origin(c: Any, service: str) -> str:
    """Return scheme and host of a service as JupyterHub makes them, "" where it shares the hub's.

    Args:
        c: the hub's configuration.
        service: the service's name.
    """
    host = str(c.JupyterHub.get("subdomain_host", ""))
    if not host:
        return ""
    of_hub = urlparse(host if "://" in host else f"https://{host}")  # as JupyterHub reads it
    hook = c.JupyterHub.get("subdomain_hook", "idna")
    named = HOOKS[hook] if isinstance(hook, str) and hook in HOOKS else hook
    domain = named(service, of_hub.hostname, kind="service")
    return f"{of_hub.scheme}://{domain}" + (f":{of_hub.port}" if of_hub.port else "")


def handlers(service: str, origin: str) -> list[Any]:
    """Return the handlers for ``c.JupyterHub.extra_handlers``: none if the service shares the hub's domain."""
    if not origin:
        return []
    return [(rf"/services/{service}(/.*)?", ToService, {"origin": origin})]


class ToService(RequestHandler):
    """GET: an address of the service on a domain of the hub's. Links in messages have no domain of their own.

    The hub leads ``/services/...`` below its own prefix, where this is.
    """

    def initialize(self, origin: str) -> None:
        """Keep the service's scheme and host."""
        self._origin = origin

    def get(self, _path: str | None = None) -> None:
        """Lead to the same address on the service's domain."""
        self.redirect(f"{self._origin}{self.request.uri.replace('/hub/services/', '/services/', 1)}")
