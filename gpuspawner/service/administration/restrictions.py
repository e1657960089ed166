"""The API of restrictions: drain, quarantine, pause, reserve and exempt. A dry run answers the same as the act."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core import events
from gpuspawner.core.administration import EVERYBODY, RESERVING, Restriction, RestrictionKind
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.gpus.placement import count_all
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.rules import Account
from gpuspawner.service.administration import models
from gpuspawner.service.administration.models import (
    NEEDS_END,
    LiftInput,
    PastQuery,
    RestrictionInput,
    RestrictionResult,
)
from gpuspawner.service.administration.restriction_effects import (
    LISTED,
    carry_out,
    event_of_restriction,
    every_words,
    find_conflicts,
    lease_title,
    planning_snapshot,
    present_affected,
    present_all_affected,
    present_restriction,
    read_class_members,
    reserved_words,
    title_of,
    user_of,
    zone_of,
)
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import ACTS, Permission

router = Router()

FIELDS: Mapping[RestrictionKind, tuple[str, ...]] = {
    RestrictionKind.DRAIN: ("node", "every", "replaces"),
    RestrictionKind.QUARANTINE: ("gpu",),
    RestrictionKind.PAUSE: ("kind",),
    RestrictionKind.RESERVE: ("kind", "count", "user", "team", "group", "node", "every", "replaces"),
    RestrictionKind.EXEMPT: ("ids", "user"),
}
"""The fields that each measure takes in addition to COMMON_FIELDS."""
COMMON_FIELDS = ("what", "reason", "begins", "until", "dry_run")
NAMES_SHOWN = 12
"""The most names in a refusal. Arbitrary: what a person reads."""


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
    words = " ".join(f"{title_of(state, one)}.{reserved_words(state, seen, one)}" for one in made)
    result = RestrictionResult(
        restrictions=[present_restriction(state, one) for one in made],
        words=f"{words} Nothing was done yet." if body.dry_run else words,
        affected=[found for one in made for found in present_all_affected(state, seen, one)],
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
        replaced = replace(
            replaced, lifted_at=actor.now, lifted_by=actor.person.name, lifted_why="The restriction was changed."
        )
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
    entry = actor.audit_entry(event, user_of(one), one.target)
    lifted = await state.restrictions.lift(one, actor.person.name, body.reason, entry)
    await state.allocator.grant_waiting()
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
    """Return the GPUs and the user, team or class of a reservation."""
    state = actor.state
    kind = _known("kind", body.kind, list(state.scheduler.kinds))
    node = _known("node", body.node, _nodes_of(state, kind)) if body.node else ""
    count = _count(state, kind, node, body.count)
    if body.group and not (body.user or body.team):
        members = (await read_class_members(state, {body.group}))[body.group]
        if not members:
            limit = "groups of the hub with members"
            raise RequestRefused("group", quoted(body.group), limit, "Name one as the hub does.")
        return Target(kind, count, EVERYBODY, body.group, node, members)
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
