"""The image that workspaces of the tests run: Debian, Python, JupyterLab and this checkout's `gpuspawner`.

Debian and JupyterLab are layers in the cache, made once for each recipe; the last layer is made each time.
"""

from __future__ import annotations

from pathlib import Path

from tools.cluster.layers import PYTHON, ensure_debian, ensure_layer, install_wheels, pack, unpacked, write_image
from tools.install import ROOT

WHEELS = ("jupyterhub==6.1.1", "jupyterlab==4.6.6")
PREFIX = "opt/workspace"
NAME = "localhost/gpuspawner-workspace"
CONFIG = {
    "Env": [f"PATH=/{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SHELL=/bin/bash"],
    "User": "1000",
    "WorkingDir": "/home/jovyan",
    "Entrypoint": ["tini", "--"],
    "Cmd": ["jupyterhub-singleuser"],
}


def ensure_image(folder: Path) -> tuple[str, Path]:
    """Write the image's archive in ``folder``; return its whole name, which changes with its contents, and its path.

    Raises:
        StepError: it could not be built.
    """
    source = ROOT / "gpuspawner"
    files = {
        f"{PREFIX}/lib/python{PYTHON}/site-packages/gpuspawner": source,
        f"{PREFIX}/share/jupyter/labextensions/gpuspawner": source / "workspace" / "labextension",
        f"{PREFIX}/etc/jupyter/jupyter_server_config.d": source / "workspace" / "jupyter-config",
    }
    return write_image(folder, NAME, ensure_layers(), files, CONFIG)


def ensure_layers() -> tuple[Path, Path]:
    """Build the layers that change seldom where that is not done yet: Debian and JupyterLab.

    Raises:
        StepError: one could not be built.
    """
    debian = ensure_debian()
    recipe = (debian.parent.name, PYTHON, *WHEELS)
    return debian, ensure_layer("jupyter", lambda work: _build_jupyter(work, debian), *recipe)


def _build_jupyter(work: Path, base: Path) -> None:
    with unpacked(work, base) as root:
        install_wheels("JupyterLab", root, PREFIX, WHEELS, work)
        pack(root, work / "layer.tar", PREFIX)
