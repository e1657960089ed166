"""The commands of `make images`. tests/cluster/test_images.py runs the built images."""

import shutil
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from gpuspawner import __version__
from tools.images import IMAGES, builder, chosen, command_of
from tools.install import ROOT
from tools.progress import StepError


def test_each_folder_of_images_is_built_and_each_base_before_what_stands_on_it():
    assert {path.parent.name for path in (ROOT / "images").glob("*/Dockerfile")} == set(IMAGES)
    assert [one.name for one in chosen({"IMAGES": "workspace-pytorch workspace"})] == ["workspace", "workspace-pytorch"]


def test_names_bases_and_the_builder_are_as_set():
    settings = {"PREFIX": "registry.example.org/ml/", "BASE": "debian:x", "BUILDER": "buildah bud --layers"}
    assert builder(settings) == ["buildah", "bud", "--layers"]
    assert command_of(IMAGES["service"], settings, ["b"]) == [
        "b",
        "--file=images/service/Dockerfile",
        f"--tag=registry.example.org/ml/service:{__version__}",
        "--build-arg=BASE=debian:x",
        ".",
    ]
    on = f"--build-arg=BASE=registry.example.org/ml/workspace:{__version__}"
    assert on in command_of(IMAGES["workspace-pytorch"], settings, ["b"])
    assert not any("build-arg" in word for word in command_of(IMAGES["hub"], settings, ["b"])), "the public one"


def test_an_image_that_is_not_there_and_a_machine_without_a_builder_are_told(monkeypatch):
    with pytest.raises(StepError, match=r"There is no image hubb\. There are: service, hub, workspace"):
        chosen({"IMAGES": "hubb"})
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(StepError, match="docker, podman, buildah: none of them works here"):
        builder({})


def test_the_workspace_image_has_all_that_the_package_needs_in_a_workspace():
    """Its Dockerfile installs gpuspawner without dependencies: a package that is not listed here is missing there."""
    wanted = [Requirement(one) for one in metadata.requires("gpuspawner") or ()]
    needed = {one.name: one.specifier for one in wanted if one.marker and one.marker.evaluate({"extra": "workspace"})}
    lines = (ROOT / "images" / "workspace" / "requirements.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert needed.keys() - pinned.keys() == {"jupyter-server"}, "JupyterLab brings it"
    assert all(pinned[name] in specifier for name, specifier in needed.items() if name in pinned)


@pytest.mark.parametrize("name", ["hub", "service", "workspace"])
def test_an_image_copies_all_that_the_package_is_built_of(tmp_path, name):
    for line in (ROOT / "images" / name / "Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] != ["COPY"] or not words[-1].startswith("/build/"):
            continue
        target = tmp_path / words[-1].removeprefix("/build/")
        for source in map(ROOT.joinpath, words[1:-1]):
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                target.mkdir(exist_ok=True)
                shutil.copy(source, target)
    build = [sys.executable, "-m", "hatchling", "build", "--target=wheel"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("dist/gpuspawner-*.whl"))
