"""The administrator's console: pages that show, each of their lists as CSV and JSON too.

Belongs here: handlers that render views of ``service/tell/console``, and their templates.
Never here: a number that is not in the view, so that page, CSV, JSON and command line can't differ.
"""

from __future__ import annotations

from typing import Any

from gpuspawner.service.usage.pages import UsePage
from gpuspawner.service.web.admin_page import FORMS
from gpuspawner.service.web.console.lists import EndedPage, QueuePage, WorkspacesPage
from gpuspawner.service.web.console.now import GpusPage, NowPage
from gpuspawner.service.web.console.people import PeoplePage, PersonPage

ROUTES: list[Any] = [
    (r"/console/?", NowPage),
    (rf"/console/gpus{FORMS}", GpusPage),
    (rf"/console/workspaces{FORMS}", WorkspacesPage),
    (rf"/console/ended{FORMS}", EndedPage),
    (rf"/console/queue{FORMS}", QueuePage),
    (rf"/console/use{FORMS}", UsePage),
    (rf"/console/people{FORMS}", PeoplePage),
    (r"/console/people/([^/]+)", PersonPage),
]
