"""The package as others get it: wheel and source archive, tried on each Python.

    python -m tools.package build            into dist/
    python -m tools.package try 3.10 3.13    build, and the main job with the wheel on each; .venv has the hub's proxy
    python -m tools.package sbom             build, see to the licences, and write the bill of materials

A Python is looked for as python3.10 on the PATH and among pyenv's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tools import main_job
from tools.install import LOG, ROOT, VENV, install
from tools.progress import StepError, Steps, reports_failures, run_logged, say

DIST = ROOT / "dist"
EXTRAS = "hub,workspace,kubernetes,notify"


@reports_failures
def main(arguments: list[str]) -> int:
    """Do what is asked for; 0 when all of it went well."""
    steps, (command, *versions) = Steps(), arguments or ["build"]
    with steps.step("Wheel and source archive", streams=True):
        wheel, source = build(DIST)
        say(f"     {wheel}\n     {source}")
    for version in versions if command == "try" else []:
        with steps.step(f"The main job on Python {version}", streams=True):
            say(f"     {try_on(find_python(version), wheel)}")
    if command == "sbom":
        with steps.step("Licences and bill of materials (CycloneDX)", streams=True):
            say(f"     {write_sbom(wheel)}")
    return 0


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the source archive into ``folder``; return both.

    Raises:
        StepError: they could not be built.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="gpuspawner-build-") as name:
        python = Path(sys.executable)
        if not find_spec("hatchling"):
            python = new_environment(Path(name) / "venv", python, "hatchling>=1.26")
        run_logged([python, "-m", "hatchling", "build", "--directory", folder], LOG, "The package is not built.")
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def find_python(version: str) -> Path:
    """Return a Python of a version like 3.12. Raises StepError if this machine has no such Python."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    for python in [*sorted(pyenv.glob(f"{version}.*/bin/python")), *([Path(on_path)] if on_path else [])]:
        asked = [str(python), "-c", "import sys, venv; print('{}.{}'.format(*sys.version_info))"]
        said = subprocess.run(asked, check=False, capture_output=True, text=True)  # a shim may be empty
        if said.stdout.strip() == version:
            return python
    raise StepError(f"There is no Python {version}: install it, by pyenv for example.")


def new_environment(folder: Path, python: str | Path, what: str) -> Path:
    """Make a virtual environment of ``python`` with ``what``; return its own Python. Raises StepError."""
    run_logged([python, "-m", "venv", folder], LOG, f"{python} makes no virtual environment.")
    install(folder / "bin" / "python", [what])
    return folder / "bin" / "python"


def try_on(python: str | Path, wheel: Path) -> str:
    """Install the wheel with its extras on a Python and run the main job with it; return what came of it.

    Raises:
        StepError: it could not be installed, or a step of the job did not happen.
    """
    with tempfile.TemporaryDirectory(prefix="gpuspawner-try-") as name:
        folder, work = Path(name), Path(name) / "work"
        work.mkdir()
        own = new_environment(folder / "venv", python, f"{wheel}[{EXTRAS}]")
        run_logged([own, ROOT / "tools" / "licences.py"], LOG, "A licence is not allowed; see NOT ALLOWED there.")
        version = subprocess.run([own.parent / "gpuspawner", "--version"], check=True, capture_output=True, text=True)
        check: list[str | Path] = [own.parent / "gpuspawner", "server", "check", ROOT / "hub_config" / "catalog.yaml"]
        run_logged(check, LOG, "gpuspawner server check does not take hub_config/catalog.yaml.")
        path = f"{own.parent}:{VENV / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        try:
            end = main_job.run(own, work, path)
        except StepError as error:
            raise StepError(f"{error}\n{(work / 'hub.log').read_text()[-3000:]}") from error
        return f"{version.stdout.strip()}: the workspace ended, reason {end['reason']}"


def write_sbom(wheel: Path) -> Path:
    """Write the bill of materials of the wheel and its extras next to the wheel, as CycloneDX; return the file.

    Raises:
        StepError: a licence is not allowed, or it could not be written.
    """
    file = wheel.with_name(f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json")
    with tempfile.TemporaryDirectory(prefix="gpuspawner-sbom-") as name:
        product = new_environment(Path(name) / "product", Path(sys.executable), f"{wheel}[{EXTRAS}]")
        pip: list[str | Path] = [product, "-m", "pip", "uninstall", "--yes"]
        run_logged([product, ROOT / "tools" / "licences.py"], LOG, "A licence is not allowed; see NOT ALLOWED there.")
        run_logged([*pip, "uv", "setuptools", "pip"], LOG, "What installs could not be taken out.")
        project = Path(name) / "pyproject.toml"  # which does not say the version itself
        version = f'version = "{wheel.name.split("-")[1]}"'
        project.write_text((ROOT / "pyproject.toml").read_text().replace('dynamic = ["version"]', version))
        tool = new_environment(Path(name) / "tool", Path(sys.executable), "cyclonedx-bom>=7,<8")
        command: list[str | Path] = [tool.parent / "cyclonedx-py", "environment", "--output-reproducible"]
        command += ["--pyproject", project, "--mc-type", "library", "--output-file", file, product]
        run_logged(command, LOG, "cyclonedx-py wrote no bill of materials.")
    return file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
