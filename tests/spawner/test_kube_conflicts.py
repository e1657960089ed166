"""Promise 10: GPUs of a workspace outside its lease are refused at the hub's start, wherever they are written.

A conflict that only shows at a start is refused there, by the finished pod.
"""

import copy

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration, V1Container, V1ResourceRequirements
from kubespawner.objects import make_pod
from traitlets.config import Config

from gpuspawner.core.errors import Conflict
from gpuspawner.spawner import configure
from gpuspawner.spawner.kubernetes.manifests import PodSettings, find_contradiction, with_lease

GPU = {"nvidia.com/gpu": 1}
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
SIDE = {"name": "side", "image": "x"}
NAMES = "resources: limits names nvidia.com/gpu. GPUs come from the lease alone: take it out."
SHOWS = "env sets NVIDIA_VISIBLE_DEVICES, which shows it GPUs of others. Take it out."
CLAIMS = "claims gives devices that no lease counts. GPUs come from the lease alone: take it out."
PATH = "reaches GPUs or containers of its whole node. Take it out, or give a path outside of those."
ASKS = "asks NVIDIA's container runtime for GPUs. GPUs come from the lease alone: take it out."


def host(path):
    return {"volumes": [{"name": "node", "hostPath": {"path": path}}]}


WAYS = {
    "a container beside": ({"extra_containers": [{**SIDE, "resources": {"limits": GPU}}]}, f"side: {NAMES}"),
    "a container of a dict": ({"extra_containers": {"a": {**SIDE, "resources": {"limits": GPU}}}}, f"side: {NAMES}"),
    "a container before": ({"init_containers": [{**SIDE, "resources": {"limits": GPU}}]}, f"side: {NAMES}"),
    "the client's own model": (
        {"extra_containers": [V1Container(name="side", resources=V1ResourceRequirements(limits=GPU))]},
        f"side: {NAMES}",
    ),
    "the server's resources": ({"extra_container_config": {"resources": {"limits": GPU}}}, NAMES),
    "the pod's containers before": (
        {"extra_pod_config": {"init_containers": [{**SIDE, "resources": {"limits": GPU}}]}},
        f"initContainers, side: {NAMES}",
    ),
    "a variable of another container": ({"extra_containers": [{**SIDE, "env": ALL}]}, f"side: {SHOWS}"),
    "a variable from elsewhere": (
        {"extra_containers": [{**SIDE, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}}]}]},
        f"side: {SHOWS}",
    ),
    "a variable that hides GPUs": (
        {"environment": {"CUDA_VISIBLE_DEVICES": "0"}},
        "sets CUDA_VISIBLE_DEVICES, which hides GPUs of the lease or renumbers them. Take it out.",
    ),
    "a variable of another key": (
        {"environment": {"any": {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}}},
        "sets NVIDIA_VISIBLE_DEVICES, which shows a workspace other GPUs than its own. Take it out.",
    ),
    "a claim": ({"extra_container_config": {"resources": {"claims": [{"name": "a"}]}}}, f"resources: {CLAIMS}"),
    "the pod's claims": (
        {"extra_pod_config": {"resourceClaims": [{"name": "a"}]}},
        "resourceClaims gives devices that no lease counts. GPUs come from the lease alone: take it out.",
    ),
    "the node's processes": (
        {"extra_pod_config": {"hostPID": True}},
        "hostPID shows a workspace the processes of its whole node, and lets their GPUs count as its own. Take it out.",
    ),
    "the node's devices": (host("/dev/nvidia0"), f"volumes, node: hostPath /dev/nvidia0 {PATH}"),
    "all devices": (host("/dev/"), f"volumes, node: hostPath /dev/ {PATH}"),
    "the whole node": (host("/"), f"volumes, node: hostPath / {PATH}"),
    "another way to the same": (host("/dev/../proc/1"), f"volumes, node: hostPath /dev/../proc/1 {PATH}"),
    "a socket": (host("/var/run/docker.sock"), f"volumes, node: hostPath /var/run/docker.sock {PATH}"),
    "a folder of sockets": (host("/run"), f"volumes, node: hostPath /run {PATH}"),
    "the pod's volumes": (
        {"extra_pod_config": host("/run/containerd/containerd.sock")},
        f"volumes, node: hostPath /run/containerd/containerd.sock {PATH}",
    ),
    "a mount that asks": (
        {
            **host("/dev/null"),
            "volume_mounts": [{"name": "node", "mountPath": "/var/run/nvidia-container-devices/all"}],
        },
        f"/var/run/nvidia-container-devices/all {ASKS}",
    ),
    "a mount by another path": (
        {**host("/dev/null"), "volume_mounts": [{"name": "node", "mountPath": "//run/./nvidia-container-devices/0"}]},
        f"//run/./nvidia-container-devices/0 {ASKS}",
    ),
    "a mount from the root": (
        {**host("/dev/null"), "volume_mounts": [{"name": "node", "mountPath": "run/nvidia-container-devices/0"}]},
        f"run/nvidia-container-devices/0 {ASKS}",
    ),
    "what names a node's devices": (host("/var/run/cdi"), f"volumes, node: hostPath /var/run/cdi {PATH}"),
    "an annotation": (
        {"extra_annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}},
        "cdi.k8s.io/gpu asks the container runtime for devices. GPUs come from the lease alone: take it out.",
    ),
    "a part of a GPU": (
        {"extra_container_config": {"resources": {"limits": {"volcano.sh/vgpu-number": "1"}}}},
        NAMES.replace("nvidia.com/gpu", "volcano.sh/vgpu-number"),
    ),
}  # fmt: skip
NOT_OF_A_POD = {"a container of a dict", "the client's own model", "a variable of another key"}
"""Settings that KubeSpawner itself turns into other settings of this list."""
COUNTED = {"a container beside", "a container before", "the server's resources", "the pod's containers before"}
"""Parts that the finished pod is checked for as a whole, in test_pod.py: they count toward the lease's GPUs."""

CARRIERS = {
    "the hub's": lambda settings: settings,
    "a profile": lambda settings: {"profile_list": [{"display_name": "Big", "kubespawner_override": settings}]},
    "a choice": lambda settings: menu(choices={"a": {}, "b": {"kubespawner_override": settings}}),
    "what is not listed": lambda settings: menu(unlisted_choice={"enabled": True, "kubespawner_override": settings}),
}
PLACES = {
    "the hub's": "c.KubeSpawner.",
    "a profile": "c.KubeSpawner.profile_list, big: ",
    "a choice": "c.KubeSpawner.profile_list, big, extra, b: ",
    "what is not listed": "c.KubeSpawner.profile_list, big, extra, unlisted_choice: ",
}


def menu(**option):
    return {"profile_list": {"x": {"display_name": "Big", "profile_options": {"extra": option}}}}


def configured(folder, settings, catalog=None):
    c = Config()
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    for name, value in settings.items():
        c.KubeSpawner[name] = value
    kinds = {"a100": {"match": "A100", "memory": "80GiB"}, "own": {"resource": "example.org/gpu", "memory": "8GiB"}}
    usual = {"version": 1, "gpus": kinds, "templates": {"lab": {"gpus": {"a100": "1-2"}}}}
    configure(c, catalog=catalog or usual, data_dir=folder / "gpu")


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(("settings", "words"), WAYS.values(), ids=WAYS)
def test_promise_10_gpus_outside_the_lease_are_refused_at_the_hubs_start(tmp_path, settings, words, carrier):
    with pytest.raises(SystemExit) as refused:
        configured(tmp_path, CARRIERS[carrier](settings))
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"gpuspawner: {PLACES[carrier]}")
    assert line.endswith(words)


def test_promise_10_a_resource_that_the_catalog_names_is_a_gpu_anywhere(tmp_path):
    with pytest.raises(SystemExit, match=r"side: resources: requests names example\.org/gpu\."):
        configured(tmp_path, {"extra_containers": [{**SIDE, "resources": {"requests": {"example.org/gpu": 1}}}]})


def test_promise_10_containers_that_would_replace_the_server_are_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"extra_pod_config: containers replaces the server's own container\. Write"):
        configured(tmp_path, {"extra_pod_config": {"containers": [SIDE]}})


HARMLESS = {
    "extra_containers": [{**SIDE, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}],
    "volumes": [
        {"name": name, "hostPath": {"path": path}}
        for name, path in {"a": "/dev/shm", "b": "/dev/fuse", "c": "/data", "d": "/var/lib/data", "e": "/runs"}.items()
    ],
    "extra_pod_config": {"hostPID": False, "hostNetwork": True},
    "extra_container_config": {"resources": {"limits": {"example.org/nic": 1}}, "envFrom": [{"prefix": "TEAM_"}]},
}


def test_a_setting_without_gpu_access_is_no_conflict(tmp_path, capsys):
    configured(tmp_path, HARMLESS)
    assert capsys.readouterr().err.count("extra_") == 0


def test_possible_gpu_access_is_named_and_the_hub_starts(tmp_path, capsys):
    source = {"configMapRef": {"name": "team"}}
    configured(tmp_path, {
        "extra_container_config": {"envFrom": [source]},
        "extra_containers": [{**SIDE, "securityContext": {"privileged": True}}],
    })  # fmt: skip
    assert [line for line in capsys.readouterr().err.splitlines() if "extra_" in line] == [
        (
            "gpuspawner: c.KubeSpawner.extra_container_config: envFrom takes variables that are not seen here: "
            "NVIDIA_VISIBLE_DEVICES among them would show a workspace every GPU of its node. Give it a prefix, or "
            "write the variables in c.KubeSpawner.environment."
        ),
        (
            "gpuspawner: c.KubeSpawner.extra_containers, side: a privileged container next to the server sees every "
            "GPU of its node, and no lease counts what it uses. Do not let users run programs in it."
        ),
    ]


@pytest.fixture
async def made():
    """Return KubeSpawner's manifest of its settings as JSON."""
    async with ApiClient(Configuration()) as client:

        def make(settings):
            named = {"environment": "env", "extra_annotations": "annotations"}
            arguments = {named.get(name, name): copy.deepcopy(value) for name, value in settings.items()}
            pod = make_pod(name="jupyter-alice", cmd=["x"], port=8888, image="lab:1", **arguments)
            return client.sanitize_for_serialization(pod)

        yield make


TWO = {"pod": {"container": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}}
SETTINGS = PodSettings(cpu_cores=1, memory_bytes=2**30)
AT_THE_START = {way: settings for way, (settings, _) in WAYS.items() if way not in NOT_OF_A_POD | COUNTED}


@pytest.mark.parametrize("settings", AT_THE_START.values(), ids=AT_THE_START)
def test_promise_10_conflicts_that_appear_at_a_start_are_refused_in_the_finished_pod(made, settings):
    pod = made(settings)
    with pytest.raises(Conflict, match=r"c\.KubeSpawner"):
        with_lease(pod, TWO, SETTINGS, "m1")


@pytest.mark.parametrize("settings", AT_THE_START.values(), ids=AT_THE_START)
def test_promise_10_a_hook_that_reaches_gpus_is_reported(made, settings):
    clean = with_lease(made({}), TWO, SETTINGS, "m1")
    assert find_contradiction(clean, TWO, "m1") == ""
    hooked = made(settings)
    added = hooked["metadata"].get("annotations") or {}
    hooked["metadata"] = {**clean["metadata"], "annotations": {**clean["metadata"]["annotations"], **added}}
    server = hooked["spec"]["containers"][0]
    server["resources"] = {**clean["spec"]["containers"][0]["resources"], **(server.get("resources") or {})}
    assert "modify_pod_hook" in find_contradiction(hooked, TWO, "m1")


def test_a_start_with_settings_that_reach_no_gpu_continues(made):
    pod = with_lease(made(HARMLESS), TWO, SETTINGS, "m1")
    assert find_contradiction(pod, TWO, "m1") == ""
