"""What a workspace's custom resource asks for: the options of a start, and whose it is.

What each option means, and whether it may be, :mod:`gpuspawner.catalog.requests.resolve` says.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.entry import Entry
from gpuspawner.catalog.parsers import (
    LONGEST_IMAGE,
    TextOf,
    WholeNumber,
    parse_asked_kind,
    parse_asked_kinds,
    parse_group,
    parse_kinds,
    parse_name,
)

LONGEST_SERVER = 255
"""Of a workspace's name, as JupyterHub 5 has it: each server of the hub has a request. Asking bounds it closer."""
Text = Annotated[str | None, BeforeValidator(TextOf(LONGEST_IMAGE))]
Written = Annotated[Any, BeforeValidator(lambda value: value)]
"""A size or a time as people write it."""


class ReadyEntry(Entry):
    """When a workspace is to be ready, in the catalog's time zone."""

    time: Annotated[str, BeforeValidator(TextOf(5))]
    """The time of day, such as "8:00"."""
    days: Annotated[str, BeforeValidator(TextOf(100))] = "weekdays"
    """Days of the week: weekdays, weekend, daily, or some such as "mon, wed". Default: weekdays."""


class RequestEntry(Entry):
    """The workspace that is asked for. What is left out is as the template has it."""

    user: Annotated[str, BeforeValidator(parse_group)]
    """Whose it is, as the hub calls them. It must be written."""
    server: Annotated[str, BeforeValidator(TextOf(LONGEST_SERVER))] = ""
    """The name of the workspace. Default: empty, the one without a name."""
    template: Annotated[str | None, BeforeValidator(parse_name)] = None
    """What it is. Default: the catalog's first."""
    gpu: Annotated[str | None, BeforeValidator(parse_asked_kind)] = None
    """A kind of GPU as the catalog calls it, of another cluster KIND@CLUSTER, or `any`, or `none`."""
    count: Annotated[int | None, BeforeValidator(WholeNumber(0, 1024))] = None
    """How many GPUs."""
    cpu: Written = None
    """Cores, such as 4 or "0.5"."""
    memory: Written = None
    """As people write it, such as 64GiB."""
    lifetime: Written = None
    """How long it lives, such as 8h. Raised while it runs it extends the workspace, by the same rules as everywhere."""
    team: Annotated[str | None, BeforeValidator(parse_group)] = None
    """Which team is charged."""
    substitutes: Annotated[list[str] | None, BeforeValidator(parse_asked_kinds)] = Field(default=None)
    """Kinds of GPU that may be given instead, the dearest to the user first."""
    gpu_memory: Written = None
    """What a substitute must have at least, such as 40GiB."""
    repository: Text = None
    """What is cloned into the home: an address of https or ssh, without a password."""
    own_image: Text = None
    """An image of one's own, where the template takes any."""
    tools: Annotated[list[str] | None, BeforeValidator(parse_kinds)] = None
    """Tools of the template to tick."""
    ready_at: ReadyEntry | None = None
    """Days and a time at which it is to be ready: it is asked for early enough on each, and not before. The request
    stays when its workspace has ended."""
