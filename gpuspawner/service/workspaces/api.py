"""The API of workspaces: start and list them, look at one, and act on it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field

from gpuspawner.catalog.template_models import MONITOR, OPENS
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.leases.lease import NOBODY, WAITING, Key, Lease
from gpuspawner.service.announcements.inboxes import present_shown
from gpuspawner.service.api.rest.models import LONGEST_LIST, Answer, Body, Order, PageQuery, after_of, cursor_of, page
from gpuspawner.service.engine.allocation.start_attempts import StartRequest
from gpuspawner.service.start.models import StartBody
from gpuspawner.service.store.idempotency import set_about
from gpuspawner.service.store.rows import is_of
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Endpoint, Router
from gpuspawner.service.web.permissions import Permission, Reach
from gpuspawner.service.workspaces import models
from gpuspawner.service.workspaces.actions import act
from gpuspawner.service.workspaces.presenter import (
    present_audit_line,
    present_output,
    present_reading,
    present_workspace,
)
from gpuspawner.service.workspaces.restarts import WITH, WITHOUT, present_restart, wait_words
from gpuspawner.service.workspaces.warnings import elsewhere

router = Router()


# Inputs


class AllQuery(PageQuery):
    """Whether other users' workspaces are included."""

    all: bool = False
    """The workspaces of all users, or of the teams that one leads."""


class WorkspacesQuery(AllQuery):
    """The workspaces to return."""

    live: bool = True
    """Whether workspaces that have not ended are included."""
    ended: int = Field(default=0, ge=0, le=LONGEST_LIST)
    """How many of the workspaces that ended last are included, at once."""


class ReadingsQuery(PageQuery):
    """The readings to return."""

    since: float = Field(default=0.0, allow_inf_nan=False)
    """The earliest time, in seconds since 1970."""


class SentenceInput(Body):
    """A sentence for the other person."""

    sentence: str = ""


class ConsentInput(Body):
    """The kinds of GPU that a waiting request accepts."""

    substitutes: list[str]
    """All kinds that are accepted instead. An empty list accepts none."""


class TitleInput(Body):
    """A name for people."""

    title: str = ""
    """At most 60 characters. With an empty title, pages show the name of its server again."""


class CountInput(Body):
    """A smaller number of GPUs."""

    count: int = Field(ge=1)


class DoneInput(Body):
    """The minutes until its user will be done. 0 means not soon."""

    minutes: int = Field(ge=0, le=1440)


class LackingInput(Body):
    """The parts that do not work in a workspace."""

    lacks: list[str]
    """Applications that its template opens, or ``monitor``."""


class Lacking(Answer):
    """The parts that do not work in a workspace."""

    lacks: list[str]


# Lists


@router.get("/api/v1/workspaces", Permission.SEE_WORKSPACES)
async def list_workspaces(actor: Actor, *, query: WorkspacesQuery) -> models.WorkspaceList:
    """Return your workspaces, or with ``all`` every workspace that you may see.

    Live workspaces come first, oldest first. Then come the ended ones, newest first.
    """
    state, person, after = actor.state, actor.person, after_of(query)
    whose = actor.whose(Permission.SEE_WORKSPACES, everybody=query.all)
    ended: list[Lease] = []
    if query.ended and not person.lease:
        before = (-after[1], after[2]) if after is not None and after[0] else None
        ended = await state.store.read(state.store.leases.ended, whose, query.ended + 1, before)
    live = [x for x in state.registry if query.live and is_of(x, whose) and person.lease in {None, x.id}]
    live = [x for x in live if x.id not in {one.id for one in ended}]  # it ended meanwhile
    more = ended[query.ended :]
    shown, following = page([*sorted(live, key=_order), *ended[: query.ended]], query, _order)
    if more and following is None:
        following = cursor_of(_order(shown[-1]))
    return models.WorkspaceList(workspaces=[present_workspace(state, x, person) for x in shown], next=following)


def _order(lease: Lease) -> Order:
    """Return the sort key of the list: live ones by the time of the request, then ended ones, the last end first."""
    return (0, lease.asked_at, lease.id) if lease.ended_at is None else (1, -lease.ended_at, lease.id)


@router.get("/api/v1/disputes", Permission.SEE_WORKSPACES)
async def list_disputes(actor: Actor, *, query: AllQuery) -> models.WorkspaceList:
    """Return reports of wrong stops that have no answer yet, oldest first."""
    state, person = actor.state, actor.person
    whose = actor.whose(Permission.SEE_WORKSPACES, everybody=query.all)
    found = await state.store.read(state.store.leases.disputed, whose)
    mine = [x for x in found if person.lease in {None, x.id}]
    shown, following = page(mine, query, lambda x: (0, x.dispute.at if x.dispute else 0.0, x.id))
    return models.WorkspaceList(workspaces=[present_workspace(state, x, person) for x in shown], next=following)


# A start


class StartInput(StartBody):
    """The options of a start, and its user."""

    user: str = ""
    """The user of the workspace. Default: you. Only operators and administrators start for others."""


async def _replay_start(actor: Actor, about: str) -> models.Workspace:
    return present_workspace(actor.state, await actor.find_lease(about), actor.person)


@router.post("/api/v1/workspaces", Permission.START, status=202, replay=_replay_start)
async def start_workspace(actor: Actor, *, body: StartInput) -> models.Workspace:
    """Request a workspace. It starts as soon as it has its GPUs.

    The answer comes at once, and says whether the workspace waits. A running workspace of the same name is a conflict.
    A waiting one with the same request is answered as it is. The service starts the server in the hub by its own right
    (``servers``), so a program needs no right in the hub. Operators and administrators may start it for another
    ``user``, who is charged and whose quota applies.
    """
    state, person = actor.state, actor.person
    options = body.options()
    user, owner = options.pop("user", "") or person.name, person.owner
    if user != person.name or owner == NOBODY:
        actor.require(Permission.START, Reach.ALL)
        actor, owner = actor.acting_as(Permission.START, of_others=True), await actor.find_user(user)
    server = await state.hub.check_server_name(user, options.pop("server", ""))
    key = Key(*owner, server)
    groups = await state.members.fetch(user, owner)
    request = await state.allocator.resolver.request_of(key, user, options, groups)
    lease = state.registry.of_key(key)
    if lease is not None and lease.phase in WAITING and lease.request == request:
        return present_workspace(state, lease, person)
    if lease is not None:
        called = f"called {server}" if server else "without a name"
        whose = "You have" if owner == person.owner else f"{user} has"
        raise Conflict(f"{whose} a workspace {called} already ({lease.id[:8]}): open or stop it, or name another one.")
    name, start = uuid.uuid4().hex, uuid.uuid4().hex
    by = "" if owner == person.owner else person.name
    ask = StartRequest(
        key, user, request, options, start, "", by=by, unattended=True, where=actor.origin, lease_id=name
    )
    set_about(name)
    return present_workspace(state, await state.attempts.acquire(ask), person)


# One workspace


@router.get("/api/v1/workspaces/{workspace}", Permission.SEE_WORKSPACES)
async def get_workspace(actor: Actor, workspace: str) -> models.OneWorkspace:
    """Return a workspace, also after its end, with unread announcements and new workspaces of its user."""
    lease, now = await actor.find_lease(workspace), actor.now
    messages = await actor.state.inboxes.messages_of(lease.key.owner)
    return models.OneWorkspace(
        **dict(present_workspace(actor.state, lease, actor.person)),
        messages=[present_shown(one, now) for one in messages],
        elsewhere=elsewhere(actor.state, lease),
    )


@router.get("/api/v1/workspaces/{workspace}/readings", Permission.SEE_WORKSPACES)
async def list_readings(actor: Actor, workspace: str, *, query: ReadingsQuery) -> models.ReadingList:
    """Return the readings of its GPUs, oldest first. null means unknown."""
    lease, after = await actor.find_lease(workspace), after_of(query)
    since = query.since if after is None else max(query.since, after[1])
    rows = await actor.state.store.read(actor.state.store.readings.of_lease, lease.id, since)
    shown, following = page(rows, query, lambda row: (0, row.at, row.gpu))
    return models.ReadingList(readings=[present_reading(row) for row in shown], next=following)


@router.get("/api/v1/workspaces/{workspace}/audit", Permission.SEE_WORKSPACES)
async def list_audit(actor: Actor, workspace: str) -> models.AuditList:
    """Return its audit entries, newest first."""
    store, lease = actor.state.store, await actor.find_lease(workspace)
    return models.AuditList(
        audit=[present_audit_line(line) for line in await store.read(store.audit_log.latest, lease.id)]
    )


@router.get("/api/v1/workspaces/{workspace}/output", Permission.SEE_WORKSPACES)
async def get_output(actor: Actor, workspace: str) -> models.Output:
    """Return the last output of a failed server. It is null if there is no output or you may not see it."""
    return await present_output(actor.state, await actor.find_lease(workspace), actor.person)


@router.get("/api/v1/workspaces/{workspace}/going-on", Permission.SEE_WORKSPACES)
async def get_restart(actor: Actor, workspace: str) -> models.GoingOnNow:
    """Return what a restart with or without a GPU would do, and how long it would wait. Nothing is done."""
    state, lease = actor.state, await actor.find_lease(workspace)
    groups = await state.members.fetch(lease.user, lease.key.owner)
    restart = present_restart(state, lease)
    now = await wait_words(state, lease, groups) if restart and not restart.why else ""
    return models.GoingOnNow(going_on=restart, now=now)


# Actions on one workspace


async def replay_workspace(actor: Actor, _about: str, workspace: str) -> models.Workspace:
    """Return a workspace after an action whose answer was not stored."""
    return present_workspace(actor.state, await actor.find_lease(workspace), actor.person)


def _declare(action: str, permission: Permission, about: str, body: type[Body] | None = None) -> Endpoint:
    """Return the endpoint of an action. ``about`` describes it. ``body`` has one field, which the action gets."""

    async def run(actor: Actor, workspace: str, *, body: Body | None = None) -> models.Workspace:
        lease = await actor.find_lease(workspace, permission)
        where = actor.origin if actor.person.owns(lease) else actor.acting_as(permission, of_others=True).origin
        said = "" if body is None else next(iter(dict(body).values()))
        await act(actor.state, actor.person, lease, action, where, said)
        return await replay_workspace(actor, "", workspace)

    run.__doc__ = about
    if body is None:
        del run.__annotations__["body"]
    else:
        run.__annotations__["body"] = body
    return router.post(f"/api/v1/workspaces/{{workspace}}/{action}", permission, replay=replay_workspace)(run)


_OWN = Permission.ANSWER_FOR_OWN
ACTIONS: Mapping[str, Endpoint] = {
    one.path.rpartition("/")[2]: one
    for one in (
        _declare("keep", Permission.KEEP, "Pause its idle check for a while. The end time stays."),
        _declare("extend", Permission.KEEP, "Move its end time."),
        _declare("move", Permission.MOVE, "Stop it and start it again on other GPUs, after one of its GPUs failed."),
        _declare("stop", Permission.END, "Stop it, or withdraw the request while it waits."),
        _declare("seen", _OWN, "Mark the reason of its end as read."),
        _declare("share", _OWN, "Let administrators read the last output of its server."),
        _declare("came", _OWN, "Note that its user has seen that it runs."),
        _declare("dispute", _OWN, "Report that its end was wrong.", SentenceInput),
        _declare(
            "answer", Permission.ANSWER_REPORTS, "Answer the report of its user, for administrators.", SentenceInput
        ),
        _declare(
            "consent",
            Permission.MOVE,
            "Accept these other GPU kinds, and no others, while it waits. Its position stays.",
            ConsentInput,
        ),
        _declare("take", _OWN, "Request fewer GPUs while it waits. Its position stays.", CountInput),
        _declare(
            "done",
            _OWN,
            "Note when its user will be done. The workspace does not end by it. Estimates of others become more exact.",
            DoneInput,
        ),
        _declare(
            "rename", _OWN, "Give it another name for people. Its server and its address keep theirs.", TitleInput
        ),
        _declare(WITHOUT, Permission.END, "Stop it and start it again without a GPU, with the same home."),
        _declare(WITH, Permission.END, "Stop it and start it again with its GPU, with the same home."),
    )
}
"""The endpoint of each action by its name, for the forms of pages too."""


@router.post("/api/v1/workspaces/{workspace}/lacking", Permission.REPORT, idempotent=False)
async def report_lacking(actor: Actor, workspace: str, *, body: LackingInput) -> Lacking:
    """Store what does not work in a workspace, so that pages and the command line offer only the rest.

    The workspace itself sends this once it runs.
    """
    lease, may_lack = await actor.find_lease(workspace, Permission.REPORT), (*OPENS, MONITOR)
    if not set(body.lacks).issubset(may_lack):
        raise RequestRefused("lacks", quoted(body.lacks), ", ".join(may_lack), "Name what does not work.")
    newest = actor.state.registry.get(lease.id)
    if newest is not None and newest.live and newest.lacks != tuple(body.lacks):
        await actor.state.registry.save(replace(newest, lacks=tuple(body.lacks)))
    return Lacking(lacks=body.lacks)
