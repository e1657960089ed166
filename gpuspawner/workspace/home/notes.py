"""What is told of a workspace's start: in its output without what programs printed, in JupyterLab with it."""

from __future__ import annotations

import logging
from typing import Any


class Notes:
    """Sentences, the oldest first. ``busy`` says what is under way, "" for nothing."""

    def __init__(self, log: logging.Logger) -> None:
        """Tell the server's output too."""
        self._log = log
        self._told: list[str] = []
        self.busy = ""
        self.ask: dict[str, Any] | None = None
        """A question to its user: ``{"text": str, "packages": [str]}``."""

    def say(self, sentence: str) -> None:
        """Tell something that went as it should."""
        self._log.info("%s", sentence)
        self._told.append(sentence)

    def tell(self, sentence: str, printed: str = "") -> None:
        """Tell something that went wrong; ``printed`` is the last line of a program's output, for its user alone."""
        self._log.warning("%s", sentence)
        self._told.append(f"{sentence} Its last line: {printed}" if printed else sentence)

    def view(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {"busy": self.busy, "notes": list(self._told), "ask": self.ask}
