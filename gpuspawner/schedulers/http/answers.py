"""What the scheduler answers, as the contract has it. Unknown fields are ignored: a later 1.x may add some."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

from gpuspawner.core.text_fields import plain_text


def written(at: float) -> str:
    """Return a moment, in seconds since the epoch, as the contract writes it."""
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


YEARS = range(2000, 2100)
"""Of moments, as the contract writes them: a clock that says nothing says the year 1 in some languages."""


def _in_years(at: datetime) -> datetime:
    if at.year not in YEARS:
        raise ValueError(f"a moment is between {YEARS[0]} and {YEARS[-1]}, or null")
    return at


Words = Annotated[str, AfterValidator(plain_text)]
"""What people read."""
Time = Annotated[AwareDatetime, AfterValidator(_in_years), PlainSerializer(lambda at: written(at.timestamp()))]


class Told(BaseModel):
    """Something that the scheduler tells. Not a number, and infinite, is none of its numbers."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Capabilities(Told):
    """What it is and can do."""

    contract: str
    name: Words = Field(min_length=1, max_length=60)
    version: str = Field(max_length=60)
    positions: bool
    estimates: bool
    substitutes: bool
    preemption_notice_seconds: float | None
    hold_seconds: float
    callbacks: bool


class Stock(Told):
    """What there is of a kind in a cluster; None is not known."""

    kind: str
    cluster: str
    total: int | None
    free: int | None
    waiting: int | None
    as_of: Time


class StockList(Told):
    """All of it."""

    stock: list[Stock]


class Reason(Told):
    """Why something waits, or was refused, in its own words."""

    code: Words = Field(max_length=100)
    words: Words = Field(max_length=2000)


class Offer(Told):
    """What a claim would get."""

    kind: str | None
    count: int
    cluster: str
    cost_per_hour: float | None
    earliest_start: Time | None
    latest_start: Time | None
    notice_seconds: float | None
    position: int | None
    reason: Reason | None


class Offers(Told):
    """The best first; none where it would be refused."""

    offers: list[Offer]
    refused: Reason | None


class Slot(Told):
    """GPUs of a node, by name or by how many."""

    node: str
    gpus: list[str] | None
    count: int = Field(ge=1, le=64)


class Patch(BaseModel):
    """What the pod gets beside its GPUs. Anything else is refused: it is not the scheduler's to say."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict, alias="nodeSelector")
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    scheduler_name: str = Field(default="", alias="schedulerName")
    priority_class_name: str = Field(default="", alias="priorityClassName")
    runtime_class_name: str = Field(default="", alias="runtimeClassName")


class Grant(Told):
    """What is given."""

    kind: str | None
    cluster: str
    slots: list[Slot]
    expires_at: Time | None
    latest_end: Time | None
    patch: Patch | None


class Preemption(Told):
    """It must end by then."""

    deadline: Time
    words: Words = Field(max_length=2000)
    acknowledged: bool


class Stands(str, Enum):
    """Where a claim stands."""

    WAITING = "waiting"
    GRANTED = "granted"
    RUNNING = "running"
    PREEMPTING = "preempting"
    REFUSED = "refused"
    RELEASED = "released"


class State(Told):
    """What stands for a claim, at a revision."""

    id: str
    revision: int
    state: Stands
    position: int | None
    of: int | None
    earliest_start: Time | None
    latest_start: Time | None
    reason: Reason | None
    as_of: Time
    grant: Grant | None
    preemption: Preemption | None


class Claims(Told):
    """States of claims: all of the hub's where that is ``complete``, else those that changed."""

    cursor: str
    complete: bool
    claims: list[State]


class Error(Told):
    """Why it refused a request."""

    error: str = Field(max_length=100)
    words: Words = Field(max_length=2000)
