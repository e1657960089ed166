"""The image that workspaces of the tests run: Debian, Python, JupyterLab and this checkout's `gpuspawner`.

Debian and JupyterLab are layers in the cache, made once for each recipe; the last layer is made each time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.cluster.build import cache, one_at_a_time, run_with_progress
from tools.cluster.images import write_archive, write_layer
from tools.install import ROOT
from tools.progress import StepError, say

SUITE = "bookworm"
PYTHON = "3.11"
"""The suite's own."""
DEBIAN = ("ca-certificates", "git", "openssh-client", "openssh-server", "procps", "python3", "python3-venv", "tini")
WHEELS = ("jupyterhub==6.1.1", "jupyterlab==4.6.6")
UNNEEDED = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists", "var/log")
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
    base, jupyter = ensure_layers()
    package = folder / "gpuspawner.layer.tar"
    source = ROOT / "gpuspawner"
    write_layer(
        package,
        {
            f"{PREFIX}/lib/python{PYTHON}/site-packages/gpuspawner": source,
            f"{PREFIX}/share/jupyter/labextensions/gpuspawner": source / "workspace" / "labextension",
            f"{PREFIX}/etc/jupyter/jupyter_server_config.d": source / "workspace" / "jupyter-config",
        },
    )
    digest = hashlib.sha256(f"{jupyter.parent.name} {CONFIG}".encode() + package.read_bytes()).hexdigest()[:12]
    archive = folder / "workspace.tar"
    write_archive(archive, f"{NAME}:{digest}", [base, jupyter, package], CONFIG)
    return f"{NAME}:{digest}", archive


def ensure_layers() -> tuple[Path, Path]:
    """Build the layers that change seldom where that is not done yet: Debian and JupyterLab.

    Raises:
        StepError: one could not be built.
    """
    debian = _ensure_layer("debian", _build_debian, SUITE, *DEBIAN, *UNNEEDED)
    recipe = (debian.parent.name, PYTHON, *WHEELS)
    return debian, _ensure_layer("jupyter", lambda work: _build_jupyter(work, debian), *recipe)


def _ensure_layer(name: str, build: Callable[[Path], None], *recipe: str) -> Path:
    done = cache() / f"layer-{name}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}"
    if not done.exists():
        with one_at_a_time(done.name):
            if not done.exists():
                work = done.with_name(f"{done.name}.partial")
                work.mkdir()
                build(work)
                work.rename(done)
    return done / "layer.tar"


def _build_debian(work: Path) -> None:
    root = work / "root"
    command: list[str | Path] = ["debootstrap", "--variant=minbase", f"--include={','.join(DEBIAN)}", SUITE, root]
    run_with_progress(f"Debian {SUITE}", command, work / "build.log")
    for folder in UNNEEDED:
        shutil.rmtree(root / folder, ignore_errors=True)
    for file in ("etc/resolv.conf", "etc/hostname"):
        (root / file).unlink(missing_ok=True)
    with (root / "etc" / "passwd").open("a") as users:
        users.write("jovyan:x:1000:100::/home/jovyan:/bin/bash\n")
    home = root / "home" / "jovyan"
    home.mkdir()
    os.chown(home, 1000, 100)
    _pack(root, work / "layer.tar", ".")


def _build_jupyter(work: Path, base: Path) -> None:
    with tempfile.TemporaryDirectory(dir=work) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        subprocess.run(["tar", "--extract", "--numeric-owner", f"--file={base}", f"--directory={root}"], check=True)
        # Fetched by this machine's pip, which knows its package index; the image's own then needs no network.
        fetcher = Path(folder) / "fetcher"
        subprocess.run([sys.executable, "-m", "venv", fetcher], check=True)
        wheels = [f"--dest={root}/wheels", f"--python-version={PYTHON}", "--only-binary=:all:", *WHEELS]
        pip: list[str | Path] = [fetcher / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
        run_with_progress("JupyterLab's wheels", [*pip, "download", *wheels], work / "fetch.log")
        install = (
            f"python3 -m venv /{PREFIX} && /{PREFIX}/bin/pip install --no-index --find-links=/wheels {' '.join(WHEELS)}"
        )
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
        run_with_progress("JupyterLab", ["chroot", root, "sh", "-ec", install], work / "build.log", env)
        _pack(root, work / "layer.tar", PREFIX)


def _pack(root: Path, layer: Path, what: str) -> None:
    done = subprocess.run(
        ["tar", "--create", "--sort=name", "--numeric-owner", f"--file={layer}", f"--directory={root}", what],
        check=False,
    )
    if done.returncode:
        raise StepError(f"{layer} could not be written: is the disk full?")
    if what == ".":
        shutil.rmtree(root)
    say(f"     {layer.parent.name.removesuffix('.partial')}: {layer.stat().st_size >> 20} MiB")
