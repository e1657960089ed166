"""The switch of a user for messages about starts. Warnings and ends are always sent."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuspawner.service.api.rest.models import Answer, Body
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

ORIGIN = "the switch for messages"
router = Router()


class StartMailInput(Body):
    """Whether messages about starts are wanted."""

    start_mail: bool


class Notifications(Answer):
    """The messages that the reader gets outside of pages."""

    start_mail: bool
    """Whether they get a message when a workspace starts, or is about to start, after waiting."""
    reached: bool | None
    """Whether messages reach them: false if this hub sends none. Null while it is not known."""


@router.get("/api/v1/notifications", Permission.READ_INBOX)
async def get_notifications(actor: Actor) -> Notifications:
    """Answer which messages the reader gets outside of pages."""
    store = actor.state.store
    wanted = await store.read(store.preferences.wants_start_mail, actor.person.owner)
    return Notifications(start_mail=wanted, reached=actor.state.notifier.reaches(actor.person.name))


@router.post("/api/v1/notifications", Permission.READ_INBOX, idempotent=False)
async def set_notifications(actor: Actor, *, body: StartMailInput) -> Notifications:
    """Switch messages about starts on or off. Warnings and ends are always sent."""
    store = actor.state.store
    await store.write(partial(store.preferences.set_start_mail, actor.person.owner, wanted=body.start_mail))
    return Notifications(start_mail=body.start_mail, reached=actor.state.notifier.reaches(actor.person.name))


class NotificationsForm(PageHandler):
    """POST: switch messages about starts. A GET goes to the inbox, which has the switch."""

    async def get(self) -> None:
        """Redirect to the inbox. The form is sent to this address."""
        self.viewer()
        self.redirect(f"{self.parts.prefix.rstrip('/')}/inbox")

    async def post(self) -> None:
        """Switch, and return to the inbox or to the page of a workspace."""
        await set_notifications.act(
            self.actor(ORIGIN), values={"start_mail": self.get_body_argument("start_mail", "") == "1"}
        )
        workspace = self.get_body_argument("workspace", "")
        page = f"workspaces/{workspace}" if workspace.isalnum() else "inbox"
        self.redirect(f"{self.parts.prefix.rstrip('/')}/{page}", status=303)


ROUTES: list[Any] = [(r"/notifications", NotificationsForm)]
