"""The endpoint for a separate operator process. It proves itself as the spawner does."""

from __future__ import annotations

from pydantic import ValidationError
from tornado.web import Application, HTTPError

from gpuspawner.service.api.internal import SpawnerHandler
from gpuspawner.service.custom_resources.controller import Operator
from gpuspawner.service.custom_resources.relay import Relay, Seen
from gpuspawner.service.parts import Parts

PATH = "/internal/operator"


def add_operating(pages: Application, parts: Parts, relay: Relay, operator: Operator) -> None:
    """Add the endpoint to the service's application."""
    asked = {"parts": parts, "relay": relay, "operator": operator}
    pages.add_handlers(".*", [(parts.prefix.rstrip("/") + PATH, Operate, asked)])


class Operate(SpawnerHandler):
    """POST: the resources that the process sees."""

    def initialize(self, parts: Parts, relay: Relay, operator: Operator) -> None:  # type: ignore[override]
        """Keep the relay and the operator."""
        super().initialize(parts)
        self._relay, self._operator = relay, operator

    async def post(self) -> None:
        """Answer what to write. 409 if another process leads."""
        try:
            seen = Seen.model_validate_json(self.request.body)
        except ValidationError as error:
            raise HTTPError(400, reason="The operator is not understood: is its version the same?") from error
        self.answer({"writes": await self._relay.round(seen, self._operator)})
