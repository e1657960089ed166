"""A build hook of hatchling: record the Git commit in the wheel and the source archive."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RECORDED = "gpuspawner/_commit.txt"


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]  # the configuration class is hatchling's own
    """Add a file with the commit. A build from a source archive keeps the file that is already in it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file to everything but an editable installation, which asks git itself."""
        if version == "editable" or (Path(self.root) / RECORDED).exists() or not (Path(self.root) / ".git").exists():
            return
        command = ["git", "-C", self.root, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        folder = Path(tempfile.mkdtemp(prefix="gpuspawner-commit-"))
        self._written = folder / "_commit.txt"
        self._written.write_text(f"{commit}\n")
        build_data["force_include"][str(self._written)] = RECORDED

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  # hatchling passes them
        """Remove the temporary file."""
        written = getattr(self, "_written", None)
        if written:
            written.unlink()
            written.parent.rmdir()
