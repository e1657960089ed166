"""The API of inboxes and announcements."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tornado.web import HTTPError

from gpuspawner.core.administration import Announcement, AnnouncementAudience, summarize_names
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.events import AnnouncementSent, AnnouncementWithdrawn
from gpuspawner.core.units import show_end
from gpuspawner.service.announcements import models
from gpuspawner.service.announcements.inboxes import inbox_of, present_inbox, present_message
from gpuspawner.service.announcements.models import InboxQuery, MessageInput, MessageUsersInput, PastQuery, ReadInput
from gpuspawner.service.engine.hub_client import HubUser
from gpuspawner.service.notifications.sender import Message as Mail
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Endpoint, Router
from gpuspawner.service.web.permissions import Permission
from gpuspawner.service.workspaces.actions import act

router = Router()


@router.get("/api/v1/inbox", Permission.READ_INBOX)
async def get_inbox(actor: Actor, *, query: InboxQuery) -> models.Inbox:
    """Return the inbox, newest first, with the messages that pages show now."""
    inbox = await inbox_of(actor.state, actor.person)
    return present_inbox(actor.state, inbox, unread=query.unread)


@router.post("/api/v1/inbox/read", Permission.READ_INBOX, repeatable=True)
async def mark_read(actor: Actor, *, body: ReadInput) -> models.Inbox:
    """Mark notices as read, and return what is unread. Repeating this is harmless."""
    state, person = actor.state, actor.person
    names = None if body.all else body.ids
    inbox = await inbox_of(state, person)
    wanted = [one for one in inbox.notices if one.unread and (names is None or one.id in names)]
    if names is None or wanted:
        await state.inboxes.mark(person.owner, None if names is None else [one.id for one in wanted])
    for lease_id in dict.fromkeys(one.lease for one in wanted if one.ends):
        lease = await state.registry.find(lease_id)
        if lease is not None and person.owns(lease):
            await act(state, person, lease, "seen", "their inbox")
    return present_inbox(state, await inbox_of(state, person), unread=True)


@router.get("/api/v1/messages", Permission.SEE_ANNOUNCEMENTS)
async def list_messages(actor: Actor, *, query: PastQuery) -> models.MessageList:
    """Return the messages that are shown, newest first."""
    found = [one for one in actor.state.announcements.all() if query.past or one.is_shown(actor.now)]
    return models.MessageList(messages=[present_message(one, actor.now) for one in found], now=actor.now)


@router.post("/api/v1/messages", Permission.ANNOUNCE, status=201, other_status=200, audit="send a message")
async def send_message(actor: Actor, *, body: MessageInput) -> tuple[models.Sent, int]:
    """Send a message, and return it with the number of readers. ``dry_run`` sends nothing and returns 200."""
    whom, name = body.to
    sent = await _send(actor, whom, name, [name], body)
    return sent, 200 if body.dry_run else 201


def _find(actor: Actor, message: str) -> Announcement:
    one = actor.state.announcements.get(message)
    if one is None:
        raise HTTPError(404, reason=f"There is no message with the id {message[:40]}.")
    return one


async def _replay_withdrawn(actor: Actor, _about: str, message: str) -> models.Message:
    return present_message(_find(actor, message), actor.now)


@router.delete("/api/v1/messages/{message}", Permission.ANNOUNCE, replay=_replay_withdrawn)
async def withdraw_message(actor: Actor, message: str) -> models.Message:
    """Withdraw a message, and return it. 409 if it is not shown any more."""
    one = _find(actor, message)
    user = "" if one.whom is AnnouncementAudience.USERS else one.name
    entry = actor.audit_entry(AnnouncementWithdrawn(one.to_words, one.text), user)
    return present_message(await actor.state.announcements.withdraw(one, actor.person.name, [entry]), actor.now)


async def _message_users(actor: Actor, *, body: MessageUsersInput) -> models.Sent:
    """Send the users of workspaces a message. With ``dry_run`` answer the recipients, and send nothing."""
    users = list(dict.fromkeys(lease.user for lease in await actor.find_leases(body.ids, Permission.ANNOUNCE)))
    whom, name = (
        (AnnouncementAudience.USER, users[0])
        if len(users) == 1
        else (AnnouncementAudience.USERS, summarize_names(users))
    )
    return await _send(actor, whom, name, users, body)


message_users = Endpoint("post", "", _message_users, Permission.ANNOUNCE, audit="message")
"""The act of a dialog. It has no path of the API."""


async def _send(
    actor: Actor, whom: AnnouncementAudience, name: str, users: Sequence[str], body: MessageInput | MessageUsersInput
) -> models.Sent:
    """Send an announcement. With ``dry_run`` only return it. Mail is sent after the answer."""
    state, now = actor.state, actor.now
    reached = await _find_recipients(state, whom, users)
    recipients = frozenset() if whom is AnnouncementAudience.ALL else frozenset(one.created for one in reached)
    new_id = "" if body.dry_run else uuid.uuid4().hex
    one = Announcement(new_id, whom, name, recipients, body.text, actor.person.name, now, body.until)
    mailed = len(reached) if state.settings.notify_users else 0
    sent = models.Sent(**vars(present_message(one, now)), reaches=len(reached), mailed=mailed, dry_run=body.dry_run)
    if not body.dry_run:
        event = AnnouncementSent(one.to_words, one.until, one.text)
        named = [user.name for user in reached] if whom is AnnouncementAudience.USERS else [name]
        actor.store_answer(sent)
        audit = [actor.audit_entry(event, user) for user in named]
        await state.announcements.add(one, audit, _mails(state, one, reached))
        state.notifier.wake()
    return sent


async def _find_recipients(state: Parts, whom: AnnouncementAudience, names: Sequence[str]) -> list[HubUser]:
    """Return the recipients of an announcement. Raises RequestRefused if the hub has no such user."""
    users = await state.hub.all_users()
    if whom in {AnnouncementAudience.USER, AnnouncementAudience.USERS}:
        users = [one for one in users if one.name in names]
    elif whom is AnnouncementAudience.GROUP:
        users = [one for one in users if names[0] in one.groups]
    if not users:
        limit = "groups of the hub with members" if whom is AnnouncementAudience.GROUP else "users of the hub"
        raise RequestRefused("to", quoted(f"{whom.value}:{', '.join(names)}"), limit, "Name one as the hub does.")
    return users


def _mails(state: Parts, one: Announcement, reached: Sequence[HubUser]) -> list[OutboxRow]:
    """Return the mails of an announcement, one for each recipient."""
    until = show_end(one.until, one.made_at)
    text = f"{one.text}\n\n{one.by}, for everybody concerned until {until}.\n\n{state.public_url}/inbox\n"
    mails = [Mail("", user.name, "message", f"Announcement from {one.by}", text) for user in reached]
    return [row for mail in mails for row in state.notifier.rows_of(mail)]
