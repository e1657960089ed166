"""The check of a start: what it would do now, in sentences, with its cost, its place, and when it stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from gpuspawner.catalog import Catalog, Cluster, understood, visible
from gpuspawner.catalog.requests.visibility import cluster_words, given_instead, gpu_title, gpus_asked
from gpuspawner.core.calendar import HOUR_MS, milliseconds
from gpuspawner.core.errors import Conflict
from gpuspawner.core.gpus.fleet import GpuKind, catalog_kind_name
from gpuspawner.core.gpus.topology import applicable_topology, shared_domain
from gpuspawner.core.idle.policies import LifecyclePolicy, Mode
from gpuspawner.core.leases.lease import UP, WAITING, Key, Owner, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.backfill import HOLD
from gpuspawner.core.queue.class_holds import hold_user_of
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.quotas.budgets import BudgetBalance, bare_amount_text, budget_text
from gpuspawner.core.quotas.ledger import amount_per_hour
from gpuspawner.core.quotas.limits import Requester, requester_of
from gpuspawner.core.quotas.namespaces import full_volumes_words
from gpuspawner.core.rules import LatestEnd, Rate
from gpuspawner.core.units import show_duration, show_money, show_time
from gpuspawner.schedulers.base import Offer, Preview
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.presenter import present_bounds
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.start import models
from gpuspawner.service.start.models import Outlook
from gpuspawner.service.start.offers import instead, present_substitute, sooner
from gpuspawner.service.waiting.presenter import (
    KEEPS_PLACE,
    STARTS_THEN,
    outage_words,
    preview_start,
    queue_sentence,
    reach_words,
    start_limit,
    starts_at,
)
from gpuspawner.service.waiting.reasons import kept_free_words
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.idleness import hours_words

MOST_TRIED = 4
"""How many smaller numbers of GPUs are tried for a longer run time. Arbitrary: each is a decision about the queue."""


async def check_start(state: Parts, person: Person, options: dict[str, Any], server: str) -> Outlook:
    """Return the outcome of a start with these options now. Nothing is requested.

    Raises:
        RequestRefused: with all wrong options at once, as a start would.
        Conflict: the workspace runs already.
        Unavailable: a part that must answer does not.
    """
    key, now = Key(*person.owner, server), state.clock.now()
    groups = await state.members.fetch_recent(person.name, person.owner)
    request = await state.allocator.resolver.resolve(options, person.name, person.owner, groups)
    mine = state.registry.of_key(key)
    if mine is not None and mine.phase in UP | {Phase.STARTING}:
        raise Conflict("This workspace runs already. You find it among your workspaces.")
    state.allocator.check(request, key)
    bound = state.allocator.bounds.check(request, key)
    keeps = mine is not None and mine.phase in WAITING and request.keeps_place_of(mine.request)
    asked_at = mine.asked_at if mine is not None and keeps else now
    claim = Claim("" if mine is None else mine.id, person.owner.user_created, request, asked_at, user=person.name)
    would = await state.queue.offers_for(claim)
    if would.kind:  # another rate, by which budgets last for another time
        bound = state.allocator.bounds.check(request, key, would.kind)
    bound, ends_at = _end_of(bound, would.latest_end, now + request.lifetime_seconds)
    found = _sentence(state, claim, would, bound, ends_at, keeps=keeps)
    alone, others = await _waits(state, claim, would, groups)
    kind, sentence = would.kind or request.gpu, found.words
    if kind is not None and not outage_words(state, kind):
        waits_seconds = wait_seconds(would) if would.kind else alone
        sentence += _where(state.catalog, request, kind, waits_seconds, others, now)
    if bound is not None and bound.rule == HOLD and bound.at == ends_at and not (found.waits or found.limited):
        sentence += await _longer_words(state, claim, list(others))
    sentence += await _volume_words(state, claim, kind)
    if mine is not None and mine.phase in WAITING and not keeps:
        sentence += " This changes your request, and you lose your old place in line."
    offer = state.queue.offer(request.gpu, hold_user_of(claim))
    return Outlook(
        sentence=sentence,
        starts_now=not (found.waits or found.limited),
        place=would.place.number if found.waits else None,
        **starts_at(would.place, now),
        asked=gpus_asked(request, state.catalog, simulated=offer is not None and offer.simulated),
        ends_at=None if found.waits or found.limited or would.node_seconds else ends_at,
        team=request.team or None,
        understood=understood(request, options),
        cost=present_cost(state, request, key, kind, ends_at - now),
        substitutes=[present_substitute(state.catalog, request, x, alone, others[x]) for x in others],
        quota=[one for bounds in present_bounds(state, [requester_of(claim)]) for one in bounds],
    )


async def _volume_words(state: Parts, claim: Claim, kind: str | None) -> str:
    """Return whether the cluster allows no new volume, "" for a user who has one and a template that makes no other."""
    found = state.catalog.gpus.get(kind or "")
    full = full_volumes_words(state.scheduler.room.of(found.cluster if found else ""))
    template = state.catalog.templates.get(claim.request.template)
    makes_one = template is not None and any(one.per_user_bytes for one in template.volumes.values())
    owner = Owner(state.hub_id, claim.user_created)
    if not full or (not makes_one and await state.allocator.resolver.has_started_before(owner)):
        return ""
    return f" {full} If this workspace needs a new one, it cannot start. Ask an administrator to raise the quota."


class _Sentence(NamedTuple):
    """The sentence of a check, and whether the start waits in the queue, or for other starts."""

    words: str
    waits: bool
    limited: bool


def _sentence(
    state: Parts, claim: Claim, would: Preview, bound: LatestEnd | None, ends_at: float, *, keeps: bool
) -> _Sentence:
    request, catalog, now = claim.request, state.catalog, state.clock.now()
    place, outage = would.place, outage_words(state, would.kind or request.gpu)
    shortage = "" if would.wait_reason is None else would.wait_reason.words
    key = Key(state.hub_id, claim.user_created, "")
    if shortage or outage or (request.gpu is not None and (place.number != 1 or place.likely_seconds != 0)):
        shown, reach = preview_start(state, place), reach_words(state, claim.user, key)
        kept = kept_free_words(would.kept_free, request, catalog, now)
        offer = state.queue.offer(request.gpu, hold_user_of(claim))
        then = f"{KEEPS_PLACE if keeps else STARTS_THEN} {reach}"
        words = queue_sentence(
            place, request, catalog, offer, shortage,
            asked_for=keeps, shown=shown, kept=kept, outage=outage, then=then,
        )  # fmt: skip
        return _Sentence(words, waits=True, limited=False)
    if limit := start_limit(state, key):
        return _Sentence(limit, waits=False, limited=True)
    return _Sentence(_starts_now(state, claim, would, bound, ends_at), waits=False, limited=False)


def _where(
    catalog: Catalog,
    request: Request,
    kind: str,
    waits_seconds: float | None,
    others: Mapping[str, float | None],
    now: float,
) -> str:
    """Return where a start would be, and what a spot node means, "" if there is nothing to say."""
    where = where_words(catalog, request, kind, waits_seconds, others)
    spot = spot_words(catalog, kind, policy_now(catalog, request.policy, now)[0])
    return "".join(f" {words}" for words in (where, spot) if words)


def _starts_now(state: Parts, claim: Claim, would: Preview, bound: LatestEnd | None, ends_at: float) -> str:
    """Return the sentence of a start that waits for nothing."""
    catalog, request, now = state.catalog, claim.request, state.clock.now()
    policy, instead_of, until = policy_now(catalog, request.policy, now)
    given = replace(request, gpu=would.kind) if would.kind else request
    offer = state.queue.offer(given.gpu, hold_user_of(claim))
    sentence = starts_now(given, catalog, offer, now, would.node_seconds, bound)
    sentence = " ".join([sentence, *_besides(catalog, request, would, ends_at), *_topology_words(state, given, would)])
    if stops := stops_when_idle(request, policy):
        sentence = f"{sentence} {stops} {hours_words(policy.name, instead_of, until, now)}".rstrip()
    return sentence


async def _waits(
    state: Parts, claim: Claim, would: Preview, groups: frozenset[str]
) -> tuple[float | None, dict[str, float | None]]:
    """Return how long the requested kind would wait, and each kind that can be given instead. None is unknown."""
    request, catalog = claim.request, visible(state.catalog, groups)

    async def preview(other: Request) -> Preview:
        return await state.queue.offers_for(claim._replace(request=other))

    kinds = instead(catalog, request)
    alone = await preview(replace(request, substitutes=())) if kinds and request.substitutes else would
    return wait_seconds(alone), {kind: wait_seconds(await preview(of_kind(request, kind))) for kind in kinds}


async def _longer_words(state: Parts, claim: Claim, kinds: Sequence[str]) -> str:
    """Return the requests that would start now and run as long as requested, "" without one.

    This request would have to end before a reservation.
    """
    request, catalog = claim.request, state.catalog
    least = catalog.templates[request.template].gpus.get(request.gpu or "", (1, 1))[0]
    fewer = range(request.count - 1, least - 1, -1)[:MOST_TRIED]
    words: list[str] = []
    for others in (
        [replace(request, count=count, substitutes=()) for count in fewer],
        [of_kind(request, x) for x in kinds],
    ):
        for other in others:
            would = await state.queue.offers_for(claim._replace(request=other))
            if would.wait_reason is None and would.latest_end is None and wait_seconds(would) == 0:
                words.append(gpus_asked(other, catalog))
                break
    run_time = show_duration(request.lifetime_seconds)
    return f" To run {run_time}, choose {' or '.join(words)}." if words else ""


def _besides(catalog: Catalog, request: Request, would: Preview, ends_at: float) -> Iterator[str]:
    """Yield further sentences about a start that would be granted now."""
    if would.kind:
        yield f"You get {gpu_title(would.kind, catalog)}{given_instead(catalog, request.gpu or '', would.kind)}."
    if would.says:
        yield would.says
    elif words := cluster_words(catalog, request, would.kind or request.gpu or ""):
        yield words
    if would.beyond_share:
        yield beyond_share(would.beyond_share, makes_room=catalog.rules.make_room is not None)
    if would.latest_end is not None and would.latest_end.at > ends_at:  # no extension goes beyond it
        yield f"It {would.latest_end.words}."


def _topology_words(state: Parts, request: Request, would: Preview) -> Iterator[str]:
    """Yield whether the GPUs of a start share a domain, if its template asks for one."""
    kind, gpus = state.catalog.gpus.get(request.gpu or ""), state.scheduler.fleet.by_id
    if kind is None or not would.slots or not applicable_topology(request.topology, request.count, kind):
        return
    domain = shared_domain([gpus[slot.gpu] for slot in would.slots if slot.gpu in gpus])
    yield f"Its GPUs share {domain}." if domain else "Its GPUs share no NVLink or NUMA domain that is known."


def of_kind(request: Request, kind: str) -> Request:
    """Return the same request for another kind of GPU alone."""
    return replace(request, gpu=kind, substitutes=())


def wait_seconds(would: Preview) -> float | None:
    """Return how long a start would likely wait, None if that is not known."""
    if would.node_seconds is not None:
        return would.node_seconds
    return would.place.unchanged_seconds if would.place.likely_seconds is None else would.place.likely_seconds


def _end_of(bound: LatestEnd | None, granted: LatestEnd | None, asked_at: float) -> tuple[LatestEnd | None, float]:
    """Return the limit on the end of a start, and its end: of its budget, of the grant, or as requested."""
    ends_at = asked_at if bound is None else bound.at
    return (granted, granted.at) if granted is not None and granted.at < ends_at else (bound, ends_at)


def present_cost(parts: Parts, request: Request, key: Key, kind: str | None, seconds: float) -> models.Cost:
    """Return the cost of ``seconds`` of a request on GPUs of ``kind``, null without a price, and its sentences.

    The sentences also say what is left of each budget in its present period once this start is set aside.
    """
    found, now = parts.catalog.gpus.get(kind or ""), parts.clock.now()
    rate = parts.allocator.bounds.rate(kind, request.count)
    mine = parts.registry.of_key(key)
    balances = parts.allocator.bounds.balances("" if mine is None else mine.id)
    asker = Requester(request.user, key.user_created, request.team)
    left = list(_left(balances.of(asker), rate, now, seconds))
    currency = parts.catalog.rules.currency
    if found is None or found.price_per_hour is None:
        return models.Cost(amount=None, currency=currency or None, words=left)
    amount = float(rate.price_per_hour) * seconds / 3600
    an_hour = show_money(float(rate.price_per_hour), currency)
    whole = f"{an_hour} per hour, {show_money(amount, currency)} for {show_duration(seconds)}."
    return models.Cost(amount=amount, currency=currency or None, words=[whole, *left])


def _left(balances: list[BudgetBalance], rate: Rate, now: float, seconds: float) -> Iterator[str]:
    """Yield what is left of each budget. Only the present period counts, even if the start goes on in the next."""
    for balance in balances:
        takes = amount_per_hour(rate, balance.budget.what)
        if balance.left is None or not takes:
            continue
        now_ms = milliseconds(now)
        here_ms = min(milliseconds(now + seconds), balance.period.end_ms) - now_ms
        left = max(Fraction(0), balance.left - takes * here_ms / HOUR_MS)
        yield f"Leaves {bare_amount_text(left, balance)} of {budget_text(balance, now)}."


def where_words(
    catalog: Catalog, request: Request, kind: str, alone_seconds: float | None, seconds: Mapping[str, float | None]
) -> str:
    """Return where a start would be, and in which clusters the same kind starts sooner or costs otherwise.

    Args:
        catalog: the catalog. With one cluster the words are "".
        request: the request.
        kind: the kind of GPU that would be given.
        alone_seconds: how long it would wait.
        seconds: how long each kind that may be taken instead would wait. None is unknown.
    """
    own = catalog.gpus[kind]
    template = catalog.templates.get(request.template)
    if not own.where or template is None:
        return ""
    its_data = _has_data(_cluster(catalog, own), template.data)
    words = [f"In {own.where}{', where its data is' if its_data else ''}"]
    for name, starts in seconds.items():
        other = catalog.gpus[name]
        if catalog_kind_name(name) != catalog_kind_name(kind) or name == kind:
            continue
        brings = [*filter(None, (_starts(alone_seconds, starts), _costs(own, other)))]
        if brings:
            words.append(f"{other.where} {' and '.join(brings)}")
    return f"{'; '.join(words)}." if its_data or words[1:] else ""


def _cluster(catalog: Catalog, kind: GpuKind) -> Cluster:
    """Return the cluster of a kind. The hub's own cluster has no kubeconfig."""
    return next(one for one in catalog.clusters.values() if kind.cluster == (one.name if one.kubeconfig else ""))


def _has_data(cluster: Cluster, data: tuple[str, ...]) -> bool:
    return bool(data) and cluster.data.issuperset(data)


def _starts(alone_seconds: float | None, seconds: float | None) -> str:
    """Return in words whether another cluster starts it sooner, "" if it does not."""
    if seconds is None or alone_seconds == 0:
        return ""
    if seconds == 0:
        return "starts now"
    words = sooner(alone_seconds, seconds)
    return f"starts {words}" if words.startswith(("about", "in about")) else ""


def _costs(own: GpuKind, other: GpuKind) -> str:
    """Return the difference in price of another cluster in per cent, "" if it is the same or not known."""
    if not own.price_per_hour or other.price_per_hour is None:
        return ""
    percent = round(100 * (other.price_per_hour / own.price_per_hour - 1))
    return f"costs {abs(percent)} % {'less' if percent < 0 else 'more'}" if percent else ""


def starts_now(
    request: Request,
    catalog: Catalog,
    offer: Offer | None,
    now: float,
    node_seconds: float | None = None,
    latest_end: LatestEnd | None = None,
) -> str:
    """Return the sentence of a request that would be granted at once. A node may have to start for it first.

    ``latest_end`` is a limit on its end before its run time is over.
    """
    free = "" if offer is None or offer.free is None else f" ({offer.free} free)"
    simulated = offer is not None and offer.simulated
    gpus = "without a GPU" if request.gpu is None else f"on {gpus_asked(request, catalog, simulated=simulated)}{free}"
    if node_seconds is not None:
        node = f"{gpus_asked(request, catalog)}: a node starts for it, in about {show_duration(node_seconds)}"
        return (
            f"None is free now. Starts by itself on {node}. Ends {show_duration(request.lifetime_seconds)} after that."
        )
    if latest_end is not None and latest_end.at < now + request.lifetime_seconds:
        return f"Starts now {gpus}. {latest_end.words[0].upper()}{latest_end.words[1:]}."
    end = show_time(now + request.lifetime_seconds, now)
    return f"Starts now {gpus}. Ends at {end}, after {show_duration(request.lifetime_seconds)}."


def spot_words(catalog: Catalog, kind: str | None, policy: LifecyclePolicy) -> str:
    """Return the sentence about a spot node, "" for other kinds."""
    found = catalog.gpus.get(kind or "")
    if found is None or not found.spot:
        return ""
    then = "it then returns to the queue before later requests, and starts again by itself"
    if not policy.preemption.back_in_queue:
        then = "it then ends"
    return f"Spot: the cloud may take its node back at any time, two minutes before or less; {then}."


def beyond_share(share: str, *, makes_room: bool) -> str:
    """Return the sentence of a start beyond a soft quota. It makes room first when GPUs run short."""
    room = " When GPUs run short, this workspace makes room first." if makes_room else ""
    return f"{share} You get it while GPUs are free.{room}"


def stops_when_idle(request: Request, policy: LifecyclePolicy) -> str:
    """Return when idleness ends a workspace before its end time, "" if it never does. Users read it before."""
    idle = policy.idle_of(gpus=request.gpu is not None)
    if idle is None or policy.mode is not Mode.ENFORCE:
        return ""
    if request.lifetime_seconds <= idle.for_seconds + idle.grace_seconds:  # its time is over first
        return ""
    rests = (
        "nothing runs in it"
        if request.gpu is None
        else "its GPU is idle"
        if request.count == 1
        else f"all {request.count} GPUs are idle"
    )
    keep = " unless you keep it" if policy.keep.times else ""
    young = idle.start_up_seconds > idle.for_seconds  # else it is not what decides
    start_up = f" The first {show_duration(idle.start_up_seconds)} after its start does not count." if young else ""
    return (
        f"If {rests} for {show_duration(idle.for_seconds)}, you get a warning. It stops "
        f"{show_duration(idle.grace_seconds)} later{keep}.{start_up}"
    )
