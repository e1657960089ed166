"""What is stored as a row, and leases as the documents that they are stored as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.core.leases.events import Event
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.stored_events import fields_of

_lease_json: TypeAdapter[Lease] = TypeAdapter(Lease)


@dataclass(frozen=True)
class ReadingRow:
    """One reading of one GPU as stored. ``seconds`` is the time it covers; ``kept`` rows are behind a stop.

    ``utilization_percent`` is the highest that was read. ``shared``, ``holders``, ``holders_cpu_cores``,
    ``buffer_percent`` and ``persistence`` are as in core.readings; ``cpu_cores`` is the whole workspace's.
    The same holds for ``encoder_percent``, ``decoder_percent``, ``possible_holders``, ``possible_cpu_cores``,
    ``ended_cpu_cores`` and ``seen_seconds``. ``sources`` are the readings of the workspace's monitor and of DCGM
    exporter. ``soft`` is the soft evidence, null where none was read: ``active`` and ``words`` of each that was active
    (true) or unknown (null), as in core.readings. The rest was quiet. ``gpu`` is "" where the workspace has none.
    """

    lease: str
    at: float
    seconds: float
    gpu: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    kind: str
    because: str
    kept: bool = False
    shared: bool = False
    holders: int | None = None
    holders_cpu_cores: float | None = None
    cpu_cores: float | None = None
    soft: dict[str, dict[str, Any]] | None = None
    buffer_percent: float | None = None
    persistence: bool | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None
    possible_holders: int = 0
    possible_cpu_cores: float | None = None
    seen_seconds: float = 0.0
    ended_cpu_cores: float | None = None
    sources: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class AuditLine:
    """Who or what did what to a lease, when and why.

    ``where`` says from where, in words, where a person did it: ``its page``, ``the API``. ``target`` is what it was
    done to where that is no lease: a node, a GPU, a kind.
    """

    at: float
    lease: str
    user: str
    actor: str
    event: Event
    where: str = ""
    target: str = ""


def lease_of(document: Any) -> Lease:
    """Return a stored lease.

    Raises:
        Unavailable: it cannot be read. Whoever served without it would give its GPUs to somebody else.
    """
    try:
        return _lease_json.validate_python(document)
    except ValidationError as error:
        name = document.get("id") if isinstance(document, dict) else document
        where = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise Unavailable(
            f"The store holds the lease {quoted(name)}, whose {where} this version can't read. Was it written by a "
            "newer one? Nothing is served before it can be read."
        ) from error


def row_of_line(line: AuditLine) -> dict[str, object]:
    """Return the row of an audit line."""
    return {
        "at": line.at,
        "lease": line.lease,
        "user": line.user,
        "actor": line.actor,
        "action": line.event.name,
        "why": line.event.why,
        "fields": fields_of(line.event),
        "via": line.where,
        "target": line.target,
    }


def row_of_lease(lease: Lease) -> dict[str, object]:
    """Return the row of a lease: the whole document, and beside it what is searched for."""
    return {
        "id": lease.id,
        "hub": lease.key.hub,
        "user_created": lease.key.user_created,
        "server": lease.key.server,
        "user": lease.user,
        "phase": lease.phase.value,
        "asked_at": lease.asked_at,
        "ended_at": lease.ended_at,
        "document": _lease_json.dump_python(lease, mode="json"),
        "disputed_at": lease.dispute.at if lease.dispute and lease.dispute.answered_at is None else None,
        "reason": lease.reason.value if lease.reason else "",
    }
