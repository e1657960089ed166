"""The consequences of a start in sentences: its cost, its place, and when it stops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from gpuspawner.catalog import Catalog, Cluster
from gpuspawner.catalog.requests.visibility import gpus_asked
from gpuspawner.core.calendar import HOUR_MS, milliseconds
from gpuspawner.core.gpus.fleet import GpuKind, catalog_kind_name
from gpuspawner.core.idle.policies import LifecyclePolicy, Mode
from gpuspawner.core.leases.lease import Key
from gpuspawner.core.leases.request import Request
from gpuspawner.core.quotas.budgets import BudgetBalance, bare_amount_text, budget_text
from gpuspawner.core.quotas.ledger import amount_per_hour
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.rules import LatestEnd, Rate
from gpuspawner.core.units import show_duration, show_money, show_time
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.parts import Parts
from gpuspawner.service.start import models
from gpuspawner.service.start.substitutes import sooner


def present_cost(parts: Parts, request: Request, key: Key, kind: str | None, seconds: float) -> models.Cost:
    """Return the cost of ``seconds`` of a request on GPUs of ``kind``, null without a price, and its sentences.

    Budgets of GPU hours are told too: of each with a bound, what is left of its present period once this is set aside.
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
    """Yield for each bound what it leaves; where the start goes on in the next period, of the present one alone."""
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
        catalog: with its kinds in each cluster; one cluster is no choice, and gives "".
        request: what is asked for.
        kind: what would be given.
        alone_seconds: when it would start.
        seconds: of each kind that may be taken instead, when that would start. None is unknown.
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
    """Return the cluster of a kind; the hub's own has no kubeconfig."""
    return next(one for one in catalog.clusters.values() if kind.cluster == (one.name if one.kubeconfig else ""))


def _has_data(cluster: Cluster, data: tuple[str, ...]) -> bool:
    return bool(data) and cluster.data.issuperset(data)


def _starts(alone_seconds: float | None, seconds: float | None) -> str:
    """Return whether another cluster starts it sooner; "" where it does not."""
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
    """Return the sentence of a request that would be granted at once; a node may have to be started for it first.

    ``latest_end`` is what ends it before its time.
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
    """Return when idleness ends a workspace before its time, to be read before it starts; "" where it never does."""
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
