"""What a user does on their home about workspaces that are to be ready at a time."""

from __future__ import annotations

from typing import Any

from gpuspawner.service.ready.telling import remove, resume
from gpuspawner.service.web.base import PageHandler

WHERE = "the home"


class ReadyPage(PageHandler):
    """POST: remove or resume one of one's own. A GET only goes to the home, which lists them."""

    async def get(self) -> None:
        """Go to the home: this address is where a form was sent to."""
        self.viewer()
        self.redirect(self.parts.prefix)

    async def post(self) -> None:
        """Do it and return; one that is gone already is as it should be."""
        person, name = self.viewer(), self.get_body_argument("id", "")
        act = resume if self.get_body_argument("act", "") == "resume" else remove
        await act(self.parts, person.owner, person.name, name, WHERE)
        self.redirect(self.parts.prefix, status=303)


ROUTES: list[Any] = [(r"/ready", ReadyPage)]
