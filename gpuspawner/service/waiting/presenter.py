"""The sentences that people read about a request, a place and an end. One wording for pages, progress, API and CLI."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.prices import prices
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.policies import LifecyclePolicy, Mode
from gpuspawner.core.idle.verdicts import Explanation, IdleState
from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.rules import LatestEnd
from gpuspawner.core.units import ordinal, show_duration, show_time, show_wait
from gpuspawner.schedulers.base import Offer


def gpu_title(name: str, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return a kind of GPU as people read it: ``simulated A100 80 GB``; its name where the catalog has it no more."""
    kind = catalog.gpus.get(name)
    return ("simulated " if simulated else "") + (kind.title if kind else name)


def gpus_asked(request: Request, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return ``2 A100 80 GB``, ``2 simulated A100 80 GB`` or ``no GPU``."""
    if request.gpu is None:
        return "no GPU"
    return f"{request.count} {gpu_title(request.gpu, catalog, simulated=simulated)}"


def given_instead(catalog: Catalog, asked: str, given: str, *, simulated: bool = False) -> str:
    """Return that another kind was given than was asked for, to be read after what was given."""
    price = prices(catalog, asked, given)
    cost = f": {price}" if price else ""
    return f" instead of {gpu_title(asked, catalog, simulated=simulated)}, as you allowed{cost}"


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
    """Return what is to be known of a spot node before Start; "" of any other kind."""
    found = catalog.gpus.get(kind or "")
    if found is None or not found.spot:
        return ""
    then = "it then returns to the queue before later requests, and starts again by itself"
    if not policy.preemption.back_in_queue:
        then = "it then ends"
    return f"Spot: the cloud may take its node back at any time, two minutes before or less; {then}."


def beyond_share(share: str, *, makes_room: bool) -> str:
    """Return what is told of a start beyond a soft quota: it is a loan, which goes back first where room is made."""
    room = " When GPUs run short, it is the first asked to make room." if makes_room else ""
    return f"{share} It is given while GPUs are free.{room}"


def stops_when_idle(request: Request, policy: LifecyclePolicy) -> str:
    """Return when idleness ends a workspace before its time, to be read before it starts; "" where it never does."""
    idle = policy.idle_of(gpus=request.gpu is not None)
    if idle is None or policy.mode is not Mode.ENFORCE:
        return ""
    if request.lifetime_seconds <= idle.for_seconds + idle.grace_seconds:  # its time is over first
        return ""
    rests = (
        "nothing is done in it"
        if request.gpu is None
        else "its GPU does nothing"
        if request.count == 1
        else f"all {request.count} GPUs do nothing"
    )
    keep = ", unless you keep it" if policy.keep.times else ""
    young = idle.start_up_seconds > idle.for_seconds  # else it is not what decides
    start_up = f" The first {show_duration(idle.start_up_seconds)} after its start does not count." if young else ""
    return (
        f"If {rests} for {show_duration(idle.for_seconds)}, you are warned, and {show_duration(idle.grace_seconds)} "
        f"later it stops{keep}.{start_up}"
    )


def hours_words(policy: str, instead_of: str, until: float | None, now: float) -> str:
    """Return which policy judges by the hour, and until when; "" where no hours change it."""
    if until is None and not instead_of:
        return ""
    end = "" if until is None else f" until {show_time(until, now)}"
    instead = f" instead of {instead_of}" if instead_of else ""
    return f"By the hours of the catalog, the policy {policy} holds{end}{instead}."


def waits(
    place: QueuePosition,
    request: Request,
    catalog: Catalog,
    offer: Offer | None,
    shortage: str = "",
    *,
    asked_for: bool = True,
    told: tuple[float, float, str] | None = None,
    kept: str = "",
    reach: str = "",
    outage: str = "",
) -> str:
    """Return the sentence of a place in the queue, or of the one that Start would give where none is ``asked_for`` yet.

    ``shortage`` is what but GPUs is waited for, in a sentence; ``kept`` why what is free is not given; ``reach`` what
    tells who has closed the page that it starts, in a sentence. ``outage`` is what keeps anything from starting now, in
    sentences.
    """
    number = "" if place.number is None else f"{ordinal(place.number)} "
    line = f"You {'are' if asked_for else 'would be'} {number}in line"
    stays = "You can close this page; your place stays."
    if not asked_for:
        stays = "Once you have pressed Start, you can close this page."
    if reach:
        stays = f"{stays} {reach}"
    if outage:
        return f"{outage} {stays}"
    if place.says:
        return f"{place.says} {stays}"
    if shortage:
        return f"{shortage} {line}; it starts by itself as soon as it can. {stays}"
    if request.gpu is None:
        return f"Many workspaces start at this moment. {line}; it starts by itself."
    title = gpu_title(request.gpu, catalog, simulated=offer is not None and offer.simulated)
    if offer is None or offer.free is None:
        return f"The {title} can't be counted at this moment. {line}{'; your place stays' if asked_for else ''}."
    free = _how_free(title, offer, catalog.gpus.get(request.gpu))
    asked = f", and you ask for {request.count}" if request.count > 1 else ""
    if kept:
        asked = f", {kept}"
    return f"{free}{asked}. {line}; {wait_range(place, told)}. {stays}"


def _how_free(title: str, offer: Offer, kind: GpuKind | None) -> str:
    """Return what becomes of the GPUs that somebody waits for, as the beginning of a sentence."""
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


def cannot_start(why: str, until: float, now: float) -> str:
    """Return the sentence of a waiting request that can't start as things are; its place is kept ``until`` then."""
    return (
        f"It can't start as things are: {why} It keeps its place until {show_time(until, now)}: change the request, or "
        "wait for an administrator to change that."
    )


def after_other_starts(most: int, whose: str) -> str:
    """Return the sentence of a lease that could start but for the starts under way. ``whose``: "workspaces"."""
    return f"{most} {whose} are starting, the most at one time. This one keeps its place and follows by itself."


def wait_range(place: QueuePosition, told: tuple[float, float, str] | None = None) -> str:
    """Return how long it takes, as far as it is known, and what makes it less or more.

    ``told`` is the range that past errors make of it, and how often such were right.
    """
    most, likely = place.unchanged_seconds, place.likely_seconds
    if most is None:
        return "how long it takes is not known"
    if told is not None:
        begin, end, right = told
        about = show_wait(most if likely is None else likely)
        return f"about {about} ({show_wait(begin)} to {show_wait(end)}, {right})"
    longer = "more if somebody extends or goes first"
    if likely is not None and likely < most:
        return f"about {show_wait(likely)}, {show_wait(most)} if no workspace ends early, {longer}"
    return f"about {show_wait(most)}, less if a workspace ends early, {longer}"


def starts_at(place: QueuePosition, now: float) -> dict[str, float | None]:
    """Return when who waits probably starts, and when if nothing changes until then; None where it is not known."""
    likely, most = place.likely_seconds, place.unchanged_seconds
    return {
        "likely_start_at": None if likely is None else now + likely,
        "unchanged_start_at": None if most is None else now + most,
    }


def phase_words(lease: Lease, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return a lease's phase in words."""
    if lease.unasked and lease.phase is Phase.RUNNING:
        return "Running, started without the GPU service"
    request = lease.request
    gpus = gpus_asked(replace(request, gpu=lease.kind), catalog, simulated=simulated)
    if lease.given and request.gpu is not None:
        gpus += given_instead(catalog, request.gpu, lease.given, simulated=simulated)
    on = "without a GPU" if request.gpu is None else f"on {gpus}"
    got = f"Starting {on}" if any(slot.is_coming for slot in lease.slots) else f"Got {gpus}; starting"
    what = "to start without a GPU" if request.gpu is None else f"for {gpus}"
    return {
        Phase.QUEUED: f"Waiting {what}",
        Phase.PARKED: f"Waiting {what}; it starts by itself",
        Phase.RESERVED: "Starts now without a GPU" if request.gpu is None else got,
        Phase.STARTING: f"Starting {on}",
        Phase.RUNNING: f"Running {on}",
        Phase.RECLAIMING: f"Idle {on}: ends soon",
        Phase.STOPPING: "Stopping",
        Phase.ENDED: "Ended",
    }[lease.phase]


def idle_words(seen: Explanation, stops_at: str | None = None) -> str:
    """Return where a workspace's idleness stands, and why: ``idle 12 min of 30 min, because: GPU 0 at 1 %``.

    ``stops_at`` is when a grace that will be carried out is over, as people read it.
    """
    if seen.state is IdleState.UNMEASURED:
        return "not measured yet"
    if seen.state is IdleState.BUSY:
        return f"in use: {seen.because}"
    so_far = f"idle {show_duration(round(seen.idle_seconds))}"
    if seen.grace_left_seconds is None:
        so_far += f" of {show_duration(seen.for_seconds)}"
    if stops_at is not None:
        so_far += f"; stops at {stops_at}"
    if seen.state in {IdleState.IDLE, IdleState.GRACE}:
        return f"{so_far}, because: {seen.because}"
    if seen.idle_seconds:
        return f"{so_far}, not counting now: {seen.because}"
    return f"not judged now: {seen.because}" if seen.state is IdleState.UNKNOWN else f"not idle: {seen.because}"
