"""The scheduler's answers in the contract's format. Unknown fields are ignored, because a later 1.x may add some."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

from gpuspawner.core.leases.reports import sanitize_text


def write_timestamp(at: float) -> str:
    """Return a time, in seconds since the epoch, in the contract's format."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


YEARS = range(2000, 2100)
"""Valid years. Some languages write an unset time as year 1."""


def _in_years(at: datetime) -> datetime:
    if at.year not in YEARS:
        raise ValueError(f"a time is between {YEARS[0]} and {YEARS[-1]}, or null")
    return at


PlainText = Annotated[str, AfterValidator(sanitize_text)]
"""Text for people."""
Timestamp = Annotated[
    AwareDatetime, AfterValidator(_in_years), PlainSerializer(lambda at: write_timestamp(at.timestamp()))
]


MOST = 10**9
"""The highest number of an answer. Arbitrary: pages can show it."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Position = Annotated[int, Field(ge=1, le=MOST)]
Amount = Annotated[float, Field(ge=0, le=MOST)]
ClusterName = Annotated[PlainText, Field(max_length=100)]


class ContractModel(BaseModel):
    """Base of all answers. Numbers are finite."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Capabilities(ContractModel):
    """Name, version and abilities of the scheduler."""

    contract: str
    name: PlainText = Field(min_length=1, max_length=60)
    version: str = Field(max_length=60)
    positions: bool
    estimates: bool
    substitutes: bool
    preemption_notice_seconds: Amount | None
    hold_seconds: Amount
    callbacks: bool


class Stock(ContractModel):
    """The GPUs of a kind in a cluster. None means unknown."""

    kind: str
    cluster: ClusterName
    total: Count | None
    free: Count | None
    waiting: Count | None
    as_of: Timestamp


class StockList(ContractModel):
    """The GPUs of all kinds."""

    stock: list[Stock]


class Reason(ContractModel):
    """Why a claim waits or was refused, in the scheduler's words."""

    code: PlainText = Field(max_length=100)
    words: PlainText = Field(max_length=2000)


class Offer(ContractModel):
    """GPUs that a claim would get."""

    kind: str | None
    count: Count
    cluster: ClusterName
    cost_per_hour: Amount | None
    earliest_start: Timestamp | None
    latest_start: Timestamp | None
    notice_seconds: Amount | None
    position: Position | None
    reason: Reason | None


class Offers(ContractModel):
    """Offers, the best first. Empty if the claim would be refused."""

    offers: list[Offer]
    refused: Reason | None


class Slot(ContractModel):
    """GPUs of a node, by name or number."""

    node: str
    gpus: list[str] | None
    count: int = Field(ge=1, le=64)


class Patch(BaseModel):
    """Additional fields of the pod. Other fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict, alias="nodeSelector")
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    scheduler_name: str = Field(default="", alias="schedulerName")
    priority_class_name: str = Field(default="", alias="priorityClassName")
    runtime_class_name: str = Field(default="", alias="runtimeClassName")


class Grant(ContractModel):
    """The GPUs of a claim."""

    kind: str | None
    cluster: ClusterName
    slots: list[Slot]
    expires_at: Timestamp | None
    latest_end: Timestamp | None
    patch: Patch | None


class Preemption(ContractModel):
    """A workspace must end by the deadline."""

    deadline: Timestamp
    words: PlainText = Field(max_length=2000)
    acknowledged: bool


class ClaimPhase(str, Enum):
    """The phase of a claim."""

    WAITING = "waiting"
    GRANTED = "granted"
    RUNNING = "running"
    PREEMPTING = "preempting"
    REFUSED = "refused"
    RELEASED = "released"


class State(ContractModel):
    """The state of a claim at a revision."""

    id: str
    revision: Annotated[int, Field(ge=1, le=2**53 - 1)]
    state: ClaimPhase
    position: Position | None
    of: Position | None
    earliest_start: Timestamp | None
    latest_start: Timestamp | None
    reason: Reason | None
    as_of: Timestamp
    grant: Grant | None
    preemption: Preemption | None


class Claims(ContractModel):
    """States of claims: all of the hub's if ``complete``, else the changed ones."""

    cursor: str
    complete: bool
    claims: list[State]


class Problem(ContractModel):
    """Why a request was refused."""

    error: str = Field(max_length=100)
    words: PlainText = Field(max_length=2000)
