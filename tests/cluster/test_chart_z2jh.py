"""Hub and service with the chart of Zero to JupyterHub itself, whose source is a folder here: one release, or two.

Its hub's image is the one of the clusters, with the other imports of its configuration, and also runs its proxy. The
package comes to it by an init container, or is in it: then it is the one of images/hub, built on that. Names are told
by hostAliases, since the cluster has no name server.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from buildah import NEEDED, Buildah
from chart_release import CATALOG, CHART, NAME, Release
from gpus import simulated
from harness.hub import ADMIN_TOKEN
from kube_hub import KubeHub, eventually
from reach import Reach

from gpuspawner.cli.kube.values import ValuesRequest, z2jh_values
from tools.cluster import hub as hub_image
from tools.cluster.layers import PYTHON, write_image

sys.path.insert(0, str(Path(__file__).parents[1] / "chart"))

from rendered import Z2JH, with_dependencies

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Z2JH, reason="GPUSPAWNER_TEST_Z2JH names no folder with the chart's source"),
]
WAIT_SECONDS = 300
PORTS = {"hub": 8081, "proxy-api": 8001, "proxy-public": 80, NAME: 9470}
SCOPES = ["admin:users", "admin:servers", "tokens", "custom:gpu:admin", "access:services"]


def image_of_its_hub(folder):
    """The hub's layers and the client that the chart's configuration asks for, without gpuspawner: name and archive."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}"]
    subprocess.run([*pip, "--only-binary=:all:", f"--python-version={PYTHON}", "pycurl"], check=True)
    files = {f"{hub_image.SITE}/{one.name}": one for one in folder.iterdir()}
    return write_image(folder.parent, "localhost/z2jh-hub", hub_image.ensure_hub_layers(), files, hub_image.CONFIG)


def named(image, **more):
    name, _, tag = image.rpartition(":")
    return {"name": name, "tag": tag, "pullPolicy": "Never", **more}


def values_of(release, hub, address):
    """Return the differences from the defaults of both charts: local images, and names that no name server resolves."""
    aliases = {"hostAliases": [{"ip": address, "hostnames": list(PORTS)}]}
    own = {
        "hub": {
            "image": named(hub),
            "extraPodSpec": aliases,
            "config": {"Authenticator": {"admin_users": ["admin"], "allow_all": True}},
            "services": {"tests": {"apiToken": ADMIN_TOKEN}},
            "loadRoles": {"tests": {"services": ["tests"], "scopes": SCOPES}},
        },
        "proxy": {"service": {"type": "ClusterIP"}, "chp": {"image": named(hub), "extraPodSpec": aliases}},
        "singleuser": {
            "image": named(release.cluster.image),
            "storage": {"type": "none"},
            "extraPodConfig": aliases,
        },
        "scheduling": {"userScheduler": {"enabled": False}},
        "prePuller": {"hook": {"enabled": False}, "continuous": {"enabled": False}},
    }
    service = {**release.values, "image": named(release.image), "catalog": CATALOG}
    return {"jupyterhub": own, "gpuspawner": service}


def as_one_release(release, folder, values, hub_image=""):
    """By the chart of both."""
    bringing = [] if hub_image else z2jh_values(ValuesRequest(image=release.image), {})["hub"]["initContainers"]
    values["jupyterhub"]["hub"]["initContainers"] = bringing
    installed(release, NAME, with_dependencies(folder), folder, values)


def as_two_releases(release, folder, values, hub_image=""):
    """Beside a hub that runs: the service, and then the values that the command prints for the hub's release."""
    chart, theirs = with_dependencies(folder) / "charts" / "jupyterhub", values["jupyterhub"]
    before = yaml.safe_load(yaml.safe_dump(theirs))
    before["hub"]["loadRoles"]["tests"]["scopes"].remove("custom:gpu:admin")  # which no hub knows without ours
    installed(release, "jhub", chart, folder, before)
    installed(release, NAME, CHART, folder, values["gpuspawner"])
    more = folder / "gpu.yaml"
    more.write_text(yaml.safe_dump(z2jh_values(ValuesRequest(image=release.image, hub_image=hub_image), theirs)))
    installed(release, "jhub", chart, folder, theirs, f"--values={more}")


def installed(release, name, chart, folder, values, *more):
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(values))
    where = [f"--namespace={release.namespace}", f"--values={file}", *more]
    release.helm("upgrade", "--install", name, chart, *where, "--wait", "--timeout=240s")


def with_the_package(own, folder, image):
    """The image of images/hub, on that of its hub."""
    folder.mkdir()
    buildah = Buildah(folder)
    try:
        return own.give_image(buildah.archive(buildah.built("hub", HUB_BASE=buildah.base(image))))
    finally:
        buildah.close()


WAYS = [(as_one_release, False), (as_two_releases, False), (as_one_release, True), (as_two_releases, True)]


@pytest.fixture(params=[pytest.param(way, marks=[NEEDED] if way[1] else []) for way in WAYS])
def hub(request, one_machine, tmp_path):
    install, has_package = request.param
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with simulated(one_machine, 2), one_machine.namespace(**restricted) as namespace:
        (tmp_path / "release").mkdir()
        release = Release(one_machine, namespace, tmp_path / "release")
        for claim in ("hub-db-dir", f"{NAME}-data"):
            release.volume(claim)
        ways = {name: Reach(one_machine, namespace, name, port) for name, port in PORTS.items()}
        release.write(ways["hub"].url)
        own = one_machine.own
        image = image_of_its_hub(tmp_path / "pycurl")
        image = with_the_package(own, tmp_path / "images", image) if has_package else own.give_image(image)
        hub = KubeHub(tmp_path, cluster=one_machine, namespace=namespace)
        hub.url = ways["proxy-public"].url
        try:
            values = values_of(release, image, own.host_address)
            install(release, tmp_path, values, image if has_package else "")
            yield hub
        finally:
            for way in ways.values():
                way.close()
            release.close()


def test_a_user_gets_a_gpu_with_both_charts_and_is_stopped_when_it_idles(hub):
    policies = hub.cluster.own.kubectl("get", "networkpolicies", f"--namespace={hub.namespace}", "--output=name")
    assert set(policies.split()) == {
        f"networkpolicy.networking.k8s.io/{name}" for name in ("hub", "proxy", "singleuser", NAME)
    }
    eventually(lambda: hub.gpu("/"), 90, "the service answers behind its hub")
    hub.add_user("ada")
    assert hub.begin("ada", template="lab", gpu="a100", count=1).status_code in {201, 202}
    lease = hub.until("ada", "running", WAIT_SECONDS)
    pod = hub.pod("ada")
    assert (pod.metadata.labels["component"], len(pod.spec.init_containers or [])) == ("singleuser-server", 0)
    code, printed, _ = hub.cluster.run_in(hub.namespace, pod.metadata.name, "nvidia-smi", "-L")
    assert (code, len(printed.splitlines())) == (0, 1)
    told = eventually(lambda: hub.lease("ada")["warning"], WAIT_SECONDS, "ada is warned")
    assert told["kind"] == "idle"
    assert hub.until_ended("ada", "idle", WAIT_SECONDS)["id"] == lease["id"]
