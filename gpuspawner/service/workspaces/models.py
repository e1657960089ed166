"""Models of workspaces: what the API returns, and what pages, lists and the command line show."""

from __future__ import annotations

from typing import Any, Literal

from gpuspawner.service.announcements.models import Shown
from gpuspawner.service.api.rest.models import Answer
from gpuspawner.service.waiting.models import Standing


class Substitute(Answer):
    """A kind of GPU that the request accepts, or could accept, instead."""

    kind: str
    title: str
    words: str
    """Its difference: the price, and how much sooner it starts."""
    consented: bool


class Asked(Answer):
    """The request of a workspace."""

    template: str
    template_title: str
    """The title of the template, its name if the catalog no longer has it."""
    icon: str
    """The picture of the template."""
    words: str
    """Its GPUs, for example ``2 A100 80 GB`` or ``no GPU``."""
    gpu: str | None
    substitutes: list[Substitute]
    team: str | None
    team_title: str | None
    count: int
    cpu_cores: float | None
    memory_bytes: int | None
    lifetime_seconds: float


class LatestEnd(Answer):
    """A limit on its end that no extension passes."""

    at: float
    rule: str
    entry: str | None
    words: str
    sentence: str


class GpuHealth(Answer):
    """The values that the driver reports about a GPU. An unknown value is null."""

    celsius: float | None
    watts: float | None
    limit_watts: float | None
    clock_mhz: float | None
    corrected_errors: int | None
    uncorrected_errors: int | None
    xid: int | None
    """The code of the last error, 0 without one."""
    fault: str
    """The error for which administrators take the GPU out of service, or ""."""


class Gpu(Answer):
    """One of its GPUs, with the newest reading."""

    index: int
    id: str
    uuid: str | None
    """Its UUID, or that of the whole GPU if it is a part. Null if the cluster does not tell it."""
    name: str
    model: str
    node: str
    """The node that it is on, "" for this machine or if it is not known."""
    share: str
    """The share of the GPU, for example ``1`` or ``1/2``."""
    simulated: bool
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    state: str
    problem: str
    health: GpuHealth | None
    """Null if nothing reads the health of this GPU."""


class PolicyNow(Answer):
    """The policy in force, and until when the hours of the catalog leave it so."""

    name: str
    instead_of: str | None
    until: float | None
    words: str


class Unreadable(Answer):
    """A GPU that cannot be read, and for how long."""

    gpu: str
    seconds: float


class SoftEvidence(Answer):
    """Soft evidence that the policy counts, as last read. ``active`` is null if it is unknown."""

    evidence: str
    active: bool | None
    words: str


class Idle(Answer):
    """Its idleness now."""

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
    """The number of keeps that are left, and how long each lasts."""

    left: int
    each_seconds: float


class Extend(Answer):
    """The time by which its end can still move, in total and at the next extension."""

    left_seconds: float
    each_seconds: float
    why: str | None


class GoingOn(Answer):
    """A restart without a GPU, or with one again. ``why`` is the reason if it is not possible."""

    action: Literal["without-gpu", "with-gpu"]
    words: str
    """The effect of the restart in a sentence, "" if it is not possible."""
    why: str | None


class GoingOnNow(Answer):
    """A restart, and how long it would wait now."""

    going_on: GoingOn | None
    now: str


class SizeChange(Answer):
    """A change of size that waits while the workspace runs on."""

    size: str
    """For example ``2 H100 80 GB, 24 cores, 192 GiB memory``."""
    asked_at: float
    place: int | None
    """Its queue position, null if it is not known."""
    restarts_at: float | None
    """When the workspace restarts, because the new size is free and held for it. Null until then."""
    sentence: str


class SizeEffect(Answer):
    """One effect of a change of size. ``good`` is false for what a user should know before."""

    good: bool
    words: str
    more: str


class SizeOutlook(Answer):
    """The effect of a change of size now."""

    size: str
    starts_now: bool
    keeps_running: bool
    """Whether the workspace runs on until the new size is free."""
    sentence: str
    effects: list[SizeEffect]


class Warning(Answer):  # noqa: A001 - the word of pages and API
    """A warning to its user, and the actions that help."""

    kind: str
    text: str
    ends_at: float | None
    actions: list[str]


class Charged(Answer):
    """Its usage so far."""

    gpu_hours: float
    cost: float | None


class Dispute(Answer):
    """The report of its user that the end was wrong, and the answer."""

    at: float
    sentence: str
    since: float
    until: float
    answer: str
    answered_by: str
    answered_at: float | None


class End(Answer):
    """The end of a workspace."""

    reason: str
    words: str
    message: str
    why: str
    by: str
    at: float | None
    sentence: str
    """The end in a sentence for its user: ``We stopped it at 11:48 because its GPU was idle for 40 min.``"""
    details: str
    """Further sentences for its user, "" for none."""
    short: str
    """The same in a few words, for lists: ``Stopped: the GPU was idle for 40 min``."""
    seen: bool
    disputable: bool
    dispute: Dispute | None


class Arrival(Answer):
    """The time until which its user must open a workspace that started while they were away."""

    ends_at: float
    claim_seconds: float
    words: str


class PlannedEnd(Answer):
    """The time at which its user will be done. ``asked`` is whether to ask them, because others wait for such GPUs."""

    asked: bool
    at: float | None
    words: str


class Port(Answer):
    """A page that a program in the workspace may serve, by its template."""

    title: str
    port: int


class Workspace(Answer):
    """A workspace: while it waits, while it runs, and after its end."""

    id: str
    user: str
    server: str
    """The name of its server, "" for the default one."""
    name: str
    """The name for people: the title that its user gave it, else the name of its server."""
    phase: str
    state: str
    """Its state as pages show it: ``waiting``, ``starting``, ``active``, ``idle``, ``warned``, ``kept`` and so on."""
    words: str
    now: float
    fast: float | None
    """The factor by which this hub shortens times, null without one."""
    page: str
    request: Asked
    gpu: str | None
    """The kind of GPU that it has or waits for."""
    given: str | None
    """The kind that it got instead of the requested one."""
    opens: list[str]
    ports: list[Port]
    options: dict[str, Any]
    """The options of its start, as its user wrote them."""
    asked_at: float
    granted_at: float | None
    running_at: float | None
    ends_at: float | None
    latest_end: LatestEnd | None
    ends_words: str | None
    adopted: bool
    gpus: list[Gpu]
    cpu_cores_used: float | None
    """The CPU cores that it used at its newest reading."""
    host_memory_used_bytes: int | None
    """The host memory at its newest reading, without file caches."""
    kernels: list[str] | None
    """The names of its kernels at the last reading that had them, mostly of notebooks. Null if they are not known."""
    simulated: bool
    queue: Standing | None
    policy: PolicyNow
    arrival: Arrival | None
    planned_end: PlannedEnd | None
    """Null if no request waits for GPUs of this kind and the user gave no time."""
    idle: Idle | None
    keep: Keep
    extend: Extend
    warning: Warning | None
    going_on: GoingOn | None
    size_change: SizeChange | None
    charged: Charged | None
    end: End | None
    explained: list[str]


class WorkspaceList(Answer):
    """Workspaces: first those that have not ended, oldest first, then the ended ones, newest first."""

    workspaces: list[Workspace]
    next: str | None
    """The cursor of the next part, null after the last one."""


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
    host_memory_bytes: int | None
    """The host memory of the whole workspace, without file caches."""
    soft: dict[str, Any] | None


class ReadingList(Answer):
    """Readings, oldest first."""

    readings: list[Reading]
    next: str | None
    """The cursor of the next part, null after the last one."""


class AuditLine(Answer):
    """An audit entry. ``fields`` are the fields of its event."""

    at: float
    user: str
    actor: str
    action: str
    why: str
    fields: dict[str, Any] | None


class AuditList(Answer):
    """The audit entries of a workspace, newest first."""

    audit: list[AuditLine]


class Output(Answer):
    """The last output of a server. ``text`` is null if the reader may not see it."""

    there: bool
    text: str | None
    shared: bool


class Elsewhere(Answer):
    """Another workspace of the same user that started while they were away."""

    id: str
    text: str
    page: str
    ends_at: float


class OneWorkspace(Workspace):
    """A workspace, with its user's announcements and other new workspaces."""

    messages: list[Shown]
    """Unread announcements."""
    elsewhere: list[Elsewhere]
