"""The package as others get it: what is in it, what it pulls in, and that it does the main job."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser

import pytest

import gpuspawner
from tools.install import ROOT
from tools.package import build, find_python, new_environment, try_on
from tools.progress import StepError

IN_SHARE = {
    "gpuspawner/workspace/labextension": "share/jupyter/labextensions/gpuspawner",
    "gpuspawner/workspace/jupyter-config": "etc/jupyter/jupyter_server_config.d",
}
IMPORTED = "import sys, importlib.util as u; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist") / "new")


def in_git(*paths):
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(listed.split()) | {"gpuspawner/py.typed"}


def said_by(*command):
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd="/")


def test_the_wheel_holds_the_package_and_what_jupyter_looks_for_and_nothing_else(built):
    wheel, _ = built
    top = f"gpuspawner-{gpuspawner.__version__}"
    due = set()
    for name in in_git("gpuspawner"):
        folder = next((folder for folder in IN_SHARE if name.startswith(f"{folder}/")), None)
        due.add(f"{top}.data/data/{IN_SHARE[folder]}{name.removeprefix(folder)}" if folder else name)
    due |= {f"{top}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == due | {f"{top}.dist-info/licenses/LICENSE"}
        metadata = Parser().parsestr(archive.read(f"{top}.dist-info/METADATA").decode())
        (script,) = [one for one in archive.infolist() if one.filename.endswith("bin/nvidia-smi")]
    assert metadata["Version"] == gpuspawner.__version__
    assert script.external_attr >> 16 & 0o111, "a program may be run"
    of_all = [one for one in metadata.get_all("Requires-Dist") if "extra ==" not in one]
    assert {re.split(r"[<>=]", one)[0] for one in of_all} == {"pydantic", "pyyaml", "tornado", "tzdata"}
    extras = {"hub", "kubernetes", "notify", "workspace"}
    assert extras <= set(metadata.get_all("Provides-Extra"))


def test_the_source_archive_holds_what_the_wheel_is_built_of(built):
    _, source = built
    due = in_git("gpuspawner") | {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", ".gitignore", "PKG-INFO"}
    with tarfile.open(source) as archive:
        assert {name.partition("/")[2] for name in archive.getnames()} == due


def test_what_runs_inside_a_workspace_has_no_hub_in_it(built, tmp_path):
    python = new_environment(tmp_path / "venv", sys._base_executable, f"{built[0]}[workspace]")
    hub_only = ("jupyterhub", "sqlalchemy", "alembic", "kubespawner", "prometheus_flask")
    assert said_by(python, "-c", IMPORTED, *hub_only, "jupyter_server").stdout.split() == ["jupyter_server"]
    listed = said_by(python, "-m", "jupyter", "server", "extension", "list")
    assert re.search(r"gpuspawner\.workspace\S* .*OK", re.sub(r"\x1b\[\d+m", "", listed.stdout + listed.stderr))
    command = python.parent / "gpuspawner"
    assert said_by(command, "--version").stdout == f"gpuspawner {gpuspawner.__version__}\n"
    refused = said_by(command, "serve", "--catalog", "x", "--data", "y")
    assert refused.returncode == 1
    assert "pip install 'gpuspawner[hub]'" in refused.stderr
    good = said_by(command, "check", ROOT / "hub_config" / "catalog.yaml")
    assert good.returncode == 0, good.stderr


def test_the_wheel_runs_hub_service_and_workspace_on_another_python(built):
    """On one other than this test's, where there is one: ``python -m tools.package try`` does it for each."""
    own = "{}.{}".format(*sys.version_info)
    python = sys._base_executable
    for version in ("3.13", "3.12", "3.11", "3.10"):
        if version != own:
            try:
                python = find_python(version)
                break
            except StepError:
                continue
    assert try_on(python, built[0]).endswith("the workspace ended, reason idle")
