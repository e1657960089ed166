"""What people and pages ask: offers, a check, the queue, workspaces and what may be done about them."""

from __future__ import annotations

import math
from typing import Any

from tornado.web import HTTPError

from gpuspawner import __version__
from gpuspawner.catalog import resolve
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import UP, WAITING, Key, Phase
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.service.api.actions import ACTIONS, act
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.leases.policies import policy_now
from gpuspawner.service.tell.output import output_view
from gpuspawner.service.tell.sentences import (
    gpus_asked,
    hours_words,
    nothing_starts,
    starts_now,
    stops_when_idle,
    waits,
)
from gpuspawner.service.tell.views import (
    audit_view,
    lease_view,
    offer_view,
    reading_view,
    start_limit,
)

LONGEST_LIST = 200


class Root(ApiHandler):
    """GET: the version, and who asks."""

    def get(self) -> None:
        """Answer name, rights and version."""
        person = self.must()
        self.answer({"version": __version__, "user": person.name, "admin": person.admin})


class Offers(ApiHandler):
    """GET: what could be had of every GPU kind now."""

    serves_forms = True

    def get(self) -> None:
        """Answer counts, null where they are unknown, the view's age, and how many GPUs who asks uses or waits for."""
        parts, person = self.parts, self.must()
        age = parts.clock.now() - parts.scheduler.fleet.observed_at if parts.scheduler.fleet.complete else None
        held = sum(x.request.count for x in parts.book if person.owns(x))
        self.answer(
            {"offers": [offer_view(offer, parts) for offer in parts.queue.offers], "age_seconds": age, "held": held}
        )


class Check(ApiHandler):
    """POST options: what Start would do now. Nothing is asked for."""

    serves_forms = True

    async def post(self) -> None:
        """Answer the sentence; 4xx, as Start would, where it would be refused."""
        parts, person = self.parts, self.must()
        body = self.body()
        server = str(body.pop("server", ""))
        request = resolve(parts.catalog, body, person.name)
        now = parts.clock.now()
        key = Key(*person.owner, server)
        mine = parts.book.of_key(key)
        if mine is not None and mine.phase in UP | {Phase.STARTING}:
            raise Conflict("This workspace has been started already: you find it on the hub's page Home.")
        parts.allocator.check(request, key)
        offer = parts.queue.offer(request.gpu)
        keeps = mine is not None and mine.phase in WAITING and request.keeps_place_of(mine.request)
        asked_at = mine.asked_at if mine is not None and keeps else now
        claim_id = "" if mine is None else mine.id
        would = await parts.queue.offers_for(Claim(claim_id, person.owner.user_created, request, asked_at))
        place, shortage, node_seconds = would.place, would.shortage, would.node_seconds
        waiting = bool(shortage) or (request.gpu is not None and (place.number > 1 or place.likely_seconds != 0))
        limit = "" if waiting else start_limit(parts, key)
        trouble = parts.store.trouble
        if trouble:
            sentence = nothing_starts(trouble)
        elif waiting:
            sentence = waits(place, request, parts.catalog, offer, shortage, asked_for=keeps)
        elif limit:
            sentence = limit
        else:
            policy, instead_of, until = policy_now(parts.catalog, request.policy, now)
            sentence = starts_now(request, parts.catalog, offer, now, node_seconds)
            if stops := stops_when_idle(request, policy):
                sentence = f"{sentence} {stops} {hours_words(policy.name, instead_of, until, now)}".rstrip()
        if mine is not None and mine.phase in WAITING and not keeps:
            sentence += " This changes your request: your old place in the queue is lost."
        self.answer(
            {
                "sentence": sentence,
                "starts_now": not (waiting or limit or trouble),
                "place": place.number if waiting else None,
                "asked": gpus_asked(request, parts.catalog, simulated=offer is not None and offer.simulated),
                "ends_at": None if waiting or limit or node_seconds or trouble else now + request.lifetime_seconds,
            }
        )


class Queue(ApiHandler):
    """GET: who waits, in order. Names are shown to administrators, and one's own."""

    def get(self) -> None:
        """Answer each waiting lease's place, kind, count and time."""
        parts, person = self.parts, self.must()
        line = []
        for lease in sorted((x for x in parts.book if x.phase in WAITING), key=lambda x: (x.asked_at, x.id)):
            place = parts.queue.place(lease)
            mine = person.owns(lease) and person.lease in {None, lease.id}
            shown = mine or person.admin
            line.append(
                {
                    "id": lease.id if shown else None,
                    "user": lease.user if shown else None,
                    "mine": mine,
                    "gpu": lease.request.gpu,
                    "count": lease.request.count,
                    "place": place.number,
                    "asked_at": lease.asked_at,
                    "at_most_seconds": place.at_most_seconds,
                    "likely_seconds": place.likely_seconds,
                }
            )
        self.answer({"queue": line})


class Workspaces(ApiHandler):
    """GET [?all=1] [?ended=N]: live workspaces of one's own, or of all for administrators; the last ended ones too."""

    def get(self) -> None:
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
        ended = (
            parts.store.ended(None if everybody else person.owner, int(text)) if int(text) and not person.lease else []
        )
        self.answer({"workspaces": [lease_view(parts, x) for x in [*sorted(live, key=lambda x: x.asked_at), *ended]]})


class Workspace(ApiHandler):
    """GET: one workspace, also after its end."""

    def get(self, lease_id: str) -> None:
        """Answer the workspace."""
        self.answer(lease_view(self.parts, self.own(lease_id)))


class Disputes(ApiHandler):
    """GET [?all=1]: ends that their user called wrong and nobody answered: one's own, or all for administrators."""

    def get(self) -> None:
        """Answer the workspaces, what was called wrong first coming first."""
        person = self.must()
        found = self.parts.store.disputed(None if self.everybody() else person.owner)
        self.answer({"workspaces": [lease_view(self.parts, x) for x in found if person.lease in {None, x.id}]})


class Readings(ApiHandler):
    """GET [?since=]: the readings of a workspace's GPUs, oldest first."""

    def get(self, lease_id: str) -> None:
        """Answer the readings, null where unknown."""
        lease = self.own(lease_id)
        try:
            since = float(self.get_argument("since", "0"))
        except ValueError:
            since = math.nan
        if not math.isfinite(since):
            raise HTTPError(400, reason="since is a time in seconds since 1970.")
        rows = self.parts.store.readings(lease.id, since)
        self.answer({"readings": [reading_view(row) for row in rows]})


class Output(ApiHandler):
    """GET: what the server of a workspace that failed wrote last: for its user, for others once it is shared."""

    def get(self, lease_id: str) -> None:
        """Answer the text, null where it is not for who asks, or there is none."""
        self.answer(output_view(self.parts, self.own(lease_id), self.must()))


class Audit(ApiHandler):
    """GET: who did what to a workspace, the newest first."""

    def get(self, lease_id: str) -> None:
        """Answer the audit lines."""
        self.answer({"audit": [audit_view(line) for line in self.parts.store.audit(self.own(lease_id).id)]})


class Act(ApiHandler):
    """POST: keep, extend, move, stop, seen, share; with a ``sentence`` dispute (its user), answer (administrators)."""

    async def post(self, lease_id: str, action: str) -> None:
        """Do it, and answer the workspace as it is then; 409 with the reason where it can't be done."""
        body = self.fields("sentence") if action in {"dispute", "answer"} else self.fields()
        where = "a page of the hub" if self._authorization()[0] == "ticket" else "the API"
        await act(self.parts, self.must(), self.own(lease_id), action, where, body.get("sentence", ""))
        self.answer(lease_view(self.parts, self.own(lease_id)))


ROUTES: list[Any] = [
    (r"/api/v1/?", Root),
    (r"/api/v1/offers", Offers),
    (r"/api/v1/check", Check),
    (r"/api/v1/queue", Queue),
    (r"/api/v1/disputes", Disputes),
    (r"/api/v1/(?:workspaces|leases)", Workspaces),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)", Workspace),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)/readings", Readings),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)/audit", Audit),
    (r"/api/v1/(?:workspaces|leases)/([^/]+)/output", Output),
    (rf"/api/v1/(?:workspaces|leases)/([^/]+)/({ACTIONS})", Act),
]
