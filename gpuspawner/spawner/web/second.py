"""Start while a workspace runs: the hub would open the same one again without a word. This offers a second one."""

from __future__ import annotations

import itertools
from typing import Any

from jupyterhub import handlers as hub_handlers
from jupyterhub.handlers.pages import SpawnHandler
from jupyterhub.scopes import needs_scope

ROUTES = (r"/spawn", r"/spawn/([^/]+)")


class Start(SpawnHandler):
    """GET: the hub's own page to start a default server; where that runs, the choice to open it or start another."""

    @needs_scope("servers")
    async def _get(self, user_name: str, server_name: str, **more: Any) -> None:  # 6.x also gives a display name
        user = self.current_user
        asked = self.get_argument("next", "")  # somebody goes to a page of the server that runs
        if user.name != user_name or not self.allow_named_servers or asked or not user.spawner.ready:
            await super()._get(user_name=user_name, server_name=server_name, **more)
            return
        taken = {one.name for one in user.all_spawners(include_default=False)}
        limit = await self.get_current_user_named_server_limit()
        html = await self.render_template(
            "gpuspawner/second.html",
            user=user,
            open_url=user.server_url(""),
            second=free_name(taken),
            full=limit if 0 < limit <= len(taken) else None,
            query=self.request.query,
        )
        self.finish(html)


def free_name(taken: set[str]) -> str:
    """Return the first name for a second workspace, or a third one, that no server of the user has."""
    return next(name for number in itertools.count(2) if (name := f"workspace-{number}") not in taken)


def route_first() -> None:
    """Have the hub serve :class:`Start` before its own page: what is added to its routes comes behind all of them."""
    routes: list[Any] = hub_handlers.default_handlers
    if not any(route[1] is Start for route in routes):
        routes[:0] = [(route, Start) for route in ROUTES]
