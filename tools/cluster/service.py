"""The image of the GPU service: the hub's own layers, and this checkout's `gpuspawner` with its command."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tools.cluster.hub import CONFIG, PREFIX, SITE, ensure_hub_layers
from tools.cluster.layers import write_image
from tools.install import ROOT

NAME = "localhost/gpuspawner/service"
COMMAND = f'#!/bin/sh\nexec /{PREFIX}/bin/python -m gpuspawner.cli "$@"\n'


def ensure_service_image(folder: Path, checkout: Path = ROOT) -> tuple[str, Path]:
    """Write the image's archive in ``folder``; return its whole name, which changes with its contents, and its path.

    The package is that of ``checkout``, which may be one of an earlier version.

    Raises:
        StepError: it could not be built.
    """
    with tempfile.TemporaryDirectory(dir=folder) as made:
        command = Path(made) / "gpuspawner"
        command.write_text(COMMAND)
        command.chmod(0o755)
        files = {f"{SITE}/gpuspawner": checkout / "gpuspawner", f"{PREFIX}/bin/gpuspawner": command}
        return write_image(
            folder, NAME, ensure_hub_layers(), files, {**CONFIG, "Cmd": ["gpuspawner", "server", "serve"]}
        )
