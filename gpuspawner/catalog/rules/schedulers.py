"""The catalog's schema of who owns the queue, where that is not gpuspawner."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.entry import Entry, ObjectName, PositiveDuration, Section
from gpuspawner.catalog.parsers import parse_http_url, parse_path
from gpuspawner.catalog.rules.models import Group


class HttpSchedulerEntry(Entry):
    """A batch scheduler that speaks the contract of docs/scheduler.openapi.yaml."""

    url: Annotated[str | None, BeforeValidator(parse_http_url)] = None
    """Its address: what stands before /v1."""
    token_file: Annotated[str | None, BeforeValidator(parse_path)] = None
    """A file with the token that it asks for. Default: it asks for none."""
    timeout: PositiveDuration = None
    """How long an answer may take. Default: 5s."""
    callback: Annotated[str | None, BeforeValidator(parse_http_url)] = None
    """Where it reaches the GPU service, to tell by itself what changed: what stands before the hub's base_url. It signs
    with the token. Default: it is asked, and holds its answer until something changes."""


class KueueEntry(Entry):
    """Kueue of the cluster, 0.19 or newer."""

    queue: ObjectName | None = None
    """The LocalQueue of all who are in none of those below."""
    teams: Annotated[dict[Group, ObjectName], Section] = Field(default_factory=dict)
    """The LocalQueue of who asks for a team."""
    users: Annotated[dict[Group, ObjectName], Section] = Field(default_factory=dict)
    """The LocalQueue of a user, where the team has none."""
    namespace: ObjectName | None = None
    """Where the LocalQueues are. Default: where workspaces are."""
    priority_class: ObjectName | None = None
    """The WorkloadPriorityClass of all workspaces. Default: none; the priority of the template counts."""


class PodQueuesEntry(Entry):
    """A scheduler of the cluster in whose queues pods wait."""

    queue: ObjectName | None = None
    """The queue of all who are in none of those below. Default: the one that it has for pods that name none."""
    teams: Annotated[dict[Group, ObjectName], Section] = Field(default_factory=dict)
    """The queue of who asks for a team."""
    users: Annotated[dict[Group, ObjectName], Section] = Field(default_factory=dict)
    """The queue of a user, where the team has none."""
    priority_class: ObjectName | None = None
    """The PriorityClass of all who ask for none of the teams below. Default: none."""
    priority_classes: Annotated[dict[Group, ObjectName], Section] = Field(default_factory=dict)
    """The PriorityClass of who asks for a team."""
    wait: PositiveDuration = None
    """How long a pod waits there at most, before it is made anew, behind who came meanwhile. Default: 30m."""


class SchedulerEntry(Entry):
    """Who owns the queue, where that is not gpuspawner: one of these."""

    http: Annotated[HttpSchedulerEntry, Section] = HttpSchedulerEntry()
    """A batch scheduler that decides who gets which GPUs, and when."""
    kueue: Annotated[KueueEntry, Section] = KueueEntry()
    """Kueue decides, by its queues on the cluster."""
    volcano: Annotated[PodQueuesEntry, Section] = PodQueuesEntry()
    """Volcano decides, 1.15 or newer: the pod waits in a queue of its own."""
    kai: Annotated[PodQueuesEntry, Section] = PodQueuesEntry()
    """The KAI scheduler decides: the pod waits in a queue of its own."""
