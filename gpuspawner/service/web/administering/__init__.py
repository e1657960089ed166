"""The console's pages that act: the dialog of each act, what is restricted, and the audit.

Belongs here: handlers that render and take forms. Never here: what an act does: ``service/administering``.
"""

from __future__ import annotations

from typing import Any

from gpuspawner.service.web.administering.audit import AuditPage
from gpuspawner.service.web.administering.dialog import ACTS, ActPage, LiftHere, RestrictionsPage
from gpuspawner.service.web.console.base import FORMS

ROUTES: list[Any] = [
    (rf"/console/audit{FORMS}", AuditPage),
    (rf"/console/restrictions{FORMS}", RestrictionsPage),
    (r"/console/restrictions/([^/]+)/lift", LiftHere),
    (rf"/console/act/({'|'.join(ACTS)})", ActPage),
]
