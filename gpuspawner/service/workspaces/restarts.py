"""Going on without a GPU, and back: what a running workspace's user may change it to, and what is said before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpuspawner.catalog import resolve
from gpuspawner.catalog.models import NO_GPU
from gpuspawner.core.errors import RequestRefused, Unavailable
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.leases.request import Next
from gpuspawner.core.queue.class_holds import hold_user_of
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.service.engine.requests import options_of
from gpuspawner.service.parts import Parts
from gpuspawner.service.waiting.presenter import gpus_asked, waits

WITHOUT, WITH = "without-gpu", "with-gpu"
"""The two ways, as pages, API and command line call them."""
OF_GPUS = frozenset({"gpu", "count", "substitutes", "gpu_memory"})
SAME_HOME = (
    "Running kernels and what they hold in memory are lost: save first. Files stay, and JupyterLab opens the same "
    "documents."
)


def way_of(lease: Lease) -> str:
    """Return which of the two ways there is from a workspace."""
    return WITHOUT if lease.request.gpu else WITH


def next_of(parts: Parts, lease: Lease, groups: Collection[str] | None = None) -> Next | None:
    """Return what a workspace may go on as; None for one that never had a GPU and whose template gives none.

    Args:
        parts: the service.
        lease: the workspace.
        groups: those that its user is in now; None: that is checked when it is asked for.

    Raises:
        RequestRefused: the catalog has it no more, or its user may not have it.
    """
    options = _options(lease)
    request = resolve(parts.catalog, options, lease.user, groups=groups, last_team=lease.request.team)
    if bool(request.gpu) is bool(lease.request.gpu):
        return None
    return Next(request, options, None if request.gpu else options_of(lease))


def _options(lease: Lease) -> Mapping[str, Any]:
    """Return the options to go on with: back to the GPU of before, else to the one that the template gives."""
    if way_of(lease) == WITH and lease.with_gpu is not None:
        return lease.with_gpu
    yours = {key: value for key, value in options_of(lease).items() if key not in OF_GPUS}
    return yours if way_of(lease) == WITH else {**yours, "gpu": NO_GPU}


def going_on_view(parts: Parts, lease: Lease) -> dict[str, Any] | None:
    """Return which way there is from a running workspace, what it would do, or why it can't; None where there is none.

    Who may have it, and what it would wait for, is looked at when it is asked for.
    """
    if lease.phase not in UP or lease.unasked:
        return None
    action = way_of(lease)
    try:
        after = next_of(parts, lease)
    except RequestRefused as error:
        return {"action": action, "words": "", "why": str(error)}
    return None if after is None else {"action": action, "words": _words(parts, after), "why": None}


def _words(parts: Parts, after: Next) -> str:
    if after.request.gpu is None:
        lost = "The GPU goes to who waits at once: to have one again may mean waiting."
        return f"It stops, and starts again by itself without a GPU, with the same home. {SAME_HOME} {lost}"
    asked = gpus_asked(after.request, parts.catalog)
    return f"It stops, and asks for {asked} with the same home; it starts by itself. {SAME_HOME}"


def ways_out(parts: Parts, lease: Lease) -> list[str]:
    """Return what a warning that its GPU is idle offers beside Keep: to go on without one, where that can be."""
    view = going_on_view(parts, lease) if lease.request.gpu else None
    return [] if view is None or view["why"] else [WITHOUT]


async def wait_words(parts: Parts, lease: Lease, groups: Collection[str]) -> str:
    """Return what going on would wait for now, in a sentence; "" where it can't."""
    try:
        after = next_of(parts, lease, groups)
    except RequestRefused:
        return ""
    if after is None:
        return ""
    now, request = parts.clock.now(), after.request
    if request.gpu is None:
        return "A workspace without a GPU waits for none."
    claim = Claim("", lease.key.user_created, request, now, user=lease.user)
    try:
        would = await parts.queue.offers_for(claim)
    except Unavailable as error:  # the workspace runs on, and so does its page
        return f"What it would wait for is not known now, and this workspace ends first. {error}"
    held = "" if would.held_back is None else would.held_back.words
    if not held and would.place.number == 1 and would.place.likely_seconds == 0:
        return "What it asks for is free now."
    offer = parts.queue.offer(request.gpu, hold_user_of(claim))
    told, outage = parts.allocator.foretold.words(would.place), parts.queue.outages.of_kind(request.gpu)
    away = "" if outage is None else outage.waiting_words(now)
    waiting = waits(would.place, request, parts.catalog, offer, held, asked_for=False, told=told, outage=away)
    waiting = waiting.removesuffix(" Once you have pressed Start, you can close this page.")
    return f"It would wait, and this workspace ends first. {waiting}"
