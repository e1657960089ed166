"""Stronger claims: what administrators and external schedulers ask for GPUs that others use."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from tornado.web import HTTPError

from gpuspawner.core.administering import acts
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.leases.events import Text
from gpuspawner.core.queue.preemption import Preemption
from gpuspawner.core.rules import Account
from gpuspawner.service.administering.asking import Act
from gpuspawner.service.api.administering import note_refusal
from gpuspawner.service.api.base import ApiHandler, Person
from gpuspawner.service.api.rest import Body, route
from gpuspawner.service.api.rest.shapes import rules
from gpuspawner.service.rules.preemptions import new_claim, whom_of
from gpuspawner.service.store import AuditLine
from gpuspawner.service.tell.rules.claim_views import claim_view
from gpuspawner.service.tell.rules.claims import claim_title

WHOM = ("user", "team", "external")
LISTED = 50
"""How many are listed, at most. Arbitrary: what a page shows."""
MOST_GPUS = 100_000
LONGEST_NAME = 120
LONGEST_AHEAD_SECONDS = 7 * 86400.0
"""No claim is for later than this: reservations are not made of the work of others."""


ADMINS = "make claims that end workspaces"


class ClaimBody(Body):
    """Which GPUs are claimed, for a user, a team, or work outside the hub."""

    kind: str
    """The kind of GPU, as the catalog calls it."""
    count: int = Field(default=1, ge=1, le=MOST_GPUS)
    user: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    team: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    external: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    """What the work is called to those who are ended for it."""
    by: float | None = None
    """Not needed before, in seconds since 1970."""
    hold_until: float | None = None
    """Until when they are kept, in seconds since 1970."""
    one_node: bool = True
    key: str = Field(default="", max_length=LONGEST_NAME)
    """A repeated claim with the same key is the same claim; so is one with the same ``Idempotency-Key``."""
    dry_run: bool = False
    """Say whom it would end, and do nothing."""


class ClaimHandler(ApiHandler):
    """For administrators, and whatever service has the scope custom:gpu:admin."""

    async def claim(self, name: str) -> Preemption:
        """Return a claim. Raises 404 where there is none of this id."""
        found = await self.parts.preemptions.get(name)
        if found is None:
            raise HTTPError(404, reason=f"There is no claim with the id {name[:40]}.")
        return found


class Preemptions(ClaimHandler):
    """GET: the last claims, the newest first. POST: a new one."""

    @route(answer=rules.ClaimList, admins=ADMINS)
    async def get(self) -> None:
        """Answer the last claims, the newest first."""
        found = await self.parts.preemptions.last(LISTED)
        self.answer({"preemptions": [claim_view(self.parts, one) for one in found]})

    @route(answer=rules.Claim, status=201, also=200, body=ClaimBody, admins=ADMINS, keyed=False)
    async def post(self) -> None:
        """Answer the claim, with whom it ends; 200 where it was made before, 409 where it can't be covered.

        With ``dry_run`` nothing is done.
        """
        person, preemptions = self.must(), self.parts.preemptions
        claim, dry_run = await self._understood(person)
        if dry_run:
            stands, plan = preemptions.preview(claim)
            self.answer(claim_view(self.parts, stands, plan.victims, dry_run=True))
            return
        act = Act(self.parts, person, self.where)
        try:
            made = await preemptions.make(claim, [claim_line(act, claim, acts.ClaimMade)])
        except Conflict as error:
            await note_refusal(act, "preempt", error)
            raise
        self.answer(claim_view(self.parts, made), 201 if made.id == claim.id else 200)

    async def _understood(self, person: Person) -> tuple[Preemption, bool]:
        body, now = self.fields(*ClaimBody.model_fields), self.parts.clock.now()
        kinds = self.parts.scheduler.kinds
        kind = body.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise RequestRefused("kind", quoted(kind), ", ".join(kinds), "Name one of the catalog's kinds of GPU.")
        key = body.get("key") or self.request.headers.get("Idempotency-Key") or ""
        if not isinstance(key, str) or len(key) > LONGEST_NAME or not key.isprintable():
            limit = f"a text of at most {LONGEST_NAME} printable letters"
            raise RequestRefused("key", quoted(key), limit, "Make one at random, such as a UUID.")
        whom = await self._whom(body)
        claim = new_claim(
            person.name,
            now,
            kind=kind,
            count=_count(body.get("count", 1)),
            **whom,
            ends_at=_time(body, "by", now),
            hold_until=_time(body, "hold_until", now),
            one_node=_flag(body, "one_node", default=True),
            key=key,
        )
        return claim, _flag(body, "dry_run", default=False)

    async def _whom(self, body: dict[str, Any]) -> dict[str, Any]:
        named = {name: body[name] for name in WHOM if body.get(name) is not None}
        value = next(iter(named.values()), None)
        if len(named) != 1 or not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
            raise RequestRefused(
                "for whom", quoted(named), "one of user, team, external", "Say for whom the GPUs are, by one name."
            )
        if "external" in named:
            if not value.isprintable():
                raise RequestRefused("external", quoted(value), "printable letters", "Name the work as people know it.")
            return {"external": value}
        if "team" in named:
            teams = self.parts.catalog.rules.teams
            if value not in teams:
                raise RequestRefused("team", quoted(value), ", ".join(teams) or "none", "Name a team of the catalog.")
            return {"account": Account(value, "")}
        created = await self.parts.hub.created(value)
        if created is None:
            raise RequestRefused("user", quoted(value), "users of the hub", "Name one as the hub does.")
        return {"account": Account("", created), "user": value}


class One(ClaimHandler):
    """GET: a claim. DELETE: give it up."""

    @route(answer=rules.Claim, admins=ADMINS)
    async def get(self, claim: str) -> None:
        """Answer it, with whom it ends and which of its GPUs are free."""
        self.answer(claim_view(self.parts, await self.claim(claim)))

    @route(answer=rules.Claim, admins=ADMINS)
    async def delete(self, claim: str) -> None:
        """Answer it as it is then: who was warned goes on. 409 where it was claimed or has lapsed."""
        one = await self.claim(claim)
        line = claim_line(Act(self.parts, self.must(), self.where), one, acts.ClaimGivenUp)
        self.answer(claim_view(self.parts, await self.parts.preemptions.give_up(one, [line])))


class Claimed(ClaimHandler):
    """POST: the claimant has the GPUs, which are kept no longer."""

    @route(answer=rules.Claim, admins=ADMINS)
    async def post(self, claim: str) -> None:
        """Answer it as it is then; 409 where they are not free yet, or it is over."""
        self.fields()
        one = await self.claim(claim)
        line = claim_line(Act(self.parts, self.must(), self.where), one, acts.ClaimServed)
        self.answer(claim_view(self.parts, await self.parts.preemptions.claimed(one, [line])))


def claim_line(act: Act, claim: Preemption, what: type[Text]) -> AuditLine:
    """Return the audit line of what is done to a claim."""
    gpus = f"{claim.asked} {claim_title(claim.kind, act.parts.catalog)}"
    return act.line(claim.user, what(f"{gpus} for {whom_of(claim)}"), claim.kind)


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_GPUS:
        return value
    raise RequestRefused("count", quoted(value), f"1 to {MOST_GPUS}", "Say how many GPUs are needed.")


def _flag(body: dict[str, Any], name: str, *, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise RequestRefused(name, quoted(value), "true or false", "Write one of them.")
    return value


def _time(body: dict[str, Any], name: str, now: float) -> float | None:
    """Return a time that is to come, in seconds since the epoch; None where none is asked for."""
    value = body.get(name)
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and now < value <= now + LONGEST_AHEAD_SECONDS:  # no float need hold it: JSON's numbers have no end
        return float(value)
    limit = "a time within the next 7 days, in seconds since 1970"
    raise RequestRefused(name, quoted(value), limit, "Leave it out, or give a later time.")


ROUTES: list[Any] = [
    (r"/api/v1/preemptions", Preemptions),
    (r"/api/v1/preemptions/([^/]+)", One),
    (r"/api/v1/preemptions/([^/]+)/claimed", Claimed),
]
