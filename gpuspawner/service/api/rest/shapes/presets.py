"""A user's own choices of the form."""

from __future__ import annotations

from typing import Any

from gpuspawner.service.api.rest.models import Answer, Body


class PresetBody(Body):
    """What is to be saved."""

    name: str
    """As its user says it, such as ``my 4 x A100 for nightly``."""
    options: dict[str, Any]
    """What the form has chosen, by the names of the form."""


class Preset(Answer):
    """Choices by a name of their own."""

    name: str
    options: dict[str, Any]
    saved_at: float


class PresetList(Answer):
    """One's own presets by name, and how many there may be."""

    presets: list[Preset]
    most: int


class NameBody(Body):
    """A new name."""

    name: str


class Named(Answer):
    """The name of a preset."""

    name: str
