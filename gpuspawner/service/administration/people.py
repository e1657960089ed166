"""The people with their GPUs, usage and quota, the page of one person, and the roles with their permissions."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.administration import RestrictionKind
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.events import (
    Disputed,
    EndAnnounced,
    Exempted,
    Extended,
    Kept,
    QuotaGranted,
    QuotaLimitSet,
    QuotaMoved,
    QuotaTakenBack,
    ReachesInto,
    Stopped,
    UsageCorrected,
    WarnedIdle,
    WarnedNobodyCame,
    WarnedOfClaim,
    WarnedOfEnd,
)
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Owner
from gpuspawner.service.administration.live_lists import (
    present_ended_rows,
    present_queue_rows,
    present_workspace_rows,
)
from gpuspawner.service.administration.models import RoleEntry, RoleList, RolePerson
from gpuspawner.service.administration.restriction_effects import present_restriction
from gpuspawner.service.parts import Parts
from gpuspawner.service.quota_requests.presenter import present_request, sees
from gpuspawner.service.quotas.presenter import is_priced, present_quota
from gpuspawner.service.quotas.snapshot import standings_of_all
from gpuspawner.service.quotas.standing import Standing
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.usage.pages import columns_of
from gpuspawner.service.usage.report import (
    daily_series,
    present_amounts,
    running_parts,
    sum_usage,
    this_month,
    total_of,
)
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.admin_page import AdminPage, ListPage
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.lists import Column, Filter, Row, Table, parse_list_state
from gpuspawner.service.web.permissions import ALLOWED, SCOPES, Permission, Reach, Role

HISTORY = (
    WarnedIdle, WarnedOfEnd, WarnedOfClaim, WarnedNobodyCame, ReachesInto, Kept, Extended, EndAnnounced, Stopped,
    Disputed, QuotaGranted, QuotaLimitSet, QuotaMoved, QuotaTakenBack, UsageCorrected, Exempted,
)  # fmt: skip
"""The events on the page of a person."""
NO_LIST = Table("person", ())
HISTORY_SHOWN, ENDED_SHOWN = 50, 20
ICONS = {
    WarnedIdle.name: ("bell", "gs-warn"),
    WarnedOfEnd.name: ("bell", "gs-warn"),
    WarnedOfClaim.name: ("bell", "gs-warn"),
    WarnedNobodyCame.name: ("bell", "gs-warn"),
    ReachesInto.name: ("bell", "gs-warn"),
    EndAnnounced.name: ("bell", "gs-warn"),
    Stopped.name: ("stop", "gs-bad"),
    Disputed.name: ("alert", "gs-bad"),
    Kept.name: ("pause", "gs-good"),
    Extended.name: ("extend", ""),
    Exempted.name: ("exempt", ""),
}
"""Icon and class of an event. The others have the icon of extra quota."""

PEOPLE = Table(
    "people",
    (
        Column("user", "User", "person"),
        Column("teams", "Team"),
        Column("running", "Running", "number"),
        Column("waiting", "Waiting", "number"),
        Column("gpus", "GPUs now", "number"),
        Column("idle_gpus", "Idle GPUs", "number"),
        Column("allocated", "GPU hours this month", "hours"),
        Column("idle", "Idle GPU hours", "hours", exported_only=True),
        Column("idle_percent", "Share idle", "percent"),
        Column("reclaims", "Reclaimed workspaces", "number", exported_only=True),
        Column("quota", "Fullest quota"),
        Column("quota_percent", "Used of quota", "bar", absent="no quota"),
    ),
    (
        Filter("find", "User", within=("user",)),
        Filter("team", "Any team", within=("teams",)),
        Filter(
            "now", "Everybody", (("running", "With GPUs now"), ("waiting", "Waiting"), ("nothing", "Without workspace"))
        ),
    ),
    sort="-allocated",
)


@dataclass(frozen=True)
class HistoryEntry:
    """An event of a person's workspaces."""

    at: float
    icon: str
    css_class: str
    words: str
    why: str
    by: str
    page: str


async def present_people(state: Parts, used: Mapping[str, tuple[str, UsageAmounts]]) -> list[Row]:
    """Return a row for each person with a workspace, or with usage.

    ``used`` is by the time of their creation. ``quota`` is their fullest limit or budget. ``quota_percent`` of it is
    used or reserved.
    """
    teams = await _teams(state)
    fullest: dict[str, Standing] = {}
    for one in await standings_of_all(state):
        best = fullest.get(one.user)
        if one.user and (one.percent or 0.0) > (-1.0 if best is None else best.percent or 0.0):
            fullest[one.user] = one
    leases: dict[str, list[Lease]] = defaultdict(list)
    for lease in state.registry:
        leases[lease.key.user_created].append(lease)
    rows = []
    for created in dict.fromkeys([*used, *leases]):
        name, amounts = used.get(created, ("", UsageAmounts()))
        mine = leases.get(created, [])
        user = mine[0].user if mine else name
        rows.append(_person_row(state, created, user, mine, amounts, teams.get(created), fullest.get(user)))
    return rows


async def _teams(state: Parts) -> dict[str, tuple[str, ...]]:
    """Return the teams of each user by the time of their creation. While the hub does not answer, return none."""
    if not teams_of(state.catalog.rules, None):
        return {}
    try:
        users = await state.queue.compute_in_background("groups of users", state.hub.all_users)
    except Unavailable:
        return {}
    return {one.created: tuple(teams_of(state.catalog.rules, one.groups)) for one in users}


def _person_row(
    state: Parts,
    created: str,
    user: str,
    leases: list[Lease],
    used: UsageAmounts,
    teams: Iterable[str] | None,
    fullest: Standing | None,
) -> Row:
    holding = [lease for lease in leases if lease.phase in HOLDING]
    waiting = sum(lease.phase in WAITING for lease in leases)
    names = dict.fromkeys([*(teams or ()), *(lease.request.team for lease in leases)])
    known = used.active + used.idle
    return SimpleNamespace(
        id=created,
        user=user,
        teams=", ".join(team_title(state.catalog, name) or name for name in names if name),
        now="running" if holding else "waiting" if waiting else "nothing",
        running=len(holding),
        waiting=waiting,
        gpus=sum(len(lease.slots) for lease in holding),
        idle_gpus=sum(len(x.slots) for x in holding if x.phase in UP and x.streak.idle_seconds),
        allocated=used.allocated,
        idle=used.idle,
        idle_percent=100 * used.idle / known if known else None,
        reclaims=round(used.reclaims),
        quota="" if fullest is None else fullest.what,
        quota_percent=None if fullest is None else fullest.percent,
    )


def present_history(state: Parts, lines: Iterable[AuditLine]) -> list[HistoryEntry]:
    """Return audit entries of a person's workspaces and quota."""
    found = []
    for line in lines:
        icon, css_class = ICONS.get(line.event.name, ("gift", ""))
        page = f"{state.prefix}workspaces/{line.lease}" if line.lease else ""
        found.append(HistoryEntry(line.at, icon, css_class, line.event.words, line.why, line.actor, page))
    return found


class PeoplePage(ListPage):
    """GET: everybody who has a workspace now, or used something this month."""

    tab, table, title = "people", PEOPLE, "People"
    empty = "Nobody has used anything this month. People are listed here after their first start."

    async def rows(self) -> Sequence[Row]:
        """Return the rows of the table."""
        store, period = self.parts.store, this_month(self.today())
        stored = await store.read(store.usage_sums.of_days, "user", period.first, period.last)
        return await present_people(self.parts, sum_usage("user", stored, await running_parts(self.parts), period))


class PersonPage(AdminPage):
    """GET: one person with their workspaces, quota, exemptions, usage and history."""

    tab = "people"

    async def get(self, name: str) -> None:
        """Answer the page. Raises 404 for an unknown name."""
        parse_list_state(NO_LIST, self.arguments_of_address())
        state, store, period = self.parts, self.parts.store, this_month(self.today())
        keys, ended, lines = await asyncio.gather(
            store.read(store.usage_sums.users_named, name),
            store.read(store.leases.ended_of_user, name, ENDED_SHOWN),
            store.read(store.audit_log.of_user, name, [one.name for one in HISTORY], HISTORY_SHOWN),
        )
        stored = await store.read(store.usage_sums.of_days, "user", period.first, period.last, daily=True, keys=keys)
        mine = [lease for lease in state.registry if lease.user == name]
        created = mine[0].key.user_created if mine else await self._created(name)
        if not (mine or ended or keys or lines or created):
            raise HTTPError(404, reason=f"The hub has no user {name[:40]}, and no workspace had a user of that name.")
        teams = await self._teams_of(name, Owner(state.hub_id, created)) if created else ()
        running = [one for one in await running_parts(state) if one.user == name]
        # From here on nothing is awaited, so the page shows one moment.
        sums = sum_usage("day", stored, running, period)
        total, series = total_of(sums), daily_series(sums, period)
        quota = present_quota(state, name, Owner(state.hub_id, created), teams)
        live = state.restrictions.live()
        asked = [one for one in state.quota_requests.all() if one.user_created == created and one.is_open(quota.now)]
        exemptions = [one for one in live if one.measure is RestrictionKind.EXEMPT and any(one.spares(x) for x in mine)]
        self.show(
            "admin_person.html",
            name=name,
            teams=[team_title(state.catalog, team) or team for team in teams],
            running=present_workspace_rows(state, mine),
            waiting=present_queue_rows(state, mine),
            newest={x.id: _highest_use(state, x) for x in mine},
            ended=present_ended_rows(state, ended),
            history=present_history(state, lines),
            happened=Counter(line.event.words for line in lines),
            quota=quota,
            requests=[present_request(state, one, self.viewer()) for one in asked if sees(self.viewer(), one, state)],
            exemptions=[present_restriction(state, one) for one in exemptions],
            used=present_amounts(total, priced=is_priced(state.catalog)),
            any_use=total != UsageAmounts(),
            period=period,
            series=series,
            chart=columns_of(series, weekly=False),
            currency=state.catalog.rules.currency,
        )

    async def _created(self, name: str) -> str:
        """Return when the hub created a user, "" for an unknown user, or while the hub does not answer."""
        try:
            return await self.parts.hub.created(name) or "" if name.isprintable() else ""
        except Unavailable:
            return ""

    async def _teams_of(self, name: str, owner: Owner) -> Sequence[str]:
        try:
            groups = await self.parts.members.fetch_recent(name, owner)
        except Unavailable:
            return ()
        return teams_of(self.parts.catalog.rules, groups)


def _highest_use(state: Parts, lease: Lease) -> float | None:
    readings = state.sampler.newest(lease.id).values()
    return max((x.utilization_percent for x in readings if x.utilization_percent is not None), default=None)


# Roles

router = Router()

REACH_WORDS = {Reach.OWN: "Own", Reach.TEAM: "Team", Reach.ALL: "All"}
USE = SCOPES[Role.USER]


class PermissionRow(NamedTuple):
    """A permission, and its reach for each role of SCOPES, "" for a role without it.

    The words do not name other users, because the page says whose things each role reaches.
    """

    words: str
    reaches: tuple[str, ...]


@router.get("/api/v1/admin/roles", Permission.SEE_FLEET)
async def list_roles(actor: Actor) -> RoleList:
    """Return the roles, what each may do, and who has used them since the service started."""
    used = sorted(actor.state.roles_used.values(), key=lambda one: one.name)
    roles = [
        RoleEntry(
            role=role.value,
            scope=scope,
            may={one.act: REACH_WORDS[reaches[role]].lower() for one, reaches in ALLOWED.items() if role in reaches},
            people=[RolePerson(name=one.name, scopes=sorted(one.scopes)) for one in used if role in one.roles],
        )
        for role, scope in SCOPES.items()
    ]
    return RoleList(roles=roles)


class RolesPage(AdminPage):
    """GET: the table of roles and permissions, and the people who have used a role."""

    tab = "roles"

    async def get(self) -> None:
        """Answer the page."""
        parse_list_state(NO_LIST, self.arguments_of_address())
        rows = [
            PermissionRow(
                f"{one.act[:1].upper()}{one.act[1:]}",
                tuple(REACH_WORDS[reaches[role]] if role in reaches else "" for role in SCOPES),
            )
            for one, reaches in ALLOWED.items()
            if any(role in SCOPES for role in reaches)
        ]
        found = await list_roles.act(self.actor("the console"))
        self.show("admin_roles.html", rows=rows, roles=found.roles, more=[x for x in found.roles if x.scope != USE])
