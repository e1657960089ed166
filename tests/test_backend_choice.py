"""Where workspaces live, as the service was told."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.fleet import Toleration
from gpuspawner.backends.kubernetes.settings import cluster_settings
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.catalog import load_catalog, load_text
from gpuspawner.catalog.requests.profile_options import Menu, MenuOption, write_menus
from gpuspawner.core.errors import CatalogError
from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.rules import QuotaScope
from gpuspawner.schedulers.clusters import ClustersScheduler
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.schedulers.kubernetes import KubernetesScheduler
from gpuspawner.service.process.backend_choice import BackendError, choose_backend

CATALOG = load_catalog(
    {
        "version": 1,
        "gpus": {"a100": {"match": "*A100*", "memory": "80GiB"}, "half": {"of": "a100", "shares": 2}},
        "templates": {"any": {"gpus": {"a100": "1"}, "default": {"gpu": "a100"}}},
        "policies": {"default": {}},
    }
)


def told(**settings):
    return {"GPUSPAWNER_BACKEND": "kubernetes", "GPUSPAWNER_KUBERNETES": json.dumps(settings)}


def test_without_a_word_it_is_this_machine(tmp_path):
    chosen = choose_backend(CATALOG, tmp_path, "h", {})
    assert isinstance(chosen.backend, LocalBackend)
    assert (chosen.scheduler, chosen.catalog, dict(chosen.settings)) == (None, CATALOG, {})


async def test_a_cluster_divides_by_itself_and_reaches_nothing_before_it_is_asked(tmp_path):
    told_so = told(namespace="jhub", kubeconfig=str(tmp_path / "none yet"), probes_at_once=7)
    chosen = choose_backend(CATALOG, tmp_path, "h", told_so)
    assert isinstance(chosen.backend, KubernetesBackend)
    assert isinstance(chosen.scheduler, KubernetesScheduler)
    assert dict(chosen.settings) == {"fleet_seconds": 1.0, "probes_at_once": 7}
    assert (chosen.catalog.gpus["half"].pool, chosen.catalog.gpus["half"].replicas) == ("half", 2)
    await chosen.close()


async def test_on_a_cluster_the_service_knows_what_profiles_let_people_choose(tmp_path):
    menus = {"any": Menu("torch", (MenuOption("image", "Image", {"a": "A"}, "a"),))}
    write_menus(tmp_path, menus)
    chosen = choose_backend(CATALOG, tmp_path, "h", told(namespace="jhub", kubeconfig=str(tmp_path / "none")))
    assert chosen.catalog.menus == menus
    await chosen.close()
    (tmp_path / "menus.json").write_text("{")
    with pytest.raises(BackendError, match=r"menus\.json holds no menus of profiles"):
        choose_backend(CATALOG, tmp_path, "h", told(namespace="jhub"))


def test_on_one_machine_simulated_gpus_are_made_once(tmp_path):
    chosen = choose_backend(replace(CATALOG, simulated={"a100": 2}), tmp_path, "h", {})
    later = replace(CATALOG, simulated={"a100": 3})
    catalog, waits = chosen.prepare(later)
    assert (catalog.simulated, waits) == (
        {"a100": 2},
        ("Other numbers of simulated GPUs take effect after a restart of the hub.",),
    )
    assert chosen.prepare(replace(later, simulated={"a100": 2}))[1] == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts workspaces of other users")
async def test_users_who_do_not_reach_the_data_folder_reach_their_simulated_gpus(monkeypatch):
    monkeypatch.setattr(nvidia, "find", lambda: None)
    monkeypatch.setattr(nvidia, "has_devices", lambda: False)
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        data = Path(parent, "data")
        data.mkdir(mode=0o700)
        backend = choose_backend(replace(CATALOG, simulated={"a100": 1}), data, "h", {}).backend
        (gpu,) = (await backend.fleet()).gpus
        folder = backend.patch((Slot(gpu.id),))["environment"]["GPUSPAWNER_SIMULATED_DIR"]
        nobody = {"user": 65534, "group": 65534, "extra_groups": [], "capture_output": True}
        assert b"A100" in subprocess.run(["cat", f"{folder}/{gpu.id}"], check=True, **nobody).stdout.upper()
        subprocess.run(["touch", f"{folder}/holders/mine"], check=True, **nobody)


async def test_on_a_cluster_a_later_catalog_is_divided_too_and_new_resources_wait_for_a_restart(tmp_path):
    chosen = choose_backend(CATALOG, tmp_path, "h", told(namespace="jhub", kubeconfig=str(tmp_path / "none")))
    mi = GpuKind("mi", "MI300X", 192 * 2**30, resource="amd.com/gpu")
    own = GpuKind("own", "Own", 2**30, resource="example.org/accelerator")
    menus = {"any": Menu("torch")}
    write_menus(tmp_path, menus)
    catalog, waits = chosen.prepare(replace(CATALOG, gpus={**CATALOG.gpus, "mi": mi, "own": own}))
    assert (catalog.gpus["half"].replicas, catalog.menus) == (2, menus)
    assert waits == ("GPUs that nodes call example.org/accelerator are seen after a restart of the hub.",)
    (tmp_path / "menus.json").write_text("{")
    with pytest.raises(CatalogError, match=r"menus\.json holds no menus of profiles"):
        chosen.prepare(CATALOG)
    await chosen.close()


OWNED = """
version: 1
gpus: {a100: {match: "*A100*", memory: 80GiB}}
clusters:
  west: {}
  east: {kubeconfig: /etc/clusters/east, context: there, hub: "https://hub.example.org", title: East,
    scheduler: {kueue: {queue: gpus}}}
  south: {kubeconfig: /etc/clusters/south, hub: "https://hub.example.org", scheduler: {kai: {}}}
templates: {any: {gpus: {a100: 1}}}
"""


async def test_the_scheduler_of_each_cluster_is_asked_by_that_cluster_s_client(tmp_path):
    catalog = load_text(OWNED)
    chosen = choose_backend(catalog, tmp_path, "h", told(namespace="jhub", kubeconfig=str(tmp_path / "none")))
    scheduler, backend = chosen.scheduler, chosen.backend
    assert isinstance(scheduler, ClustersScheduler)
    assert [scheduler.capabilities_of(kind).title for kind in ("a100", "a100@east", "a100@south")] == [
        "",
        "Kueue",
        "KAI",
    ]
    kueue = scheduler._others["east"].scheduler._cluster
    assert (kueue._api, kueue.namespace) == (backend.clusters["east"].api, "jhub")
    assert backend.clusters["east"].settings.context == "there"
    assert scheduler._others["south"].scheduler._backend is backend.clusters["south"]
    await chosen.connect()  # one that can't be used stops no start
    await chosen.close()
    each = told(all_namespaces=True, namespace="jhub")
    with pytest.raises(BackendError, match="names no namespace of Kueue's queues"):
        choose_backend(catalog, tmp_path, "h", each)


async def test_a_scheduler_over_http_gets_the_gpus_of_all_clusters(tmp_path):
    text = OWNED.replace(",\n    scheduler: {kueue: {queue: gpus}}}", "}").replace(", scheduler: {kai: {}}}", "}")
    catalog = load_text(f"{text}scheduler: {{http: {{url: 'http://batch:8080'}}}}\n")
    chosen = choose_backend(catalog, tmp_path, "h", told(namespace="jhub", kubeconfig=str(tmp_path / "none")))
    assert isinstance(chosen.scheduler, HttpScheduler)
    assert list(chosen.scheduler.kinds) == ["a100", "a100@east", "a100@south"]
    assert chosen.scheduler._home == chosen.backend.home == "west"
    await chosen.close()


OF_NAMESPACES = """\
version: 1
gpus: {a100: {match: "*A100*", memory: 80GiB}}
templates: {any: {gpus: {a100: 1}}}
quotas:
  own: {namespace: jhub, gpus: {hard: 8}}
  other: {namespace: lab, gpus: {hard: 1}}
  all: {everybody: true, gpus: {hard: 9}}
"""


async def test_a_quota_of_a_namespace_limits_everybody_of_the_hub_whose_workspaces_are_there(tmp_path):
    catalog = load_text(OF_NAMESPACES)
    chosen = choose_backend(catalog, tmp_path, "h", told(namespace="jhub"))
    for made in (chosen.catalog, chosen.prepare(catalog)[0]):
        assert [(one.name, one.whom, one.limits[0].hard) for one in made.rules.quotas] == [
            ("all", QuotaScope.EVERYBODY, 9),
            ("own", QuotaScope.EVERYBODY, 8),
        ]
    await chosen.close()
    with pytest.raises(BackendError, match=r"quotas\.own\.namespace: each user has a namespace of their own here"):
        choose_backend(catalog, tmp_path, "h", told(namespace="jhub", all_namespaces=True))


async def test_a_later_catalog_with_another_scheduler_of_a_cluster_waits_for_a_restart(tmp_path):
    chosen = choose_backend(load_text(OWNED), tmp_path, "h", told(namespace="jhub", kubeconfig=str(tmp_path / "none")))
    with pytest.raises(CatalogError, match="it was changed while the hub runs"):
        chosen.prepare(load_text(OWNED.replace("queue: gpus", "queue: others")))
    await chosen.close()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        pytest.param({"GPUSPAWNER_BACKEND": "docker"}, "'docker' is not a backend: local or kubernetes", id="backend"),
        pytest.param({"GPUSPAWNER_BACKEND": "kubernetes"}, "namespace is missing", id="nothing said"),
        pytest.param({**told(), "GPUSPAWNER_KUBERNETES": "{"}, "GPUSPAWNER_KUBERNETES: ", id="no JSON"),
        pytest.param(told(namespace="a", name="b"), "name: no such setting", id="unknown"),
        pytest.param(
            told(namespace="a", placement="firm"), "'firm' is not one of preferred and required", id="placement"
        ),
        pytest.param(told(namespace="a", grace_seconds="soon"), "grace_seconds: ", id="type"),
        pytest.param(told(namespace="a", node_selector=5), "node_selector: write labels", id="selector"),
    ],
)
def test_an_invalid_backend_setting_is_refused_by_name(tmp_path, environment, message):
    with pytest.raises(BackendError, match=message):
        choose_backend(CATALOG, tmp_path, "h", environment)


def test_without_the_package_it_is_named(tmp_path, monkeypatch):
    for name in [
        name for name in sys.modules if name.startswith(("kubernetes_asyncio", "gpuspawner.backends.kubernetes"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with pytest.raises(BackendError, match=r"pip install '\.\[kubernetes\]' in a checkout"):
        choose_backend(CATALOG, tmp_path, "h", told(namespace="a"))


def test_settings_are_read_as_kubernetes_writes_them():
    settings = cluster_settings(
        {
            "namespace": "jhub",
            "node_selector": {"pool": "users", "arch": "x"},
            "tolerations": [
                {"key": "team", "operator": "Exists", "value": None, "tolerationSeconds": 300},
                {"operator": "Exists"},
            ],
        }
    )
    assert settings.node_selector == (("arch", "x"), ("pool", "users"))
    assert settings.tolerations == (Toleration("team", "Exists"), Toleration("", "Exists"))
