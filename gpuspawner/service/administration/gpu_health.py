"""The health of GPUs: its page and API, and the rule that puts a GPU with a fatal error in quarantine."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from gpuspawner.core.administration import Restriction, RestrictionKind
from gpuspawner.core.outages import FATAL_XIDS, GpuHealth, find_fault
from gpuspawner.service.administration.restriction_effects import LISTED, carry_out, present_restriction
from gpuspawner.service.api.rest.models import Answer
from gpuspawner.service.engine.sampling.gpu_health import HealthReading
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.admin_page import ListPage
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.lists import Column, Filter, ListPart, Row, Table
from gpuspawner.service.web.permissions import Permission

router = Router()
log = logging.getLogger("gpuspawner.gpu_health")

ACTOR = "gpuspawner"
"""The actor of the quarantines that the rule makes."""

HealthState = Literal["quarantined", "faulty", "not measured", "healthy"]
WORDS = {one: one.capitalize() for one in get_args(HealthState)}
SHOWN = 5
"""How many past quarantines the page names. The audit log has all."""


class GpuHealthRow(Answer):
    """The health of one GPU. A value that is not known is null.

    ``corrected_errors`` and ``uncorrected_errors`` count memory errors since the driver was loaded.
    """

    id: str
    node: str
    index: int
    state: HealthState
    celsius: float | None
    watts: float | None
    limit_watts: float | None
    clock_mhz: float | None
    corrected_errors: int | None
    uncorrected_errors: int | None
    xid: int | None
    """The code of the last error, 0 without one."""
    fault: str
    """Why it belongs in quarantine, or is in it. Else ""."""
    restriction: str
    """The id of the quarantine, or of the drain of its node. Else ""."""
    read_at: float | None

    @property
    def state_order(self) -> int:
        """Its place in the usual order: those with a fault come first."""
        return list(WORDS).index(self.state)

    @property
    def name(self) -> str:
        """The node and number of the GPU."""
        return f"{self.node}, GPU {self.index}"


class GpuHealthList(Answer):
    """The health of all GPUs. ``rule`` is whether faulty GPUs are put in quarantine at once."""

    gpus: list[GpuHealthRow]
    rule: bool
    now: float


HEALTH = Table(
    "gpu-health",
    (
        Column("name", "GPU"),
        Column("state", "State", "state"),
        Column("celsius", "Temperature, °C", "amount"),
        Column("watts", "Power, W", "amount"),
        Column("limit_watts", "Power limit, W", "amount", exported_only=True),
        Column("clock_mhz", "Clock, MHz", "amount"),
        Column("corrected_errors", "Corrected errors", "number"),
        Column("uncorrected_errors", "Uncorrected errors", "number"),
        Column("xid", "Last Xid", "number"),
        Column("fault", "Fault", "words"),
    ),
    (
        Filter("name", "Node", within=("name",)),
        Filter("state", "Any state", tuple(WORDS.items())),
    ),
    sort="state_order",
    sorted_by=("name", "celsius", "watts", "clock_mhz", "corrected_errors", "uncorrected_errors", "xid"),
)


def present_health(state: Parts) -> list[GpuHealthRow]:
    """Return a row for each GPU, those with a fault first."""
    readings = {one.gpu or f"{one.node}/{one.index}": one for one in state.gpu_health.readings()}
    closing = {
        one.target: one
        for one in state.restrictions.in_force()
        if one.measure in {RestrictionKind.QUARANTINE, RestrictionKind.DRAIN}
    }
    rows = []
    for gpu in state.scheduler.fleet.gpus:
        reading = readings.pop(gpu.id, None) or readings.pop(f"{gpu.node}/{gpu.index}", None)
        unwell = "" if gpu.healthy else gpu.note or "it is faulty"
        rows.append(_row(gpu.id, gpu.node, gpu.index, reading, closing.get(gpu.id), unwell))
    for key, reading in readings.items():
        drain = closing.get(reading.node) if reading.fault else None
        rows.append(_row(key, reading.node, reading.index, reading, drain, ""))
    return sorted(rows, key=lambda one: (one.state_order, one.node, one.index))


def _row(name: str, node: str, index: int, reading: HealthReading | None, closed: Any, unwell: str) -> GpuHealthRow:
    health = reading.health if reading else GpuHealth()
    fault = closed.reason if closed else (reading.fault if reading else "") or unwell
    state: HealthState = "faulty" if fault else "healthy" if reading else "not measured"
    return GpuHealthRow(
        id=name,
        node=node,
        index=index,
        state="quarantined" if closed else state,
        **vars(health),
        fault=fault,
        restriction=closed.id if closed else "",
        read_at=reading.at if reading else None,
    )


@router.get("/api/v1/admin/gpu-health", Permission.SEE_FLEET)
async def list_gpu_health(actor: Actor) -> GpuHealthList:
    """Return the temperature, power, clock and errors of each GPU, and which are in quarantine."""
    rule = actor.state.catalog.rules.quarantine_faulty_gpus
    return GpuHealthList(gpus=present_health(actor.state), rule=rule, now=actor.now)


class HealthPage(ListPage):
    """GET: the health of all GPUs, those in quarantine first."""

    tab, table, title = "gpus", HEALTH, "GPU health"
    empty = "No GPU has been seen yet."
    template = "admin_gpu_health.html"

    async def rows(self) -> Sequence[Row]:
        """Return the rows of the table."""
        return present_health(self.parts)

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        last = await self.parts.restrictions.last(LISTED)
        self._past = [present_restriction(self.parts, one) for one in last if one.measure is RestrictionKind.QUARANTINE]
        await super().get(form)

    def show_list(self, part: ListPart, status: int = 200, **values: Any) -> None:
        """Answer with the page."""
        rows, past = present_health(self.parts), self._past
        counted = {name: sum(one.state == name for one in rows) for name in WORDS}
        watts = [one.watts for one in rows if one.watts is not None]
        super().show_list(
            part,
            status,
            counted=counted,
            total=len(rows),
            watts=sum(watts) if watts else None,
            measured=len(watts),
            ill=[one for one in rows if one.state in {"quarantined", "faulty"}],
            history=past[:SHOWN],
            rule=self.parts.catalog.rules.quarantine_faulty_gpus,
            xids=sorted(FATAL_XIDS),
            simulated=any(gpu.simulated for gpu in self.parts.scheduler.fleet.gpus),
            **values,
        )


# The quarantine rule


async def quarantine_round(parts: Parts) -> None:
    """Read the health of all GPUs, and restrict those with a new fault unless the catalog leaves it to people.

    If an administrator has ended the restriction, the same fault makes no other one. An error after that is new.
    """
    await parts.gpu_health.look()
    faulty = [one for one in parts.gpu_health.readings() if one.fault]
    if not faulty or not parts.catalog.rules.quarantine_faulty_gpus:
        return
    earlier = [*parts.restrictions.live(), *await parts.restrictions.last(LISTED)]
    made = list(_restrictions(parts, faulty, earlier))
    if not made:
        return
    now = parts.clock.now()
    for one in made:
        log.warning("%s %s: %s", one.measure.value, one.whom or one.target, one.reason)
    await carry_out(
        parts,
        made,
        lambda event, user, target: AuditLine(now, "", user, ACTOR, event, target=target),
        lambda lease, event: parts.allocator.commits.line(lease, ACTOR, event),
    )


def _restrictions(
    parts: Parts, faulty: Iterable[HealthReading], earlier: Iterable[Restriction]
) -> Iterable[Restriction]:
    """Yield a quarantine of each GPU, or a drain of the node where the cluster does not tell its GPUs apart."""
    held = {one.target for one in parts.restrictions.live()}
    nodes = {gpu.node for gpu in parts.scheduler.fleet.gpus}
    for one in faulty:
        measure, target, whom, reason = RestrictionKind.QUARANTINE, one.gpu, f"{one.node}/{one.index}", one.fault
        if not one.gpu:
            measure, target, whom = RestrictionKind.DRAIN, one.node, ""
            reason = f"GPU {one.index}: {one.fault}. The cluster does not tell the GPUs of this node apart"
        if target in held or (not one.gpu and target not in nodes):
            continue
        if _is_settled(parts, one, reason, [x for x in earlier if x.target == target]):
            continue
        held.add(target)
        yield Restriction(uuid.uuid4().hex, measure, target, reason, ACTOR, parts.clock.now(), whom=whom)


def _is_settled(parts: Parts, reading: HealthReading, reason: str, ended: Sequence[Restriction]) -> bool:
    """Return whether an administrator ended a restriction for this fault, and the GPU had no error since.

    ``ended`` are the earlier restrictions of the GPU, or of its node.
    """
    ended_at = max((one.lifted_at or one.until or one.since for one in ended), default=None)
    if ended_at is None:
        return False
    since, xid = parts.gpu_health.health_since(reading.uuid, ended_at), reading.health.xid
    if not find_fault(reading.health, since):
        return True  # its memory errors are older
    was_well = any(one.xid not in {None, xid} for one in since)
    return not was_well and reason in {one.reason for one in ended}
