"""The service's pages.

Belongs here: handlers that render, their templates, styles and scripts.
Never here: an answer that the API would give differently: pages show the same views.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuspawner.service.api.actions import ACTIONS
from gpuspawner.service.web import console, inbox, quotas
from gpuspawner.service.web.base import NotFound, SignIn, Static
from gpuspawner.service.web.pages import Act, Home, WorkspacePage

__all__ = ["ROUTES", "STATIC", "NotFound", "Static"]

STATIC = Path(__file__).parent / "static"

ROUTES: list[Any] = [
    (r"/?", Home),
    (r"/workspaces/([^/]+)", WorkspacePage),
    (rf"/workspaces/([^/]+)/({ACTIONS})", Act),
    *quotas.ROUTES,
    *console.ROUTES,
    *inbox.ROUTES,
    (r"/oauth_callback", SignIn),
]
