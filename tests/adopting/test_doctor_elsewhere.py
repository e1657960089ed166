"""``gpuspawner server doctor`` with several clusters: it asks each for its rights and its queue."""

from manifests import asked_for, rights_of
from test_doctor import Cluster

from gpuspawner.adoption.doctor.cluster_checks import OTHER_MANIFEST, rights_there
from gpuspawner.adoption.doctor.cluster_reader import _elsewhere, _of_home
from gpuspawner.adoption.doctor.findings import State
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import load_text

CATALOG = """
version: 1
gpus: {a100: {match: "*A100*", memory: 80GiB}}
clusters:
  west: {scheduler: {kai: {}}}
  east: {kubeconfig: %s, hub: "https://hub.example.org", scheduler: {kueue: {queue: gpus}}}
  north: {kubeconfig: %s, hub: "https://hub.example.org", nodes: nodes.example.org}
  south: {kubeconfig: %s, hub: "https://hub.example.org", scheduler: {volcano: {}}}
templates: {any: {gpus: {a100: 1}}}
"""
ROUTED = CATALOG.replace("nodes: nodes.example.org", "gateway: {url: https://in.example.org, name: shared}").replace(
    "scheduler: {volcano: {}}", "ingress: {url: https://in.example.org}"
)


async def test_each_other_cluster_is_looked_at_there(tmp_path):
    api = Cluster()
    api.missing = {("create", "services", "jhub")}
    await api.start()
    there, nowhere = api.kubeconfig(tmp_path), tmp_path / "none"
    catalog = load_text(CATALOG % (there, there, nowhere))
    found = {x.check: x for x in await _elsewhere(ClusterSettings("jhub"), catalog) if x.state is not State.GOOD}
    await api.stop()
    assert {name: one.state for name, one in found.items()} == {
        "Kueue of east": State.BAD,
        "rights of north": State.BAD,
        "API server of south": State.BAD,
    }
    assert "Install 0.19 or newer" in found["Kueue of east"].words
    assert (
        "The right to create services in namespace jhub is missing: no workspace is" in found["rights of north"].words
    )
    assert OTHER_MANIFEST in found["rights of north"].remedy
    assert "kubeconfig that the catalog names" in found["API server of south"].remedy
    assert _of_home(catalog) == catalog.clusters["west"].scheduler
    assert _of_home(None) is None


def test_the_rights_of_another_cluster_are_exactly_those_of_its_manifest():
    clusters = load_text(ROUTED % ("/x", "/x", "/x")).clusters
    wanted = {right for name in ("north", "south") for right in rights_there(clusters[name])}
    assert asked_for(wanted) == rights_of(OTHER_MANIFEST)
