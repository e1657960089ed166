"""How a start or a server ended, as the spawner tells the service: by HTTP, or by a file where nobody hears."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

OUTCOMES = frozenset({"cancelled", "failed", "stopped", "died", "quit", "shutdown", "preempted"})
"""Of a start: cancelled, failed. Of a server that ran: stopped by somebody, died by itself, quit in good order as who
was in it wanted, ended with its hub, or preempted: ended by its backend, for something else."""
RELEASE_SPOOL = "unheard"
"""The folder, beside the service's data, of what the service did not hear: one JSON file a release."""
MESSAGE_CHARACTERS = 2000
"""How much of a message is kept."""


def storable(message: str) -> str:
    """Return what is kept of a message: not too much, and nothing that no store can hold.

    An error names paths and output as they are: half a character of them would fail every write of it.
    """
    return message[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode().replace("\0", "?")


@dataclass(frozen=True)
class ReleaseReport:
    """The end of one attempt of a lease. ``message`` says why a start failed, in words; empty otherwise.

    ``output`` is the last that its server wrote, as ``core.leases.output.shown`` leaves it: for its user alone.
    """

    lease: str
    attempt: int
    outcome: str
    message: str = ""
    output: str = ""

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReleaseReport:
        """Read what :meth:`to_json` wrote. Raises ValueError where it is anything else."""
        try:
            release = cls(**json.loads(text))
        except (TypeError, RecursionError) as error:  # the second: lists in lists, thousands deep
            raise ValueError(str(error)) from error
        types = [type(value) for value in asdict(release).values()]
        if types != [str, int, str, str, str] or release.outcome not in OUTCOMES:
            raise ValueError("it is no release")
        return release
