"""Chart and image of an earlier version, upgraded by helm, and taken back, as the page tells.

One user has a workspace all the time, and one waits.
"""

import json
import shutil

import pytest
import yaml
from chart_hub import beside
from chart_release import CHART, NAME, Release
from gpus import simulated
from harness import pages
from kube_hub import eventually
from nodes import ROOT

from gpuspawner import __version__
from tools.cluster.hub import ensure_service_image

pytestmark = pytest.mark.slow

EARLIER_VERSION = "0.0.9"
PAGE = pages.page("how-to/administrators/upgrade")
WAIT_SECONDS = 300


@pytest.fixture
def earlier(tmp_path):
    """Return a checkout of an earlier version: this one, under another number."""
    folder = tmp_path / "earlier"
    for name in ("gpuspawner", "helm"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "gpuspawner" / "__init__.py"
    package.write_text(package.read_text().replace(__version__, EARLIER_VERSION))
    return folder


@pytest.fixture
def release(one_machine, earlier, tmp_path):
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with simulated(one_machine, 2), one_machine.namespace(**restricted) as namespace:
        own = one_machine.own
        image = own.give_image(ensure_service_image(own.folder, earlier))
        release = Release(one_machine, namespace, tmp_path, image, earlier / "helm" / "gpuspawner")
        try:
            yield release
        finally:
            release.close()


def on_the_store(release, folder):
    """Return the output of the page's pod with this checkout's image."""
    (pod,) = pages.blocks(PAGE, "yaml")
    made = yaml.safe_load(pod)
    (container,) = made["spec"]["containers"]
    assert container["image"] == f"registry.example.org/ml/service:{__version__}"
    container |= {"image": release.image, "imagePullPolicy": "Never"}
    (folder / "store.yaml").write_text(json.dumps(made))  # as YAML its number would lose its noughts
    lines = [one for one in pages.commands(PAGE) if "gpuspawner-store" in one or one.endswith("store.yaml")]
    assert len(lines) == 4
    return "".join(release.typed(line, folder) for line in lines)


def kept(hub):
    """Of who has a workspace and who waits, what no upgrade may change."""
    found = {}
    for user in ("ada", "cem"):
        lease = hub.lease(user)
        found[user] = {name: lease[name] for name in ("id", "asked_at", "ends_at")}
        found[user] |= {"gpus": [one["id"] for one in lease["gpus"]], "place": (lease["queue"] or {}).get("place")}
    return found


def test_an_upgrade_from_an_earlier_chart_and_the_way_back_keep_leases_places_and_deadlines(release, tmp_path):
    older = release.image
    release.catalog = release.catalog.replace("for: 20s", "for: 30m")
    (tmp_path / "hub").mkdir()
    with beside(release, tmp_path / "hub") as hub:
        for user in ("ada", "cem"):
            hub.add_user(user)
            eventually(lambda user=user: hub.begin(user, template="lab", count=2).status_code in {201, 202}, 90, user)
            eventually(lambda user=user: hub.lease(user), WAIT_SECONDS, f"{user} has a lease")
        hub.until("ada", "running", WAIT_SECONDS)
        before, secret, pod = kept(hub), release.secret(), hub.pod("ada").metadata.uid
        assert before["cem"]["place"] == 1

        def all_is_kept():
            eventually(lambda: hub.gpu("/"), 90, "the service answers behind its hub")
            eventually(lambda: kept(hub) == before, 90, f"all of it is as it was: {before}")
            assert (hub.pod("ada").metadata.uid, release.secret()) == (pod, secret)

        release.image = release.cluster.own.give_image(ensure_service_image(release.cluster.own.folder))
        told = on_the_store(release, tmp_path)
        assert f"gpuspawner {__version__} changes nothing in it" in told, told
        (line,) = [one for one in pages.commands(PAGE) if one.startswith("helm upgrade gpuspawner ")]
        _, *words = line.split()
        tag = release.image.rpartition(":")[2]
        given = {"helm/gpuspawner": CHART, "jhub": release.namespace}
        release.helm(
            *(given.get(word, word) for word in words),
            f"--set=image.tag={tag}",
            "--wait",
            "--timeout=180s",
        )
        hub.use(NAME, release.reach.url, f"--image={release.image}")
        hub.start()
        all_is_kept()

        end, gone, back = pages.commands(PAGE)[-3:]
        release.typed(end, tmp_path)
        release.typed(gone, tmp_path)
        assert back == f"helm rollback {NAME} --namespace jhub"
        release.helm("rollback", NAME, f"--namespace={release.namespace}", "--wait", "--timeout=180s")
        assert release.service_pod().spec.containers[0].image == older
        hub.use(NAME, release.reach.url, f"--image={older}")
        hub.start()
        all_is_kept()
