"""The script that runs before a workspace ends: with its parameters, and what it printed."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib import resources

from gpuspawner.core.errors import quoted


@dataclass(frozen=True)
class OnStopResult:
    """What ran: ``output`` its last lines, ``code`` its exit code, None where there was nothing to run.

    ``problem`` says why it is not known.
    """

    output: str = ""
    code: int | None = None
    problem: str = ""


ON_STOP_MARGIN_SECONDS = 15.0
"""So much longer than its own time it is waited for: an exec takes seconds on a busy node. Arbitrary."""
TERMINATED = 143
"""The exit code of what its time ended."""
_SAID = re.compile(r"on-stop ([0-9]{1,3})")


def on_stop_script(command: str, seconds: float, reason: str) -> bytes:
    """Return what is sent on the stdin of ``sh -s``."""
    parameters = {"ON_STOP_COMMAND": command, "ON_STOP_SECONDS": f"{seconds:g}", "END_REASON": reason}
    lines = [f"GPUSPAWNER_{name}={shlex.quote(value)}\n" for name, value in parameters.items()]
    script = resources.files("gpuspawner.backends").joinpath("on_stop.sh").read_bytes()
    return "".join(lines).encode() + script + b"\nexit 0\n"


def read_on_stop(text: str) -> OnStopResult:
    """Return what a run printed. Never raises."""
    if not text:
        return OnStopResult()
    first, _, output = text.partition("\n")
    said = _SAID.fullmatch(first)
    if said is None:
        return OnStopResult(problem=f"what it printed is not understood: {quoted(first)}")
    return OnStopResult(output, int(said[1]))
