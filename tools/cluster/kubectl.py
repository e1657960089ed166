"""kubectl, as the administrator of one cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.progress import StepError


class Kubectl:
    """Runs ``command``, kubectl and what tells it of its cluster, with more arguments."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self.command = [str(part) for part in command]

    def __call__(self, *arguments: str, given: str = "") -> str:
        """Run kubectl with ``given`` on its standard input, and return the output.

        Raises:
            StepError: it failed.
        """
        done = subprocess.run(
            [*self.command, *arguments],
            check=False,
            input=given,
            capture_output=True,
            text=True,
            start_new_session=True,  # Ctrl-C ends the caller; a cleanup by kubectl continues
        )
        if done.returncode:
            raise StepError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout
