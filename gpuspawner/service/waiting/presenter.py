"""Presents waiting requests: the sentences of a queue position, and the models of the queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from typing import Any

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import gpu_title, gpus_asked
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases.lease import UP, WAITING, Key, Lease, Owner
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.calibration import HOUR_SECONDS, LEAST_ERRORS, Form, ShownStart, range_around
from gpuspawner.core.queue.class_holds import hold_user_of
from gpuspawner.core.queue.decisions import BlockingRule, starts_under_way
from gpuspawner.core.queue.estimates import MOST_ESTIMATED, QueuePosition
from gpuspawner.core.units import ordinal, show_duration, show_time, show_wait
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.engine.allocation.requests import KEPT_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.waiting import models
from gpuspawner.service.waiting.reasons import kept_free_words, precedence_words
from gpuspawner.service.web.permissions import Permission, Person

KEEPS_PLACE = "You do not have to wait here. Your place is kept."
STARTS_THEN = "It starts by itself then."
FEW_PAST = "Too few past workspaces are known to estimate the start."
ESTIMATED_SOON = "The start is being estimated."
FAR_BACK = f"The start is estimated for the first {MOST_ESTIMATED} requests in line."
NOT_ASKED = "Once you have requested it, we estimate its start."
"""The reasons why no time is shown."""


def queue_sentence(
    place: QueuePosition,
    request: Request,
    catalog: Catalog,
    offer: Offer | None,
    shortage: str = "",
    *,
    asked_for: bool = True,
    is_own: bool = True,
    shown: ShownStart | None = None,
    kept: str = "",
    outage: str = "",
    unknown: str = FEW_PAST,
    then: str = "",
) -> str:
    """Return the sentence about a queue position, or about a request that is not made yet (``asked_for`` is false).

    ``shown`` is the estimated start. ``unknown`` is why there is none. ``shortage`` is a sentence about a missing
    resource other than GPUs. ``kept`` is the reason why free GPUs are not granted. ``outage`` are sentences about an
    outage that prevents every start. ``then`` are sentences for the end, such as ``KEEPS_PLACE``. ``is_own`` is false
    for a reader of another's request.
    """
    number = "" if place.number is None else f"{ordinal(place.number)} "
    line = f"{'You' if is_own else 'It'} {('are' if is_own else 'is') if asked_for else 'would be'} {number}in line"
    words = [outage or place.says or _wait_words(request, catalog, offer, shortage, line, is_own=is_own, kept=kept)]
    if request.gpu is not None and not (outage or place.says or shortage or offer is None or offer.free is None):
        words.append(start_words(place, shown, unknown if asked_for else NOT_ASKED))
    return " ".join(filter(None, [*words, then]))


def _wait_words(
    request: Request, catalog: Catalog, offer: Offer | None, shortage: str, line: str, *, is_own: bool, kept: str
) -> str:
    """Return the missing resource of a request, and its position."""
    if shortage:
        return f"{shortage} {line}. It starts by itself as soon as it can."
    if request.gpu is None:
        return f"Many workspaces start at this moment. {line}. It starts by itself."
    title = gpu_title(request.gpu, catalog, simulated=offer is not None and offer.simulated)
    if offer is None or offer.free is None:
        return f"The {title} can't be counted at this moment. {line}."
    kind = catalog.gpus.get(request.gpu)
    asked = f", and {'you need' if is_own else 'it needs'} {request.count}" if request.count > 1 else ""
    if kind is not None and requires_domain(request, kind):
        asked += " in one NVLink or NUMA domain"
    return f"{_how_free(title, offer, kind)}{f', {kept}' if kept else asked}. {line}."


def _how_free(title: str, offer: Offer, kind: GpuKind | None) -> str:
    """Return the state of the GPUs of a kind, as the beginning of a sentence."""
    if offer.free or offer.held:
        held = f", {offer.held}" if offer.held else ""
        closed = f", {offer.away} out of service" if offer.away else ""
        return f"{offer.free} of {offer.total} {title} are free{held}{closed}"
    if not offer.total:
        comes = kind is not None and kind.autoscale is not None
        return f"No {title} is there now{', and all that may come are taken' if comes else ''}"
    away = offer.away >= offer.total
    done = "out of service" if away else "in use or out of service" if offer.away else "in use"
    return f"The only {title} is {done}" if offer.total == 1 else f"All {offer.total} {title} are {done}"


def after_other_starts(most: int, whose: str) -> str:
    """Return the sentence of a lease that only waits for other starts. ``whose`` is, for example, "workspaces"."""
    return f"{most} {whose} are starting, the most at one time. This request keeps its place and starts by itself."


def start_words(place: QueuePosition, shown: ShownStart | None, unknown: str = FEW_PAST) -> str:
    """Return when a request starts, as precisely as past estimates allow, or why that is not shown.

    Args:
        place: its position. Its start is not known if a fleet or scheduler does not answer.
        shown: the estimate, None without one.
        unknown: why there is no estimate.
    """
    if place.unchanged_seconds is None and shown is None:
        return "We do not know yet how long it takes."
    if shown is None:
        return unknown
    if shown.form is Form.TIME and shown.seconds is not None:
        return f"It probably starts in about {show_wait(shown.seconds)}."
    if shown.form is Form.LONG:
        return "It may take more than 3 hours."
    if shown.form is Form.HOUR:
        return "It probably starts within the hour."
    return f"It probably starts in {show_wait(shown.from_seconds)} to {show_wait(shown.to_seconds)}."


def _why_no_estimate(state: Parts, lease: Lease) -> str:
    estimator = state.allocator.estimator
    if not estimator.has_history:
        return FEW_PAST
    return FAR_BACK if estimator.is_considered(lease.id) else ESTIMATED_SOON


def hit_rate_words(state: Parts) -> str:
    """Return how often shown times were right in the last 30 days, "" with few of them."""
    report = state.allocator.estimate_records.report
    shown, right = (sum(getattr(one, name) for one in report) for name in ("shown", "shown_near"))
    if shown < LEAST_ERRORS:
        return ""
    return f"{int(10 * right / shown)} of 10 times shown in the last 30 days were right within 10 minutes"


def preview_start(state: Parts, place: QueuePosition) -> ShownStart | None:
    """Return the shown start of a request that is not made yet, None with few past estimates."""
    if place.likely_seconds is None:
        return None
    around = range_around(place.likely_seconds, state.allocator.estimate_records.past)
    if around is None:
        return None
    return ShownStart(Form.HOUR if around[1] < HOUR_SECONDS else Form.RANGE, None, *around)


def starts_at(place: QueuePosition, now: float) -> dict[str, float | None]:
    """Return when a request would probably start, and when if nothing changes until then. Unknown times are None.

    They are computed at once, without draws. So they are less often right than the estimates of waiting requests.
    """
    likely, most = place.likely_seconds, place.unchanged_seconds
    return {
        "likely_start_at": None if likely is None else now + likely,
        "unchanged_start_at": None if most is None else now + most,
    }


def start_times(place: QueuePosition, shown: ShownStart | None, now: float) -> dict[str, Any]:
    """Return the fields of ``models.StartTimes``. Unknown times are None."""
    most = place.unchanged_seconds
    has_range = shown is not None and shown.form is not Form.LONG and shown.to_seconds < inf
    return {
        "place": place.number,
        "of": place.of,
        "form": "" if shown is None else shown.form.value,
        "likely_seconds": None if shown is None else shown.seconds,
        "unchanged_seconds": most,
        "likely_start_at": None if shown is None or shown.seconds is None else now + shown.seconds,
        "earliest_start_at": now + shown.from_seconds if shown is not None and has_range else None,
        "range_end_at": now + shown.to_seconds if shown is not None and has_range else None,
        "unchanged_start_at": None if most is None else now + most,
    }


# Models


PASSED_WORDS = "An administrator moved another request before yours"
ENTRY = "quota "
"""The name of the rule of a quota entry begins with this word."""


def present_wait_reason(lease: Lease, held: BlockingRule | None, owner: str) -> models.WaitReason | None:
    """Return the rule that holds a waiting request back, None without one.

    Args:
        lease: the request. It has the time since when the rule holds it back.
        held: the rule that the scheduler reports now.
        owner: the program that owns the queue, "" for this service.
    """
    if held is None:
        return None
    before = lease.wait_reason
    since = before.since if before is not None and before.rule == held.rule else None
    entry = held.rule.removeprefix(ENTRY) if held.rule.startswith(ENTRY) else ""
    whose = owner if owner and not entry else None
    return models.WaitReason(rule=held.rule, entry=entry or None, words=held.words, since=since, owner=whose)


def reach_words(state: Parts, user: str, key: Key) -> str:
    """Return in a sentence how a user without an open page learns that their workspace starts."""
    reached = state.notifier.reaches(user)
    if reached:
        return "You get a message when it starts."
    labs = state.queue.compute_once("labs", lambda: _labs(state)).get(key.owner, set()) - {key.server}
    if labs:
        name = min(labs) or "your default workspace"
        return f"JupyterLab of {name} tells you when it starts."
    if reached is None:
        return "You get a message when it starts, if the hub knows your mail address."
    return "A message in your Inbox tells you when it starts."


def _labs(state: Parts) -> dict[Owner, set[str]]:
    """Return the names of running workspaces with JupyterLab by their user."""
    found: dict[Owner, set[str]] = {}
    for lease in state.registry:
        opens = lease.request.opens
        if lease.phase in UP and lease.request.template and (not opens or "lab" in opens):
            found.setdefault(lease.key.owner, set()).add(lease.key.server)
    return found


def outage_words(state: Parts, gpu: str | None) -> str:
    """Return sentences about an outage that prevents the start of requests for this kind, "" without one."""
    outage = state.queue.outage_of(gpu)
    return "" if outage is None else outage.waiting_words(state.clock.now())


def start_limit(state: Parts, key: Key) -> str:
    """Return why a start would wait although its GPUs are free, "" if it would not."""
    starts, settings = state.queue.compute_once("starts", lambda: starts_under_way(state.registry)), state.settings
    if starts[key.user_created] >= settings.concurrent_starts_each:
        return after_other_starts(settings.concurrent_starts_each, "of your workspaces")
    if starts.total() >= settings.concurrent_starts:
        return after_other_starts(settings.concurrent_starts, "workspaces")
    return ""


def _held_up_words(state: Parts, lease: Lease, place: QueuePosition) -> str:
    """Return the reason of a wait that is not the queue, "" without one."""
    now = state.clock.now()
    if lease.impossible_since is not None:
        until = show_time(lease.impossible_since + KEPT_SECONDS, now)
        return (
            f"It can't start as things are: {lease.impossible} It keeps its place until {until}. Change the request, "
            "or wait for an administrator to change that."
        )
    if lease.assigned:
        return "It restarts in its new size. Its GPUs are held for it."
    if lease.not_before > now:
        why = "The hub did not start it" if lease.failed_starts else lease.message.rstrip(".")
        return f"{why}. We try again in {show_duration(lease.not_before - now)}. Others can go first meanwhile."
    return start_limit(state, lease.key) if place.unchanged_seconds == 0 else ""


def present_waiting(state: Parts, lease: Lease, *, is_own: bool = True) -> models.Standing | None:
    """Return the position of a waiting request and its likely start, None if it does not wait.

    ``is_own`` is false for a reader of another's request.
    """
    if lease.phase not in WAITING:
        return None
    queue, place, now = state.queue, state.queue.place(lease), state.clock.now()
    offer = queue.offer(lease.request.gpu, hold_user_of(lease))
    held = queue.wait_reason(lease)
    shown = None if outage_words(state, lease.request.gpu) else state.allocator.estimator.shown(lease.id)
    shortage, reach = held.words if held else "", reach_words(state, lease.user, lease.key)
    kept = kept_free_words(queue.kept_free(lease), lease.request, state.catalog, now)
    outage = outage_words(state, lease.request.gpu)
    sentence = queue_sentence(
        place, lease.request, state.catalog, offer, shortage,
        is_own=is_own, shown=shown, kept=kept, outage=outage, unknown=_why_no_estimate(state, lease),
        then=f"{KEEPS_PLACE} {reach}" if is_own else "",
    )  # fmt: skip
    if not outage:
        sentence = _held_up_words(state, lease, place) or sentence
    if lease.passed_why:
        sentence = f"{sentence} {PASSED_WORDS}: “{lease.passed_why}”."
    others = state.scheduler.capabilities_of(lease.request.gpu).owns_queue
    owner = state.allocator.observed.queue_owner(lease) if others else ""
    return models.Standing(
        **start_times(place, shown, now),
        hit_rate=hit_rate_words(state),
        startable_count=_startable_count(state, lease),
        sentence=sentence,
        why=" ".join(filter(None, [place.why, *queue.wait_reasons_of_substitutes(lease)])),
        precedence=precedence_words(place, lease.request, state.catalog, now),
        wait_reason=present_wait_reason(lease, held, owner),
        changed=queue.change(lease),
        impossible=lease.impossible or None,
    )


def _startable_count(state: Parts, lease: Lease) -> int | None:
    """Return the smaller number of GPUs with which a request could start now, None without one.

    The number is within the bounds of its template, and only a lack of free GPUs holds the request back.
    """
    template, gpu = state.catalog.templates.get(lease.request.template), lease.request.gpu
    if template is None or gpu is None or state.queue.outage_of(gpu) is not None:
        return None
    if state.queue.wait_reason(lease) is not None or state.queue.place(lease).number != 1:
        return None
    count = min(state.queue.startable_count(lease), lease.request.count - 1)
    least, _ = template.gpus.get(gpu, (lease.request.count, 0))
    return count if count >= max(least, 1) else None


def present_queue(state: Parts, leases: Iterable[Lease], person: Person, kinds: Collection[str]) -> models.Queue:
    """Return the waiting requests that a person may see, in order.

    Names, positions and reasons are of workspaces that the person may see. Kinds of GPU that are not for the person are
    left out.
    """
    line = []
    for lease in sorted((x for x in leases if x.phase in WAITING), key=lambda x: (x.asked_at, x.id)):
        mine = person.owns(lease) and person.lease in {None, lease.id}
        named = mine or person.covers(Permission.SEE_WORKSPACES, lease, state.catalog.rules)
        if named or lease.request.gpu in {None, *kinds}:
            line.append(_present_request(state, lease, mine=mine, named=named))
    return models.Queue(queue=line, as_of=state.queue.as_of, now=state.clock.now())


def _present_request(state: Parts, lease: Lease, *, mine: bool, named: bool) -> models.WaitingRequest:
    place, now = state.queue.place(lease), state.clock.now()
    told = present_waiting(state, lease, is_own=mine) if named else None
    simulated = lease.kind in {offer.kind for offer in state.queue.offers if offer.simulated}
    return models.WaitingRequest(
        id=lease.id if named else None,
        user=lease.user if named else None,
        server=lease.key.server if named else None,
        team=lease.request.team or None if named else None,
        mine=mine,
        gpu=lease.request.gpu,
        count=lease.request.count,
        asked=gpus_asked(lease.request, state.catalog, simulated=simulated),
        sentence=told.sentence if told else None,
        wait_reason=told.wait_reason if told else None,
        changed=told.changed if told else None,
        precedence=told.precedence if told else None,
        asked_at=lease.asked_at,
        **start_times(place, state.allocator.estimator.shown(lease.id), now),
    )
