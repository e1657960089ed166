"""Presents workspaces: turns a lease and what is known of it into the model that API, pages and command line show."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.visibility import given_instead, gpu_title, gpus_asked, prices, team_title
from gpuspawner.core.events import Granted, Other, Returned, fields_of
from gpuspawner.core.leases.exits import EXIT_KINDS
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.quotas.ledger import BUDGET_RULE, ledger_lines_until
from gpuspawner.core.rules import BudgetUnit
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.engine.sampling.gpu_health import HealthReading
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.start.offers import instead
from gpuspawner.service.store import AuditLine, ReadingRow
from gpuspawner.service.waiting.presenter import present_waiting
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces import models
from gpuspawner.service.workspaces.ends import present_end
from gpuspawner.service.workspaces.idleness import explained, is_simulated, present_idle, present_policy
from gpuspawner.service.workspaces.restarts import present_restart, present_size_change
from gpuspawner.service.workspaces.warnings import present_arrival, present_extend, present_keep, present_warning


def present_workspace(state: Parts, lease: Lease, person: Person | None = None) -> models.Workspace:
    """Return a workspace. Times are seconds since the epoch. null means unknown, or no value.

    ``person`` is the reader, None for its user.
    """
    now = state.clock.now()
    simulated = is_simulated(state, lease)
    newest = next(iter(state.sampler.newest(lease.id).values()), None)
    shown = models.Workspace(
        id=lease.id,
        user=lease.user,
        server=lease.key.server,
        name=lease.name,
        phase=lease.phase.value,
        state="",
        words=f"{phase_words(lease, state.catalog, simulated=simulated)}{_missing_words(state, lease)}",
        now=now,
        fast=state.catalog.fast,
        page=f"{state.prefix}workspaces/{lease.id}",
        request=_present_request(state, lease, simulated=simulated),
        gpu=lease.kind,
        given=lease.given or None,
        opens=opens_of(state, lease),
        ports=_present_ports(state, lease),
        options=dict(lease.options),
        asked_at=lease.asked_at,
        granted_at=lease.granted_at,
        running_at=lease.running_at,
        ends_at=lease.deadline_at,
        latest_end=present_latest_end(lease, now),
        ends_words=None if lease.deadline_at is None else show_time(lease.deadline_at, now),
        adopted=lease.adopted,
        gpus=_present_gpus(state, lease),
        cpu_cores_used=newest.cpu_cores if newest and lease.phase in UP else None,
        host_memory_used_bytes=newest.host_memory_bytes if newest and lease.phase in UP else None,
        kernels=None if lease.kernels is None else list(lease.kernels),
        simulated=simulated,
        queue=present_waiting(state, lease, is_own=person is None or person.owns(lease)),
        policy=present_policy(state, lease.request.policy),
        idle=present_idle(state, lease),
        keep=present_keep(state, lease),
        extend=present_extend(state, lease),
        warning=present_warning(state, lease),
        going_on=present_restart(state, lease),
        size_change=present_size_change(state, lease),
        arrival=present_arrival(lease, now),
        planned_end=_present_planned_end(state, lease, now),
        charged=_present_charged(state, lease),
        end=present_end(lease, now, mine=person is None or person.owns(lease)),
        explained=[],
    )
    told = explained(lease, shown, policy_of(state.catalog, lease, now).idle)
    return shown.model_copy(update={"state": _state_of(shown), "explained": told})


_STATES_OF_PHASE = {
    Phase.QUEUED.value: "waiting",
    Phase.PARKED.value: "waiting",
    Phase.RESERVED.value: "starting",
    Phase.STARTING.value: "starting",
    Phase.STOPPING.value: "stopping",
}
_STATES_OF_IDLENESS = {
    "awaited": "ready",
    "kept": "kept",
    "busy": "active",
    "soft": "active",
    "idle": "idle",
    "grace": "idle",
    "grace_paused": "idle",
}
ENDS_SOON = frozenset({"idle", "claim", "preempted", "unclaimed", "expiry"})
"""Kinds of warnings whose workspace stops soon if they carry a time."""


def _state_of(shown: models.Workspace) -> str:
    """Return the state that pages show. Each has one icon, one colour and one word."""
    if shown.end is not None and shown.phase == Phase.ENDED.value:
        return "failed" if shown.end.reason == "failed" else "stopped"
    if shown.phase in _STATES_OF_PHASE:
        return _STATES_OF_PHASE[shown.phase]
    if shown.warning is not None and shown.warning.ends_at is not None and shown.warning.kind in ENDS_SOON:
        return "warned"
    if shown.idle is None:
        return "cpu"
    if shown.idle.state == "unknown" and shown.idle.idle_seconds:
        return "idle"
    return _STATES_OF_IDLENESS.get(shown.idle.state, "unknown")


def phase_words(lease: Lease, catalog: Catalog, *, simulated: bool = False) -> str:
    """Return the phase of a workspace in words."""
    if lease.unasked and lease.phase is Phase.RUNNING:
        return "Running, started without the GPU service"
    request, gpus = lease.request, "no GPU"
    if lease.kind is not None:
        gpus = f"{request.count} {gpu_title(lease.kind, catalog, simulated=simulated)}"
    if lease.given and request.gpu is not None:
        gpus += given_instead(catalog, request.gpu, lease.given, simulated=simulated)
    on = "without a GPU" if request.gpu is None else f"on {gpus}"
    got = f"Starting {on}" if any(slot.is_coming for slot in lease.slots) else f"Got {gpus}; starting"
    what = "to start without a GPU" if request.gpu is None else f"for {gpus}"
    return {
        Phase.QUEUED: f"Waiting {what}",
        Phase.PARKED: f"Waiting {what}; it starts by itself",
        Phase.RESERVED: "Starting without a GPU" if request.gpu is None else got,
        Phase.STARTING: f"Starting {on}",
        Phase.RUNNING: f"Running {on}",
        Phase.RECLAIMING: f"Idle {on}: stops soon",
        Phase.STOPPING: "Stopping",
        Phase.ENDED: "Ended",
    }[lease.phase]


def _missing_words(state: Parts, lease: Lease) -> str:
    """Return the reason why a request or a start waits, to be read after its phase, "" without one."""
    outage = state.queue.outage_of(lease.request.gpu) if lease.phase in WAITING else None
    if outage is not None:
        return f". {outage.words(state.clock.now()).removesuffix('.')}"
    if lease.phase not in {Phase.RESERVED, Phase.STARTING}:
        return ""
    seconds = state.scheduler.node_seconds(lease)
    node = "" if seconds is None else f"; a node starts for it, in about {show_duration(seconds)}"
    waits = state.scheduler.start_words(lease)
    return f"{node}; {waits}" if waits else node


def _present_request(state: Parts, lease: Lease, *, simulated: bool) -> models.Asked:
    request, catalog = lease.request, state.catalog
    template = catalog.templates.get(request.template)
    return models.Asked(
        template=request.template,
        template_title=template.title if template else request.template or "not known",
        icon=template.shown_icon if template else "layers" if request.gpu else "notebook",
        words=gpus_asked(request, catalog, simulated=simulated),
        gpu=request.gpu,
        substitutes=_present_substitutes(state, lease),
        team=request.team or None,
        team_title=team_title(catalog, request.team) or None,
        count=request.count,
        cpu_cores=request.cpu_cores,
        memory_bytes=request.memory_bytes,
        lifetime_seconds=request.lifetime_seconds,
    )


def _present_substitutes(state: Parts, lease: Lease) -> list[models.Substitute]:
    """Return the kinds that a request may get instead, and which of them its user accepted.

    Kinds for some groups only are left out unless they were accepted. The form knows who may have them.
    """
    request, kinds = lease.request, state.catalog.gpus
    return [
        models.Substitute(
            kind=kind,
            title=gpu_title(kind, state.catalog),
            words=prices(state.catalog, request.gpu or "", kind),
            consented=kind in request.substitutes,
        )
        for kind in instead(state.catalog, request)
        if kind in request.substitutes or not kinds[kind].groups
    ]


def opens_of(state: Parts, lease: Lease) -> list[str]:
    """Return the applications that a workspace opens, the default first. The list is empty if only the hub knows.

    Applications that its image lacks are left out.
    """
    template = state.catalog.templates.get(lease.request.template)
    older = template.opens if template else ()  # of a request that was stored without
    opens = older if lease.request.opens is None else lease.request.opens
    return [one for one in opens if one not in lease.lacks]


def _present_ports(state: Parts, lease: Lease) -> list[models.Port]:
    template = state.catalog.templates.get(lease.request.template)
    ports = template.ports.items() if template else ()
    return [models.Port(title=one.title or name, port=one.port) for name, one in ports]


def _present_gpus(state: Parts, lease: Lease) -> list[models.Gpu]:
    fleet, newest = state.scheduler.fleet, state.sampler.newest(lease.id)
    kind = state.catalog.gpus.get(lease.kind or "")
    gpus = []
    for index, slot in enumerate(lease.slots):
        gpu, reading = fleet.by_id.get(slot.gpu), newest.get(slot.gpu)
        simulated = gpu is not None and gpu.simulated
        gpus.append(
            models.Gpu(
                index=index,
                id=slot.gpu,
                uuid=_uuid(lease, index),
                name=(kind.title if kind else "GPU") + (" (simulated)" if simulated else ""),
                model=gpu.model if gpu else "",
                node=fleet.node_of(slot.gpu),
                share=str(slot.share),
                simulated=simulated,
                utilization_percent=reading.utilization_percent if reading else None,
                memory_used_bytes=reading.memory_used_bytes if reading else None,
                memory_total_bytes=reading.memory_total_bytes if reading else None,
                state=reading.kind if reading else "unknown",
                problem=reading.because if reading and reading.kind == "unknown" else "",
                health=_present_health(state.gpu_health.reading_of(_uuid(lease, index))),
            )
        )
    return gpus


def _present_health(reading: HealthReading | None) -> models.GpuHealth | None:
    return None if reading is None else models.GpuHealth(**vars(reading.health), fault=reading.fault)


def _uuid(lease: Lease, index: int) -> str | None:
    """Return the UUID of one of a lease's GPUs, None if its cluster only counts them and does not tell which."""
    told = lease.uuids[index] if len(lease.uuids) == len(lease.slots) else None
    return lease.slots[index].gpu if lease.slots[index].group is None else told


def present_latest_end(lease: Lease, now: float) -> models.LatestEnd | None:
    """Return the limit on the end of a workspace that no extension passes, None without one."""
    bound = lease.latest_end
    if bound is None:
        return None
    why = bound.words.rstrip(".")
    if lease.deadline_at is not None and lease.deadline_at < bound.at - 1:
        then = why.partition(", when ")[2]
        sentence = f"No extension goes beyond {show_time(bound.at, now)}{f', when {then}' if then else f': {why}'}."
    else:
        sentence = f"It {why}." if why.startswith("ends ") else f"{why}."
    entry = bound.name if bound.rule == BUDGET_RULE else ""
    return models.LatestEnd(at=bound.at, rule=bound.rule, entry=entry or None, words=bound.words, sentence=sentence)


def _present_planned_end(state: Parts, lease: Lease, now: float) -> models.PlannedEnd | None:
    """Return the question when its user will be done, or their answer.

    They are asked once, while somebody waits in our queue for such a GPU. A user who has not opened a workspace that
    started while they were away is not asked.
    """
    if lease.phase is not Phase.RUNNING or lease.kind is None or lease.arrival is not None:
        return None
    if lease.planned_end is None:
        waited_for = state.queue.compute_once_per_pass("kinds waited for", lambda: _kinds_waited_for(state))
        words = f"Somebody waits for a GPU like yours ({gpu_title(lease.kind, state.catalog)}). When will you be done?"
        return models.PlannedEnd(asked=True, at=None, words=words) if lease.kind in waited_for else None
    at = lease.planned_end.at
    if at is None or at < now:
        return None
    return models.PlannedEnd(asked=False, at=at, words=f"You said that you will be done at about {show_time(at, now)}.")


def _kinds_waited_for(state: Parts) -> frozenset[str]:
    """Return the kinds of GPU for which requests wait in our own queue."""
    waiting = [lease.request for lease in state.registry if lease.phase in WAITING and lease.request.gpu]
    kinds = {kind for request in waiting for kind in (request.gpu, *request.substitutes) if kind}
    return frozenset(kind for kind in kinds if not state.scheduler.capabilities_of(kind).owns_queue)


def _present_charged(state: Parts, lease: Lease) -> models.Charged | None:
    """Return the usage of a running workspace so far, less what was credited, None for any other."""
    if lease.rate is None or lease.running_at is None or lease.deadline_at is None or not lease.live:
        return None
    unbilled = replace(lease, billed_until=None)  # as if no month had been closed meanwhile
    lines = ledger_lines_until(unbilled, state.clock.now(), state.allocator.accounting.zone)
    hours, cost = (sum((line.amount(used) for line in lines), Fraction(0)) for used in BudgetUnit)
    return models.Charged(gpu_hours=float(hours), cost=float(cost) if lease.rate.price_per_hour else None)


async def charged_gpu_hours(state: Parts, lease: Lease) -> float:
    """Return the GPU hours that a workspace is charged: by the ledger, or so far while it runs."""
    stored = await state.store.read(state.store.ledger.of_lease, lease.id)
    lines = [*stored, *ledger_lines_until(lease, state.clock.now(), state.allocator.accounting.zone)]
    return float(sum(line.amount(BudgetUnit.GPU_HOURS) for line in lines))


# Stored records of a workspace


def present_reading(row: ReadingRow) -> models.Reading:
    """Return a stored reading."""
    return models.Reading(
        at=row.at,
        seconds=row.seconds,
        gpu=row.gpu,
        utilization_percent=row.utilization_percent,
        memory_used_bytes=row.memory_used_bytes,
        memory_total_bytes=row.memory_total_bytes,
        kind=row.kind,
        because=row.because,
        cpu_cores=row.cpu_cores,
        host_memory_bytes=row.host_memory_bytes,
        soft=row.soft,
    )


def present_audit_line(line: AuditLine) -> models.AuditLine:
    """Return a stored audit entry."""
    event = line.event
    return models.AuditLine(
        at=line.at, user=line.user, actor=line.actor, action=event.action, why=line.why, fields=fields_of(event)
    )


def history_words(line: AuditLine) -> str:
    """Return an audit entry as people read it."""
    event = line.event
    if isinstance(event, Granted):
        return event.words if len(event.gpus) == 1 else f"{len(event.gpus) or 'No'} GPUs assigned"
    if isinstance(event, Returned):
        why = next((kind.words for reason, kind in EXIT_KINDS.items() if reason.value == event.reason), "")
        return f"{event.words}. {why}."
    words = event.words if event.name != Other.name else event.action.capitalize()
    return f"{words}: {line.why}" if line.why else words


async def present_output(state: Parts, lease: Lease, person: Person) -> models.Output:
    """Return the last output of a server that failed, for its user, and for administrators once it is shared."""
    row = await state.store.read(state.store.outputs.get, lease.id, state.clock.now())
    if row is None:
        return models.Output(there=False, text=None, shared=False)
    text = row.text if row.shared or person.owns(lease) else None
    return models.Output(there=True, text=text, shared=row.shared)
