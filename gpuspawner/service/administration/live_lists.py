"""The lists of running, waiting and ended workspaces: their rows and their pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.events import ClaimMade, MovedInQueue, Passed
from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.rules_page import order_rules
from gpuspawner.service.rules.policies import idle_policy_of
from gpuspawner.service.store.audit_log import AuditFilter, AuditLine, NumberedLine
from gpuspawner.service.store.rows import is_of
from gpuspawner.service.waiting.api import present_accuracy
from gpuspawner.service.waiting.presenter import hit_rate_words, present_waiting
from gpuspawner.service.web.admin_page import ListPage
from gpuspawner.service.web.lists import PAGE_ROWS, Column, Filter, ListPart, Row, Table, list_part, parse_list_state
from gpuspawner.service.web.permissions import Permission
from gpuspawner.service.workspaces.idleness import exemption_words

STATES = (
    ("active", "Active"),
    ("idle", "Idle"),
    ("warned", "Stops soon"),
    ("kept", "Kept by its user"),
    ("exempt", "Exempt from idle stops"),
    ("unknown", "Not measured"),
    ("running", "Running, no idle rule"),
    ("starting", "Starting"),
    ("stopping", "Stopping"),
)
"""The states of a running workspace, and their words in filters."""
MAX_EXPORTED = 20_000
"""The most ended workspaces in one file. Arbitrary: some megabytes. Filters take the rest in parts."""
CHANGES_SHOWN = 5

WORKSPACES = Table(
    "workspaces",
    (
        Column("user", "User", "person"),
        Column("workspace", "Workspace", "workspace"),
        Column("state", "State", "state"),
        Column("gpus", "GPUs", "gpus"),
        Column("kind", "Kind", exported_only=True),
        Column("node", "Node"),
        Column("team", "Team"),
        Column("idle_seconds", "Idle for", "seconds"),
        Column("idle_gpu_hours", "Idle GPU hours", "hours"),
        Column("running_seconds", "Runs for", "seconds", exported_only=True),
        Column("ends_at", "Ends", "time", absent="no end"),
        Column("template", "Template", exported_only=True),
        Column("because", "Measured", "words", exported_only=True),
    ),
    (
        Filter("find", "User, workspace or node", within=("user", "workspace", "node", "template")),
        Filter("state", "Any state", STATES),
        Filter("team", "Any team", within=("team",)),
        Filter("kind", "Any GPU", within=("kind",)),
    ),
    sort="-idle_gpu_hours",
)
QUEUE = Table(
    "queue",
    (
        Column("kind", "Kind"),
        Column("position", "Position", "number"),
        Column("user", "User", "person"),
        Column("workspace", "Workspace", "workspace"),
        Column("team", "Team"),
        Column("gpus", "GPUs", "number"),
        Column("lifetime_seconds", "Run time", "seconds"),
        Column("waited_seconds", "Waiting for", "seconds"),
        Column("wait_rule", "Held back by"),
        Column("reason", "Reason for the position", "words"),
        Column("earliest_at", "From", "time"),
        Column("likely_at", "Likely start", "time"),
        Column("range_end_at", "By", "time"),
    ),
    (
        Filter("find", "User or workspace", within=("user", "workspace")),
        Filter("team", "Any team", within=("team",)),
        Filter("kind", "Any GPU", within=("kind",)),
        Filter("held", "Held back or not", (("yes", "Held back by a rule"), ("no", "In line"))),
    ),
)
REASONS = tuple((reason.value, EXIT_KINDS[reason].words) for reason in ExitReason)
ENDED = Table(
    "ended",
    (
        Column("ended_at", "Ended", "time"),
        Column("user", "User", "person"),
        Column("workspace", "Workspace", "workspace"),
        Column("reason", "Reason", "label"),
        Column("message", "Details", "words"),
        Column("by", "By"),
        Column("gpus", "GPUs", "gpus"),
        Column("kind", "Kind", exported_only=True),
        Column("team", "Team"),
        Column("ran_seconds", "Ran for", "seconds"),
        Column("gpu_hours", "GPU hours", "hours"),
    ),
    (Filter("user", "User begins with"), Filter("reason", "Any reason", REASONS)),
    sort="-ended_at",
    sorted_by=("ended_at", "user", "reason"),
)


# Rows


@dataclass(frozen=True)
class QueueSection:
    """The requests for one kind of GPU. ``free`` says how many GPUs of the kind are free."""

    title: str
    free: str
    rows: tuple[Row, ...]


def present_workspace_rows(state: Parts, leases: Iterable[Lease]) -> list[Row]:
    """Return a row for each lease that does not wait."""
    now = state.clock.now()
    return [_workspace_row(state, lease, now) for lease in leases if lease.phase not in WAITING]


def _workspace_row(state: Parts, lease: Lease, now: float) -> Row:
    template = state.catalog.templates.get(lease.request.template)
    idle_seconds = lease.streak.idle_seconds if lease.phase in UP else None
    return SimpleNamespace(
        id=lease.id,
        page=f"{state.prefix}workspaces/{lease.id}",
        user=lease.user,
        workspace=lease.name,
        state=_state(state, lease, now),
        gpus=len(lease.slots),
        kind=kind_title(state.catalog, lease.kind),
        node=next(filter(None, (state.scheduler.fleet.node_of(slot.gpu) for slot in lease.slots)), ""),
        team=team_title(state.catalog, lease.request.team) or "",
        idle_seconds=idle_seconds,
        idle_gpu_hours=idle_seconds * _shares(lease) / 3600 if idle_seconds else None,
        running_seconds=None if lease.running_at is None else now - lease.running_at,
        ends_at=lease.deadline_at if lease.notice is None else lease.notice.at,
        template=template.title if template else lease.request.template or "not known",
        because=_because(state, lease, now),
    )


def _shares(lease: Lease) -> float:
    return float(sum(slot.share for slot in lease.slots))


def kind_title(catalog: Catalog, name: str | None) -> str:
    """Return the title of a kind of GPU, its name if the catalog no longer has it."""
    kind = catalog.gpus.get(name or "")
    return kind.title if kind else name or "no GPU"


def _because(state: Parts, lease: Lease, now: float) -> str:
    if lease.phase not in UP:
        return lease.message
    one = state.restrictions.exemption_of(lease)
    return lease.streak.because if one is None else f"{exemption_words(one, now)}; {lease.streak.because}".rstrip("; ")


def _state(state: Parts, lease: Lease, now: float) -> str:
    """Return one of STATES."""
    if lease.phase not in UP:
        return "stopping" if lease.phase is Phase.STOPPING else "starting"
    if idle_policy_of(state.catalog, lease, now) is None:
        return "running"
    if lease.kept_until is not None and lease.kept_until > now:
        return "kept"
    if state.restrictions.exemption_of(lease) is not None:
        return "exempt"
    return "warned" if lease.phase is Phase.RECLAIMING else _measured_state(lease)


def _measured_state(lease: Lease) -> str:
    kind = lease.streak.kind
    if lease.streak.idle_seconds or kind is SampleKind.IDLE:  # before its user opens it, no idle time counts
        return "idle"
    return "unknown" if kind is None or kind is SampleKind.UNKNOWN else "active"


def present_queue_rows(state: Parts, leases: Iterable[Lease]) -> list[Row]:
    """Return a row for each waiting request, by kind in the catalog's order, then by position.

    ``sentence`` is what its user reads. ``held`` is ``yes`` if a rule holds it back. ``movable`` is whether gpuspawner
    owns its queue, so that an administrator can move it.
    """
    kinds = {name: number for number, name in enumerate(state.catalog.gpus)}
    waiting = [lease for lease in leases if lease.phase in WAITING]
    rows = [(kinds.get(x.request.gpu or "", len(kinds)), x.asked_at, _queue_row(state, x)) for x in waiting]
    rows.sort(key=lambda one: (one[0], one[2].position is None, one[2].position or 0, one[1], one[2].id))
    return [row for _, _, row in rows]


def _queue_row(state: Parts, lease: Lease) -> Row:
    shown, now = present_waiting(state, lease, is_own=False), state.clock.now()
    assert shown is not None  # it waits
    held, held_words = shown.wait_reason, shown.wait_reason.words if shown.wait_reason else ""
    return SimpleNamespace(
        id=lease.id,
        page=f"{state.prefix}workspaces/{lease.id}",
        kind=kind_title(state.catalog, lease.request.gpu),
        position=shown.place,
        user=lease.user,
        workspace=lease.name,
        team=team_title(state.catalog, lease.request.team) or "",
        gpus=lease.request.count if lease.request.gpu else 0,
        lifetime_seconds=lease.request.lifetime_seconds,
        waited_seconds=now - lease.asked_at,
        held="yes" if held else "no",
        wait_rule=held.rule if held else "",
        reason=held_words or shown.why or shown.precedence,
        sentence=" ".join([shown.sentence, *([held_words] if held_words not in shown.sentence else [])]),
        earliest_at=shown.earliest_start_at,
        likely_at=shown.likely_start_at,
        range_end_at=shown.range_end_at,
        movable=state.allocator.observed.is_queue_ours(lease),
    )


def present_ended_rows(state: Parts, leases: Iterable[Lease]) -> list[Row]:
    """Return a row for each lease that ended."""
    return [_ended_row(state, lease) for lease in leases]


def _ended_row(state: Parts, lease: Lease) -> Row:
    reason = lease.reason
    ran = None if lease.running_at is None or lease.ended_at is None else max(0.0, lease.ended_at - lease.running_at)
    return SimpleNamespace(
        id=lease.id,
        page=f"{state.prefix}workspaces/{lease.id}",
        ended_at=lease.ended_at,
        user=lease.user,
        workspace=lease.name,
        reason=reason.value if reason else "",
        reason_words=EXIT_KINDS[reason].words if reason else "",
        message=lease.message,
        by=lease.ended_by,
        gpus=len(lease.slots),
        kind=kind_title(state.catalog, lease.kind),
        team=team_title(state.catalog, lease.request.team) or "",
        ran_seconds=ran,
        gpu_hours=None if ran is None else ran * _shares(lease) / 3600,
    )


# Pages

VIEWS = (("console/workspaces", "Running"), ("console/queue", "Waiting"), ("console/ended", "Ended"))


class WorkspacesPage(ListPage):
    """GET: every workspace that holds GPUs, or runs without one."""

    tab, table, title, views = "workspaces", WORKSPACES, "Workspaces", VIEWS
    empty = "No workspace is running. Running workspaces are listed here, with the most idle GPU hours first."
    acts = (
        ("extend", "extend", "Extend"),
        ("message", "mail", "Message"),
        ("exempt", "exempt", "Exempt from idle stops"),
        ("move", "move", "Move"),
        ("stop", "stop", "Stop"),
    )

    async def rows(self) -> Sequence[Row]:
        """Return the rows of the table."""
        whose = self.whose()
        return present_workspace_rows(self.parts, (x for x in self.parts.registry if is_of(x, whose)))


class QueuePage(ListPage):
    """GET: the waiting requests, in a section for each kind of GPU."""

    tab, table, title, template = "queue", QUEUE, "Queue", "admin_queue.html"

    async def rows(self) -> Sequence[Row]:
        """Return the rows of the table."""
        whose = self.whose()
        return present_queue_rows(self.parts, (x for x in self.parts.registry if is_of(x, whose)))

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        if form:
            await super().get(form)
            return
        state, store = self.parts, self.parts.store
        wanted = parse_list_state(self.table, self.arguments_of_address())
        changes, lines = AuditFilter(actions=(Passed.name, MovedInQueue.name, ClaimMade.name)), list[NumberedLine]()
        if self.viewer().reach(Permission.SEE_AUDIT):
            lines = await store.read(store.audit_log.search, changes, None, CHANGES_SHOWN)
        # From here on nothing is awaited, so the page shows one moment.
        rows = await self.rows()
        part = list_part(rows, wanted)
        self.show_list(
            part,
            sections=list(_sections(state, part.rows)),
            held=sum(row.held == "yes" for row in rows),
            hit_rate=hit_rate_words(state),
            accuracy=present_accuracy(state).horizons,
            changes=[_change(state, one.line) for one in lines],
            order=order_rules(state.catalog),
        )


@dataclass(frozen=True)
class OrderChange:
    """A change of the order, with its time and the workspace that it is about."""

    at: float
    words: str
    why: str
    page: str


def _change(state: Parts, line: AuditLine) -> OrderChange:
    page = f"{state.prefix}workspaces/{line.lease}" if line.lease else ""
    words = f"{line.user}: {line.event.words}" if line.user else line.event.words
    if isinstance(line.event, MovedInQueue):
        words = f"{line.actor} moved the request of {line.user}"
    return OrderChange(line.at, words, line.why, page)


def _sections(state: Parts, rows: Sequence[Row]) -> Iterator[QueueSection]:
    offers = {kind_title(state.catalog, offer.kind): offer for offer in state.queue.offers}
    for title, found in groupby(rows, key=lambda row: row.kind):
        offer = offers.get(title)
        free = "" if offer is None else "Not known how many are free" if offer.free is None else ""
        if offer is not None and offer.free is not None:
            free = ", ".join(filter(None, [f"{offer.free} of {offer.total} free", offer.held, offer.note]))
        yield QueueSection(title, free, tuple(found))


class EndedPage(ListPage):
    """GET: the ended workspaces, newest first. The store sorts and pages them, since there may be a year of them."""

    tab, table, title, views = "workspaces", ENDED, "Ended workspaces", VIEWS
    empty = "No workspace has ended yet. Ended workspaces are listed here, each with its reason."

    async def rows(self) -> Sequence[Row]:
        """Return the newest that match the filters."""
        found, _ = await self._find(0, MAX_EXPORTED)
        return found

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        state = parse_list_state(self.table, self.arguments_of_address())
        if form:
            rows, count = await self._find(0, MAX_EXPORTED)
            self.export(form, state, rows, count)
            return
        rows, count = await self._find((state.page - 1) * PAGE_ROWS, PAGE_ROWS)
        self.show_list(ListPart(state, tuple(rows), count, count))

    async def _find(self, first: int, count: int) -> tuple[list[Row], int]:
        wanted, store = parse_list_state(self.table, self.arguments_of_address()), self.parts.store
        user, reason = wanted.filters.get("user", ""), wanted.filters.get("reason", "")
        leases, found = await store.read(
            store.leases.search_ended, user, reason, first, count, wanted.sort, self.whose()
        )
        return list(present_ended_rows(self.parts, leases)), found
