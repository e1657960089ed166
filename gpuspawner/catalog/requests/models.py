"""The spec of a DevGPUVMRequest: its user and the options of a start.

:mod:`gpuspawner.catalog.requests.resolve` checks the options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from gpuspawner.core.fields import Reader, SchemaDefault, list_reader, section, text_reader, whole_number_reader
from gpuspawner.core.text_fields import (
    GROUP,
    LONGEST_IMAGE,
    NAME,
    REQUESTED_KIND,
    REQUESTED_KINDS,
    GroupName,
)

LONGEST_SERVER = 255
"""Characters in the name of a server: as many as JupyterHub 5 stores. A start allows fewer."""
_TEXT = text_reader(LONGEST_IMAGE)
_TOOLS = list_reader(NAME, "tools", "[nlp]")
_AS_WRITTEN = Reader(lambda value: value, "a size or a time")
"""A size or a time that the resolution of the request reads, as in a form."""


@dataclass(frozen=True)
class ScheduleSpec:
    """When a workspace is to be ready, in the catalog's time zone."""

    __pydantic_config__ = section()
    time: Annotated[str, text_reader(5)]
    """The time of day, such as "8:00"."""
    days: Annotated[str, text_reader(100), SchemaDefault] = "weekdays"
    """Days of the week: weekdays, weekend, daily, or some such as "mon, wed". Default: weekdays."""


@dataclass(frozen=True)
class RequestSpec:
    """The workspace that is asked for. What is left out is as the template has it."""

    __pydantic_config__ = section()
    user: GroupName
    """Whose it is, as the hub calls them. It must be written."""
    server: Annotated[str, text_reader(LONGEST_SERVER), SchemaDefault] = ""
    """The name of the workspace. Default: empty, the one without a name."""
    template: Annotated[str | None, NAME] = None
    """What it is. Default: the catalog's first."""
    gpu: Annotated[str | None, REQUESTED_KIND] = None
    """A kind of GPU as the catalog calls it, of another cluster KIND@CLUSTER, or `any`, or `none`."""
    count: Annotated[int | None, whole_number_reader(0, 1024)] = None
    """How many GPUs."""
    cpu: Annotated[Any, _AS_WRITTEN] = None
    """Cores, such as 4 or "0.5"."""
    memory: Annotated[Any, _AS_WRITTEN] = None
    """As people write it, such as 64GiB."""
    lifetime: Annotated[Any, _AS_WRITTEN] = None
    """How long it lives, such as 8h. Raised while it runs it extends the workspace, by the same rules as everywhere."""
    team: Annotated[str | None, GROUP] = None
    """Which team is charged."""
    substitutes: Annotated[tuple[str, ...] | None, REQUESTED_KINDS] = None
    """Kinds of GPU that may be given instead, the dearest to the user first."""
    gpu_memory: Annotated[Any, _AS_WRITTEN] = None
    """What a substitute must have at least, such as 40GiB."""
    repository: Annotated[str | None, _TEXT] = None
    """What is cloned into the home: an address of https or ssh, without a password."""
    own_image: Annotated[str | None, _TEXT] = None
    """An image of one's own, where the template takes any."""
    tools: Annotated[tuple[str, ...] | None, _TOOLS] = None
    """Tools of the template to tick."""
    ready_at: ScheduleSpec | None = None
    """Days and a time at which it is to be ready: it is asked for early enough on each, and not before. The request
    stays when its workspace has ended."""
