"""The options of a start. The catalog decides what each value means and which values are allowed, also their types."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, SkipValidation

from gpuspawner.service.api.rest.models import Body


class StartBody(Body):
    """Options of a start. Missing options are those of the template. A template may have options of its own."""

    model_config = ConfigDict(extra="allow")

    server: str = ""
    """The name of the workspace, "" for the default one."""
    template: SkipValidation[str | None] = None
    gpu: SkipValidation[str | None] = None
    """A kind of GPU as the catalog calls it, or ``none``."""
    count: SkipValidation[int | str | None] = None
    """How many GPUs."""
    cpu: SkipValidation[float | str | None] = None
    """Cores, for example ``4`` or ``0.5``."""
    memory: SkipValidation[int | str | None] = None
    """A size, for example ``64``, ``64 GB`` or ``64GiB``. A JSON number is bytes."""
    lifetime: SkipValidation[str | None] = None
    """A run time, for example ``90`` (minutes), ``1h30`` or ``3 days``."""
    team: SkipValidation[str | None] = None
    """The team that is charged."""
    substitutes: SkipValidation[list[str] | str | None] = None
    """Kinds of GPU that may be given instead: a list, or a text with commas."""
    gpu_memory: SkipValidation[int | str | None] = None
    """The least GPU memory of a substitute, written as ``memory``."""
    repository: SkipValidation[str | None] = None
    """The repository that is cloned into the home: an address of https or ssh, without a password."""
    own_image: SkipValidation[str | None] = None
    """An image of one's own, where the template takes any."""
    tools: SkipValidation[list[str] | str | None] = None
    """Tools of the template: a list of their names, or a text with commas."""

    variables: SkipValidation[str | None] = None
    """Variables for the workspace: one ``NAME=value`` in a line. Secrets do not belong here."""
    script: SkipValidation[str | None] = None
    """A script that runs when the workspace has started."""

    def options(self) -> dict[str, Any]:
        """Return the options that were sent, with the name of the workspace as ``server``."""
        return {name: getattr(self, name) for name in self.model_fields_set}
