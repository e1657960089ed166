"""Every route below ``/api/``, and the document that is made of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from gpuspawner.service.administration import audit, bulk_actions, gpu_health, people, restrictions
from gpuspawner.service.announcements import api as announcements
from gpuspawner.service.api import events
from gpuspawner.service.api.base import BaseHandler
from gpuspawner.service.api.rest.document import document, read_arguments, route
from gpuspawner.service.calendar import api as calendar
from gpuspawner.service.catalog_editor import api as catalog_editor
from gpuspawner.service.notifications import preferences
from gpuspawner.service.preemption import claims
from gpuspawner.service.quota_requests import api as quota_requests
from gpuspawner.service.quotas import api as quotas
from gpuspawner.service.quotas import moves
from gpuspawner.service.sign_in import api as sign_in
from gpuspawner.service.start import api as start
from gpuspawner.service.start import schedules, secret_values
from gpuspawner.service.stored_data import api as stored_data
from gpuspawner.service.usage import api as usage
from gpuspawner.service.waiting import api as waiting
from gpuspawner.service.workspaces import api as workspaces
from gpuspawner.service.workspaces import sizes


class Document(BaseHandler):
    """GET: the OpenAPI document of this API. It is the same for everybody, signed in or not."""

    @route(answer="application/json", everybody=True)
    def get(self) -> None:
        """Return this API as an OpenAPI document."""
        read_arguments(self, None)
        self.answer({**document_of_all(), "servers": [{"url": self.parts.prefix.rstrip("/") or "/"}]})


ROUTERS = (
    claims.router,
    bulk_actions.router,
    restrictions.router,
    gpu_health.router,
    audit.router,
    catalog_editor.router,
    people.router,
    quotas.router,
    moves.router,
    quota_requests.router,
    usage.router,
    stored_data.router,
    announcements.router,
    calendar.router,
    schedules.router,
    secret_values.router,
    preferences.router,
    sign_in.router,
    start.router,
    waiting.router,
    workspaces.router,
    sizes.router,
)
"""The routers of all packages."""
ROUTES: list[tuple[str, type]] = [
    *(route for router in ROUTERS for route in router.routes()),
    *events.ROUTES,
    *sign_in.ROUTES,
    (r"/api/openapi.json", Document),
]


@cache
def document_of_all() -> dict[str, Any]:
    """Return the document of these routes."""
    return document(ROUTES)
