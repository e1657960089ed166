"""The service's pages.

Belongs here: handlers that render, their templates, styles and scripts.
Never here: an answer that the API would give differently: pages show the same views.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuspawner.service.api.actions import ACTIONS
from gpuspawner.service.web import administering, console, inbox, quotas, ready
from gpuspawner.service.web.base import NotFound, SignIn, Static
from gpuspawner.service.web.pages import Act, Home, WorkspacePage
from gpuspawner.service.web.programs import package
from gpuspawner.service.web.programs import pages as programs

__all__ = ["ROUTES", "STATIC", "NotFound", "Static"]

STATIC = Path(__file__).parent / "static"

ROUTES: list[Any] = [
    (r"/?", Home),
    (r"/workspaces/([^/]+)", WorkspacePage),
    (rf"/workspaces/([^/]+)/({ACTIONS})", Act),
    *quotas.ROUTES,
    *console.ROUTES,
    *administering.ROUTES,
    *inbox.ROUTES,
    *programs.ROUTES,
    *package.ROUTES,
    *ready.ROUTES,
    (r"/oauth_callback", SignIn),
]
