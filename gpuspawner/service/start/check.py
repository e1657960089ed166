"""What Start would do now, told before it is pressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuspawner.catalog import Catalog, understood, visible
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import UP, WAITING, Key, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.class_holds import hold_user_of
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.quotas.limits import requester_of
from gpuspawner.core.rules import LatestEnd
from gpuspawner.schedulers.base import Preview
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest import route
from gpuspawner.service.quotas.presenter import present_bounds
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.rules.server_names import read_server
from gpuspawner.service.start.consequences import cost_view, where_words
from gpuspawner.service.start.models import Outlook
from gpuspawner.service.start.options import StartBody
from gpuspawner.service.start.substitutes import instead, substitute_view
from gpuspawner.service.waiting.presenter import (
    beyond_share,
    given_instead,
    gpu_title,
    gpus_asked,
    hours_words,
    spot_words,
    starts_at,
    starts_now,
    stops_when_idle,
    waits,
)
from gpuspawner.service.waiting.reasons import kept_free_words
from gpuspawner.service.workspaces.presenter import outage_words, start_limit
from gpuspawner.service.workspaces.warnings import reach_words


class Check(ApiHandler):
    """POST options: what Start would do now. Nothing is asked for."""

    serves_forms = True

    @route(answer=Outlook, body=StartBody, keyed=False)
    async def post(self) -> None:
        """Answer the sentence; 4xx, as Start, with all that is wrong at once, where it would be refused."""
        parts, person = self.parts, self.must()
        body = self.body()
        key = Key(*person.owner, await read_server(parts, person.name, body.pop("server", "")))
        groups = await self.groups()
        request = await parts.allocator.asking.resolve(body, person.name, person.owner, groups)
        now = parts.clock.now()
        mine = parts.registry.of_key(key)
        if mine is not None and mine.phase in UP | {Phase.STARTING}:
            raise Conflict("This workspace has been started already: you find it on the hub's page Home.")
        parts.allocator.check(request, key)
        bound = parts.allocator.bounds.check(request, key)
        keeps = mine is not None and mine.phase in WAITING and request.keeps_place_of(mine.request)
        asked_at = mine.asked_at if mine is not None and keeps else now
        claim = Claim("" if mine is None else mine.id, person.owner.user_created, request, asked_at, user=person.name)
        offer = parts.queue.offer(request.gpu, hold_user_of(claim))
        would = await parts.queue.offers_for(claim)
        if would.kind:  # another rate, by which budgets last for another time
            bound = parts.allocator.bounds.check(request, key, would.kind)
        bound, ends_at = _end_of(bound, would.latest_end, now + request.lifetime_seconds)
        place, outage = would.place, outage_words(parts, would.kind or request.gpu)
        shortage = "" if would.held_back is None else would.held_back.words
        waiting = bool(shortage or outage) or (
            request.gpu is not None and (place.number != 1 or place.likely_seconds != 0)
        )
        limit = "" if waiting else start_limit(parts, key)
        if waiting:
            told, reach = parts.allocator.foretold.words(place), reach_words(parts, person.name, key)
            kept = kept_free_words(would.kept_free, request, parts.catalog, now)
            sentence = waits(
                place, request, parts.catalog, offer, shortage,
                asked_for=keeps, told=told, kept=kept, reach=reach, outage=outage,
            )  # fmt: skip
        elif limit:
            sentence = limit
        else:
            sentence = self._starts_now(claim, would, bound, ends_at, now)
        alone, others = await self._waits(claim, would, groups)
        kind = would.kind or request.gpu
        if kind is not None and not outage:
            waits_seconds = wait_seconds(would) if would.kind else alone
            sentence += self._where(request, kind, waits_seconds, others, now)
        if mine is not None and mine.phase in WAITING and not keeps:
            sentence += " This changes your request: your old place in the queue is lost."
        self.answer(
            {
                "sentence": sentence,
                "starts_now": not (waiting or limit),
                "place": place.number if waiting else None,
                **starts_at(place, now),
                "asked": gpus_asked(request, parts.catalog, simulated=offer is not None and offer.simulated),
                "ends_at": None if waiting or limit or would.node_seconds else ends_at,
                "team": request.team or None,
                "understood": understood(request, body),
                "cost": cost_view(parts, request, key, kind, ends_at - now),
                "substitutes": [substitute_view(parts.catalog, request, x, alone, others[x]) for x in others],
                "quota": [one.as_json() for bounds in present_bounds(parts, [requester_of(claim)]) for one in bounds],
            }
        )

    def _where(
        self, request: Request, kind: str, waits_seconds: float | None, others: Mapping[str, float | None], now: float
    ) -> str:
        """Return what is to be added on where it would be, and on spot nodes; "" where there is nothing to say."""
        catalog = self.parts.catalog
        where = where_words(catalog, request, kind, waits_seconds, others)
        spot = spot_words(catalog, kind, policy_now(catalog, request.policy, now)[0])
        return "".join(f" {words}" for words in (where, spot) if words)

    def _starts_now(self, claim: Claim, would: Preview, bound: LatestEnd | None, ends_at: float, now: float) -> str:
        """Return the sentence of a start that waits for nothing."""
        catalog, request = self.parts.catalog, claim.request
        policy, instead_of, until = policy_now(catalog, request.policy, now)
        given = replace(request, gpu=would.kind) if would.kind else request
        offer = self.parts.queue.offer(given.gpu, hold_user_of(claim))
        sentence = starts_now(given, catalog, offer, now, would.node_seconds, bound)
        sentence = " ".join([sentence, *_besides(catalog, request, would, ends_at)])
        if stops := stops_when_idle(request, policy):
            sentence = f"{sentence} {stops} {hours_words(policy.name, instead_of, until, now)}".rstrip()
        return sentence

    async def _waits(
        self, claim: Claim, would: Preview, groups: frozenset[str]
    ) -> tuple[float | None, dict[str, float | None]]:
        """Return when the kind that is asked for would start, and each that may be given instead: None is unknown.

        ``would`` is what the claim would get as it is.
        """
        request, catalog = claim.request, visible(self.parts.catalog, groups)
        kinds = instead(catalog, request)
        alone = await self._preview(claim, replace(request, substitutes=())) if kinds and request.substitutes else would
        return wait_seconds(alone), {
            kind: wait_seconds(await self._preview(claim, of_kind(request, kind))) for kind in kinds
        }

    async def _preview(self, claim: Claim, request: Request) -> Preview:
        return await self.parts.queue.offers_for(claim._replace(request=request))


def _besides(catalog: Catalog, request: Request, would: Preview, ends_at: float) -> Iterator[str]:
    """Yield what else is to be known before Start of what would be granted and end then, in sentences."""
    if would.kind:
        yield f"You get {gpu_title(would.kind, catalog)}{given_instead(catalog, request.gpu or '', would.kind)}."
    if would.says:
        yield would.says
    if would.beyond_share:
        yield beyond_share(would.beyond_share, makes_room=catalog.rules.make_room is not None)
    if would.latest_end is not None and would.latest_end.at > ends_at:  # it can't be extended beyond that
        yield f"It {would.latest_end.words}."


def of_kind(request: Request, kind: str) -> Request:
    """Return the same request for another kind of GPU alone."""
    return replace(request, gpu=kind, substitutes=())


def wait_seconds(would: Preview) -> float | None:
    """Return how long a start would take, likely; None where that is not known."""
    if would.node_seconds is not None:
        return would.node_seconds
    return would.place.unchanged_seconds if would.place.likely_seconds is None else would.place.likely_seconds


def _end_of(bound: LatestEnd | None, granted: LatestEnd | None, asked_at: float) -> tuple[LatestEnd | None, float]:
    """Return what bounds a start's end, and when it ends: at its own budget's, the grant's or, of neither, as asked."""
    ends_at = asked_at if bound is None else bound.at
    return (granted, granted.at) if granted is not None and granted.at < ends_at else (bound, ends_at)
