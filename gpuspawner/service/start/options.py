"""What a start may ask for. What each value means, and whether it may be, the catalog says: it reads them."""

from __future__ import annotations

from pydantic import ConfigDict

from gpuspawner.service.api.rest.models import Body


class StartBody(Body):
    """Options of a start. What is left out is as the template has it; a template may have options of its own."""

    model_config = ConfigDict(extra="allow")

    server: str = ""
    """The name of the workspace; empty for the one without."""
    template: str | None = None
    gpu: str | None = None
    """A kind of GPU as the catalog calls it, or ``none``."""
    count: int | str | None = None
    """How many GPUs."""
    cpu: float | str | None = None
    """Cores, such as ``4`` or ``0.5``."""
    memory: int | str | None = None
    """As people write it, such as ``64``, ``64 GB`` or ``64GiB``; a number of JSON is bytes."""
    lifetime: str | None = None
    """As people write it, such as ``90`` (minutes), ``1h30`` or ``3 days``."""
    team: str | None = None
    """Which team is charged."""
    substitutes: list[str] | str | None = None
    """Kinds of GPU that may be given instead: a list, or a text with commas."""
    gpu_memory: int | str | None = None
    """What a substitute must have at least, as ``memory``."""
    repository: str | None = None
    """What is cloned into the home: an address of https or ssh, without a password."""
    own_image: str | None = None
    """An image of one's own, where the template takes any."""
    tools: list[str] | str | None = None
    """Tools of the template to tick: a list of their names, or a text with commas."""
