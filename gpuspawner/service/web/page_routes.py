"""The routes of all pages, and the folder of styles and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuspawner.service.administration import pages as administration
from gpuspawner.service.announcements import pages as announcements
from gpuspawner.service.calendar import pages as calendar
from gpuspawner.service.catalog_editor import pages as catalog_editor
from gpuspawner.service.notifications import preferences
from gpuspawner.service.quota_requests import pages as quota_requests
from gpuspawner.service.quotas import pages as quotas
from gpuspawner.service.sign_in import pages as sign_in
from gpuspawner.service.start import pages as start
from gpuspawner.service.stored_data import pages as stored_data
from gpuspawner.service.usage import pages as usage
from gpuspawner.service.web.base import SignIn
from gpuspawner.service.workspaces import pages as workspaces
from gpuspawner.service.workspaces.home import Home

STATIC = Path(__file__).parent / "static"

ROUTES: list[Any] = [
    (r"/?", Home),
    *workspaces.ROUTES,
    *preferences.ROUTES,
    *quotas.ROUTES,
    *quota_requests.ROUTES,
    *administration.ROUTES,
    *catalog_editor.ROUTES,
    *usage.ROUTES,
    *stored_data.ROUTES,
    *calendar.ROUTES,
    *announcements.ROUTES,
    *sign_in.ROUTES,
    *start.ROUTES,
    (r"/oauth_callback", SignIn),
]
