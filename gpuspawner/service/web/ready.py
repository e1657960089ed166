"""What a user does on their home about workspaces that are to be ready at a time."""

from __future__ import annotations

from typing import Any

from gpuspawner.service.ready.telling import change, remove
from gpuspawner.service.web.base import PageHandler

WHERE = "the home"


class ReadyPage(PageHandler):
    """POST: change, pause, resume or remove one of one's own. A GET only goes to the home, which lists them."""

    async def get(self) -> None:
        """Go to the home: this address is where a form was sent to."""
        self.viewer()
        self.redirect(self.parts.prefix)

    async def post(self) -> None:
        """Do it and return; one that is gone already is as it should be."""
        person, name, act = self.viewer(), self.get_body_argument("id", ""), self.get_body_argument("act", "")
        if act == "remove":
            await remove(self.parts, person.owner, person.name, name, WHERE)
        else:
            await change(self.parts, person.owner, person.name, name, self._said(act), WHERE)
        self.redirect(f"{self.parts.prefix}#ready-at", status=303)

    def _said(self, act: str) -> dict[str, Any]:
        if act == "change":
            return {"at": self.get_body_argument("at", ""), "on": ",".join(self.get_body_arguments("on"))}
        return {"paused": act == "pause"}


ROUTES: list[Any] = [(r"/ready", ReadyPage)]
