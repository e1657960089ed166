"""The images of `images/`, built by buildah, run as pods under the restricted Pod Security Standard.

They are built on bases that are in the cache, the layers of the clusters' images: Debian as debootstrap makes it, and a
hub of the newest version on it. Hub and service do the main job together. The workspaces' image takes a quarter of an
hour to build: what runs in the tests is made by its recipe instead (tools/cluster/workspace.py).
"""

import pytest
from buildah import NEEDED, Buildah
from chart_hub import beside
from chart_release import Release
from gpus import simulated
from kube_hub import eventually

from gpuspawner import __version__
from tools.cluster import hub as hub_image
from tools.cluster.layers import write_image

pytestmark = [pytest.mark.slow, NEEDED]
WAIT_SECONDS = 300
BASE, HUB_BASE = "localhost/gpuspawner-test/debian", "localhost/gpuspawner-test/hub"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    buildah = Buildah(tmp_path_factory.mktemp("images"))
    layers, log = hub_image.ensure_hub_layers(), buildah.folder / "history.log"
    log.touch()  # in a folder that apt wants, and Debian's layer is made without
    for name, below, config in ((BASE, layers[:1], {}), (HUB_BASE, layers, hub_image.CONFIG)):
        _, archive = write_image(buildah.folder, name, below, {"var/log/apt/history.log": log}, config)
        buildah.base((name, archive))
    yield buildah
    buildah.close()


@pytest.fixture(scope="module")
def images(buildah):
    """The images of service and hub."""
    return {"service": buildah.built("service", BASE=BASE), "hub": buildah.built("hub", HUB_BASE=HUB_BASE)}


def test_images_of_service_and_hub_have_the_package_and_nothing_to_build_with(buildah, images):
    service, hub = (buildah("from", images[name]).strip() for name in ("service", "hub"))
    assert buildah("run", service, "--", "gpuspawner", "--version") == f"gpuspawner {__version__}\n"
    assert "--catalog FILE" in buildah("run", "--user=12345", service, "--", "gpuspawner", "server", "serve", "--help")
    # buildah may lose what a command prints that ends at once.
    left = "id -u; ls /var/lib/apt/lists; command -v gcc make pip || true; sleep 1"
    assert buildah("run", service, "--", "sh", "-c", left) == "1000\n"
    size = buildah("run", service, "--", "sh", "-c", "du -sm /opt/gpuspawner; sleep 1")
    assert int(size.split()[0]) < 220, "MB; docs/measurements/image-sizes.md has the parts"
    told = "import gpuspawner.spawner, jupyterhub, os; print(jupyterhub.__version__, os.getuid())"
    assert buildah("run", hub, "--", "python", "-c", told) == "6.1.1 1000\n", "what it pins stays"


def test_hub_and_service_of_the_built_images_give_a_gpu_and_stop_who_idles(one_machine, buildah, images, tmp_path):
    given = {name: one_machine.own.give_image(buildah.archive(image)) for name, image in images.items()}
    with simulated(one_machine, 2), one_machine.namespace(**RESTRICTED) as namespace:
        (folder := tmp_path / "hub").mkdir()
        release = Release(one_machine, namespace, tmp_path, given["service"])
        try:
            with beside(release, folder, f"--hub-image={given['hub']}") as hub:
                pods = one_machine.core.list_namespaced_pod(namespace).items
                assert set(given.values()) == {one.spec.containers[0].image for one in pods if _goes_on(one)}
                assert not any(one.spec.init_containers for one in pods), "the hub's image has the package in it"
                hub.add_user("ada")
                eventually(lambda: hub.begin("ada", template="lab").status_code in {201, 202}, 90, "ada starts")
                lease = hub.until("ada", "running", WAIT_SECONDS)
                board = one_machine.run_in(namespace, hub.pod("ada").metadata.name, "nvidia-smi", "-L")[1]
                assert len(board.splitlines()) == 1
                assert hub.until_ended("ada", "idle", WAIT_SECONDS)["id"] == lease["id"]
        finally:
            release.close()


def _goes_on(pod):
    return pod.metadata.deletion_timestamp is None and pod.status.phase == "Running"
