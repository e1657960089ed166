"""The forms of schedules on the home page."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.service.start.schedules import change_schedule, remove_schedule
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.base import PageHandler

ORIGIN = "the home"
NOT_FOUND = 404


class SchedulePage(PageHandler):
    """POST: change, pause, resume or remove a schedule. A GET only goes to the home, which lists them."""

    async def get(self) -> None:
        """Go to the home. A form was sent to this address."""
        self.viewer()
        self.redirect(self.parts.prefix)

    async def post(self) -> None:
        """Do it and go back. A schedule that is gone already is no error."""
        actor = Actor(self.parts, self.viewer(), ORIGIN)
        name, act = self.get_body_argument("id", ""), self.get_body_argument("act", "")
        endpoint, values = (remove_schedule, {}) if act == "remove" else (change_schedule, self._values(act))
        try:
            await endpoint.act(actor, name, values=values)
        except HTTPError as error:
            if error.status_code != NOT_FOUND:
                raise
        self.redirect(f"{self.parts.prefix}#ready-at", status=303)

    def _values(self, act: str) -> dict[str, Any]:
        if act == "change":
            return {"at": self.get_body_argument("at", ""), "on": ",".join(self.get_body_arguments("on"))}
        return {"paused": act == "pause"}


ROUTES: list[Any] = [(r"/ready", SchedulePage)]
