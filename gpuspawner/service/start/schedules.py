"""Schedules, each for a workspace that is to be ready at a time of some weekdays, and estimates of their waits.

``schedule_rounds`` asks for them in time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from tornado.web import HTTPError

from gpuspawner.catalog import all_words, template_of
from gpuspawner.core import events
from gpuspawner.core.calendar import WEEKDAYS
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.events import Event
from gpuspawner.core.leases.lease import Key, Owner
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.schedules import (
    Schedule,
    ScheduleDecision,
    ScheduleStep,
    decide_schedule,
    parse_time_of_day,
    parse_weekdays,
)
from gpuspawner.service.api.rest.models import Answer, Body
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.start.check import wait_seconds
from gpuspawner.service.start.models import StartBody
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.idempotency import set_about
from gpuspawner.service.waiting.presenter import preview_start
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import ParsedText, refused
from gpuspawner.service.web.permissions import Permission

MAX_SCHEDULES = 5
"""The most schedules of one user. Arbitrary: each may keep GPUs from others until its user comes."""

router = Router()


# Models


TimeOfDay = Annotated[int, ParsedText(parse_time_of_day)]
"""Minutes since midnight, written as ``8:00``."""
Days = Annotated[tuple[int, ...], ParsedText(parse_weekdays)]
"""Days of the week from 0 for Monday, written as ``weekdays`` or ``mon, wed``."""


class ScheduleInput(StartBody):
    """The time at which a workspace is to be ready, and the options of its start."""

    at: TimeOfDay
    """A time of day in the catalog's time zone, for example ``8:00``."""
    on: Days
    """``weekdays``, ``weekend``, ``daily``, or days, for example ``mon, wed``."""


class ScheduleChange(Body):
    """The changes: at least one of these."""

    at: TimeOfDay | None = None
    on: Days | None = None
    paused: bool | None = Field(default=None, validate_default=True)
    """False resumes it, also after a pause for missed days."""

    @field_validator("paused")
    @classmethod
    def _changes_something(cls, paused: bool | None, info: ValidationInfo) -> bool | None:
        if paused is None and info.data.get("at", 0) is None and info.data.get("on", 0) is None:
            raise refused("true or false", "Or send at and on.", "paused", "nothing")
        return paused


class Ready(Answer):
    """A scheduled workspace."""

    id: str
    words: str
    """Its time, for example ``weekdays 8:00``."""
    server: str
    options: dict[str, Any]
    at: str
    """The time of day, for example ``08:00``."""
    days: list[str]
    """``monday`` and so on."""
    next_at: float | None
    """The next time, in seconds since the epoch. null while it is paused."""
    asked_for_at: float | None
    """When it is requested if the queue stays as it is. null while it is paused, or requested already."""
    paused: bool
    """Paused by its user, or because nobody came on three days in a row."""
    missed_days: int
    sentence: str
    lease: str | None
    """The last workspace, until its user came or it ended."""
    now: float


class ReadyList(Answer):
    """The user's own schedules, the oldest first, and their largest number."""

    ready: list[Ready]
    most: int


class Removed(Answer):
    """The id of a schedule that was removed."""

    id: str


# Presenter


async def present_schedule(state: Parts, owner: Owner, one: Schedule) -> Ready:
    """Return a user's schedule."""
    found = await estimate(state, owner, one)
    decision = decided(state, one, found.seconds)
    is_refused = found.refused and decision.do is not ScheduleStep.PAUSE
    refusal = f" It would be refused now: {found.refused}" if is_refused else ""
    return Ready(
        id=one.id,
        words=one.words,
        server=one.server,
        options=dict(one.options),
        at=f"{one.minute // 60:02}:{one.minute % 60:02}",
        days=[WEEKDAYS[day] for day in one.days],
        next_at=decision.at,
        asked_for_at=decision.begins,
        paused=decision.do is ScheduleStep.PAUSE,
        missed_days=one.missed,
        sentence=f"{decision.sentence}{refusal}",
        lease=one.lease or None,
        now=state.clock.now(),
    )


async def present_schedules_of(state: Parts, owner: Owner) -> list[Ready]:
    """Return a user's schedules, the oldest first."""
    found = await state.store.read(state.store.schedules.of, owner)
    return [await present_schedule(state, owner, one) for one in found]


# Endpoints


@router.get("/api/v1/ready", Permission.HAVE_SCHEDULES)
async def list_schedules(actor: Actor) -> ReadyList:
    """Return the schedules, oldest first."""
    owner = actor.person.owner
    return ReadyList(ready=await present_schedules_of(actor.state, owner), most=MAX_SCHEDULES)


async def _replay_made(actor: Actor, about: str) -> Ready:
    return await _replay_changed(actor, "", about)


@router.post("/api/v1/ready", Permission.HAVE_SCHEDULES, status=201, replay=_replay_made)
async def make_schedule(actor: Actor, *, body: ScheduleInput) -> Ready:
    """Schedule a workspace for some days. It is requested early enough. The options are those of a start."""
    state, person = actor.state, actor.person
    key = Key(*person.owner, await state.hub.check_server_name(person.name, body.server))
    options = {name: value for name, value in body.options().items() if name not in {"at", "on", "server"}}
    made = await add_schedule(state, key, person.name, options, (body.at, body.on), actor.origin)
    return await present_schedule(state, person.owner, made)


async def find_schedule(state: Parts, owner: Owner, name: str) -> Schedule | None:
    """Return a user's schedule by its id, None without one."""
    found = await state.store.read(state.store.schedules.of, owner)
    return next((one for one in found if one.id == name), None)


async def _find(actor: Actor, name: str) -> Schedule:
    """Return a schedule of the actor. Raises 404 if no schedule has that id."""
    one = await find_schedule(actor.state, actor.person.owner, name)
    if one is None:
        raise _missing(name)
    return one


async def _replay_changed(actor: Actor, _about: str, name: str) -> Ready:
    return await present_schedule(actor.state, actor.person.owner, await _find(actor, name))


@router.post("/api/v1/ready/{name}", Permission.HAVE_SCHEDULES, replay=_replay_changed)
async def change_schedule(actor: Actor, name: str, *, body: ScheduleChange) -> Ready:
    """Pause or resume a schedule, or change its time. A workspace that it requested continues."""
    state, owner, schedules = actor.state, actor.person.owner, actor.state.store.schedules
    one = await _find(actor, name)
    _, event = _changed(one, body)
    entry = actor.audit_entry(event, actor.person.name, name)
    after = await state.store.write(schedules.change, owner, name, lambda now: _changed(now, body)[0], entry)
    if after is None:
        raise _missing(name)
    return await present_schedule(state, owner, after)


@router.delete("/api/v1/ready/{name}", Permission.HAVE_SCHEDULES)
async def remove_schedule(actor: Actor, name: str) -> Removed:
    """Remove a schedule, and return its ID. A workspace that it requested continues."""
    removed = Removed(id=name)
    actor.store_answer(removed)
    if not await delete_schedule(actor.state, actor.person.owner, actor.person.name, name, actor.origin):
        raise _missing(name)
    return removed


def _missing(name: str) -> HTTPError:
    return HTTPError(404, reason=f"You have no schedule with the id {name[:40]}. See gpuspawner schedule.")


def _changed(one: Schedule, body: ScheduleChange) -> tuple[Schedule, Event]:
    minute = one.minute if body.at is None else body.at
    days = one.days if body.on is None else body.on
    after = replace(one, paused=one.paused if body.paused is None else body.paused, minute=minute, days=days)
    if body.paused is None:
        return after, events.ScheduleAdded(after.words)
    if body.paused:
        return after, events.SchedulePaused(after.words)
    return replace(after, missed=0, said=""), events.ScheduleResumed(after.words)


# For custom resources too


async def add_schedule(
    state: Parts,
    key: Key,
    user: str,
    options: Mapping[str, Any],
    time: tuple[int, tuple[int, ...]],
    origin: str,
    name: str = "",
) -> Schedule:
    """Store a schedule for a workspace.

    Args:
        state: the parts of the service.
        key: the user and the name of the workspace.
        user: the name of the user.
        options: the options of its start.
        time: minutes since midnight, and the days of the week.
        origin: from where the user acts, in words.
        name: its id, "" for a new one.

    Raises:
        RequestRefused: the options are not possible now, or the user has too many schedules.
    """
    groups = await state.members.fetch(user, key.owner)
    await state.allocator.resolver.resolve(dict(options), user, key.owner, groups)  # wrong options are refused now
    minute, days = time
    one = Schedule(name or uuid.uuid4().hex, user, key.server, dict(options), minute, days, state.clock.now())
    entry = AuditLine(state.clock.now(), "", user, user, events.ScheduleAdded(one.words), origin, one.id)
    set_about(one.id)
    add_once = partial(state.store.schedules.add, once=not name)
    made = await state.store.write(add_once, key.owner, one, MAX_SCHEDULES, entry)
    if made is None:
        limit, remedy = f"up to {MAX_SCHEDULES}", "Remove one: gpuspawner schedule lists them."
        raise RequestRefused("ready", str(MAX_SCHEDULES + 1), limit, remedy, 403)
    return made


async def delete_schedule(state: Parts, owner: Owner, user: str, name: str, origin: str) -> bool:
    """Delete a user's schedule by its id. Return whether it existed."""
    entry = AuditLine(state.clock.now(), "", user, user, events.ScheduleRemoved(), origin, name[:40])
    return await state.store.write(state.store.schedules.delete, owner, name, entry)


@dataclass(frozen=True)
class Estimate:
    """A wait in ``seconds``, None if unknown. ``refused`` is the reason of a refusal, "" without one."""

    seconds: float | None
    refused: str = ""


async def estimate(parts: Parts, owner: Owner, schedule: Schedule) -> Estimate:
    """Return how long a schedule's request would wait now. It takes as long as a check of the form."""
    try:
        groups = await parts.members.fetch(schedule.user, owner)
        request = await parts.allocator.resolver.resolve(dict(schedule.options), schedule.user, owner, groups)
        would = await parts.queue.offers_for(
            Claim("", owner.user_created, request, parts.clock.now(), user=schedule.user)
        )
    except (Conflict, RequestRefused) as error:
        return Estimate(None, all_words(error))
    except Unavailable:
        return Estimate(None)
    waits = None if would.wait_reason is not None else wait_seconds(would)
    if shown := preview_start(parts, would.place):
        waits = max(waits or 0.0, shown.to_seconds)  # by then it started, as often as such ranges were right
    return Estimate(waits)


def times_of(state: Parts, schedule: Schedule, count: int) -> list[tuple[str, str, bool]]:
    """Return the next times of a schedule: day, time, and whether a workspace is made ready then."""
    zone, now = state.allocator.accounting.zone, state.clock.now()
    is_closed, today = closed_by(state, schedule), datetime.fromtimestamp(now, zone).date()
    found: list[tuple[str, str, bool]] = []
    for number in range(DAYS_LOOKED_AT):
        day = today + timedelta(days=number)
        at = datetime(
            day.year, day.month, day.day, schedule.minute // 60, schedule.minute % 60, tzinfo=zone
        ).timestamp()
        if day.weekday() in schedule.days and at > max(now, schedule.asked_for) and len(found) < count:
            words = f"{day:%A} {day.day} {day:%b}"
            found.append((words, f"{schedule.minute // 60:02}:{schedule.minute % 60:02}", not is_closed(at)))
    return found


DAYS_LOOKED_AT = 50
"""The days in which a schedule of one day a week has at least five times."""


def decided(parts: Parts, schedule: Schedule, seconds: float | None) -> ScheduleDecision:
    """Return the decision about a schedule now, if its request would wait ``seconds``.

    The catalog's time zone, closed days and hours apply.
    """
    return decide_schedule(
        schedule, seconds, parts.clock.now(), parts.allocator.accounting.zone, closed_by(parts, schedule)
    )


def closed_by(parts: Parts, schedule: Schedule) -> Callable[[float], bool]:
    """Return a function that says whether a schedule is closed at a time."""
    catalog, zone = parts.catalog, parts.allocator.accounting.zone
    try:
        policy = template_of(catalog, schedule.options).policy
    except RequestRefused:  # its template is gone: the refusal of the request says so
        policy = ""

    def is_closed(at: float) -> bool:
        is_holiday = datetime.fromtimestamp(at, zone).date() in catalog.rules.closed
        return is_holiday or not policy_now(catalog, policy, at).policy.ready_at

    return is_closed
