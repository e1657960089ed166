"""Carries out the decisions about custom resources, also of scheduled ones.

It creates a resource for each other workspace.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from functools import partial
from typing import Any

from gpuspawner.backends.custom_resources.base import ENDED, LIFETIME, REFUSED, SCHEDULED, WAITS, Resource, Resources
from gpuspawner.catalog import AllRefused, all_words, to_options
from gpuspawner.core.errors import Conflict, RequestRefused, Superseded, Unavailable
from gpuspawner.core.leases.lease import UP, Key, Lease, Owner
from gpuspawner.core.schedules import parse_time_of_day, parse_weekdays
from gpuspawner.core.units import show_duration
from gpuspawner.service.custom_resources import status
from gpuspawner.service.custom_resources.decisions import (
    Action,
    ResourceStep,
    decide,
    has_seconds,
    wanted_seconds,
)
from gpuspawner.service.engine.allocation.start_attempts import StartRequest
from gpuspawner.service.engine.effects import KeyedExecutor
from gpuspawner.service.parts import Parts
from gpuspawner.service.start.schedules import add_schedule, delete_schedule, find_schedule, present_schedule
from gpuspawner.service.web.inputs import refused_as
from gpuspawner.service.workspaces.actions import stop

log = logging.getLogger("gpuspawner.operator")

ROUND_SECONDS = 2.0
AT_ONCE = 64
"""The most actions at the same time. Each makes some calls of the API server. Requests that are made together get their
positions together: 1,000 at once took half the CPU of 16 at once.
"""
ACCEPTS_SECONDS = 2.0
"""How long the presence of the admission policy is remembered."""
WHERE = "a custom resource"
ELSEWHERE = (
    "Its workspace keeps running and belongs to another request, because the user was renamed or a label was changed."
)
MADE = "ws-"
"""The beginning of the names of resources that the service creates."""
MOST_EXTENSIONS = 50
"""The most extensions for one edit. Arbitrary: a month in steps of half a day and more."""


class Operator:
    """The operator of custom resources. It decides in each round from all present requests and leases."""

    def __init__(self, parts: Parts, resources: Resources) -> None:
        self._parts, self._resources = parts, resources
        self._acts = KeyedExecutor(AT_ONCE, parts.clock.now)
        self._refuses, self._looked_at = "", float("-inf")
        self._said = ""
        self._failing_since: float | None = None

    def stuck_seconds(self) -> float:
        """Return for how long an action hangs or each round fails, 0 if the operator works.

        Time without an answer of the cluster or the store does not count, because a new process would not help.
        """
        now = self._parts.clock.now()
        failing_since = now if self._failing_since is None else self._failing_since
        return max(now - failing_since, self._acts.longest_seconds())

    async def close(self) -> None:
        """Cancel the running actions. Each of them can be repeated."""
        await self._acts.close()

    async def idle(self) -> None:
        """Return when all actions of the rounds so far have finished."""
        await self._acts.idle()

    async def round(self) -> None:
        """Decide and start the actions. If the resources cannot be read, do nothing and log it once.

        Raises:
            Unavailable: the cluster or the store does not answer.
            Superseded: a newer service leads.
        """
        try:
            await self._round()
        except (Unavailable, Superseded):
            raise
        except Exception:
            if self._failing_since is None:
                self._failing_since = self._parts.clock.now()
            raise
        self._failing_since = None

    async def _round(self) -> None:
        if not self._parts.engine.observer.has_looked:
            return
        # A newer service may have made workspaces that this one does not know, and would let their requests go.
        await self._parts.store.read(self._parts.store.check_epoch)
        try:
            resources = await self._resources.requests()
        except Unavailable as error:
            self._say(str(error))
            return
        await self._look_for_policy()
        self._say(self._refuses)
        going = any(one.deleting for one in resources) and await self._resources.going()
        decided = decide(resources, self._parts.registry, accepts=self._refuses, going=going)
        for step in decided.steps:
            if self._has_work(step):
                self._acts.offer(("request", step.resource.uid), partial(self._take, step))
        if not self._refuses and not going:
            for lease in decided.without:
                self._acts.offer(("request of", lease.id), partial(self._make, lease))

    async def _look_for_policy(self) -> None:
        if self._parts.clock.now() - self._looked_at >= ACCEPTS_SECONDS:
            self._refuses = await self._resources.refuses()
            self._looked_at = self._parts.clock.now()

    async def _must_accept(self) -> None:
        await self._look_for_policy()
        if self._refuses:
            raise Unavailable(self._refuses)

    def lacking(self) -> str:
        """Return a sentence about the present failure, or ""."""
        return self._said

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            log.error(trouble)
        self._said = trouble

    def _has_work(self, step: ResourceStep) -> bool:
        resource = step.resource
        if step.do is Action.TELL and step.lease is not None:
            return status.is_due(self._parts, resource, step.lease)
        if step.do is Action.SCHEDULE:
            return resource.phase != SCHEDULED or not resource.is_judged or status.is_old(self._parts, resource)
        if step.do is Action.TELL_END:
            return resource.phase not in {ENDED, REFUSED}
        if step.do is Action.WAIT:
            return (resource.phase, resource.status.get("message")) != (WAITS, status.short(step.why))
        return step.do not in {Action.RELEASE, Action.FORGET} or resource.held

    async def _take(self, step: ResourceStep) -> None:
        resource, now = step.resource, self._parts.clock.now()
        if step.do is Action.HOLD:
            await self._resources.hold(resource)
        elif step.do is Action.START:
            await self._start(resource)
        elif step.do in {Action.REFUSE, Action.WAIT}:
            phase = REFUSED if step.do is Action.REFUSE else WAITS
            await self._resources.tell(resource, status.refused(resource, step.why, now, phase))
        elif step.do is Action.TELL_END:
            await self._tell_end(resource, now)
        elif step.do is Action.SCHEDULE:
            if resource.is_new:
                await self._must_accept()
            await self._resources.tell(resource, await keep_schedule(self._parts, resource, WHERE))
        elif step.do in {Action.RELEASE, Action.FORGET, Action.DELETE}:
            await self._let_go(step.do, resource)
        elif step.lease is not None and (lease := self._parts.registry.get(step.lease.id)) is not None:
            await self._act(step.do, resource, lease)

    async def _tell_end(self, resource: Resource, now: float) -> None:
        found = await self._parts.registry.find(resource.told_lease)
        if found is None:
            told = status.forgotten(resource, now)
        elif found.live:
            told = status.forgotten(resource, now, ELSEWHERE)
        else:
            told = status.status_of(self._parts, resource, found)
        await self._resources.tell(resource, told)

    async def _let_go(self, do: Action, resource: Resource) -> None:
        if do is Action.FORGET:
            await forget_schedule(self._parts, resource, WHERE)
        await self._resources.release(resource)
        if do is Action.DELETE:  # only now, because deleting a held resource stops its workspace if that is seen again
            await self._resources.delete(resource)

    async def _act(self, do: Action, resource: Resource, lease: Lease) -> None:
        registry = self._parts.registry
        await registry.stored(lease.id)
        if do is Action.EXTEND:
            await self._extend(resource, registry.get(lease.id) or lease)
        elif do is not Action.STOP:
            await self._resources.tell(
                resource, status.status_of(self._parts, resource, registry.get(lease.id) or lease)
            )
        elif await self._resources.going():  # the definitions are being deleted, so no workspace stops
            await self._resources.release(resource)
        elif (newest := registry.get(lease.id)) is not None:
            await stop(self._parts, newest.user, newest, WHERE)

    async def _start(self, resource: Resource) -> None:
        parts, (user, server) = self._parts, resource.place
        await self._must_accept()
        ended = await parts.registry.find(resource.own_lease)
        if ended is not None:  # it was requested, and its status was not written
            await self._resources.tell(resource, status.status_of(parts, resource, ended))
            return
        created = await parts.hub.created(user)
        if created is None:
            why = f"The hub has no user {user}. Have them log in once, and apply a new request."
            await self._resources.tell(resource, status.refused(resource, why, parts.clock.now()))
            return
        try:
            lease = await self._asked(
                resource, Key(parts.hub_id, created, await parts.hub.check_server_name(user, server))
            )
        except (Conflict, RequestRefused) as error:
            await self._resources.tell(resource, status.refused(resource, all_words(error), parts.clock.now()))
        else:
            await self._resources.tell(resource, status.status_of(parts, resource, lease))

    async def _asked(self, resource: Resource, key: Key) -> Lease:
        parts, user, options = self._parts, resource.place[0], resource.options
        groups = await parts.members.fetch(user, key.owner)
        request = await parts.allocator.resolver.request_of(key, user, options, groups)
        if parts.registry.of_key(key) is not None:
            raise Conflict(f"{user} has a workspace of this name already.")
        name, start = resource.own_lease, uuid.uuid4().hex
        ask = StartRequest(key, user, request, options, start, "", unattended=True, where=WHERE, lease_id=name)
        return await parts.attempts.acquire(ask)

    async def _extend(self, resource: Resource, lease: Lease) -> None:
        wanted, why, has = wanted_seconds(resource.spec.get("lifetime")), "", has_seconds(lease)
        if wanted is None:
            why = await self._why_no_lifetime(resource, lease)
        elif wanted < has:
            why = f"A lifetime can only be raised while its workspace runs, and it has {show_duration(has)} already."
        try:
            for _ in range(0 if why else MOST_EXTENSIONS):
                newest = self._parts.registry.get(lease.id)  # the stored lease may have changed meanwhile
                if newest is None or wanted is None or has_seconds(newest) >= wanted or newest.phase not in UP:
                    break
                lease = await self._parts.actions.extend(newest, newest.user, WHERE)
        except Conflict as error:
            why = str(error)
        said = why or f"It has {show_duration(has_seconds(lease))} now: extensions are whole steps of its policy."
        now, done = self._parts.clock.now(), "Refused" if why else "Extended"
        new = status.condition(resource, LIFETIME, now, so=not why, reason=done, message=said)
        others = [one for one in resource.status.get("conditions") or () if one.get("type") != LIFETIME]
        told = replace(resource, status={**resource.status, "conditions": [*others, new]})
        newest = self._parts.registry.get(lease.id) or lease
        await self._resources.tell(resource, status.status_of(self._parts, told, newest))

    async def _why_no_lifetime(self, resource: Resource, lease: Lease) -> str:
        groups = await self._parts.members.fetch(lease.user, lease.key.owner)
        refused: tuple[RequestRefused, ...] = ()
        try:
            await self._parts.allocator.resolver.resolve(resource.options, lease.user, lease.key.owner, groups)
        except AllRefused as error:
            refused = error.refused
        words = " ".join(str(one) for one in refused if one.field == "lifetime")
        return f"{words} The workspace keeps the lifetime that it has."

    async def _make(self, lease: Lease) -> None:
        if self._parts.registry.get(lease.id) is None or await self._resources.going():
            return
        await self._parts.registry.stored(lease.id)
        await self._resources.make(f"{MADE}{lease.id[:12]}", lease.id, spec_of(lease))


def spec_of(lease: Lease) -> dict[str, Any]:
    """Return the spec of the resource for a workspace."""
    asked = to_options(lease.request) if lease.request.template else {}
    listed: dict[str, Any] = {key: asked[key].split(",") for key in ("substitutes", "tools") if key in asked}
    return {"user": lease.user, "server": lease.key.server, **asked, **listed}


TAKEN_BACK = "It is asked for no more: that was removed on a page or by a command. Delete this, and apply a new one."


async def keep_schedule(parts: Parts, resource: Resource, where: str) -> dict[str, Any]:
    """Create or change the schedule of a resource, and return the status."""
    (user, server), now, name = resource.place, parts.clock.now(), resource.own_lease
    created = await parts.hub.created(user)
    if created is None:
        return status.refused(resource, f"The hub has no user {user}. Have them log in once.", now)
    owner = Owner(parts.hub_id, created)
    found = await find_schedule(parts, owner, name)
    if found is None and not resource.is_new:
        return status.forgotten(resource, now, TAKEN_BACK)
    if found is None:
        try:
            minute = refused_as("at", parse_time_of_day, resource.ready_at.get("time"))
            days = refused_as("on", parse_weekdays, resource.ready_at.get("days", "weekdays"))
            key = Key(*owner, await parts.hub.check_server_name(user, server))
            found = await add_schedule(parts, key, user, resource.options, (minute, days), where, name)
        except RequestRefused as error:
            return status.refused(resource, all_words(error), now)
    elif found.options != resource.options:  # its lifetime was edited
        changed = partial(replace, options=resource.options)
        found = await parts.store.write(parts.store.schedules.change, owner, name, changed)
        if found is None:
            return status.forgotten(resource, now, TAKEN_BACK)
    return status.scheduled(resource, await present_schedule(parts, owner, found), now)


async def forget_schedule(parts: Parts, resource: Resource, where: str) -> None:
    """Delete the schedule of a resource."""
    user = resource.place[0]
    created = await parts.hub.created(user)
    if created is not None:
        await delete_schedule(parts, Owner(parts.hub_id, created), user, resource.own_lease, where)
