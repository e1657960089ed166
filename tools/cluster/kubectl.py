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
        """Return what it prints, with ``given`` on its standard input.

        Raises:
            StepError: it failed.
        """
        done = subprocess.run(
            [*self.command, *arguments],
            check=False,
            input=given,
            capture_output=True,
            text=True,
            start_new_session=True,  # Ctrl-C is for whoever runs it: what is being cleared away goes on
        )
        if done.returncode:
            raise StepError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout
