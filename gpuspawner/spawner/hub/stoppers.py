"""Reports to the service which user's request stopped a server: the hub does not tell its spawners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyterhub import orm
from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.log import log_request
from jupyterhub.utils import isoformat

from gpuspawner.core.errors import GpuspawnerError
from gpuspawner.spawner.client import LeaseClient

log = logging.getLogger("gpuspawner.stoppers")

STOPPING = frozenset({202, 204})
_telling: set[asyncio.Task[None]] = set()  # the loop keeps only weak references to tasks


def log_function(hub_id: str, url: str, secret_file: Path, own: Callable[[Any], Any] | None) -> Callable[[Any], None]:
    """Return the ``log_function`` for the hub's ``tornado_settings``, called at the end of each request.

    Args:
        hub_id: The id of this hub.
        url: The service, with its prefix.
        secret_file: The file with the shared secret.
        own: The administrator's own function, called first. None: the hub's.
    """
    inner = own or log_request

    def logged(handler: Any) -> None:
        inner(handler)
        try:
            found = _stop_of(handler)
            if found is not None:
                told = {"hub": hub_id, **found}
                client = LeaseClient(url, bytes.fromhex(secret_file.read_text(encoding="ascii").strip()))
                task = asyncio.get_running_loop().create_task(_tell(client, told))
                _telling.add(task)
                task.add_done_callback(_telling.discard)
        except Exception:
            log.exception("who stopped a server is not told")  # the request is answered, and its log written

    return logged


def _stop_of(handler: Any) -> dict[str, str] | None:
    """Return the server that a request stopped and the user who sent it, or None."""
    if handler.request.method != "DELETE" or not isinstance(handler, UserServerAPIHandler):
        return None
    actor, (user_name, *server) = handler.current_user, handler.path_args
    user = handler.find_user(user_name)
    if handler.get_status() not in STOPPING or user is None or actor is None:
        return None
    by = f"the service {actor.name}" if isinstance(actor, orm.Service) else actor.name
    return {"user_created": isoformat(user.orm_user.created), "server": server[0] if server else "", "by": by}


async def _tell(client: LeaseClient, told: dict[str, str]) -> None:
    try:
        await client.name_stopper(told)
    except GpuspawnerError as error:
        log.warning("who stopped a server is not told: %s", error)  # its page says that it is not known
