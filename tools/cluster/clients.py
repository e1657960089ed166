"""kubectl and helm for one cluster. helm is built once from its Go module."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.build import ensure_component
from tools.cluster.recipes import HELM
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


class Helm:
    """Runs helm with what it keeps in ``folder``: it neither reads nor changes anything of the caller's.

    Without a ``kubeconfig`` it renders and checks alone.
    """

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self.program = ensure_component(HELM) / "helm"
        kept = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        others = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        self.env = {**others, **kept, "KUBECONFIG": str(kubeconfig or "/nonexistent/kubeconfig")}

    def __call__(self, *arguments: str | Path, given: str = "") -> str:
        """Run helm with ``given`` on its standard input, and return the output.

        Raises:
            StepError: it failed, with all that it said.
        """
        done = self.run(*arguments, given=given)
        if done.returncode:
            raise StepError(f"helm {' '.join(map(str, arguments))}: {done.stderr.strip()}\n{done.stdout.strip()}")
        return done.stdout

    def run(self, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
        """Return how it ended, and all that it printed."""
        command = [str(self.program), *map(str, arguments)]
        return subprocess.run(command, check=False, input=given, capture_output=True, text=True, env=self.env)
