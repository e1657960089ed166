"""`make images`: what is called, and the images of service and hub built by buildah on bases that are in the cache.

These are the layers of the clusters' images: Debian as debootstrap makes it, and a hub of the newest version on it.
"""

import os
import shutil
import subprocess
import sys

import pytest

from gpuspawner import __version__
from tools.cluster import hub as hub_image
from tools.cluster.layers import write_image
from tools.images import IMAGES, builder, chosen, command_of
from tools.install import ROOT
from tools.progress import StepError

PATH = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/sbin:/bin"
ALONE = ["unshare", "--mount"]
"""What it mounts is not seen by others, of whom one looks whether anything stayed mounted."""
BASE, HUB_BASE = "localhost/gpuspawner-test/debian", "localhost/gpuspawner-test/hub"


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
    with pytest.raises(StepError, match="docker, podman, buildah: none is on the PATH"):
        builder({})


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """Call buildah without a daemon, with this machine's certificates; images are there for this module alone."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "pip.conf").write_text("[global]\ncert = /run/ca.crt\ndefault-timeout = 180\n")
    environment = {
        "PATH": PATH,
        "HOME": str(folder),
        "BUILDAH_ISOLATION": "chroot",
        "STORAGE_DRIVER": "overlay",
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    mounts = [
        "--volume=/etc/ssl/certs/ca-certificates.crt:/run/ca.crt:ro",
        f"--volume={folder}/pip.conf:/etc/pip.conf:ro",
    ]

    def run(*words, **more):
        done = subprocess.run(
            [*ALONE, "buildah", *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env=environment,
            **more,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    run.folder, run.mounts, run.environment = folder, mounts, environment
    layers = hub_image.ensure_hub_layers()
    for name, below, config in ((BASE, layers[:1], {}), (HUB_BASE, layers, hub_image.CONFIG)):
        _, archive = write_image(folder, name, below, {}, config)
        run("tag", run("pull", "--quiet", f"oci-archive:{archive}").split()[-1], name)
        archive.unlink()
    yield run
    run("rm", "--all")
    run("rmi", "--all", "--force")


def built(buildah, name, **bases):
    """Build by the command of `make images`; return a container of it."""
    words = [*ALONE, "buildah", "bud", *buildah.mounts]
    done = subprocess.run(
        [sys.executable, "-m", "tools.images"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**buildah.environment, "IMAGES": name, "BUILDER": " ".join(words), **bases},
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return buildah("from", f"gpuspawner/{name}:{__version__}").strip()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("buildah", path=PATH), reason="buildah mounts, as root")
def test_images_of_service_and_hub_have_the_package_and_nothing_to_build_with(buildah):
    service = built(buildah, "service", BASE=BASE)
    assert buildah("run", service, "--", "gpuspawner", "--version") == f"gpuspawner {__version__}\n"
    assert "--catalog FILE" in buildah("run", "--user=12345", service, "--", "gpuspawner", "serve", "--help")
    left = buildah("run", service, "--", "sh", "-c", "id -u; ls /var/lib/apt/lists; command -v gcc make pip || true")
    assert left == "1000\n"
    size = buildah("run", service, "--", "du", "-sm", "/opt/gpuspawner")
    assert int(size.split()[0]) < 220, "MB; docs/scale.md tells of what"
    hub = built(buildah, "hub", HUB_BASE=HUB_BASE)
    told = "import gpuspawner.spawner, jupyterhub, os; print(jupyterhub.__version__, os.getuid())"
    assert buildah("run", hub, "--", "python", "-c", told) == "6.1.1 1000\n", "what it pins stays"
