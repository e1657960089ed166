"""configure() over KubeSpawner: which class, what is refused by name, and what the service is told."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from jupyterhub.spawner import LocalProcessSpawner
from kubespawner import KubeSpawner
from traitlets.config import Config

from gpuspawner.spawner import configure
from gpuspawner.spawner.kube import GPUSpawner, KubePods
from gpuspawner.spawner.kube_configure import written

KIND = {"match": "NVIDIA-A100*", "memory": "80GiB"}
CATALOG = {"version": 1, "gpus": {"a100": KIND}, "templates": {"lab": {"gpus": {"a100": 1}}}}


class OwnSpawner(KubeSpawner):
    """An administrator's own class."""


@pytest.fixture(autouse=True)
def outside_a_cluster(monkeypatch, tmp_path):
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.fixture
def configured(tmp_path):
    def make(c=None, spawner_class="kubespawner.KubeSpawner", catalog=CATALOG, **settings):
        c = c or Config()
        c.JupyterHub.spawner_class = spawner_class
        for name, value in settings.items():
            c.KubeSpawner[name] = value
        configure(c, catalog=catalog, data_dir=tmp_path / "gpu")
        return c

    return make


@pytest.mark.parametrize("name", ["kubespawner.KubeSpawner", KubeSpawner, GPUSpawner])
def test_kubespawner_becomes_the_spawner_of_pods(configured, name):
    assert configured(spawner_class=name).JupyterHub.spawner_class is GPUSpawner


def test_an_own_class_of_kubespawner_keeps_what_it_is(configured):
    wrapped = configured(spawner_class=OwnSpawner).JupyterHub.spawner_class
    assert issubclass(wrapped, OwnSpawner)
    assert wrapped.__mro__.index(KubePods) < wrapped.__mro__.index(OwnSpawner)


def environment(c):
    (service,) = [service for service in c.JupyterHub.services if service["name"] == "gpu"]
    return service["environment"]


def test_the_service_is_told_where_the_pods_are(configured, tmp_path):
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


def test_what_the_service_is_told_follows_kubespawner_and_what_is_said_of_the_cluster_comes_last(configured):
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
def test_the_service_looks_at_the_nodes_alone_that_kubespawners_affinity_requires(configured, required, labels):
    told = json.loads(environment(configured(Config(), node_affinity_required=required))["GPUSPAWNER_KUBERNETES"])
    assert told.get("node_labels") == labels


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        pytest.param({"device": "/dev/other*"}, "device: no such setting of the cluster", id="unknown"),
        pytest.param({"probes_at_once": "many"}, "probes_at_once: ", id="type"),
    ],
)
def test_what_is_said_wrongly_of_the_cluster_is_refused_by_name(configured, cluster, problem):
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


PROFILES = [{"display_name": "Small one"}, {"display_name": "Big", "slug": "big"}]
CONFLICTS = {
    "GPUs of its own": (
        {"extra_resource_limits": {"nvidia.com/gpu": "1"}},
        "c.KubeSpawner.extra_resource_limits names nvidia.com/gpu. GPUs come from the lease alone: take it out.",
    ),
    "GPUs guaranteed": (
        {"extra_resource_guarantees": {"nvidia.com/mig-1g.10gb": "1"}},
        (
            "c.KubeSpawner.extra_resource_guarantees names nvidia.com/mig-1g.10gb. "
            "GPUs come from the lease alone: take it out."
        ),
    ),
    "a limit of memory": (
        {"mem_limit": "1G"},
        (
            "c.KubeSpawner.mem_limit would be replaced by what people ask. "
            "Take it out; write bounds: {memory: ...} instead."
        ),
    ),
    "all GPUs by privilege": (
        {"privileged": True},
        "c.KubeSpawner.privileged: a privileged container sees every GPU of its node. Take it out.",
    ),
    "all GPUs by a security context": (
        {"container_security_context": {"privileged": True}},
        (
            "c.KubeSpawner.container_security_context: privileged: a privileged container sees every GPU of its node. "
            "Take it out."
        ),
    ),
    "all GPUs by more of the container": (
        {"extra_container_config": {"securityContext": {"privileged": True}}},
        (
            "c.KubeSpawner.extra_container_config: securityContext: privileged: a privileged container sees every GPU "
            "of its node. Take it out."
        ),
    ),
    "all GPUs by a variable": (
        {"environment": {"NVIDIA_VISIBLE_DEVICES": "all"}},
        (
            "c.KubeSpawner.environment sets NVIDIA_VISIBLE_DEVICES, which shows a workspace other GPUs than its own. "
            "Take it out."
        ),
    ),
    "a form of its own": (
        {"options_form": "<input>"},
        (
            "c.KubeSpawner.options_form would replace gpuspawner's form. Remove it. "
            "What people may choose stands in the catalog's templates."
        ),
    ),
    "profiles nobody could choose": (
        {"profile_list": PROFILES},
        (
            "c.KubeSpawner.profile_list has 2 profiles, of which people would only get the default one: What people "
            "may choose stands in the catalog's templates. Write profile: small-one and so on in the templates, or "
            "keep one profile."
        ),
    ),
    "a profile that is only a name": (
        {"profile_list": ["small"]},
        "c.KubeSpawner.profile_list: profile 1 has no display_name, which KubeSpawner needs. Write one.",
    ),
    "a profile without a name": (
        {"profile_list": [*PROFILES, {"slug": "third"}]},
        "c.KubeSpawner.profile_list: profile 3 has no display_name, which KubeSpawner needs. Write one.",
    ),
}


@pytest.mark.parametrize(("settings", "words"), CONFLICTS.values(), ids=CONFLICTS)
def test_promise_10_what_contradicts_a_lease_is_refused_by_name(configured, settings, words):
    with pytest.raises(SystemExit) as refused:
        configured(**settings)
    assert str(refused.value) == f"gpuspawner: {words}"


def test_what_a_lease_replaces_is_named_and_the_hub_starts(configured, capsys):
    c = Config()
    c.Authenticator.admin_users = {"admin"}
    configured(c, mem_guarantee="1G")
    assert capsys.readouterr().err == (
        "gpuspawner: c.KubeSpawner.mem_guarantee is not used: a workspace is guaranteed what its user asks, within the "
        "template's bounds.\n"
    )


@pytest.mark.parametrize(("version", "limit"), [("5.5.4", 0), ("6.1.1", 5)])
def test_on_jupyterhub_5_no_refusal_counts_towards_the_hubs_end(configured, monkeypatch, version, limit):
    monkeypatch.setattr(sys.modules["gpuspawner.spawner.configure"], "hub_version", version)
    c = configured(consecutive_failure_limit=5)
    assert written(c, GPUSpawner, "consecutive_failure_limit", None)[1] == limit


def test_all_conflicts_are_told_at_once_also_those_that_were_only_added(configured):
    c = Config()
    c.KubeSpawner.environment.update({"NVIDIA_VISIBLE_DEVICES": "all"})
    with pytest.raises(SystemExit) as refused:
        configured(c, spawner_class=OwnSpawner, cpu_limit=2)
    assert [line.split(" ")[1] for line in str(refused.value).splitlines()] == [
        "c.KubeSpawner.cpu_limit",
        "c.KubeSpawner.environment",
    ]


def test_profiles_that_templates_name_are_kept(configured):
    templates = {"lab": {"profile": "small-one"}, "big": {"profile": "big"}}
    c = configured(catalog={**CATALOG, "templates": templates}, profile_list=PROFILES)
    assert c.KubeSpawner.profile_list == PROFILES


@pytest.mark.parametrize(
    ("owner", "setting", "value", "words"),
    [
        ("KubeSpawner", "node_selector", "pool=gpus", "c.KubeSpawner.node_selector takes a dict, not str."),
        (
            "KubeSpawner",
            "extra_container_config",
            ["x"],
            "c.KubeSpawner.extra_container_config takes a dict, not list.",
        ),
        ("KubeSpawner", "environment", "A=1", "c.KubeSpawner.environment takes a dict, not str."),
        ("KubeSpawner", "tolerations", "all", "c.KubeSpawner.tolerations takes a list or a dict, not str."),
        ("GPUSpawner", "gpu_cluster", "other", "c.GPUSpawner.gpu_cluster takes a dict, not str."),
    ],
)
def test_promise_10_a_setting_of_a_wrong_type_is_refused_by_name(configured, owner, setting, value, words):
    c = Config()
    c[owner][setting] = value
    with pytest.raises(SystemExit, match=f"^gpuspawner: {re.escape(words)}$"):
        configured(c)


def test_a_security_context_may_be_a_function_as_kubespawner_has_it(configured):
    assert configured(container_security_context=lambda spawner: {"runAsUser": spawner.uid})


def test_promise_10_a_profile_that_is_not_there_is_refused_by_name(configured):
    with pytest.raises(SystemExit) as refused:
        configured(catalog={**CATALOG, "templates": {"lab": {"profile": "bigg"}}}, profile_list=PROFILES)
    assert str(refused.value) == (
        "gpuspawner: templates.lab.profile: c.KubeSpawner.profile_list has no profile with the slug bigg. "
        "It has: small-one, big."
    )


OVERRIDES = {
    "GPUs of its own": (
        {"extra_resource_limits": {"nvidia.com/gpu": "1"}},
        "extra_resource_limits names nvidia.com/gpu. GPUs come from the lease alone: take it out.",
    ),
    "a limit of memory": (
        {"mem_limit": "1G"},
        "mem_limit would be replaced by what people ask. Take it out; write bounds: {memory: ...} instead.",
    ),
    "a setting of a wrong type": ({"environment": "A=1"}, "environment takes a dict, not str."),
    "no settings": (["mem_limit"], "kubespawner_override takes a dict, not list."),
    "another namespace": (
        {"namespace": "elsewhere"},
        "namespace: the service would not see its workspaces there. Take it out.",
    ),
}


@pytest.mark.parametrize("templates", [{"lab": {"profile": "big"}}, {"lab": {}}], ids=["named", "by default"])
@pytest.mark.parametrize(("override", "words"), OVERRIDES.values(), ids=OVERRIDES)
def test_promise_10_a_profile_that_contradicts_a_lease_is_refused_by_name(configured, override, words, templates):
    big = {"display_name": "Big", "default": True, "kubespawner_override": override}
    with pytest.raises(SystemExit) as refused:
        configured(catalog={**CATALOG, "templates": templates}, profile_list=[big])
    (line,) = str(refused.value).splitlines()
    assert line.startswith("gpuspawner: c.KubeSpawner.profile_list, big: ")
    assert line.endswith(words)


def test_a_profile_that_is_never_applied_and_what_no_lease_says_are_nobodys_conflict(configured):
    unused = {"display_name": "Unused", "default": True, "kubespawner_override": {"mem_limit": "1G"}}
    late = {"extra_container_config": lambda spawner: {"workingDir": f"/srv/{spawner.user.name}"}}
    small = {"display_name": "Small", "kubespawner_override": {"mem_guarantee": "1G", "environment": None, **late}}
    configured(catalog={**CATALOG, "templates": {"lab": {"profile": "small"}}}, profile_list=[unused, small])


def test_promise_10_an_image_that_nothing_would_start_is_refused_by_name(configured):
    with pytest.raises(SystemExit) as refused:
        configured(spawner_class=LocalProcessSpawner, catalog={**CATALOG, "templates": {"lab": {"image": "lab:1"}}})
    assert str(refused.value) == (
        "gpuspawner: templates.lab.image needs KubeSpawner; this hub's class is LocalGPUSpawner. "
        "Take it out, or set c.JupyterHub.spawner_class = 'kubespawner' before configure()."
    )


def test_the_configuration_to_copy_is_right(tmp_path):
    source = Path(__file__).parents[2] / "hub_config"
    for name in ("kubernetes_config.py", "kubernetes-catalog.yaml"):
        shutil.copy(source / name, tmp_path)
    c = Config()
    config = tmp_path / "kubernetes_config.py"
    exec(compile(config.read_text(), config, "exec"), {"c": c, "__file__": str(config)})
    assert c.JupyterHub.spawner_class is GPUSpawner
    settings = {name for name in c.GPUSpawner if name.startswith("gpu_")}
    assert settings <= set(GPUSpawner.class_trait_names(config=True))
    assert {name: c.GPUSpawner[name] for name in settings} == {
        name: GPUSpawner.class_traits()[name].default() for name in settings
    }
