"""The built package: its files, its requirements, and its main function."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser

import pytest

import gpuspawner
from gpuspawner import version
from gpuspawner.cli.kube.values import CATALOG, COPY, PACKAGE, SECRET, ValuesRequest, z2jh_values
from tools.install import ROOT
from tools.package import build, find_python, new_environment, try_on
from tools.progress import StepError

IN_SHARE = {
    "gpuspawner/workspace/labextension": "share/jupyter/labextensions/gpuspawner",
    "gpuspawner/workspace/jupyter-config": "etc/jupyter/jupyter_server_config.d",
}
KUBERNETES_CATALOG = ROOT / "hub_config" / "kubernetes-catalog.yaml"
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
    due.add("gpuspawner/_commit.txt")
    due |= {f"{top}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == due | {f"{top}.dist-info/licenses/LICENSE"}
        metadata = Parser().parsestr(archive.read(f"{top}.dist-info/METADATA").decode())
        commit = archive.read("gpuspawner/_commit.txt").decode().strip()
        (script,) = [one for one in archive.infolist() if one.filename.endswith("bin/nvidia-smi")]
    assert metadata["Version"] == gpuspawner.__version__
    assert script.external_attr >> 16 & 0o111, "a program may be run"
    assert commit == version.commit()
    of_all = [one for one in metadata.get_all("Requires-Dist") if "extra ==" not in one]
    assert {re.split(r"[<>=]", one)[0] for one in of_all} == {
        "click",
        "pydantic",
        "python-slugify",
        "pyyaml",
        "rich",
        "tornado",
        "tzdata",
    }
    extras = {"hub", "kubernetes", "notify", "workspace"}
    assert extras <= set(metadata.get_all("Provides-Extra"))


def test_the_source_archive_holds_what_the_wheel_is_built_of(built):
    _, source = built
    due = in_git("gpuspawner") | {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", ".gitignore", "PKG-INFO"}
    due |= {"tools/commit_hook.py", "gpuspawner/_commit.txt"}
    with tarfile.open(source) as archive:
        assert {name.partition("/")[2] for name in archive.getnames()} == due


@pytest.mark.slow  # it installs what the package needs
def test_programs_inside_a_workspace_contain_no_hub(built, tmp_path):
    python = new_environment(tmp_path / "venv", sys._base_executable, f"{built[0]}[workspace]")
    hub_only = ("jupyterhub", "sqlalchemy", "alembic", "kubespawner", "prometheus_flask")
    assert said_by(python, "-c", IMPORTED, *hub_only, "jupyter_server").stdout.split() == ["jupyter_server"]
    listed = said_by(python, "-m", "jupyter", "server", "extension", "list")
    assert re.search(r"gpuspawner\.workspace\S* .*OK", re.sub(r"\x1b\[\d+m", "", listed.stdout + listed.stderr))
    command = python.parent / "gpuspawner"
    assert said_by(command, "--version").stdout == f"gpuspawner {version.describe_version()}\n"
    refused = said_by(command, "server", "serve", "--catalog", "x", "--data", "y")
    assert refused.returncode == 1
    assert "pip install '.[hub]' in a checkout" in refused.stderr
    good = said_by(command, "server", "check", ROOT / "hub_config" / "catalog.yaml")
    assert good.returncode == 0, good.stderr


@pytest.mark.slow  # it installs what the package needs
def test_the_wheel_runs_hub_service_and_workspace_on_another_python(built):
    """Use another Python than this test's, if there is one. ``python -m tools.package try`` uses each."""
    own = "{}.{}".format(*sys.version_info)
    python = sys._base_executable
    for other in ("3.13", "3.12", "3.11", "3.10"):
        if other != own:
            try:
                python = find_python(other)
                break
            except StepError:
                continue
    assert try_on(python, built[0]).endswith("the workspace ended, reason idle")


CONFIGURED = """
import sys
from traitlets.config import Config
c = Config({"JupyterHub": {"spawner_class": "kubespawner.KubeSpawner"}, "KubeSpawner": {"namespace": "jhub"}})
exec(open(sys.argv[1]).read(), {"c": c})
import gpuspawner
spawner = c.JupyterHub.spawner_class
print(gpuspawner.__file__, spawner.__mro__[2].__name__, spawner.gpu_service_url)
"""


@pytest.mark.slow  # it installs what the package needs
def test_a_hub_of_another_image_has_the_package_by_its_path_alone(built, tmp_path):
    """The init container of ``gpuspawner kube values`` copies it there, and `images.md` does so by hand."""
    hub = new_environment(tmp_path / "hub", sys._base_executable, "jupyterhub-kubespawner>=7.1")
    assert said_by(hub, "-c", IMPORTED, "gpuspawner").stdout == "\n"
    package, by_hand = tmp_path / "package", tmp_path / "by-hand"
    copied = said_by(sys.executable, "-c", COPY.replace(PACKAGE, str(package)))
    assert copied.returncode == 0, copied.stderr
    command = [
        *["-m", "pip", "install", "--quiet", "--no-deps", "--target"],
        by_hand,
        built[0],
        "itsdangerous",
        "tzdata",
    ]
    installed = said_by(sys.executable, *command)
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "secret").write_text("ab" * 32)
    folders = {"/srv/jupyterhub/gpuspawner": tmp_path / "data", f"{CATALOG}/catalog.yaml": KUBERNETES_CATALOG}
    config = z2jh_values(ValuesRequest(), {})["hub"]["extraConfig"]["zz-gpuspawner"]
    for shown, here in {**folders, f"{SECRET}/secret": tmp_path / "secret"}.items():
        config = config.replace(shown, str(here))
    (tmp_path / "config.py").write_text(config)
    for folder in (package, by_hand):
        words = ["env", f"PYTHONPATH={folder}", hub, "-c", CONFIGURED, tmp_path / "config.py"]
        done = said_by(*words)
        assert done.returncode == 0, done.stderr
        file, _, url = done.stdout.splitlines()[-1].split()
        assert (file, url) == (f"{folder}/gpuspawner/__init__.py", "http://gpuspawner:9470/services/gpu")
        assert not list(folder.rglob("*.so")), "it serves each version of Python"
