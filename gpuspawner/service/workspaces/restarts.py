"""Restarts without a GPU, with one again, or in another size: their consequences and their wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from gpuspawner.catalog import resolve
from gpuspawner.catalog.requests.visibility import gpus_asked
from gpuspawner.catalog.template_models import NO_GPU
from gpuspawner.core.errors import RequestRefused, Unavailable
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.leases.request import Next, Request, SizeChange
from gpuspawner.core.queue.class_holds import hold_user_of
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.units import show_bytes, show_cpu, show_duration, show_time
from gpuspawner.schedulers.base import Preview
from gpuspawner.service.engine.allocation.requests import options_of
from gpuspawner.service.engine.allocation.size_changes import claim_of_change
from gpuspawner.service.parts import Parts
from gpuspawner.service.waiting.presenter import outage_words, preview_start, queue_sentence
from gpuspawner.service.waiting.reasons import kept_free_words
from gpuspawner.service.workspaces import models

WITHOUT: Literal["without-gpu"] = "without-gpu"
WITH: Literal["with-gpu"] = "with-gpu"
"""The two restarts, as pages, API and command line call them."""
OF_GPUS = frozenset({"gpu", "count", "substitutes", "gpu_memory"})
SAME_HOME = (
    "You lose running kernels and what they hold in memory, so save first. Your files stay, and JupyterLab opens the "
    "same documents."
)


def way_of(lease: Lease) -> Literal["without-gpu", "with-gpu"]:
    """Return the restart that a workspace can have: without its GPU, or with one."""
    return WITHOUT if lease.request.gpu else WITH


def next_of(parts: Parts, lease: Lease, groups: Collection[str] | None = None) -> Next | None:
    """Return the request after a restart, None if a workspace had no GPU and its template gives none.

    Args:
        parts: the service.
        lease: the workspace.
        groups: the present groups of its user. With None they are checked at the request.

    Raises:
        RequestRefused: the catalog no longer offers it, or its user may not have it.
    """
    options = _options(lease)
    request = resolve(parts.catalog, options, lease.user, groups=groups, last_team=lease.request.team)
    if bool(request.gpu) is bool(lease.request.gpu):
        return None
    return Next(request, options, None if request.gpu else options_of(lease))


def _options(lease: Lease) -> Mapping[str, Any]:
    """Return the options of the restart: with the GPU from before, or the one of the template."""
    if way_of(lease) == WITH and lease.with_gpu is not None:
        return lease.with_gpu
    yours = {key: value for key, value in options_of(lease).items() if key not in OF_GPUS}
    return yours if way_of(lease) == WITH else {**yours, "gpu": NO_GPU}


def present_restart(parts: Parts, lease: Lease) -> models.GoingOn | None:
    """Return the restart of a running workspace, or why it is impossible. Return None if no restart applies.

    The user's right to the GPU and the wait are checked when they request the restart.
    """
    if lease.phase not in UP or lease.unasked:
        return None
    action = way_of(lease)
    try:
        after = next_of(parts, lease)
    except RequestRefused as error:
        return models.GoingOn(action=action, words="", why=str(error))
    return None if after is None else models.GoingOn(action=action, words=_words(parts, after), why=None)


def _words(parts: Parts, after: Next) -> str:
    if after.request.gpu is None:
        lost = "The GPU goes to the next in line. Getting one again may take a while."
        return f"It stops, and starts again without a GPU, with the same home. {SAME_HOME} {lost}"
    asked = gpus_asked(after.request, parts.catalog)
    return f"It stops and requests {asked}, with the same home. It starts by itself. {SAME_HOME}"


def ways_out(parts: Parts, lease: Lease) -> list[str]:
    """Return the restart that a warning of an idle GPU offers in addition to Keep, if it is possible."""
    restart = present_restart(parts, lease) if lease.request.gpu else None
    return [] if restart is None or restart.why else [WITHOUT]


async def wait_words(parts: Parts, lease: Lease, groups: Collection[str]) -> str:
    """Return in a sentence how long a restart would wait now, "" if it is not possible."""
    try:
        after = next_of(parts, lease, groups)
    except RequestRefused:
        return ""
    if after is None:
        return ""
    now, request = parts.clock.now(), after.request
    if request.gpu is None:
        return "A workspace without a GPU starts without waiting."
    claim = Claim("", lease.key.user_created, request, now, user=lease.user)
    try:
        would = await parts.queue.offers_for(claim)
    except Unavailable as error:  # the workspace continues, and its page is shown
        return f"We do not know how long the new one waits, and this workspace ends first. {error}"
    held = "" if would.wait_reason is None else would.wait_reason.words
    if not held and would.place.number == 1 and would.place.likely_seconds == 0:
        return "The requested GPUs are free now."
    offer = parts.queue.offer(request.gpu, hold_user_of(claim))
    shown, outage = preview_start(parts, would.place), parts.queue.outage_of(request.gpu)
    away = "" if outage is None else outage.waiting_words(now)
    waiting = queue_sentence(
        would.place, request, parts.catalog, offer, held, asked_for=False, shown=shown, outage=away
    )
    return f"It would wait, and this workspace ends first. {waiting}"


def size_of(parts: Parts, request: Request) -> str:
    """Return ``2 A100 80 GB, 16 cores, 128 GiB memory``."""
    cores = f"{show_cpu(request.cpu_cores)} core{'' if request.cpu_cores == 1 else 's'}"
    return f"{gpus_asked(request, parts.catalog)}, {cores}, {show_bytes(request.memory_bytes)} memory"


def present_size_change(parts: Parts, lease: Lease) -> models.SizeChange | None:
    """Return the change of size that a running workspace waits for, None without one."""
    if lease.size_change is None or lease.phase not in UP:
        return None
    return present_size(parts, lease, lease.size_change, parts.allocator.size_changes.previews.get(lease.id))


def present_size(parts: Parts, lease: Lease, change: SizeChange, found: Preview | None) -> models.SizeChange:
    """Return a change of size. ``found`` is its last preview, None before the first one."""
    return models.SizeChange(
        size=size_of(parts, change.after.request),
        asked_at=change.asked_at,
        place=None if found is None or found.slots is not None else found.place.number,
        restarts_at=change.restarts_at,
        sentence=_sentence(parts, lease, change, found),
    )


def _sentence(parts: Parts, lease: Lease, change: SizeChange, found: Preview | None) -> str:
    request, now = change.after.request, parts.clock.now()
    if change.restarts_at is not None:
        left_seconds = max(0.0, change.restarts_at - now)
        return f"It restarts at {show_time(change.restarts_at, now)}, in {show_duration(left_seconds)}."
    if found is None:
        return "We look for its GPUs."
    if found.slots is not None:
        return "It can start now."
    return queue_sentence(
        found.place,
        request,
        parts.catalog,
        parts.queue.offer(request.gpu, hold_user_of(claim_of_change(lease, change))),
        "" if found.wait_reason is None else found.wait_reason.words,
        asked_for=lease.size_change is not None,
        shown=preview_start(parts, found.place),
        kept=kept_free_words(found.kept_free, request, parts.catalog, now),
        outage=outage_words(parts, request.gpu),
    )
