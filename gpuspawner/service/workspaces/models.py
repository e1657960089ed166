"""Workspaces and what is told of one: its readings, its history, its output."""

from __future__ import annotations

from typing import Any, Literal

from gpuspawner.service.announcements.models import Shown
from gpuspawner.service.api.rest.models import Answer


class Substitute(Answer):
    """A kind of GPU that may be given instead of the one asked for."""

    kind: str
    title: str
    words: str
    """What it changes: its price, and how much sooner it comes."""
    consented: bool


class Asked(Answer):
    """What a workspace was asked for with."""

    template: str
    gpu: str | None
    substitutes: list[Substitute]
    team: str | None
    team_title: str | None
    count: int
    cpu_cores: float | None
    memory_bytes: int | None
    lifetime_seconds: float


class LatestEnd(Answer):
    """A bound on its end that no extension passes."""

    at: float
    rule: str
    entry: str | None
    words: str
    sentence: str


class Gpu(Answer):
    """A GPU that it has, and its newest reading."""

    index: int
    id: str
    uuid: str | None
    """Its UUID or, of a part of a GPU that a claim makes, that GPU's; null where the cluster does not tell."""
    name: str
    model: str
    share: str
    """How much of it, such as ``1`` or ``1/2``."""
    simulated: bool
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    state: str
    problem: str


class HeldBack(Answer):
    """The rule that holds a request back."""

    rule: str
    entry: str | None
    words: str
    since: float | None
    owner: str | None


class Standing(Answer):
    """Where it stands in the queue."""

    place: int | None
    """None where its scheduler does not tell."""
    of: int | None
    likely_seconds: float | None
    unchanged_seconds: float | None
    likely_start_at: float | None
    unchanged_start_at: float | None
    sentence: str
    why: str
    precedence: str
    """Which requests may still go first, and until when; "" where the queue is another's."""
    held_back: HeldBack | None
    changed: str | None
    impossible: str | None


class PolicyNow(Answer):
    """Which policy judges now, and until when the hours of the catalog leave it so."""

    name: str
    instead_of: str | None
    until: float | None
    words: str


class Unreadable(Answer):
    """A GPU that could not be read for so long."""

    gpu: str
    seconds: float


class SoftEvidence(Answer):
    """Soft evidence that the policy counts, as it was read last; ``active`` null is unknown."""

    evidence: str
    active: bool | None
    words: str


class Idle(Answer):
    """What is judged of its use now."""

    state: str
    mode: str
    idle_seconds: float
    for_seconds: float
    below_percent: float
    because: str
    words: str
    peak_percent: float | None
    known_share: float | None
    grace_ends_at: float | None
    kept_until: float | None
    unreadable: list[Unreadable]
    monitor: bool | None
    seen_by: list[str]
    soft_seconds: float
    soft_left_seconds: float
    also_counts: list[SoftEvidence]


class Keep(Answer):
    """How often Keep is left, and for how long each keeps it."""

    left: int
    each_seconds: float


class Extend(Answer):
    """By how much its end may be moved: in all, and by the next press."""

    left_seconds: float
    each_seconds: float
    why: str | None


class GoingOn(Answer):
    """Going on without a GPU, or with one again: ``action`` is how that is asked for, ``why`` why it can't be."""

    action: Literal["without-gpu", "with-gpu"]
    words: str
    """What it does, to be told before: kernels are lost; "" where it can't be."""
    why: str | None


class GoingOnNow(Answer):
    """The same, with what it would wait for now."""

    going_on: GoingOn | None
    now: str


class Warning(Answer):  # noqa: A001 - what it is called everywhere
    """What its user is to be told now, and what they can do."""

    kind: str
    text: str
    ends_at: float | None
    actions: list[str]


class Charged(Answer):
    """What it has used so far."""

    gpu_hours: float
    cost: float | None


class Dispute(Answer):
    """That its user called its end wrong, and what was answered."""

    at: float
    sentence: str
    since: float
    until: float
    answer: str
    answered_by: str
    answered_at: float | None


class End(Answer):
    """How it ended."""

    reason: str
    words: str
    message: str
    why: str
    by: str
    at: float | None
    seen: bool
    disputable: bool
    dispute: Dispute | None


class Arrival(Answer):
    """That it came while its user was away, and until when somebody must come to it."""

    ends_at: float
    claim_seconds: float
    words: str


class Workspace(Answer):
    """A workspace: while it waits, while it runs, and after its end."""

    id: str
    user: str
    server: str
    """Its server's name; empty for the one without."""
    phase: str
    words: str
    now: float
    fast: float | None
    """How many times shorter times are on this hub; null for as they are written."""
    page: str
    request: Asked
    gpu: str | None
    """The kind that it has, or waits for."""
    given: str | None
    """The kind that it was given instead of the one asked for."""
    opens: list[str]
    options: dict[str, Any]
    """What its user wrote."""
    asked_at: float
    granted_at: float | None
    running_at: float | None
    ends_at: float | None
    latest_end: LatestEnd | None
    ends_words: str | None
    adopted: bool
    gpus: list[Gpu]
    simulated: bool
    queue: Standing | None
    policy: PolicyNow
    arrival: Arrival | None
    idle: Idle | None
    keep: Keep
    extend: Extend
    warning: Warning | None
    going_on: GoingOn | None
    charged: Charged | None
    end: End | None
    explained: list[str]


class WorkspaceList(Answer):
    """Workspaces: those that live, the oldest first, then those that ended, the newest first."""

    workspaces: list[Workspace]
    next: str | None
    """The cursor of the next part; null where this was the last."""


class Reading(Answer):
    """One measurement of one GPU."""

    at: float
    seconds: float
    gpu: str
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    kind: str
    because: str
    cpu_cores: float | None
    soft: dict[str, Any] | None


class ReadingList(Answer):
    """Readings, the oldest first."""

    readings: list[Reading]
    next: str | None
    """The cursor of the next part; null where this was the last."""


class AuditLine(Answer):
    """Who did what, and why. ``fields`` are those of the event, by its name."""

    at: float
    user: str
    actor: str
    action: str
    why: str
    fields: dict[str, Any]


class AuditList(Answer):
    """What was done to a workspace, the newest first."""

    audit: list[AuditLine]


class Output(Answer):
    """What a server that failed wrote last: ``text`` is null where it is not for who asks."""

    there: bool
    text: str | None
    shared: bool


class Elsewhere(Answer):
    """Another workspace of the same user that came while they were away."""

    id: str
    text: str
    page: str
    ends_at: float


class OneWorkspace(Workspace):
    """A workspace, with what its user is told there."""

    messages: list[Shown]
    """Those that they have not read."""
    elsewhere: list[Elsewhere]
