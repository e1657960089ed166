"""What ends a command, and by which exit code: 1 invalid, 2 refused, 3 service away. Told in one place, by ``main``.

CommandError
 ├── InvalidError   what was written can't be
 ├── RefusedError   it was asked and refused, or can't be asked
 └── AwayError      nobody answered who could do it
"""

from __future__ import annotations

INVALID, REFUSED, AWAY = 1, 2, 3


class CommandError(Exception):
    """Ends a command; says why, and what to try."""

    code = INVALID


class InvalidError(CommandError):
    """What was written can't be."""


class RefusedError(CommandError):
    """It was asked and refused, or cannot be asked; says why. ``status`` is HTTP's, 0 where nothing was sent."""

    code = REFUSED

    def __init__(self, message: str, status: int = 0) -> None:
        """Keep both."""
        super().__init__(message)
        self.status = status


class AwayError(CommandError):
    """Nobody answered who could do it; says who, and what to try."""

    code = AWAY
