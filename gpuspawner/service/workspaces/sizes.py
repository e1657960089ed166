"""Changes of a running workspace's size: what a change would do, and what its user asks for.

``service.engine.allocation.size_changes`` carries them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from pydantic import SkipValidation

from gpuspawner.catalog import resolve
from gpuspawner.catalog.requests.visibility import gpus_asked
from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.leases import exits, successors
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.leases.request import Next, Request, SizeChange
from gpuspawner.core.units import show_duration, show_money, show_time
from gpuspawner.schedulers.base import Preview
from gpuspawner.service.api.rest.models import Body, Query
from gpuspawner.service.engine.allocation.requests import options_of
from gpuspawner.service.engine.allocation.size_changes import NOTICE_SECONDS, starts_now
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission
from gpuspawner.service.workspaces import models
from gpuspawner.service.workspaces.api import replay_workspace
from gpuspawner.service.workspaces.cards import lost_words
from gpuspawner.service.workspaces.restarts import OF_GPUS, present_size, size_of

router = Router()


class SizeQuery(Query):
    """The options of a new size. Missing ones stay as they are."""

    gpu: str | None = None
    """A kind of GPU as the catalog calls it, or ``none``."""
    count: str | None = None
    """How many GPUs."""
    cpu: str | None = None
    """Cores, for example ``4`` or ``0.5``."""
    memory: str | None = None
    """A size, for example ``64 GB``."""


class SizeInput(Body):
    """The options of a new size, at least one unless a change waits. Missing ones stay as they are."""

    gpu: SkipValidation[str | None] = None
    """A kind of GPU as the catalog calls it, or ``none``."""
    count: SkipValidation[int | str | None] = None
    """How many GPUs."""
    cpu: SkipValidation[float | str | None] = None
    """Cores, for example ``4`` or ``0.5``."""
    memory: SkipValidation[int | str | None] = None
    """A size, for example ``64 GB``. A JSON number is bytes."""
    at_once: bool = False
    """Restart now, without a notice. If the new size is not free, it waits in the queue without a running workspace."""


def resolve_size(parts: Parts, lease: Lease, asked: SizeQuery | SizeInput, groups: Collection[str] | None) -> Next:
    """Return the request of a new size. Without any option it is the one that the workspace waits for.

    Raises:
        RequestRefused: the template does not allow it, or nothing would change.
    """
    names = ("gpu", "count", "cpu", "memory")
    chosen = {name: value for name in names if (value := getattr(asked, name)) not in (None, "")}
    if not chosen and lease.size_change is not None:
        return lease.size_change.after
    options: dict[str, Any] = options_of(lease)
    if "gpu" in chosen and chosen["gpu"] != (lease.request.gpu or "none"):
        options = {key: value for key, value in options.items() if key not in OF_GPUS}
    if chosen.get("gpu") == "none":
        chosen.pop("count", None)
    options |= chosen
    request = resolve(parts.catalog, options, lease.user, groups=groups, last_team=lease.request.team)
    if _size(request) == _size(lease.request):
        shown = size_of(parts, lease.request)
        raise RequestRefused("size", shown, "another size", "Change the GPU, the number, the CPU or the memory.")
    return Next(request, options, options_of(lease) if lease.request.gpu and request.gpu is None else None)


def _size(request: Request) -> tuple[object, ...]:
    return request.gpu, request.count, request.cpu_cores, request.memory_bytes


def require_running(lease: Lease) -> None:
    """Raise Conflict for a workspace whose size cannot change now."""
    if lease.phase in UP and not lease.unasked:
        return
    if lease.unasked:
        raise Conflict("It was started without the GPU service, which could not start it again. Use the form.")
    if lease.live:
        raise Conflict("It does not run. You can change what it asks for on the form.")
    raise Conflict("This workspace has ended. Start it again from the form; its files are kept.")


async def preview_size(parts: Parts, lease: Lease, asked: SizeQuery) -> models.SizeOutlook:
    """Return what a change of size would do now. Nothing is done.

    Raises:
        Conflict: the workspace does not run.
        RequestRefused: the size is not allowed.
    """
    require_running(lease)
    after = resolve_size(parts, lease, asked, await parts.members.fetch(lease.user, lease.key.owner))
    parts.allocator.check(after.request, lease.key)
    change = SizeChange(after, _asked_at(parts, lease, after), lease.user, "")
    keeps_running = parts.allocator.size_changes.keeps_running(after.request)
    found: Preview | None = None
    try:
        found = await parts.allocator.size_changes.preview(lease, change)
    except Unavailable as error:
        words = f"When it can start is not known now. {error}"
    else:
        announced = lease.size_change if is_announced(lease, after.request) else None
        words = present_size(parts, lease, announced or change, found).sentence
    is_free = is_announced(lease, after.request) or (found is not None and starts_now(lease, found))
    asked_words = gpus_asked(after.request, parts.catalog)
    if not keeps_running:
        words = f"This workspace stops first, because {asked_words} waits in a queue that is not ours."
    return models.SizeOutlook(
        size=size_of(parts, after.request),
        starts_now=is_free,
        keeps_running=keeps_running,
        sentence=words,
        effects=list(_effects(parts, lease, after.request, is_free=is_free, keeps_running=keeps_running)),
    )


def _effects(
    parts: Parts, lease: Lease, after: Request, *, is_free: bool, keeps_running: bool
) -> Iterator[models.SizeEffect]:
    if keeps_running and not is_free:
        runs_on = f"This workspace runs on with {gpus_asked(lease.request, parts.catalog)} until then."
        yield models.SizeEffect(good=True, words=runs_on, more="You can withdraw the change at any time.")
        notice = show_duration(NOTICE_SECONDS / (parts.catalog.fast or 1.0))
        when = f"We tell you {notice} before it restarts."
        yield models.SizeEffect(good=False, words=when, more="Save your work then, or press Not now.")
    readings = parts.sampler.newest(lease.id).values()
    lost = f"You lose {lost_words(lease.kernels, sum(one.memory_used_bytes or 0 for one in readings))}."
    yield models.SizeEffect(good=False, words=lost, more="Your files stay, and JupyterLab opens the same documents.")
    if lease.deadline_at is not None:
        end = f"The end stays {show_time(lease.deadline_at, parts.clock.now())}."
        yield models.SizeEffect(good=True, words=end, more="")
    before, then = (_price(parts, one) for one in (lease.request, after))
    if before != then and None not in (before, then):
        currency = parts.catalog.rules.currency
        cost = f"{show_money(then or 0.0, currency)} instead of {before or 0.0:.2f} per hour."
        yield models.SizeEffect(good=(then or 0.0) < (before or 0.0), words=cost, more="")


def _price(parts: Parts, request: Request) -> float | None:
    if request.gpu is None:
        return 0.0
    kind = parts.catalog.gpus.get(request.gpu)
    return None if kind is None or kind.price_per_hour is None else request.count * kind.price_per_hour


def _asked_at(parts: Parts, lease: Lease, after: Next) -> float:
    """Return since when a change waits. A smaller change keeps the position of the one before."""
    before = lease.size_change
    keeps = before is not None and after.request.keeps_place_of(before.after.request)
    return before.asked_at if before is not None and keeps else parts.clock.now()


async def change_size(parts: Parts, actor: str, lease: Lease, asked: SizeInput, where: str) -> None:
    """Change the size of a running workspace, as soon as the new size can start. Repeating it is harmless.

    If the new size is free now, the workspace restarts at once. Otherwise its user is told before the restart.

    Raises:
        Conflict: the workspace does not run, or cannot run on until the new size is free.
        RequestRefused: the size is not allowed.
    """
    if lease.reason is exits.ExitReason.CHANGED and lease.goes_on is not None and lease.goes_on.asked_at is not None:
        return  # a second click: it restarts already
    require_running(lease)
    after = resolve_size(parts, lease, asked, await parts.members.fetch(lease.user, lease.key.owner))
    parts.allocator.check(after.request, lease.key)
    keeps_running = parts.allocator.size_changes.keeps_running(after.request)
    change = SizeChange(after, _asked_at(parts, lease, after), actor, where)
    is_free = keeps_running and await _is_free(parts, lease, change)
    current = parts.registry.get(lease.id)
    if current is None or current.phase not in UP:
        raise Conflict("This workspace has ended meanwhile.")
    waiting = current.size_change
    is_same = waiting is not None and waiting.after.request == after.request
    if is_same and not asked.at_once:
        return
    if not asked.at_once and not keeps_running:
        raise Conflict("Its new size waits in a queue that is not ours. Choose to restart at once.")
    if is_announced(current, after.request):
        change, is_free = current.size_change or change, True  # with the GPUs that are held for it
    change = replace(change, restarts_at=parts.clock.now() if is_free else None)
    pending = replace(current, size_change=change, assigned=current.assigned if is_same else ())
    line = parts.allocator.commits.line(current, actor, events.SizeChangeAsked(size_of(parts, after.request)), where)
    # Without an await between, so that both are stored together.
    stored = [parts.registry.save(pending, audit=[] if is_same else [line])]
    if asked.at_once and not is_free:
        stopping = successors.begin_size_change(pending, (), parts.clock.now())
        how = exits.goes_on(actor, where, gpus_asked(after.request, parts.catalog))
        stored.append(parts.allocator.commits.finish(stopping, how))
    parts.allocator.size_changes.ask()
    await asyncio.gather(*stored, parts.allocator.grant_waiting())
    if (newest := parts.registry.get(lease.id)) is not None and newest.phase is Phase.STOPPING:
        await parts.engine.drive(lease.id)


def is_announced(lease: Lease, request: Request) -> bool:
    """Return whether a workspace is about to restart with this size."""
    change = lease.size_change
    return change is not None and change.restarts_at is not None and change.after.request == request


async def _is_free(parts: Parts, lease: Lease, change: SizeChange) -> bool:
    """Return whether a new size can start now. If the scheduler does not answer, the change waits."""
    try:
        return starts_now(lease, await parts.allocator.size_changes.preview(lease, change))
    except Unavailable:
        return False


async def withdraw_size(parts: Parts, actor: str, lease: Lease, where: str) -> None:
    """Withdraw a change of size that waits. Without one, nothing happens."""
    current = parts.registry.get(lease.id)
    if current is None or current.size_change is None or current.phase not in UP:
        return
    line = parts.allocator.commits.line(current, actor, events.SizeChangeWithdrawn(), where)
    await parts.registry.save(replace(current, size_change=None, assigned=()), audit=[line])
    await parts.allocator.grant_waiting()


# Endpoints


@router.get("/api/v1/workspaces/{workspace}/size", Permission.SEE_WORKSPACES)
async def get_size(actor: Actor, workspace: str, *, query: SizeQuery) -> models.SizeOutlook:
    """Return what a change to this size would do, and when it could start. Nothing is done."""
    return await preview_size(actor.state, await actor.find_lease(workspace), query)


@router.post("/api/v1/workspaces/{workspace}/size", Permission.END, replay=replay_workspace)
async def post_size(actor: Actor, workspace: str, *, body: SizeInput) -> models.Workspace:
    """Change its GPUs, CPU or memory. It restarts once the new size is free, and runs on until then."""
    lease = await actor.find_lease(workspace, Permission.END)
    await change_size(actor.state, actor.person.name, lease, body, actor.origin)
    return await replay_workspace(actor, "", workspace)


@router.delete("/api/v1/workspaces/{workspace}/size", Permission.END, replay=replay_workspace)
async def delete_size(actor: Actor, workspace: str) -> models.Workspace:
    """Withdraw a change of size that waits. The workspace runs on."""
    lease = await actor.find_lease(workspace, Permission.END)
    await withdraw_size(actor.state, actor.person.name, lease, actor.origin)
    return await replay_workspace(actor, "", workspace)
