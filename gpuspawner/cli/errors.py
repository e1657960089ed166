"""Errors that end a command, each with its exit code: 1 invalid, 2 refused, 3 service away.

CommandError
 ├── InvalidError   an argument or a file is wrong
 ├── RefusedError   the service, a workspace or this machine refused
 └── AwayError      the service or a workspace does not answer
"""

from __future__ import annotations

INVALID, REFUSED, AWAY, INTERRUPTED = 1, 2, 3, 130
"""130 is 128 and the number of the signal that Ctrl-C sends, as shells have it."""


class CommandError(Exception):
    """Ends a command. The message says why, and what to do next."""

    code = INVALID


class InvalidError(CommandError):
    """An argument or a file is wrong."""


class RefusedError(CommandError):
    """The request was refused. ``status`` is the HTTP status, or 0 if nothing was sent."""

    code = REFUSED

    def __init__(self, message: str, status: int = 0) -> None:
        """Keep the HTTP status."""
        super().__init__(message)
        self.status = status


class AwayError(CommandError):
    """The service or a workspace does not answer."""

    code = AWAY
