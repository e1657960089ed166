"""What a workspace tells of its image."""

from __future__ import annotations

from gpuspawner.service.api.rest.models import Answer, Body


class LackingBody(Body):
    """What does not work: ``monitor``, or what can't be opened, as ``opens`` of a template calls it."""

    lacks: list[str]


class Lacking(Answer):
    """What was kept."""

    lacks: list[str]
