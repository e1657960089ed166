"""What an operator that is a process of its own asks. It proves itself as the spawner does."""

from __future__ import annotations

from pydantic import ValidationError
from tornado.web import Application, HTTPError

from gpuspawner.service.api.internal import SpawnerHandler
from gpuspawner.service.custom_resources.controller import Operator
from gpuspawner.service.custom_resources.relay import Relay, Seen
from gpuspawner.service.parts import Parts

PATH = "/internal/operator"


def add_operating(pages: Application, parts: Parts, relay: Relay, operator: Operator) -> None:
    """Have a service's application answer it."""
    asked = {"parts": parts, "relay": relay, "operator": operator}
    pages.add_handlers(".*", [(parts.prefix.rstrip("/") + PATH, Operate, asked)])


class Operate(SpawnerHandler):
    """POST: what it sees of its cluster."""

    def initialize(self, parts: Parts, relay: Relay, operator: Operator) -> None:  # type: ignore[override]
        """Keep who decides."""
        super().initialize(parts)
        self._relay, self._operator = relay, operator

    async def post(self) -> None:
        """Answer what it is to write there. 409 where another one leads."""
        try:
            seen = Seen.model_validate_json(self.request.body)
        except ValidationError as error:
            raise HTTPError(400, reason="The operator is not understood: is its version the same?") from error
        self.answer({"writes": await self._relay.round(seen, self._operator)})
