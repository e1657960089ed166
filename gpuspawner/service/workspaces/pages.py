"""The page of one workspace, while it waits, runs, and after its end, and the page on which its size changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.resolution import AllRefused
from gpuspawner.catalog.requests.visibility import price_words
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.leases.exits import GPUSPAWNER
from gpuspawner.core.leases.lease import LONGEST_DISPUTE_CHARACTERS, UP, WAITING, Lease, Phase
from gpuspawner.core.leases.lifetimes import deciding_since
from gpuspawner.core.leases.step_results import EVIDENCE_SECONDS
from gpuspawner.core.leases.transitions import stops_to_start_again
from gpuspawner.core.units import show_bytes, show_cpu
from gpuspawner.service.notifications.preferences import get_notifications
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.store import AuditLine
from gpuspawner.service.waiting.models import WaitingRequest
from gpuspawner.service.waiting.presenter import present_queue
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.permissions import Permission
from gpuspawner.service.workspaces import models
from gpuspawner.service.workspaces.api import ACTIONS
from gpuspawner.service.workspaces.cards import (
    Card,
    given_instead_words,
    kernel_words,
    meanwhile,
    names_words,
    sooner_options,
    summary_of,
)
from gpuspawner.service.workspaces.chart import ChartView, chart_of, icon_of
from gpuspawner.service.workspaces.ends import exact_time, way_words
from gpuspawner.service.workspaces.idleness import rule_words
from gpuspawner.service.workspaces.links import open_links, server_link, ssh_line, start_again_links
from gpuspawner.service.workspaces.models import Workspace
from gpuspawner.service.workspaces.presenter import (
    charged_gpu_hours,
    history_words,
    present_output,
    present_workspace,
)
from gpuspawner.service.workspaces.restarts import present_restart, wait_words
from gpuspawner.service.workspaces.sizes import SizeQuery, delete_size, post_size, preview_size
from gpuspawner.service.workspaces.warnings import extension_left_seconds

ORIGIN = "its page"
LINE_SHOWN = 10
"""The most requests of the line that the page of a waiting one shows."""


class HistoryLine(NamedTuple):
    """An audit entry as the page shows it."""

    at: str
    icon: str
    kind: str
    words: str
    by: str


class WorkspacePage(PageHandler):
    """GET: one workspace. Looking changes nothing."""

    async def get(self, lease_id: str) -> None:
        """Answer the page."""
        await self.show(await self.actor(ORIGIN).find_lease(lease_id))

    async def show(self, lease: Lease, problem: str = "", status: int = 200, typed: str = "") -> None:
        """Answer the page of a workspace.

        ``problem`` says why an action was not done, ``typed`` is the text that came with it.
        """
        state, person = self.parts, self.viewer()
        actor, mine = self.actor(ORIGIN), person.owns(lease)
        rows = await state.store.read(state.store.readings.of_lease, lease.id)
        lines = await state.store.read(state.store.audit_log.latest, lease.id)
        output = await present_output(state, lease, person)
        charged = await charged_gpu_hours(state, lease)
        restart = present_restart(state, lease)
        outlook = await wait_words(state, lease, await actor.groups_shown()) if restart and not restart.why else ""
        kinds = (await actor.visible_catalog()).gpus
        told = await get_notifications.act(actor) if mine and lease.phase in WAITING else None
        # From here on nothing is awaited: the page shows one moment.
        shown = present_workspace(state, lease, person)
        chart = chart_of(state, lease, rows, lines)
        in_line = present_queue(state, state.registry, person, kinds).queue if lease.phase in WAITING else []
        self.render_page(
            "workspace.html",
            status,
            doc=shown,
            card=self._card(lease, shown),
            chart=chart,
            history=_history(lines, lease, shown.now, person.name),
            charged_gpu_hours=charged,
            currency=state.catalog.rules.currency,
            problem=problem,
            typed=typed,
            unasked=lease.unasked,
            longest_characters=LONGEST_DISPUTE_CHARACTERS,
            deciding_since=deciding_since(lease, EVIDENCE_SECONDS) if lease.disputable else None,
            mine=mine,
            up=lease.phase in UP,
            waiting=lease.phase in WAITING,
            starting=lease.phase in {Phase.RESERVED, Phase.STARTING},
            starts_again=stops_to_start_again(lease),
            start_link=server_link(self.hub_prefix, lease, "hub/spawn-pending").rstrip("/"),
            next_one=None if lease.live else state.registry.of_key(lease.key),
            again=start_again_links(self.hub_prefix, lease, person.name if mine else lease.user),
            given_instead=given_instead_words(state, lease),
            output=output,
            outlook=outlook,
            line=_line(in_line, lease),
            line_old_since=state.queue.old_since if in_line else None,
            lost=_lost(shown, chart),
            restart_way=way_words(lease),
            told=told,
            charged_text=f"{charged:.2f}",
            idle_rule=rule_words(policy_of(state.catalog, lease, shown.now), gpus=lease.request.gpu is not None),
        )

    def _card(self, lease: Lease, shown: models.Workspace) -> Card:
        """Return the card of a workspace. Its user also gets offers to start sooner, and the way in by SSH."""
        state, person = self.parts, self.viewer()
        mine, up = person.owns(lease), lease.phase in UP
        live = [x for x in state.registry if person.owns(x)]
        others = [present_workspace(state, x, person) for x in live if x.id != lease.id]
        sooner = sooner_options(shown, others) if mine else []
        if mine and lease.phase in WAITING and (offer := meanwhile(self.hub_prefix, lease, person.name, live)):
            sooner.append(offer)
        return Card(
            shown=shown,
            summary=summary_of(shown, whole=True),
            opens=open_links(self.hub_prefix, lease, shown) if up else [],
            sooner=sooner,
            ssh=ssh_line(lease, self.address) if "ssh" in shown.opens and mine and up else "",
            mine=mine,
        )


def _history(lines: Sequence[AuditLine], lease: Lease, now: float, reader: str) -> list[HistoryLine]:
    lived = (lease.ended_at or now) - lease.asked_at
    return [
        HistoryLine(
            exact_time(line.at, now, lived),
            *icon_of(line),
            history_words(line),
            "you" if line.actor == reader else "" if line.actor == GPUSPAWNER else line.actor,
        )
        for line in lines
    ]


def _line(queue: Sequence[WaitingRequest], lease: Lease) -> list[WaitingRequest]:
    """Return the requests for the same kind of GPU, by their position: the first ones, and this one."""
    same = [one for one in queue if one.gpu == lease.request.gpu and one.place is not None]
    ordered = sorted(same, key=lambda one: (one.place or 0, one.asked_at))
    return [one for number, one in enumerate(ordered) if number < LINE_SHOWN or one.id == lease.id]


def _lost(shown: Workspace, chart: ChartView | None) -> list[tuple[bool, str, str]]:
    """Return the parts of an ended workspace: whether each was kept, its name, and details."""
    kept = [
        (True, "All files", "in your home folder, as last saved"),
        (True, "Open notebooks and terminals", "come back when you start again"),
    ]
    if shown.running_at is None:
        return [*kept[:1], (True, "Nothing was lost.", "It had not started.")]
    names = shown.kernels
    kernels = kernel_words(names)
    named = f"{names_words(names)}, with {'its' if len(names) == 1 else 'their'} variables" if names else ""
    lost = [(False, kernels[:1].upper() + kernels[1:], named or "and their variables")] if kernels else []
    held = None if chart is None else chart.held_bytes
    if held:
        holder = "it" if names is not None and len(names) == 1 else "they" if kernels else "programs"
        lost.append((False, show_bytes(held), f"of GPU memory that {holder} held"))
    return [*kept, *lost]


class WorkspaceForms(WorkspacePage):
    """POST: an action, from a form of the page. A GET only goes to the page, which asks."""

    async def get(self, lease_id: str, _action: str = "") -> None:
        """Go to the page. A form was sent to this address."""
        lease = await self.actor(ORIGIN).find_lease(lease_id)
        self.go_to(f"workspaces/{lease.id}")

    async def post(self, lease_id: str, action: str) -> None:
        """Do it and go back. If it cannot be done, the page says why."""
        lease, sentence = await self.actor(ORIGIN).find_lease(lease_id), self.get_body_argument("sentence", "")
        left = self.get_body_argument("left", "")
        if action == "extend" and left not in {"", str(extension_left_seconds(self.parts, lease))}:
            self._back(lease)  # a second click on the same button: it is extended
            return
        try:
            await ACTIONS[action].act(self.actor(ORIGIN), lease.id, values=self._values(action))
        except Conflict as error:
            await self.show(await self.actor(ORIGIN).find_lease(lease_id), str(error), 409)
        except RequestRefused as error:
            await self.show(await self.actor(ORIGIN).find_lease(lease_id), str(error), error.status, sentence)
        else:
            self._back(lease)

    def _values(self, action: str) -> dict[str, Any]:
        """Return the fields of the form that the action's endpoint takes."""
        values: dict[str, Any] = {}
        for name, field in ACTIONS[action].body.model_fields.items():
            texts = self.get_body_arguments(name)
            text = texts[-1] if texts else ""
            is_number = field.annotation is int and text.isdecimal() and len(text) < MAX_DIGITS
            values[name] = texts if field.annotation == list[str] else int(text) if is_number else text
        return values

    def _back(self, lease: Lease) -> None:
        """Go to the page that the form was on: the page of the workspace, or Workspaces."""
        self.go_to("" if self.get_body_argument("back", "") == "home" else f"workspaces/{lease.id}")


MAX_DIGITS = 6


SIZE_ORIGIN = "the page of its size"
FIELDS = ("gpu", "count", "cpu", "memory")
MAX_LETTERS = 40


@dataclass(frozen=True)
class Bounds:
    """The GPUs that a template offers with their titles, and the bounds of the other fields in words."""

    gpus: list[tuple[str, str]]
    most: int
    count: str
    cpu: str
    memory: str


def bounds_of(catalog: Catalog, lease: Lease) -> Bounds:
    """Return what the template of a workspace allows. ``catalog`` has what its user may see."""
    template, request = catalog.templates.get(lease.request.template), lease.request
    if template is None:
        raise Conflict("Its template is no longer offered, so its size cannot change.")
    kinds = [name for name in template.gpus if name in catalog.gpus]
    titles = {name: catalog.gpus[name].title for name in kinds}
    priced = [(name, ", ".join(filter(None, (titles[name], price_words(catalog, name))))) for name in kinds]
    ranges = [template.gpus[name] for name in kinds]
    least, most = min((one for one, _ in ranges), default=0), max((one for _, one in ranges), default=0)
    cpu, memory = template.bounds.cpu_cores, template.bounds.memory_bytes
    return Bounds(
        gpus=[*priced, ("none", "No GPU")],
        most=most,
        count=f"{least} to {most}, now {request.count}" if most > least else f"{most}, now {request.count}",
        cpu=f"{show_cpu(cpu[0])} to {show_cpu(cpu[1])} cores, now {show_cpu(request.cpu_cores)}",
        memory=f"{show_bytes(memory[0])} to {show_bytes(memory[1])}, now {show_bytes(request.memory_bytes)}",
    )


class SizePage(PageHandler):
    """GET: the form. POST: a preview of the change, the change itself, or its withdrawal, by ``step``."""

    async def get(self, lease_id: str) -> None:
        """Answer the form with the present size."""
        await self.show(await self.actor(SIZE_ORIGIN).find_lease(lease_id, Permission.END))

    async def show(
        self,
        lease: Lease,
        *,
        found: models.SizeOutlook | None = None,
        problem: str = "",
        errors: dict[str, str] | None = None,
        status: int = 200,
    ) -> None:
        """Answer the form. ``found`` is the preview of what was typed, ``errors`` are by field."""
        actor = self.actor(SIZE_ORIGIN)
        request = lease.request if lease.size_change is None else lease.size_change.after.request
        now = {
            "gpu": request.gpu or "none",
            "count": str(request.count or 1),
            "cpu": show_cpu(request.cpu_cores),
            "memory": show_bytes(request.memory_bytes),
        }
        self.render_page(
            "size.html",
            status,
            doc=present_workspace(self.parts, lease, actor.person),
            bounds=bounds_of(await actor.visible_catalog(), lease),
            typed={**now, **self._typed()},
            found=found,
            problem=problem,
            errors=errors or {},
        )

    async def post(self, lease_id: str) -> None:
        """Do what was asked. If it cannot be done, the form says why and keeps its values."""
        actor, step, typed = self.actor(SIZE_ORIGIN), self.get_body_argument("step", "look"), self._typed()
        lease = await actor.find_lease(lease_id, Permission.END)
        try:
            if step == "withdraw":
                await delete_size.act(actor, lease.id)
            elif step in {"do", "at once"}:
                await post_size.act(actor, lease.id, values={**typed, "at_once": step == "at once"})
            else:
                await self.show(lease, found=await preview_size(self.parts, lease, SizeQuery(**typed)))
                return
        except RequestRefused as error:
            each = error.refused if isinstance(error, AllRefused) else ()
            words = {one.field: f"{one.limit.capitalize()}. {one.remedy}" for one in each}
            await self.show(lease, errors=words, problem=str(error), status=error.status)
        except Conflict as error:
            await self.show(lease, problem=str(error), status=409)
        else:
            self.go_to(f"workspaces/{lease.id}")

    def _typed(self) -> dict[str, Any]:
        typed = {name: self.get_body_argument(name, "")[:MAX_LETTERS] for name in FIELDS}
        return {name: value for name, value in typed.items() if value}


ROUTES: list[Any] = [
    (r"/workspaces/([^/]+)", WorkspacePage),
    (rf"/workspaces/([^/]+)/({'|'.join(ACTIONS)})", WorkspaceForms),
    (r"/workspaces/([^/]+)/size", SizePage),
]
