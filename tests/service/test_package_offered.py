"""The package that the service offers: pip installs it from its address, in the version that the service runs."""

import io
import os
import subprocess
import sys
import zipfile

import pytest
import requests
from page_world import Browser, world_fixture

from gpuspawner import __version__

WHEEL = f"gpuspawner-{__version__}-py3-none-any.whl"


world = world_fixture(is_observed=False)


@pytest.mark.parametrize("address", ["cli/", f"cli/{WHEEL}"])
def test_pip_installs_the_command_line_from_the_service_and_from_nowhere_else(world, tmp_path, address):
    into = tmp_path / "installed"
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": ""}
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-cache-dir", "--target", str(into)]
    done = subprocess.run(
        [*install, world.home + address], check=False, capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    run = [
        sys.executable,
        "-c",
        "import gpuspawner, gpuspawner.cli; print(gpuspawner.__file__, gpuspawner.__version__)",
    ]
    shown = subprocess.run(
        run, check=True, capture_output=True, text=True, cwd=tmp_path, env={**environment, "PYTHONPATH": str(into)}
    )
    assert shown.stdout.split() == [str(into / "gpuspawner" / "__init__.py"), __version__]
    assert (into / "bin" / "gpuspawner").exists()


def test_the_wheel_has_what_the_package_has_and_what_it_needs(world):
    answer = requests.get(f"{world.home}cli/{WHEEL}", timeout=20)
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{WHEEL}"'
    wheel = zipfile.ZipFile(io.BytesIO(answer.content))
    assert wheel.testzip() is None
    names = set(wheel.namelist())
    assert {"gpuspawner/cli/main.py", "gpuspawner/service/web/templates/base.html"} <= names
    assert not [name for name in names if "__pycache__" in name or "labextension" in name]
    info = f"gpuspawner-{__version__}.dist-info"
    assert b"Requires-Dist: tornado" in wheel.read(f"{info}/METADATA")
    assert {line.split(",")[0] for line in wheel.read(f"{info}/RECORD").decode().splitlines()} == names


def test_the_page_of_the_command_line_names_the_services_own_package(world):
    assert f"pip install {world.home}cli/" in Browser(world, "alice").look("tokens").text
