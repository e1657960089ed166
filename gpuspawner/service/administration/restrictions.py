"""Restrictions: drain, quarantine, pause, reserve and exempt. A dry run answers the same as the act."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from zoneinfo import ZoneInfo

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core import events
from gpuspawner.core.administration import EVERYBODY, RESERVING, Restriction, RestrictionKind, reservation_hold
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.gpus.placement import count_all
from gpuspawner.core.idle.verdicts import reset_idle_time as without_idle_time
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.queue.class_holds import class_hold_gpus, gpus_of_members
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import Account
from gpuspawner.service.administration import models
from gpuspawner.service.administration.models import (
    NEEDS_END,
    LiftInput,
    PastQuery,
    RestrictionInput,
    RestrictionResult,
)
from gpuspawner.service.administration.reservations import find_conflicts, planning_snapshot, running_into
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.rules_page import window_words
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.rows import RowWrite
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import ACTS, Permission

router = Router()

LISTED = 200
FIELDS: Mapping[RestrictionKind, tuple[str, ...]] = {
    RestrictionKind.DRAIN: ("node", "every", "replaces"),
    RestrictionKind.QUARANTINE: ("gpu",),
    RestrictionKind.PAUSE: ("kind",),
    RestrictionKind.RESERVE: ("kind", "count", "user", "team", "group", "node", "every", "replaces"),
    RestrictionKind.EXEMPT: ("ids", "user"),
}
"""The fields that each measure takes in addition to COMMON_FIELDS."""
COMMON_FIELDS = ("what", "reason", "begins", "until", "dry_run")
EVENTS: Mapping[RestrictionKind, type[events.RestrictionEvent]] = {
    RestrictionKind.DRAIN: events.Drained,
    RestrictionKind.QUARANTINE: events.Quarantined,
    RestrictionKind.PAUSE: events.GrantsPaused,
    RestrictionKind.RESERVE: events.GpusReserved,
    RestrictionKind.EXEMPT: events.Exempted,
}
NAMES_SHOWN = 12
"""The most names in a refusal. Arbitrary: what a person reads."""
CLOSES = frozenset({RestrictionKind.DRAIN, RestrictionKind.QUARANTINE})


# Presenter


def title_of(state: Parts, one: Restriction) -> str:
    """Return the effect and the time of a restriction, without the full stop."""
    return event_of_restriction(state, one, EVENTS[one.measure]).effect(state.clock.now())


def event_of_restriction(
    state: Parts, one: Restriction, kind: type[events.RestrictionEvent], reason: str = ""
) -> events.RestrictionEvent:
    """Return an event about a restriction."""
    target = one.target
    if one.measure in {RestrictionKind.PAUSE, RestrictionKind.RESERVE}:
        target = target and gpu_title(target, state.catalog)
    elif one.measure in {RestrictionKind.QUARANTINE, RestrictionKind.EXEMPT}:
        target = target and (one.whom or target)
    reserves = one.measure is RestrictionKind.RESERVE
    if reserves and one.node:
        target = f"{target} on {one.node}"
    whom = one.for_words if reserves else one.whom
    begins = one.begins_at if one.begins_at > state.clock.now() else None
    return kind(one.measure.value, target, one.count, whom, begins, one.until, reason, every_words(one))


def every_words(one: Restriction) -> str:
    """Return the part of each week in which a restriction holds, or ""."""
    return "" if one.every is None else window_words(one.every)


def target_of(state: Parts, one: Restriction) -> str:
    """Return the target of a restriction, as people read it."""
    name, kind = one.whom, gpu_title(one.target, state.catalog)
    targets = {
        RestrictionKind.DRAIN: one.target,
        RestrictionKind.QUARANTINE: name or one.target,
        RestrictionKind.PAUSE: kind if one.target else "All GPUs",
        RestrictionKind.RESERVE: f"{one.count} {kind}{f' on {one.node}' if one.node else ''} for {one.for_words}",
        RestrictionKind.EXEMPT: name if one.target else f"All workspaces of {name}",
    }
    return targets[one.measure]


def present_restriction(state: Parts, one: Restriction) -> models.Restriction:
    """Return a restriction."""
    lifted = None
    if one.lifted_at is not None:
        lifted = models.Lifted(by=one.lifted_by, at=one.lifted_at, reason=one.lifted_why)
    opening = one.opening(state.clock.now(), zone_of(state))
    return models.Restriction(
        id=one.id,
        what=one.measure.value,
        target=one.target,
        count=one.count,
        for_=one.whom,  # type: ignore[call-arg]  # mypy knows the alias alone
        title=title_of(state, one),
        reason=one.reason,
        by=one.by,
        since=one.since,
        begins_at=max(one.since, one.begins_at),
        until=one.until,
        lifted=lifted,
        state=_state(state, one),
        on=target_of(state, one),
        every=every_words(one),
        next_from=None if opening is None else opening.opens_at,
        next_until=None if opening is None or opening.ends_at == inf else opening.ends_at,
    )


def zone_of(state: Parts) -> ZoneInfo:
    """Return the time zone of the catalog."""
    return ZoneInfo(state.catalog.rules.timezone)


def _state(state: Parts, one: Restriction) -> models.RestrictionState:
    now = state.clock.now()
    if one.is_over(now):
        return "over" if one.lifted_at is None else "lifted"
    return "in force" if one.is_in_force(now, zone_of(state)) else "to come"


def lease_title(lease: Lease) -> str:
    """Return the name of a workspace for administrators."""
    return f"{lease.user} / {lease.name}"


def present_affected(state: Parts, lease: Lease, words: str, ends_at: float | None) -> models.Affected:
    """Return a workspace of an act, with the effect on it."""
    page = f"{state.prefix}workspaces/{lease.id}"
    return models.Affected(
        id=lease.id, user=lease.user, server=lease.key.server, page=page, words=words, ends_at=ends_at
    )


def _reserved_words(state: Parts, seen: Snapshot, one: Restriction) -> str:
    """Return the GPUs that a reservation would keep free, in sentences, "" for another restriction."""
    if one.measure is not RestrictionKind.RESERVE or one.every is not None:
        return ""
    hold = reservation_hold(one)
    with_it = replace(seen, rules=replace(seen.rules, holds=(*seen.rules.holds, hold)))
    slots = [slot for held in class_hold_gpus(with_it) if held.hold == hold for slot in held.slots]
    theirs, used = gpus_of_members(hold, seen), {*seen.used, *(slot.gpu for slot in seen.others)}
    counted = sum(slot.gpu in theirs for slot in slots)
    free = sum(slot.gpu not in used for slot in slots)
    name, kind = one.for_words, gpu_title(one.target, state.catalog)
    words = ""
    if counted:
        words = f" {name[0].upper()}{name[1:]} has {counted} {kind} in use. They count."
    if counted and counted == len(slots):
        more = len(theirs) + one.count
        return f"{words} So no other GPU is reserved. To reserve {one.count} more, enter {more}."
    later = len(slots) - counted - free
    words += f" {free} {'is' if free == 1 else 'are'} free and reserved from then on." if free else ""
    return words + (
        f" {later} {'is' if later == 1 else 'are'} in use by others, and reserved once free." if later else ""
    )


# Endpoints


@router.get("/api/v1/admin/restrictions", Permission.SEE_RESTRICTIONS)
async def list_restrictions(actor: Actor, *, query: PastQuery) -> models.RestrictionList:
    """Return the present and future restrictions, newest first. ``past`` adds those that are over."""
    state = actor.state
    found = await state.restrictions.last(LISTED) if query.past else list(reversed(state.restrictions.live()))
    return models.RestrictionList(restrictions=[present_restriction(state, one) for one in found], now=actor.now)


@router.post("/api/v1/admin/restrictions", Permission.RESTRICT, status=201, other_status=200, audit_field="what")
async def make_restriction(actor: Actor, *, body: RestrictionInput) -> tuple[RestrictionResult, int]:
    """Drain, quarantine, pause, reserve or exempt, and return the effects. ``dry_run`` does nothing."""
    state, measure = actor.state, RestrictionKind(body.what)
    targets, ended = await _targets(actor, measure, body)
    made = [
        Restriction(
            uuid.uuid4().hex,
            measure,
            one.target,
            body.reason,
            actor.person.name,
            actor.now,
            body.until,
            body.begins or 0.0,
            one.count,
            one.account,
            one.whom,
            every=body.every,
            node=one.node,
            members=one.members,
        )
        for one in targets
    ]
    conflicts: list[models.ReservationConflict] = []
    choices: list[models.ReservationChoice] = []
    replaced = _replaced(state, measure, body.replaces) if body.replaces else None
    seen = planning_snapshot(state, replaced)
    for one in made:
        _require_new(state, one, replaced)
        if one.opening(actor.now, zone_of(state)) is None:
            raise RequestRefused("every", quoted(every_words(one)), "a time before the end", "End it later.")
        if one.measure in RESERVING:
            conflicts, choices = find_conflicts(state, seen, one)
    words = " ".join(f"{title_of(state, one)}.{_reserved_words(state, seen, one)}" for one in made)
    result = RestrictionResult(
        restrictions=[present_restriction(state, one) for one in made],
        words=f"{words} Nothing was done yet." if body.dry_run else words,
        affected=[found for one in made for found in _affected(state, seen, one)],
        refused=[present_affected(state, one, "It has ended already.", None) for one in ended],
        conflicts=conflicts,
        choices=choices,
        dry_run=body.dry_run,
        now=actor.now,
    )
    if body.dry_run:
        return result, 200
    actor.store_answer(result)
    if replaced is not None:
        replaced = replace(replaced, lifted_at=actor.now, lifted_by=actor.person.name, lifted_why="It was changed.")
    await carry_out(state, made, actor.audit_entry, actor.audit_entry_of, replaced)
    return result, 201


def _replaced(state: Parts, measure: RestrictionKind, name: str) -> Restriction:
    """Return the reservation or drain that a new one replaces."""
    found = next((one for one in state.restrictions.live() if one.id == name), None)
    if found is None or found.measure is not measure:
        limit = f"the id of a {measure.value} that is in force or to come"
        raise RequestRefused("replaces", quoted(name[:40]), limit, "It may have ended. Look at the list again.")
    return found


@router.delete("/api/v1/admin/restrictions/{restriction}", Permission.RESTRICT, repeatable=True, audit="lift")
async def lift_restriction(actor: Actor, restriction: str, *, body: LiftInput) -> models.Restriction:
    """Lift a restriction, and return it. Repeating this is harmless."""
    state, one = actor.state, await actor.state.restrictions.get(restriction)
    if one is None:
        raise HTTPError(404, reason=f"There is no restriction with the id {restriction[:40]}.")
    actor.require(ACTS[one.measure.value])
    event = event_of_restriction(state, one, events.Lifted, body.reason)
    entry = actor.audit_entry(event, _user_of(one), one.target)
    lifted = await state.restrictions.lift(one, actor.person.name, body.reason, entry)
    await state.allocator.give()
    return present_restriction(state, lifted)


# Targets


@dataclass(frozen=True)
class Target:
    """The target of a restriction, and for a reservation or an exemption the account and its name."""

    target: str = ""
    count: int = 0
    account: Account = EVERYBODY
    whom: str = ""
    node: str = ""
    members: frozenset[str] | None = None


async def _targets(actor: Actor, measure: RestrictionKind, body: RestrictionInput) -> tuple[list[Target], list[Lease]]:
    """Return the targets, and the workspaces that have ended and need no exemption."""
    for name in body.model_fields_set:
        if name not in {*COMMON_FIELDS, *FIELDS[measure]}:
            known = ", ".join(FIELDS[measure])
            raise RequestRefused(quoted(name), f"a field that {measure.value} does not take", known, "Leave it out.")
    scheduler = actor.state.scheduler
    if measure is RestrictionKind.DRAIN:
        return [Target(_known("node", body.node, sorted({gpu.node for gpu in scheduler.fleet.gpus})))], []
    if measure is RestrictionKind.QUARANTINE:
        return [_gpu_target(actor.state, body.gpu)], []
    if measure is RestrictionKind.PAUSE:
        return [Target(_known("kind", body.kind, list(scheduler.kinds)) if body.kind else "")], []
    if measure is RestrictionKind.RESERVE:
        return [await _reserved(actor, body)], []
    if body.user:
        account, whom = await _account(actor, body)
        return [Target("", 0, account, whom)], []
    if not body.ids:
        raise RequestRefused("ids", "nothing", "ids of workspaces, or user", "Choose at least one.")
    found = await actor.find_leases(body.ids, Permission.RESERVE)
    live = [lease for lease in found if lease.live]
    if not live:
        raise Conflict(f"{', '.join(map(lease_title, found))} has ended already.")
    return [Target(one.id, 0, EVERYBODY, lease_title(one)) for one in live], [one for one in found if not one.live]


async def _reserved(actor: Actor, body: RestrictionInput) -> Target:
    """Return the GPUs of a reservation, and for whom they are."""
    state = actor.state
    kind = _known("kind", body.kind, list(state.scheduler.kinds))
    node = _known("node", body.node, _nodes_of(state, kind)) if body.node else ""
    count = _count(state, kind, node, body.count)
    if body.group and not (body.user or body.team):
        return Target(kind, count, EVERYBODY, body.group, node, await class_members(state, body.group))
    account, whom = await _account(actor, body)
    return Target(kind, count, account, whom, node)


def _gpu_target(state: Parts, text: str | None) -> Target:
    """Return a GPU by its id, or by its node and number as the console shows them."""
    fleet = state.scheduler.fleet
    placed = {f"{gpu.node}/{gpu.index}": gpu.id for gpu in fleet.gpus}
    named = _known("gpu", text, [*placed, *fleet.by_id])
    name = placed.get(named, named)
    gpu = fleet.by_id[name]
    if gpu.group is not None:
        limit = "GPUs that the cluster tells apart"
        remedy = f"It only counts those of {gpu.node}, and would give out any of them: drain the node."
        raise RequestRefused("gpu", quoted(name), limit, remedy)
    return Target(name, whom=f"{gpu.node}/{gpu.index}")


def _nodes_of(state: Parts, kind: str) -> list[str]:
    pool = state.scheduler.kinds[kind].pool
    return sorted({gpu.node for gpu in state.scheduler.fleet.gpus if gpu.pool == pool})


async def class_members(state: Parts, group: str) -> frozenset[str]:
    """Return the members of a group of the hub by their ``created``. Raises RequestRefused for no members."""
    found = frozenset(user.created for user in await state.hub.all_users() if group in user.groups)
    if not found:
        raise RequestRefused("group", quoted(group), "groups of the hub with members", "Name one as the hub does.")
    return found


def _count(state: Parts, kind: str, node: str, count: int | None) -> int:
    fleet = state.scheduler.fleet
    there = replace(fleet, gpus=tuple(gpu for gpu in fleet.gpus if node in {"", gpu.node}))
    most = count_all(state.scheduler.kinds[kind], there)
    if count is not None and 1 <= count <= most:
        return count
    raise RequestRefused("count", quoted(count), f"1 to {most}, as many as there are", "Say how many to reserve.")


async def _account(actor: Actor, body: RestrictionInput) -> tuple[Account, str]:
    """Return the account of a user or a team, and its name."""
    if [bool(body.user), bool(body.team), bool(body.group)].count(True) != 1:
        asked = quoted(body.user or body.team)
        raise RequestRefused("for whom", asked, "either user, team or group", "Name a user, a team or a group.")
    if body.user:
        return Account("", (await actor.find_user(body.user)).user_created), body.user
    name = _known("team", body.team, list(teams_of(actor.state.catalog.rules, None)))
    return Account(name), name


def _known(field: str, value: str | None, known: Sequence[str]) -> str:
    """Return a name that is known. Raises RequestRefused with the known names for another."""
    if value in known:
        return str(value)
    more = f" and {len(known) - NAMES_SHOWN} more" if len(known) > NAMES_SHOWN else ""
    shown = ", ".join(known[:NAMES_SHOWN]) + more
    raise RequestRefused(field, quoted(value), shown or "no name is known now", "Name one of these.")


def _require_new(state: Parts, one: Restriction, replaced: Restriction | None) -> None:
    if one.measure in NEEDS_END:
        return  # a second one only adds to the first
    for other in state.restrictions.live():
        ends, other_ends = (inf if x.until is None else x.until for x in (one, other))
        overlap = one.begins_at < other_ends and other.begins_at < ends
        if other is not replaced and overlap and (other.measure, other.target) == (one.measure, one.target):
            raise Conflict(f"{title_of(state, other)} already, by {other.by}. End that first.")


# The effect on workspaces


def _affected(state: Parts, seen: Snapshot, one: Restriction) -> list[models.Affected]:
    """Return the workspaces that it concerns now, with the effect on each."""
    late = running_into(seen, one) if one.measure is RestrictionKind.RESERVE else frozenset()
    into = "It still runs when the reservation begins. Nothing ends it. Its user is told before."
    found = ((lease, into if lease.id in late else _effect_words(state, one, lease)) for lease in state.registry)
    named = sorted(((x, words) for x, words in found if words), key=lambda pair: (pair[0].user, pair[0].id))
    return [present_affected(state, x, words, x.deadline_at) for x, words in named]


def _effect_words(state: Parts, one: Restriction, lease: Lease) -> str:
    """Return the effect on a workspace in a sentence, "" for none."""
    if one.measure in CLOSES and _is_on(state, one, lease):
        if lease.phase in UP:
            return "The workspace goes on. Its user is told, and can move."
        waits = lease.phase is Phase.RESERVED and one.is_in_force(state.clock.now(), zone_of(state))
        return "Its request waits again, at its old place." if waits else "The workspace goes on."
    if one.measure is RestrictionKind.PAUSE and lease.phase in WAITING:
        return "The request waits until the pause ends." if one.target in {"", lease.request.gpu} else ""
    return "The workspace is not stopped as idle meanwhile." if one.spares(lease) and lease.phase in UP else ""


def _is_on(state: Parts, one: Restriction, lease: Lease) -> bool:
    known = state.scheduler.fleet.by_id
    gpus = (known.get(slot.gpu) for slot in (lease.slots if lease.phase in HOLDING else ()))
    return any(gpu is not None and one.closes(gpu) for gpu in gpus)


EntryOf = Callable[[events.Event, str, str], AuditLine]
"""Makes the audit entry of an event about a user and a target."""
LineOf = Callable[[Lease, events.Event], AuditLine]
"""Makes the audit entry of an event about a workspace."""


async def carry_out(
    state: Parts, made: Sequence[Restriction], entry_of: EntryOf, line_of: LineOf, replaced: Restriction | None = None
) -> None:
    """Put restrictions in force, and tell the users of the workspaces that they concern.

    ``replaced`` is the one that they replace, which is lifted.
    """
    told = [event_of_restriction(state, one, EVENTS[one.measure], one.reason) for one in made]
    entries = [entry_of(event, _user_of(one), one.target) for one, event in zip(made, told, strict=True)]
    if replaced is not None:
        ended = event_of_restriction(state, replaced, events.Lifted, replaced.lifted_why)
        entries.append(entry_of(ended, _user_of(replaced), replaced.target))

    def save(write: RowWrite) -> Awaitable[None]:
        found = [
            step
            for one, event in zip(made, told, strict=True)
            for lease in state.registry
            if (step := _step_of(state, one, lease, event)) is not None
        ]
        lines = [line_of(lease, event) for lease, event in found]
        return state.registry.save(*(lease for lease, _ in found), audit=[*entries, *lines], others=[write])

    await state.restrictions.add(made, save, replaced)
    await state.allocator.give()


def _step_of(
    state: Parts, one: Restriction, lease: Lease, event: events.RestrictionEvent
) -> tuple[Lease, events.Event] | None:
    """Return what follows for a workspace: its user is told, its grant is requeued, or its grace ends."""
    now = state.clock.now()
    begun = one.is_in_force(now, zone_of(state))
    if one.measure in CLOSES and _is_on(state, one, lease):
        if lease.phase in UP:
            return lease, events.GpuClosed(**vars(event))
        if lease.phase is Phase.RESERVED and begun:  # nothing of it was created yet
            return transitions.lapse(lease, now), events.Requeued("closed", reported=one.reason)
    elif one.spares(lease) and begun and lease.phase is Phase.RECLAIMING:
        ended = events.GraceEnded(f"an administrator exempts it: {one.reason}")
        kept = transitions.end_grace(replace(lease, streak=without_idle_time(lease.streak)), now)
        return kept, ended
    return None


def _user_of(one: Restriction) -> str:
    return one.whom if one.account.user_created else ""
