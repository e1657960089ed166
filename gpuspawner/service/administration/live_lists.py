"""Workspaces and the queue as rows of the console: what every list, CSV and JSON of them holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import idle_policy_of
from gpuspawner.service.waiting.presenter import gpus_asked
from gpuspawner.service.web.lists import Column, Filter, Table
from gpuspawner.service.workspaces.idleness import exemption_words
from gpuspawner.service.workspaces.presenter import is_simulated, standing_view

PHASES = tuple((phase.value, phase.value) for phase in Phase if phase is not Phase.ENDED and phase not in WAITING)
USES = (
    ("at work", "at work"),
    ("idle", "idle"),
    ("warned", "warned"),
    ("kept", "kept by its user"),
    ("exempt", "exempt by an administrator"),
    ("not known", "not known"),
    ("not judged", "not judged"),
)
DEFAULT_NAME = "default workspace"

WORKSPACES = Table(
    "workspaces",
    (
        Column("user", "User", "link"),
        Column("workspace", "Workspace"),
        Column("team", "Team"),
        Column("phase", "Phase"),
        Column("use", "Use"),
        Column("gpus", "GPUs", "number"),
        Column("kind", "Kind"),
        Column("node", "Node"),
        Column("idle_seconds", "Idle", "seconds"),
        Column("idle_gpu_hours", "Idle GPU h", "hours"),
        Column("running_seconds", "Runs for", "seconds"),
        Column("ends_at", "Ends", "time"),
        Column("template", "Template"),
        Column("because", "Measured", "words"),
    ),
    (
        Filter("find", "User, workspace, node", within=("user", "workspace", "node", "template")),
        Filter("team", "Team", within=("team",)),
        Filter("kind", "Kind", within=("kind",)),
        Filter("phase", "Phase", PHASES),
        Filter("use", "Use", USES),
    ),
    sort="-idle_gpu_hours",
)

QUEUE = Table(
    "queue",
    (
        Column("place", "Place", "number"),
        Column("user", "User", "link"),
        Column("workspace", "Workspace"),
        Column("team", "Team"),
        Column("asked", "Asks for"),
        Column("waited_seconds", "Waited", "seconds"),
        Column("likely_seconds", "Likely in", "seconds"),
        Column("unchanged_seconds", "If nothing changes, in", "seconds"),
        Column("held_back_by", "Held back by"),
        Column("why", "Why it waits, as its user reads it", "words"),
    ),
    (
        Filter("find", "User, workspace", within=("user", "workspace")),
        Filter("team", "Team", within=("team",)),
        Filter("asked", "Asks for", within=("asked",)),
        Filter("held", "Held back by a rule", (("yes", "yes"), ("no", "no"))),
    ),
    sort="place",
)


def workspace_rows(parts: Parts, leases: Iterable[Lease]) -> list[dict[str, Any]]:
    """Return a row for each lease that holds GPUs, or runs without one."""
    now = parts.clock.now()
    return [_workspace(parts, lease, now) for lease in leases if lease.phase not in WAITING]


def _workspace(parts: Parts, lease: Lease, now: float) -> dict[str, Any]:
    catalog, request = parts.catalog, lease.request
    kind, template = catalog.gpus.get(lease.kind or ""), catalog.templates.get(request.template)
    idle_seconds = lease.streak.idle_seconds if lease.phase in UP else None
    shares = float(sum(slot.share for slot in lease.slots))
    return {
        "id": lease.id,
        "page": f"{parts.prefix}workspaces/{lease.id}",
        "user": lease.user,
        "workspace": lease.key.server or DEFAULT_NAME,
        "team": team_title(catalog, request.team) or "",
        "phase": lease.phase.value,
        "use": _use(parts, lease, now),
        "gpus": len(lease.slots),
        "kind": kind.title if kind else lease.kind or "no GPU",
        "node": next(filter(None, (parts.scheduler.fleet.node_of(slot.gpu) for slot in lease.slots)), ""),
        "idle_seconds": idle_seconds,
        "idle_gpu_hours": None if idle_seconds is None else idle_seconds * shares / 3600,
        "running_seconds": None if lease.running_at is None else now - lease.running_at,
        "ends_at": lease.deadline_at if lease.notice is None else lease.notice.at,
        "template": template.title if template else request.template or "not known",
        "because": _because(parts, lease, now),
    }


def _because(parts: Parts, lease: Lease, now: float) -> str:
    if lease.phase not in UP:
        return lease.message
    one = parts.restrictions.exemption_of(lease)
    return lease.streak.because if one is None else f"{exemption_words(one, now)}; {lease.streak.because}".rstrip("; ")


def _use(parts: Parts, lease: Lease, now: float) -> str:
    if lease.phase not in UP or idle_policy_of(parts.catalog, lease, now) is None:
        return "not judged"
    if lease.kept_until is not None and lease.kept_until > now:
        return "kept"
    if parts.restrictions.exemption_of(lease) is not None:
        return "exempt"
    if lease.phase is Phase.RECLAIMING:
        return "warned"
    kind = lease.streak.kind
    if lease.streak.idle_seconds or kind is SampleKind.IDLE:  # of what nobody came to yet, no idle time counts
        return "idle"
    return "not known" if kind is None or kind is SampleKind.UNKNOWN else "at work"


def queue_rows(parts: Parts, leases: Iterable[Lease]) -> list[dict[str, Any]]:
    """Return a row for each lease that waits, in the order in which they asked."""
    line = sorted((lease for lease in leases if lease.phase in WAITING), key=lambda x: (x.asked_at, x.id))
    return [_waiting(parts, lease) for lease in line]


def _waiting(parts: Parts, lease: Lease) -> dict[str, Any]:
    told, now = standing_view(parts, lease) or {}, parts.clock.now()
    held = told["held_back"]
    words = [told["sentence"], *([held["words"]] if held and held["words"] not in told["sentence"] else ())]
    return {
        "id": lease.id,
        "page": f"{parts.prefix}workspaces/{lease.id}",
        "place": told["place"],
        "user": lease.user,
        "workspace": lease.key.server or DEFAULT_NAME,
        "team": team_title(parts.catalog, lease.request.team) or "",
        "asked": gpus_asked(lease.request, parts.catalog, simulated=is_simulated(parts, lease)),
        "waited_seconds": now - lease.asked_at,
        "likely_seconds": told["likely_seconds"],
        "unchanged_seconds": told["unchanged_seconds"],
        "held_back_by": held["rule"] if held else "",
        "held": "yes" if held else "no",
        "why": " ".join(words),
    }


REASONS = tuple((reason.value, EXIT_KINDS[reason].words) for reason in ExitReason)

ENDED = Table(
    "ended",
    (
        Column("ended_at", "Ended", "time"),
        Column("user", "User", "link"),
        Column("workspace", "Workspace"),
        Column("team", "Team"),
        Column("reason", "Why"),
        Column("by", "By"),
        Column("gpus", "GPUs", "number"),
        Column("kind", "Kind"),
        Column("gpu_hours", "GPU h", "hours"),
        Column("ran_seconds", "Ran for", "seconds"),
        Column("message", "Told", "words"),
    ),
    (Filter("user", "User begins with"), Filter("reason", "Why", REASONS)),
    sort="-ended_at",
    sorted_by=("ended_at", "user", "reason"),
)


def ended_rows(parts: Parts, leases: Iterable[Lease]) -> list[dict[str, Any]]:
    """Return a row for each lease that ended."""
    return [_ended(parts, lease) for lease in leases]


def _ended(parts: Parts, lease: Lease) -> dict[str, Any]:
    kind, reason = parts.catalog.gpus.get(lease.kind or ""), lease.reason
    ran = None if lease.running_at is None or lease.ended_at is None else max(0.0, lease.ended_at - lease.running_at)
    shares = float(sum(slot.share for slot in lease.slots))
    return {
        "id": lease.id,
        "page": f"{parts.prefix}workspaces/{lease.id}",
        "ended_at": lease.ended_at,
        "user": lease.user,
        "workspace": lease.key.server or DEFAULT_NAME,
        "team": team_title(parts.catalog, lease.request.team) or "",
        "reason": reason.value if reason else "",
        "by": lease.ended_by,
        "gpus": len(lease.slots),
        "kind": kind.title if kind else lease.kind or "no GPU",
        "gpu_hours": None if ran is None else ran * shares / 3600,
        "ran_seconds": ran,
        "message": lease.message,
    }
