"""What people and pages ask: offers, a check, the queue, workspaces and what may be done about them."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from gpuspawner import __version__
from gpuspawner.catalog import teams_of
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.service.announcements.presenter import present_shown
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest import Body, PageQuery, route
from gpuspawner.service.api.rest.models import LONGEST_LIST
from gpuspawner.service.api.rest.paging import Order, after_of, cursor_of, page
from gpuspawner.service.quotas.presenter import present_bounds
from gpuspawner.service.start import models as asking
from gpuspawner.service.start.check import Check
from gpuspawner.service.start.substitutes import teams_view
from gpuspawner.service.waiting.presenter import gpus_asked, starts_at
from gpuspawner.service.workspaces import models as workspaces
from gpuspawner.service.workspaces.actions import ACTIONS, act
from gpuspawner.service.workspaces.models import OneWorkspace
from gpuspawner.service.workspaces.presenter import (
    is_simulated,
    lease_view,
    standing_view,
)
from gpuspawner.service.workspaces.records import audit_view, offer_view, output_view, reading_view
from gpuspawner.service.workspaces.restarts import going_on_view, wait_words
from gpuspawner.service.workspaces.warnings import elsewhere


class AllQuery(PageQuery):
    """Whose."""

    all: bool = False
    """Those of all users, for administrators."""


class WorkspacesQuery(AllQuery):
    """Which workspaces."""

    live: bool = True
    """Whether those are answered that live."""
    ended: int = Field(default=0, ge=0, le=LONGEST_LIST)
    """How many of those that ended last are answered too, at once."""


class ReadingsQuery(PageQuery):
    """Which readings."""

    since: float = Field(default=0.0, allow_inf_nan=False)
    """From when on, in seconds since 1970."""


class ActBody(Body):
    """What comes with some of the actions."""

    sentence: str = ""
    """With ``dispute`` and ``answer``: what is told."""
    substitutes: list[str] | None = None
    """With ``consent``: the kinds of GPU that may be given instead, all of them."""


class Root(ApiHandler):
    """GET: the version, and who asks."""

    @route(answer=asking.Whoever)
    async def get(self) -> None:
        """Answer name, rights, version, and the teams that may be charged for what who asks uses."""
        person = self.must()
        pages = self.parts.page_url or None
        answer = {"version": __version__, "user": person.name, "admin": person.admin, "pages": pages}
        self.answer({**answer, **await teams_view(self.parts, person.owner, await self.groups())})


class Offers(ApiHandler):
    """GET: what who asks could have of every GPU kind now."""

    serves_forms = True

    @route(answer=asking.Offers)
    async def get(self) -> None:
        """Answer counts, null where they are unknown, the view's age, and how many GPUs who asks uses or waits for.

        What is held for others is not free, and noted. Besides, what bounds them, and what they chose last: the team,
        and the substitutes that they consented to, by template.
        """
        parts, person = self.parts, self.must()
        catalog, groups, asker = await self.offered(), await self.groups_shown(), await self.asker()
        offers = [offer_view(offer, parts) for offer in parts.queue.offers_to(asker) if offer.kind in catalog.gpus]
        age = parts.clock.now() - parts.scheduler.fleet.observed_at if parts.scheduler.fleet.complete else None
        held = sum(x.request.count for x in parts.registry if person.owns(x))
        consents = await parts.allocator.asking.last_consents(person.owner)
        answer: dict[str, Any] = {"offers": offers, "age_seconds": age, "held": held, "consents": consents}
        answer["currency"] = catalog.rules.currency
        teams = teams_of(parts.catalog.rules, groups) or ("",)
        bounds = present_bounds(parts, [Requester(person.name, person.owner.user_created, team) for team in teams])
        quota = [one.as_json() for found in bounds for one in found]
        self.answer({**answer, "quota": quota, **await teams_view(parts, person.owner, groups)})


class Queue(ApiHandler):
    """GET: who waits, in order. Names are shown to administrators, and one's own."""

    @route(answer=asking.Queue)
    async def get(self) -> None:
        """Answer each waiting lease's place, kind, count and time. Kinds that are not for who asks are left out.

        Besides, of one's own and for administrators: why it waits, which rule holds it back, why its place changed.
        """
        parts, person = self.parts, self.must()
        kinds = (await self.offered()).gpus
        line = []
        for lease in sorted((x for x in parts.registry if x.phase in WAITING), key=lambda x: (x.asked_at, x.id)):
            place = parts.queue.place(lease)
            mine = person.owns(lease) and person.lease in {None, lease.id}
            shown = mine or person.admin
            if not shown and lease.request.gpu not in {None, *kinds}:
                continue
            told = (standing_view(parts, lease) if shown else None) or {}
            line.append(
                {
                    "id": lease.id if shown else None,
                    "user": lease.user if shown else None,
                    "server": lease.key.server if shown else None,
                    "team": lease.request.team or None if shown else None,
                    "mine": mine,
                    "gpu": lease.request.gpu,
                    "count": lease.request.count,
                    "asked": gpus_asked(lease.request, parts.catalog, simulated=is_simulated(parts, lease)),
                    "place": place.number,
                    "of": place.of,
                    "sentence": told.get("sentence"),
                    "held_back": told.get("held_back"),
                    "changed": told.get("changed"),
                    "precedence": told.get("precedence"),
                    "asked_at": lease.asked_at,
                    "unchanged_seconds": place.unchanged_seconds,
                    "likely_seconds": place.likely_seconds,
                    **starts_at(place, parts.clock.now()),
                }
            )
        self.answer({"queue": line, "as_of": parts.queue.as_of, "now": parts.clock.now()})


class Workspaces(ApiHandler):
    """Workspaces: one's own, or those of all for administrators."""

    @route(answer=workspaces.WorkspaceList)
    async def get(self, *, query: WorkspacesQuery) -> None:
        """Answer those that live, the oldest first, then those that ended, the newest first."""
        parts, person = self.parts, self.must()
        everybody, after = self.everybody(asked=query.all), after_of(query)
        ended: list[Lease] = []
        if query.ended and not person.lease:
            before = (-after[1], after[2]) if after is not None and after[0] else None
            owner = None if everybody else person.owner
            ended = await parts.store.read(parts.store.leases.ended, owner, query.ended + 1, before)
        live = [x for x in parts.registry if query.live and (everybody or person.owns(x))]
        live = [x for x in live if person.lease in {None, x.id}]
        live = [x for x in live if x.id not in {one.id for one in ended}]  # it ended meanwhile
        more = ended[query.ended :]
        shown, following = page([*sorted(live, key=_order), *ended[: query.ended]], query, _order)
        if more and following is None:
            following = cursor_of(_order(shown[-1]))
        self.answer({"workspaces": [lease_view(parts, x) for x in shown], "next": following})


def _order(lease: Lease) -> Order:
    """Return by what the list is ordered: those that live by when they were asked for, then the last end first."""
    return (0, lease.asked_at, lease.id) if lease.ended_at is None else (1, -lease.ended_at, lease.id)


class Workspace(ApiHandler):
    """One workspace."""

    @route(answer=OneWorkspace)
    async def get(self, workspace: str) -> None:
        """Answer the workspace, also after its end, and what else its user is told there.

        Which others of theirs came while they were away, and the messages that they have not read.
        """
        lease, now = await self.own(workspace), self.parts.clock.now()
        messages = await self.parts.inboxes.messages_of(lease.key.owner)
        told = {
            "messages": [present_shown(one, now).as_json() for one in messages],
            "elsewhere": elsewhere(self.parts, lease),
        }
        self.answer({**lease_view(self.parts, lease), **told})


class Groups(ApiHandler):
    """GET: the groups that the hub has, for administrators."""

    @route(answer=asking.Groups, admins="see the hub's groups")
    async def get(self) -> None:
        """Answer their names, and a sentence for each that the catalog names and the hub has not."""
        members = self.parts.members
        await members.look()
        self.answer({"groups": sorted(members.there), "missing": members.missing()})


class Disputes(ApiHandler):
    """Ends that their user called wrong and nobody answered: one's own, or those of all for administrators."""

    @route(answer=workspaces.WorkspaceList)
    async def get(self, *, query: AllQuery) -> None:
        """Answer the workspaces, what was called wrong first coming first."""
        person = self.must()
        store = self.parts.store
        found = await store.read(store.leases.disputed, None if self.everybody(asked=query.all) else person.owner)
        mine = [x for x in found if person.lease in {None, x.id}]
        shown, following = page(mine, query, lambda x: (0, x.dispute.at if x.dispute else 0.0, x.id))
        self.answer({"workspaces": [lease_view(self.parts, x) for x in shown], "next": following})


class Readings(ApiHandler):
    """The readings of a workspace's GPUs."""

    @route(answer=workspaces.ReadingList)
    async def get(self, workspace: str, *, query: ReadingsQuery) -> None:
        """Answer the readings, the oldest first; null where unknown."""
        lease = await self.own(workspace)
        after = after_of(query)
        since = query.since if after is None else max(query.since, after[1])
        rows = await self.parts.store.read(self.parts.store.readings.of_lease, lease.id, since)
        shown, following = page(rows, query, lambda row: (0, row.at, row.gpu))
        self.answer({"readings": [reading_view(row) for row in shown], "next": following})


class Output(ApiHandler):
    """GET: what the server of a workspace that failed wrote last: for its user, for others once it is shared."""

    @route(answer=workspaces.Output)
    async def get(self, workspace: str) -> None:
        """Answer the text, null where it is not for who asks, or there is none."""
        self.answer(await output_view(self.parts, await self.own(workspace), self.must()))


class Audit(ApiHandler):
    """GET: who did what to a workspace, the newest first."""

    @route(answer=workspaces.AuditList)
    async def get(self, workspace: str) -> None:
        """Answer the audit lines."""
        lines = await self.parts.store.read(self.parts.store.audit_log.latest, (await self.own(workspace)).id)
        self.answer({"audit": [audit_view(line) for line in lines]})


class GoingOn(ApiHandler):
    """GET: whether a workspace can go on without a GPU, or with one, what that does, and what it would wait for."""

    @route(answer=workspaces.GoingOnNow)
    async def get(self, workspace: str) -> None:
        """Answer what is to be known before it is asked for; nothing is done."""
        lease = await self.own(workspace)
        groups = await self.parts.members.now(lease.user, lease.key.owner)
        can = going_on_view(self.parts, lease)
        now = await wait_words(self.parts, lease, groups) if can and not can["why"] else ""
        self.answer({"going_on": can, "now": now})


class Act(ApiHandler):
    """POST: keep, extend, move, stop, seen, share; with a ``sentence`` dispute (its user), answer (administrators).

    ``without-gpu`` and ``with-gpu`` end it, to start again so. With ``substitutes``, a list, consent: to all of these
    kinds and no other, while it waits. ``came`` says that its user waited for it and sees that it runs.
    """

    @route(answer=workspaces.Workspace, body=ActBody)
    async def post(self, workspace: str, action: str) -> None:
        """Do it, and answer the workspace as it is then; 409 with the reason where it can't be done."""
        with_it = {"dispute": "sentence", "answer": "sentence", "consent": "substitutes"}.get(action)
        body = self.fields(*filter(None, [with_it]))
        said = body.get(with_it or "", "")
        await act(self.parts, self.must(), await self.own(workspace), action, self.where, said)
        self.answer(lease_view(self.parts, await self.own(workspace)))

    async def replay(self, _about: str, workspace: str, _action: str) -> None:
        """Answer the workspace as it is now: what a repeated request did before is in it."""
        self.send(200, json.dumps(lease_view(self.parts, await self.own(workspace))))


ROUTES: list[Any] = [
    (r"/api/v1/?", Root),
    (r"/api/v1/offers", Offers),
    (r"/api/v1/check", Check),
    (r"/api/v1/queue", Queue),
    (r"/api/v1/groups", Groups),
    (r"/api/v1/disputes", Disputes),
    (r"/api/v1/workspaces/([^/]+)", Workspace),
    (r"/api/v1/workspaces/([^/]+)/readings", Readings),
    (r"/api/v1/workspaces/([^/]+)/audit", Audit),
    (r"/api/v1/workspaces/([^/]+)/output", Output),
    (r"/api/v1/workspaces/([^/]+)/going-on", GoingOn),
    (rf"/api/v1/workspaces/([^/]+)/({ACTIONS})", Act),
]
