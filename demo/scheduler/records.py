"""The records of the reference scheduler: claims, training jobs, settings and refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from demo.scheduler.inventory import Gpu

Document = dict[str, Any]
RANKS = {"wait": 0, "hold": 1, "running": 2}
NOT_FIXED = ("revision", "want", "ttl_seconds", "holds", "ends_at")
"""Fields that may change within a revision."""


class Refused(Exception):
    """An answer other than 200: its status, a code for programs, and a sentence."""

    def __init__(self, status: int, error: str, words: str) -> None:
        super().__init__(words)
        self.status, self.error, self.words = status, error, words


@dataclass(frozen=True)
class Settings:
    """Times in seconds. ``settle``: the time after its start in which it learns what runs, before it grants."""

    notice_seconds: float = 120
    hold_seconds: float = 60
    settle_seconds: float = 5
    longest_seconds: float = 86_400
    gone_seconds: float = 900
    """How long it is remembered what was released."""
    most_claims: int = 20_000
    training_every_seconds: float = 0
    """How often a training job comes by itself; 0 for never."""
    training_lasts_seconds: float = 90


@dataclass
class Grant:
    """The GPUs of a claim: ``slots`` in the contract's format, ``gpus`` those in the inventory."""

    kind: str | None
    cluster: str
    slots: list[Document]
    gpus: frozenset[str]
    expires_at: float | None
    latest_end: float | None


@dataclass
class Preemption:
    """The notice to a claim: for which training job, or None where its GPUs are another's."""

    deadline: float
    words: str
    job: str | None
    acknowledged: bool = False


@dataclass
class Place:
    """Where a waiting claim stands, from 1, and when it starts, in seconds; None for not known."""

    number: int
    of: int
    training_before: int
    earliest: float | None
    latest: float | None
    beyond_quota: str = ""


@dataclass
class Claim:
    """The claim of a hub for one workspace, with its grant."""

    hub: str
    id: str
    asked: Document
    grant: Grant | None = None
    preemption: Preemption | None = None
    refused: Document | None = None
    place: Place | None = None
    told: Document = field(default_factory=dict)
    """Its state as it was last recorded, and its number among all changes."""
    changed: int = 0

    @property
    def revision(self) -> int:
        """The newest that was asked."""
        return int(self.asked["revision"])

    @property
    def waits(self) -> bool:
        """Whether it waits in the queue."""
        return self.grant is None and self.refused is None

    @property
    def is_taken(self) -> bool:
        """Whether it holds what it was granted."""
        return self.grant is not None and self.grant.expires_at is None

    @property
    def count(self) -> int:
        """How many GPUs it asks for."""
        return int(self.asked["count"])

    @property
    def fixed(self) -> Document:
        """Fields that are fixed within a revision."""
        return {name: value for name, value in self.asked.items() if name not in NOT_FIXED}


@dataclass
class Job:
    """Training: it runs for ``lasts_seconds`` and goes before workspaces of less priority, which have 0."""

    id: str
    kind: str
    count: int
    priority: int
    lasts_seconds: float
    asked_at: float
    gpus: list[Gpu] = field(default_factory=list)
    ends_at: float | None = None


@dataclass
class Gone:
    """A claim that was released: kept for who asks what changed, and against late repeats."""

    told: Document
    changed: int
    at: float
    by_client: bool


@lru_cache(50_000)
def to_time(text: str) -> float:
    """Return seconds since the epoch.

    Raises:
        Refused: there is no such day or hour.
    """
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    try:
        whole = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise Refused(400, "bad_request", f"{text} is no day and hour.") from None
    return whole + float(f"0.{fraction or 0}")


def from_time(at: float | None) -> str | None:
    """Return a time as the contract has it; None for None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def reason(code: str, words: str) -> Document:
    """Return the contract's reason."""
    return {"code": code, "words": words}


def many(number: int, thing: str) -> str:
    """Return "1 workspace", "2 workspaces"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
