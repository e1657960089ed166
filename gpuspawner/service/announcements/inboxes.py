"""The announcements of the last month, the inbox of each person, and their models.

API, pages and JupyterLab show the models. An inbox is read from the store again after a change.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuspawner.core.administration import (
    NOTICE_KEPT_SECONDS,
    Announcement,
    LeaseStep,
    Notice,
    ReadMarks,
    merge_notices,
    notices_of,
)
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.lease import NOBODY, Owner
from gpuspawner.core.quotas.ledger import show_grant
from gpuspawner.core.quotas.quota_requests import QuotaRequest, RequestOutcome
from gpuspawner.core.rules import QuotaGrant
from gpuspawner.core.units import show_end
from gpuspawner.service.announcements import models
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.hub_state import GroupMembers
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.notifications.recipients import alerts_for
from gpuspawner.service.quota_requests.requests import QuotaRequests
from gpuspawner.service.rules.accounting import Accounting
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.store.rows import Whose
from gpuspawner.service.store.usage_sums import STATEMENT, WASTE, TeamAlert
from gpuspawner.service.web.permissions import Person

if TYPE_CHECKING:
    from gpuspawner.service.parts import Parts  # which keeps the inboxes

MOST_KEPT = 2000
"""The most inboxes in memory. Arbitrary: more than people look at pages at the same time."""


@dataclass(frozen=True)
class Inbox:
    """The notices of one person, the newest first, and the unread announcements that pages show now."""

    notices: tuple[Notice, ...] = ()
    messages: tuple[Announcement, ...] = ()

    @property
    def unread(self) -> int:
        """The number of unread notices."""
        return sum(one.unread for one in self.notices)


class Inboxes:
    """The inboxes of all people. Raises Unavailable if the store does not answer."""

    def __init__(
        self,
        store: Store,
        registry: LeaseRegistry,
        announcements: Announcements,
        accounting: Accounting,
        requests: QuotaRequests,
        members: GroupMembers,
        clock: Clock,
    ) -> None:
        """Start without any inbox."""
        self._store, self._registry, self._accounting, self._clock = store, registry, accounting, clock
        self._announcements, self._requests = announcements, requests
        self._members = members
        self._marked: Counter[Owner] = Counter()
        self._read: dict[Owner, tuple[tuple[int, int], list[LeaseStep], ReadMarks]] = {}

    async def of(
        self, owner: Owner, user: str = "", answers: Whose = frozenset(), alerts: Sequence[TeamAlert] = ()
    ) -> Inbox:
        """Return the inbox of a person.

        ``user`` is their name, which finds the extra quota of their teams. ``answers`` are the teams whose requests
        for extra quota they answer, None for all. ``alerts`` are those about the teams that they lead.
        """
        if owner == NOBODY:
            return Inbox()
        now = self._clock.now()
        steps, marks = await self._stored(owner, now)
        messages = self._announcements.told_to(owner.user_created)
        grants = [one for one in self._accounting.all_grants() if one.made_at >= now - NOTICE_KEPT_SECONDS]
        groups = await self._groups(owner, user) if any(_is_of_team(one) for one in grants) else frozenset()
        granted = [x for one in grants if _concerns(one, owner, groups) for x in self._of_grant(one, marks)]
        requested = [x for one in self._requests.all() for x in _of_request(one, owner, answers, marks, now)]
        told = [one.notice(marks) for one in messages]
        alerted = [_of_alert(one, marks) for one in alerts]
        notices = merge_notices(notices_of(steps, marks), told, granted, requested, alerted)
        notices = tuple(one for one in notices if one.at >= now - NOTICE_KEPT_SECONDS)
        shown = [one for one in messages if one.is_shown(now) and one.notice(marks).unread]
        return Inbox(notices, tuple(shown))

    async def messages_of(self, owner: Owner) -> tuple[Announcement, ...]:
        """Return the unread announcements that a person sees now. Without announcements the store is not read."""
        shown = self._announcements.shown_to(owner.user_created)
        if owner == NOBODY or not shown:
            return ()
        _, marks = await self._stored(owner, self._clock.now())  # groups do not matter for announcements
        return tuple(one for one in shown if one.notice(marks).unread)

    async def mark(self, owner: Owner, names: Collection[str] | None) -> None:
        """Store that a person has read notices, with None all notices."""
        if names is None:
            await self._store.write(self._store.inbox.mark_all, owner, self._clock.now())
        else:
            await self._store.write(self._store.inbox.mark, owner, names, self._clock.now())
        self._marked[owner] += 1

    async def _stored(self, owner: Owner, now: float) -> tuple[list[LeaseStep], ReadMarks]:
        version = (self._registry.saves[owner], self._marked[owner])
        known = self._read.get(owner)
        if known is None or known[0] != version:
            known = (version, *await self._store.read(self._store.inbox.notices, owner, now))
            if len(self._read) >= MOST_KEPT:
                self._read.pop(next(iter(self._read)))
            self._read[owner] = known
        return known[1], known[2]

    async def _groups(self, owner: Owner, user: str) -> frozenset[str]:
        """Return the groups of a person. While the hub does not answer, return no group."""
        try:
            return await self._members.fetch_recent(user, owner)
        except Unavailable:
            return frozenset()

    def _of_grant(self, grant: QuotaGrant, marks: ReadMarks) -> Iterator[Notice]:
        team, has_user, is_less = grant.account.team, bool(grant.account.user_created), grant.amount < 0
        amount = f"{show_grant(replace(grant, amount=-grant.amount))} less" if is_less else show_grant(grant)
        made, gone = f"g{grant.id}", f"t{grant.id}"
        whose = "You were" if has_user else f"Your team {team} was" if team else "Everybody was"
        lower = "A part of your quota was moved to someone else" if grant.move else "A limit was lowered for some time"
        title = lower if is_less else f"{whose} granted more"
        yield Notice(
            made, grant.made_at, "quota granted", title,
            f"{amount} until {show_end(grant.until, self._clock.now())}: {grant.why}",
            not marks.has(made, grant.made_at), by=grant.by,
        )  # fmt: skip
        if grant.taken_back_at is not None:
            of = "" if has_user else f" of your team {team}" if team else " of everybody"
            again = "What was moved away from you is yours again" if grant.move else "A limit is as before"
            title = again if is_less else f"A grant{of} was taken back"
            yield Notice(
                gone, grant.taken_back_at, "quota taken back", title,
                f"{amount}: {grant.taken_back_why}", not marks.has(gone, grant.taken_back_at), by=grant.taken_back_by,
            )  # fmt: skip


def _of_request(one: QuotaRequest, owner: Owner, answers: Whose, marks: ReadMarks, now: float) -> Iterator[Notice]:
    """Yield the notices about a request for extra quota. An approval is told by the notice of the extra quota."""
    name = f"{'q' if one.outcome is RequestOutcome.OPEN else 'a'}{one.id}"
    if owner == Owner(one.hub, one.user_created):
        if one.outcome is RequestOutcome.DECLINED and one.answered_at is not None:
            title, unread = f"Your request for {one.words} was declined", not marks.has(name, one.answered_at)
            yield Notice(
                name, one.answered_at, "quota declined", title, one.answer, unread, by=one.answered_by,
                about="quota/request",
            )  # fmt: skip
    elif one.is_open(now) and (answers is None or _is_answered_in(one, answers)):
        title, unread = f"{one.user} asks for {one.words} more", not marks.has(name, one.made_at)
        page = f"console/requests#r-{one.id}"
        yield Notice(name, one.made_at, "quota requested", title, one.why, unread, by=one.user, about=page)


def _of_alert(one: TeamAlert, marks: ReadMarks) -> Notice:
    """Return the notice of an alert about a team. Its kind is ``statement``, ``waste`` or ``budget``."""
    kind = one.kind if one.kind in {STATEMENT, WASTE} else "budget"
    name = f"l{hashlib.sha256(' '.join(one.key).encode()).hexdigest()[:32]}"
    return Notice(name, one.at, kind, one.title, one.text, not marks.has(name, one.at), about=one.page)


def _is_answered_in(one: QuotaRequest, teams: Owner | frozenset[str]) -> bool:
    return isinstance(teams, frozenset) and one.account.team in teams and not one.is_for_team


def _is_of_team(grant: QuotaGrant) -> bool:
    return bool(grant.account.team) and not grant.account.user_created


def _concerns(grant: QuotaGrant, owner: Owner, groups: frozenset[str]) -> bool:
    """Return whether a grant is for a person, one of their present teams, or everybody."""
    if grant.account.user_created:
        return grant.account.user_created == owner.user_created
    return not grant.account.team or grant.account.team in groups


class Announcements:
    """The announcements. Raises Unavailable if a change can't be stored. Then nothing has changed."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Start empty; :meth:`load` reads the store."""
        self._store, self._clock = store, clock
        self._messages: list[Announcement] = []
        self.changes = 0
        """The number of changes since this service started."""

    async def load(self) -> None:
        """Read them from the store."""
        self._messages = await self._store.read(
            self._store.announcements.made_since, self._clock.now() - NOTICE_KEPT_SECONDS
        )
        self.changes += 1

    def all(self) -> list[Announcement]:
        """Return the announcements of a month, the newest first."""
        since = self._clock.now() - NOTICE_KEPT_SECONDS
        return [one for one in self._messages if one.made_at >= since or one.is_shown(self._clock.now())]

    def told_to(self, user_created: str) -> list[Announcement]:
        """Return the announcements in the inbox of a user, the newest first."""
        return [one for one in self.all() if one.withdrawn_at is None and one.is_for(user_created)]

    def shown_to(self, user_created: str) -> list[Announcement]:
        """Return the announcements that pages show a user now, the newest first."""
        now = self._clock.now()
        return [one for one in self.told_to(user_created) if one.is_shown(now)]

    def get(self, name: str) -> Announcement | None:
        """Return an announcement by its id, None without one."""
        return next((one for one in self._messages if one.id == name), None)

    async def add(self, one: Announcement, audit: Sequence[AuditLine], outbox: Sequence[OutboxRow] = ()) -> None:
        """Store a new announcement with its mails. Pages show it from then on."""
        await self._store.write(self._store.announcements.save, one, audit, outbox)
        self._messages = [one, *self._messages]
        self.changes += 1

    async def withdraw(self, one: Announcement, by: str, audit: Sequence[AuditLine]) -> Announcement:
        """Store that an announcement is withdrawn, and return it. Raises Conflict if no page shows it now."""
        now = self._clock.now()
        if not one.is_shown(now):
            raise Conflict(f"This message is {one.state(now)} already: no page shows it.")
        gone = replace(one, withdrawn_at=now, withdrawn_by=by)
        await self._store.write(self._store.announcements.save, gone, audit)
        self._messages = [gone if each.id == one.id else each for each in self._messages]
        self.changes += 1
        return gone


MAX_LISTED = 200
"""The most notices of a list. Arbitrary: more than anybody reads."""


async def inbox_of(state: Parts, person: Person) -> Inbox:
    """Return the inbox of a person, with the requests for extra quota that they answer and the alerts that they get."""
    alerts = alerts_for(state, person, state.clock.now() - NOTICE_KEPT_SECONDS)
    return await state.inboxes.of(person.owner, person.name, person.teams_answered(state.catalog.rules), alerts)


def present_message(one: Announcement, now: float) -> models.Message:
    """Return an announcement as administrators see it."""
    return models.Message(
        id=one.id,
        to=one.to,
        to_words=one.to_words,
        text=one.text,
        by=one.by,
        made_at=one.made_at,
        until=one.until,
        until_words=show_end(one.until, now),
        state=one.state(now),
        withdrawn_at=one.withdrawn_at,
        withdrawn_by=one.withdrawn_by or None,
    )


def present_shown(one: Announcement, now: float) -> models.Shown:
    """Return an announcement as its readers see it. Its ``id`` is that of its notice."""
    return models.Shown(
        id=f"m{one.id}",
        text=one.text,
        by=one.by,
        made_at=one.made_at,
        until=one.until,
        until_words=show_end(one.until, now),
    )


def present_notice(state: Parts, one: Notice) -> models.Notice:
    """Return a notice."""
    return models.Notice(
        id=one.id,
        at=one.at,
        kind=one.kind,
        title=one.title,
        text=one.text,
        page=f"{state.prefix.rstrip('/')}/{one.page}" if one.page else None,
        server=one.server if one.lease else None,
        by=one.by,
        unread=one.unread,
    )


def present_inbox(state: Parts, inbox: Inbox, *, unread: bool = False) -> models.Inbox:
    """Return an inbox, with ``unread`` only the notices that are not read."""
    now = state.clock.now()
    listed = [one for one in inbox.notices if one.unread or not unread][:MAX_LISTED]
    return models.Inbox(
        notices=[present_notice(state, one) for one in listed],
        unread=inbox.unread,
        messages=[present_shown(one, now) for one in inbox.messages],
        now=now,
    )
