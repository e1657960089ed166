"""configure() over KubeSpawner: which class, what is refused by name, and what the service is told."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from jupyterhub.spawner import LocalProcessSpawner
from kube_catalog import CATALOG
from kubespawner import KubeSpawner
from traitlets.config import Config

from gpuspawner.spawner.kubernetes.spawner import GPUSpawner, KubePods


class OwnSpawner(KubeSpawner):
    """An administrator's own class."""


@pytest.mark.parametrize("name", ["kubespawner.KubeSpawner", KubeSpawner, GPUSpawner])
def test_kubespawner_becomes_the_spawner_of_pods(configured, name):
    assert configured(spawner_class=name).JupyterHub.spawner_class.__mro__[1] is GPUSpawner


def test_a_subclass_of_kubespawner_keeps_its_own_methods(configured):
    wrapped = configured(spawner_class=OwnSpawner).JupyterHub.spawner_class
    assert issubclass(wrapped, OwnSpawner)
    assert wrapped.__mro__.index(KubePods) < wrapped.__mro__.index(OwnSpawner)


def environment(c):
    (service,) = [service for service in c.JupyterHub.services if service["name"] == "gpu"]
    return service["environment"]


def test_the_service_gets_the_namespace_of_the_pods(configured, tmp_path):
    c = Config()
    c.GPUSpawner.gpu_placement = "required"
    tolerations = [{"key": "dedicated", "operator": "Exists"}]
    told = environment(configured(c, namespace="jhub", tolerations=tolerations))
    assert told["GPUSPAWNER_BACKEND"] == "kubernetes"
    assert json.loads(told["GPUSPAWNER_KUBERNETES"]) == {
        "namespace": "jhub",
        "all_namespaces": False,
        "placement": "required",
        "tolerations": tolerations,
        "kubeconfig": str(tmp_path / "kubeconfig"),
    }


def test_settings_of_the_service_follow_kubespawner_and_explicit_ones_come_last(configured):
    c = Config()
    c.GPUSpawner.gpu_cluster = {"devices": "/dev/other*", "placement": "required"}
    told = json.loads(
        environment(configured(c, namespace="jhub", node_selector={"pool": "users"}))["GPUSPAWNER_KUBERNETES"]
    )
    assert (told["node_selector"], told["devices"], told["placement"]) == ({"pool": "users"}, "/dev/other*", "required")


PURPOSE = {"key": "hub.jupyter.org/node-purpose", "operator": "In", "values": ["user"]}


@pytest.mark.parametrize(
    ("required", "labels"),
    [
        pytest.param([{"matchExpressions": [PURPOSE]}], "hub.jupyter.org/node-purpose in (user)", id="as z2jh has it"),
        pytest.param({"purpose": {"matchExpressions": [PURPOSE]}}, "hub.jupyter.org/node-purpose in (user)", id="dict"),
        pytest.param(
            [{"matchExpressions": [
                {"key": "pool", "operator": "NotIn", "values": ["b", "a"]},
                {"key": "gpu", "operator": "Exists"},
                {"key": "spot", "operator": "DoesNotExist"},
            ]}],
            "pool notin (a,b),gpu,!spot",
            id="every form",
        ),
        pytest.param([{"matchExpressions": [PURPOSE]}, {"matchExpressions": [PURPOSE]}], None, id="either"),
        pytest.param([{"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["3"]}]}], None, id="a number"),
        pytest.param([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}], None, id="name"),
        pytest.param([{"matchExpressions": [{"operator": "Exists"}]}], None, id="no label, which the cluster refuses"),
        pytest.param([], None, id="none"),
    ],
)  # fmt: skip
def test_the_service_reads_only_nodes_that_kubespawners_affinity_requires(configured, required, labels):
    told = json.loads(environment(configured(Config(), node_affinity_required=required))["GPUSPAWNER_KUBERNETES"])
    assert told.get("node_labels") == labels


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        pytest.param({"device": "/dev/other*"}, "device: no such setting of the cluster", id="unknown"),
        pytest.param({"probes_at_once": "many"}, "probes_at_once: ", id="type"),
    ],
)
def test_an_invalid_cluster_setting_is_refused_by_name(configured, cluster, problem):
    c = Config()
    c.GPUSpawner.gpu_cluster = cluster
    with pytest.raises(SystemExit, match=problem):
        configured(c, namespace="jhub")


def test_the_service_reaches_the_cluster_by_the_hubs_proxy(configured, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "10.96.0.1")
    told = environment(configured())
    assert (told["HTTPS_PROXY"], told["no_proxy"]) == ("http://proxy.example.org:3128", "10.96.0.1")
    assert "kubeconfig" in json.loads(told["GPUSPAWNER_KUBERNETES"])


def test_in_a_cluster_the_service_finds_it_as_the_hub_does(configured, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    told = environment(configured())
    assert (told["KUBERNETES_SERVICE_HOST"], told["KUBERNETES_SERVICE_PORT"]) == ("10.96.0.1", "443")
    assert "kubeconfig" not in json.loads(told["GPUSPAWNER_KUBERNETES"])


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "127.0.0.1"),
        ({"hub_connect_ip": "172.30.99.1"}, "172.30.99.1"),
        ({"hub_ip": "0.0.0.0", "hub_connect_url": "http://10.1.2.3:8081"}, "10.1.2.3"),
        ({"hub_ip": "10.1.2.3"}, "10.1.2.3"),
        ({"hub_ip": "0.0.0.0"}, "127.0.0.1"),
        ({"hub_ip": "::", "hub_connect_ip": "fd00::1"}, "[fd00::1]"),
        ({"hub_connect_url": "http://[fd00::1]:8081"}, "[fd00::1]"),
    ],
)
def test_the_service_listens_where_pods_reach_the_hub(configured, settings, address):
    c = Config()
    for name, value in settings.items():
        c.JupyterHub[name] = value
    (service,) = configured(c).JupyterHub.services
    assert service["url"] == f"http://{address}:9470"


NAMES = [
    ("jupyter-{username}", True, "c.KubeSpawner.pod_name_template gives all servers of a user the same pod: one would"),
    ("singleuser-{servername}", False, "c.KubeSpawner.pod_name_template gives all users the same pod: one would end"),
    ("jupyter-{username}", False, ""),
    ("jupyter-{username}--{servername}", True, ""),
    ("jupyter-{user_server}", True, ""),
]


@pytest.mark.parametrize(("template", "named_servers", "words"), NAMES)
def test_promise_10_one_pod_for_several_servers_is_refused_by_name(configured, template, named_servers, words):
    c = Config()
    c.JupyterHub.allow_named_servers = named_servers
    if not words:
        assert configured(c, pod_name_template=template)
        return
    with pytest.raises(SystemExit, match=words):
        configured(c, pod_name_template=template)


def test_promise_10_an_image_that_nothing_would_start_is_refused_by_name(configured):
    with pytest.raises(SystemExit) as refused:
        configured(spawner_class=LocalProcessSpawner, catalog={**CATALOG, "templates": {"lab": {"image": "lab:1"}}})
    assert str(refused.value) == (
        "gpuspawner: configure(catalog=...): templates.lab.image: needs KubeSpawner; other hubs do not start with it. "
        "Remove it if c.JupyterHub.spawner_class is not 'kubespawner'."
    )


def test_promise_10_a_quota_of_a_namespace_is_refused_where_workspaces_are_no_pods(configured):
    quotas = {"lab": {"namespace": "lab", "gpus": {"hard": 1}}}
    with pytest.raises(SystemExit, match=r"quotas\.lab\.namespace: needs KubeSpawner"):
        configured(spawner_class=LocalProcessSpawner, catalog={**CATALOG, "quotas": quotas})


def test_promise_10_what_nothing_would_start_is_told_with_file_and_line(configured, tmp_path):
    file = tmp_path / "catalog.yaml"
    file.write_text("version: 1\ntemplates:\n  lab: {image: lab:1}\n  big:\n    guarantee: {cpu: 50%}\n")
    with pytest.raises(SystemExit) as refused:
        configured(spawner_class=LocalProcessSpawner, catalog=file)
    starts = [f"gpuspawner: {file}:3: templates.lab.image: ", f"gpuspawner: {file}:5: templates.big.guarantee: "]
    assert all(line.startswith(start) for line, start in zip(str(refused.value).splitlines(), starts, strict=True))


def test_promise_10_a_guarantee_that_nothing_would_give_is_refused_by_name(configured):
    catalog = {**CATALOG, "templates": {"lab": {"guarantee": {"cpu": "50%"}}}}
    with pytest.raises(SystemExit, match=r"templates\.lab\.guarantee: needs KubeSpawner"):
        configured(spawner_class=LocalProcessSpawner, catalog=catalog)


def test_the_configuration_to_copy_is_right(tmp_path):
    source = Path(__file__).parents[2] / "hub_config"
    for name in ("kubernetes_config.py", "kubernetes-catalog.yaml"):
        shutil.copy(source / name, tmp_path)
    c = Config()
    config = tmp_path / "kubernetes_config.py"
    exec(compile(config.read_text(), config, "exec"), {"c": c, "__file__": str(config)})
    assert c.JupyterHub.spawner_class.__mro__[1] is GPUSpawner
    settings = {name for name in c.GPUSpawner if name.startswith("gpu_")}
    assert settings <= set(GPUSpawner.class_trait_names(config=True))
    assert {name: c.GPUSpawner[name] for name in settings} == {
        name: GPUSpawner.class_traits()[name].default() for name in settings
    }


def test_promise_9_the_rights_to_copy_reach_no_pod_of_the_hubs_own_namespace():
    """An exec is a shell: in the hub's pod it would be the hub."""
    source = Path(__file__).parents[2] / "hub_config"
    parts = [
        part
        for name in ("kubernetes-hub.yaml", "kubernetes-service-rbac.yaml")
        for part in yaml.safe_load_all((source / name).read_text())
    ]
    (workspaces,) = (part["metadata"]["name"] for part in parts if part["kind"] == "Namespace")
    (account,) = (part["metadata"] for part in parts if part["kind"] == "ServiceAccount")
    assert account["namespace"] != workspaces
    namespaced = {part["metadata"]["namespace"] for part in parts if part["kind"] in {"Role", "RoleBinding"}}
    assert namespaced == {workspaces}
    everywhere = {
        (resource, verb)
        for part in parts
        if part["kind"] == "ClusterRole"
        for rule in part["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert everywhere == {(resource, verb) for resource in ("nodes", "pods") for verb in ("list", "watch")}
    bound = [part["subjects"] for part in parts if part["kind"].endswith("Binding")]
    assert bound == [[{"kind": "ServiceAccount", **account}]] * 3
    assert f'c.KubeSpawner.namespace = "{workspaces}"' in (source / "kubernetes_config.py").read_text()
