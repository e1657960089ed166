"""``gpuspawner doctor`` with several clusters: who owns the queue of each is asked in that cluster."""

from kube_api import KubeApi

from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import load_text
from gpuspawner.cli.doctor.asking_cluster import _elsewhere, _of_home
from gpuspawner.cli.doctor.findings import State

CATALOG = """
version: 1
gpus: {a100: {match: "*A100*", memory: 80GiB}}
clusters:
  west: {scheduler: {kai: {}}}
  east: {kubeconfig: %s, hub: "https://hub.example.org", scheduler: {kueue: {queue: gpus}}}
  north: {kubeconfig: %s, hub: "https://hub.example.org"}
  south: {kubeconfig: %s, hub: "https://hub.example.org", scheduler: {volcano: {}}}
templates: {any: {gpus: {a100: 1}}}
"""


async def test_who_owns_the_queue_of_another_cluster_is_asked_there(tmp_path):
    api = KubeApi()
    await api.start()
    there, nowhere = api.kubeconfig(tmp_path), tmp_path / "none"
    catalog = load_text(CATALOG % (there, there, nowhere))
    found = {x.check: x for x in await _elsewhere(ClusterSettings("jhub"), catalog)}
    await api.stop()
    assert {name: one.state for name, one in found.items()} == {
        "Kueue of east": State.BAD,
        "API server of south": State.BAD,
    }
    assert "install 0.19 or newer" in found["Kueue of east"].words
    assert _of_home(catalog) == catalog.clusters["west"].scheduler
    assert _of_home(None) is None
