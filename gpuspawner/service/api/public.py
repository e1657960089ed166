"""What people and pages ask: offers, a check, the queue, workspaces and what may be done about them."""

from __future__ import annotations

import math
from typing import Any

from tornado.web import HTTPError

from gpuspawner import __version__
from gpuspawner.catalog import teams_of
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.quotas.bounds import Who
from gpuspawner.service.api.actions import ACTIONS, act
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.check import Check
from gpuspawner.service.inbox.views import shown_view
from gpuspawner.service.tell.output import output_view
from gpuspawner.service.tell.record_views import audit_view, reading_view
from gpuspawner.service.tell.rules.quota_view import bounds_view
from gpuspawner.service.tell.rules.teams import teams_view
from gpuspawner.service.tell.sentences import gpus_asked
from gpuspawner.service.tell.views import (
    is_simulated,
    lease_view,
    offer_view,
    standing_view,
)

LONGEST_LIST = 200


class Root(ApiHandler):
    """GET: the version, and who asks."""

    async def get(self) -> None:
        """Answer name, rights, version, and the teams that may be charged for what who asks uses."""
        person = self.must()
        answer = {"version": __version__, "user": person.name, "admin": person.admin}
        self.answer({**answer, **await teams_view(self.parts, person.owner, await self.groups())})


class Offers(ApiHandler):
    """GET: what could be had of every GPU kind now."""

    serves_forms = True

    async def get(self) -> None:
        """Answer counts, null where they are unknown, the view's age, and how many GPUs who asks uses or waits for.

        Besides, what bounds them, and what they chose last: the team, and the substitutes that they consented to, by
        template.
        """
        parts, person = self.parts, self.must()
        catalog, groups = await self.offered(), await self.groups_shown()
        offers = [offer_view(offer, parts) for offer in parts.queue.offers if offer.kind in catalog.gpus]
        age = parts.clock.now() - parts.scheduler.fleet.observed_at if parts.scheduler.fleet.complete else None
        held = sum(x.request.count for x in parts.book if person.owns(x))
        consents = await parts.allocator.asking.last_consents(person.owner)
        answer = {"offers": offers, "age_seconds": age, "held": held, "consents": consents}
        teams = teams_of(parts.catalog.rules, groups) or ("",)
        quota = bounds_view(parts, [Who(person.name, person.owner.user_created, team) for team in teams])
        self.answer({**answer, "quota": quota, **await teams_view(parts, person.owner, groups)})


class Queue(ApiHandler):
    """GET: who waits, in order. Names are shown to administrators, and one's own."""

    async def get(self) -> None:
        """Answer each waiting lease's place, kind, count and time. Kinds that are not for who asks are left out.

        Besides, of one's own and for administrators: why it waits, which rule holds it back, why its place changed.
        """
        parts, person = self.parts, self.must()
        kinds = (await self.offered()).gpus
        line = []
        for lease in sorted((x for x in parts.book if x.phase in WAITING), key=lambda x: (x.asked_at, x.id)):
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
                    "asked_at": lease.asked_at,
                    "at_most_seconds": place.at_most_seconds,
                    "likely_seconds": place.likely_seconds,
                }
            )
        self.answer({"queue": line, "now": parts.clock.now()})


class Workspaces(ApiHandler):
    """GET [?all=1] [?ended=N]: live workspaces of one's own, or of all for administrators; the last ended ones too."""

    async def get(self) -> None:
        """Answer the workspaces, the oldest first, then those that ended, the newest first."""
        parts, person = self.parts, self.must()
        everybody = self.everybody()
        text = self.get_argument("ended", "0")
        if not (
            text.isascii() and text.isdigit() and len(text) <= len(str(LONGEST_LIST)) and int(text) <= LONGEST_LIST
        ):
            raise HTTPError(400, reason=f"ended is a whole number up to {LONGEST_LIST}.")
        live = [x for x in parts.book if everybody or person.owns(x)]
        live = [x for x in live if person.lease in {None, x.id}]
        ended: list[Lease] = []
        if int(text) and not person.lease:
            ended = await parts.store.read(parts.store.ended, None if everybody else person.owner, int(text))
            live = [x for x in live if x.id not in {one.id for one in ended}]  # it ended meanwhile
        self.answer({"workspaces": [lease_view(parts, x) for x in [*sorted(live, key=lambda x: x.asked_at), *ended]]})


class Workspace(ApiHandler):
    """GET: one workspace, also after its end, and the messages that its user has not read: JupyterLab shows them."""

    async def get(self, lease_id: str) -> None:
        """Answer the workspace."""
        lease, now = await self.own(lease_id), self.parts.clock.now()
        messages = await self.parts.inboxes.messages_of(lease.key.owner)
        self.answer({**lease_view(self.parts, lease), "messages": [shown_view(one, now) for one in messages]})


class Groups(ApiHandler):
    """GET: the groups that the hub has, for administrators."""

    async def get(self) -> None:
        """Answer their names, and a sentence for each that the catalog names and the hub has not."""
        if not self.must().admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) see the hub's groups.")
        members = self.parts.members
        await members.look()
        self.answer({"groups": sorted(members.there), "missing": members.missing()})


class Disputes(ApiHandler):
    """GET [?all=1]: ends that their user called wrong and nobody answered: one's own, or all for administrators."""

    async def get(self) -> None:
        """Answer the workspaces, what was called wrong first coming first."""
        person = self.must()
        store = self.parts.store
        found = await store.read(store.disputed, None if self.everybody() else person.owner)
        self.answer({"workspaces": [lease_view(self.parts, x) for x in found if person.lease in {None, x.id}]})


class Readings(ApiHandler):
    """GET [?since=]: the readings of a workspace's GPUs, oldest first."""

    async def get(self, lease_id: str) -> None:
        """Answer the readings, null where unknown."""
        lease = await self.own(lease_id)
        try:
            since = float(self.get_argument("since", "0"))
        except ValueError:
            since = math.nan
        if not math.isfinite(since):
            raise HTTPError(400, reason="since is a time in seconds since 1970.")
        rows = await self.parts.store.read(self.parts.store.readings, lease.id, since)
        self.answer({"readings": [reading_view(row) for row in rows]})


class Output(ApiHandler):
    """GET: what the server of a workspace that failed wrote last: for its user, for others once it is shared."""

    async def get(self, lease_id: str) -> None:
        """Answer the text, null where it is not for who asks, or there is none."""
        self.answer(await output_view(self.parts, await self.own(lease_id), self.must()))


class Audit(ApiHandler):
    """GET: who did what to a workspace, the newest first."""

    async def get(self, lease_id: str) -> None:
        """Answer the audit lines."""
        lines = await self.parts.store.read(self.parts.store.audit, (await self.own(lease_id)).id)
        self.answer({"audit": [audit_view(line) for line in lines]})


class Act(ApiHandler):
    """POST: keep, extend, move, stop, seen, share; with a ``sentence`` dispute (its user), answer (administrators).

    With ``substitutes``, a list, consent: to all of these kinds and no other, while it waits.
    """

    async def post(self, lease_id: str, action: str) -> None:
        """Do it, and answer the workspace as it is then; 409 with the reason where it can't be done."""
        with_it = {"dispute": "sentence", "answer": "sentence", "consent": "substitutes"}.get(action)
        body = self.fields(*filter(None, [with_it]))
        for name in self.request.query_arguments:
            remedy = "Leave it out of the address."
            raise RequestRefused(quoted(name), "an argument that does not exist", "none", remedy)
        where = "a page of the hub" if self._authorization()[0] == "ticket" else "the API"
        said = body.get(with_it or "", "")
        await act(self.parts, self.must(), await self.own(lease_id), action, where, said)
        self.answer(lease_view(self.parts, await self.own(lease_id)))


ROUTES: list[Any] = [
    (r"/api/v1/?", Root),
    (r"/api/v1/offers", Offers),
    (r"/api/v1/check", Check),
    (r"/api/v1/queue", Queue),
    (r"/api/v1/groups", Groups),
    (r"/api/v1/disputes", Disputes),
    (r"/api/v1/(?:workspaces|leases)", Workspaces),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)", Workspace),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)/readings", Readings),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)/audit", Audit),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)/output", Output),
    (rf"/api/v1/(?:workspaces|leases)/([^/]+)/({ACTIONS})", Act),
]
