import copy
from dataclasses import replace

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration
from kubespawner.objects import make_pod

from gpuspawner.core.errors import Conflict
from gpuspawner.spawner.kubernetes.manifests import (
    START_MARK,
    PodSettings,
    apply_changes,
    find_contradiction,
    to_model,
    with_lease,
)

GIB = 2**30
SETTINGS = PodSettings(cpu_cores=8, memory_bytes=64 * GIB, shared_memory_bytes=32 * GIB, grace_seconds=45)
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
PRODUCT = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]}
PREFERENCE = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-7"]}]},
}
ENVIRONMENT = {
    "GPUSPAWNER_LEASE_ID": "1e45e",
    "GPUSPAWNER_ATTEMPT": "2",
    "GPUSPAWNER_HUB_ID": "4ub",
    "GPUSPAWNER_LEASE": '{"user":"alice"}',
    "GPUSPAWNER_LEASE_SIGNATURE": "5a",
    "GPUSPAWNER_WORKSPACE_TOKEN": "gpuws-secret",
}
PATCH = {
    "environment": ENVIRONMENT,
    "path_prefix": "",
    "pod": {
        "container": {"resources": {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}},
        "spec": {
            "tolerations": [TOLERATION],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [PRODUCT]}]
                    },
                    "preferredDuringSchedulingIgnoredDuringExecution": [PREFERENCE],
                }
            },
        },
    },
}
WITHOUT = {"environment": {**ENVIRONMENT, "NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}}


@pytest.fixture
async def api():
    async with ApiClient(Configuration()) as client:
        yield client


@pytest.fixture
def made(api):
    """Return KubeSpawner's manifest as JSON."""

    def make(**settings):
        arguments = {"name": "jupyter-alice", "cmd": ["x"], "port": 8888, "image": "lab:1", **settings}
        arguments.setdefault("allow_privilege_escalation", False)
        return api.sanitize_for_serialization(make_pod(**arguments))

    return make


def patched(manifest, patch=PATCH, settings=SETTINGS):
    before = copy.deepcopy(manifest)
    pod = with_lease(manifest, patch, settings, "m1")
    assert manifest == before  # the manifest that was given is not changed
    return pod


def test_gpus_are_limits_in_whole_numbers_with_cpu_and_memory_requests(made):
    pod = patched(made())
    asked = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": asked, "requests": asked}


@pytest.mark.parametrize(
    ("patch", "own"), [pytest.param(WITHOUT, "0", id="without a GPU"), pytest.param(PATCH, "2", id="with GPUs")]
)
def test_no_container_leaves_a_limit_range_a_gpu_to_add(made, patch, own):
    before = made(extra_containers=[{"name": "log", "image": "log:1"}], init_containers=[{"name": "i", "image": "i:1"}])
    pod = patched(before, {**patch, "not_added": ["nvidia.com/gpu"]})
    server, log = pod["spec"]["containers"]
    (init,) = pod["spec"]["initContainers"]
    for one, count in ((server, own), (log, "0"), (init, "0")):
        assert {part: one["resources"][part]["nvidia.com/gpu"] for part in ("limits", "requests")} == {
            "limits": count, "requests": count,
        }  # fmt: skip
    assert find_contradiction(pod, patch, "m1") == ""


def test_additions_of_an_external_scheduler_are_applied_and_replace_nothing(made):
    wanted = {
        "labels": {"queue": "research", "component": "theirs", "gpuspawner.io/lease": "another"},
        "annotations": {"batch/job": "7"},
        "nodeSelector": {"pool": "theirs", "zone": "east"},
        "tolerations": [{"key": "batch", "operator": "Exists"}],
        "schedulerName": "batch",
        "priorityClassName": "low",
        "runtimeClassName": "nvidia",
    }
    patch = {**PATCH, "pod": {**PATCH["pod"], "beside": wanted}}
    before = made(labels={"component": "ours"}, node_selector={"pool": "ours"}, priority_class_name="high")
    pod = patched(before, patch)
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    assert (labels["queue"], labels["component"], labels["gpuspawner.io/lease"]) == ("research", "ours", "1e45e")
    assert pod["metadata"]["annotations"]["batch/job"] == "7"
    assert spec["nodeSelector"] == {"pool": "ours", "zone": "east"}
    assert spec["tolerations"][-1] == {"key": "batch", "operator": "Exists"}
    assert (spec["schedulerName"], spec["priorityClassName"], spec["runtimeClassName"]) == ("batch", "high", "nvidia")


@pytest.mark.parametrize(("size_bytes", "written"), [(512 * 2**20, "512Mi"), (GIB + 1, str(GIB + 1))])
def test_a_size_is_written_in_the_usual_unit_and_exactly(made, size_bytes, written):
    pod = patched(made(), PATCH, PodSettings(cpu_cores=1, memory_bytes=size_bytes))
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == written


def test_the_hubs_other_limits_stay_and_the_request_replaces_cpu_and_memory(made):
    pod = patched(made(mem_guarantee=GIB, cpu_limit=1, extra_resource_limits={"nvidia.com/nic": "1"}))
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2", "nvidia.com/nic": "1"}
    assert resources["requests"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}


def test_the_pod_has_the_data_that_rebuild_its_lease_but_not_the_token(made):
    metadata = patched(made(labels={"component": "singleuser-server"}, annotations={"a": "b"}))["metadata"]
    assert metadata["labels"] == {
        "component": "singleuser-server",
        "gpuspawner.io/lease": "1e45e",
        "gpuspawner.io/attempt": "2",
        "gpuspawner.io/hub": "4ub",
    }
    assert metadata["annotations"] == {
        "a": "b",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        "gpuspawner.io/lease-document": '{"user":"alice"}',
        "gpuspawner.io/lease-signature": "5a",
        START_MARK: "m1",
    }


def test_no_autoscaler_ends_a_workspace_to_save_its_node_unless_the_hub_lets_it(made):
    own = {"karpenter.sh/do-not-disrupt": "4h"}
    told = [patched(made(**more))["metadata"]["annotations"] for more in ({}, {"annotations": own})]
    assert [one["karpenter.sh/do-not-disrupt"] for one in told] == ["true", "4h"]
    assert [one["cluster-autoscaler.kubernetes.io/safe-to-evict"] for one in told] == ["false", "false"]


def test_an_image_of_a_users_own_is_always_pulled_by_the_same_secrets_and_security_context(made):
    manifest = made(image_pull_policy="IfNotPresent", image_pull_secrets=["hub"], uid=1000)
    usual, own = patched(manifest), patched(manifest, settings=replace(SETTINGS, always_pull=True))
    server = own["spec"]["containers"][0]
    assert (server.pop("imagePullPolicy"), usual["spec"]["containers"][0].pop("imagePullPolicy")) == (
        "Always",
        "IfNotPresent",
    )
    assert own == usual


def test_shared_memory_is_a_volume_in_memory_of_a_size(made):
    spec = patched(made(volumes=[{"name": "home", "emptyDir": {}}]))["spec"]
    assert spec["volumes"][-1] == {"name": "gpuspawner-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}
    assert spec["containers"][0]["volumeMounts"][-1] == {"name": "gpuspawner-shm", "mountPath": "/dev/shm"}


@pytest.mark.parametrize("mount", ["/dev/shm", "/dev/shm/"])
def test_shared_memory_that_the_hub_mounts_itself_stays(made, mount):
    own = {
        "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}],
        "volume_mounts": [{"name": "dshm", "mountPath": mount}],
    }
    spec = patched(made(**own))["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["dshm"]


def test_without_a_size_there_is_no_shared_memory(made):
    settings = PodSettings(cpu_cores=1, memory_bytes=GIB)
    assert "volumes" not in {key for key, value in patched(made(), PATCH, settings)["spec"].items() if value}


def test_a_toleration_is_added_once_and_the_hubs_own_stay(made):
    own = {"key": "dedicated", "operator": "Equal", "value": "user", "effect": "NoSchedule"}
    assert patched(made(tolerations=[own, TOLERATION]))["spec"]["tolerations"] == [own, TOLERATION]


def test_both_the_hubs_own_node_requirements_and_the_leases_hold(made):
    zones = [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-9"]}]},
    ]
    liked = {"weight": 1, "preference": {"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}}
    pod = patched(made(node_affinity_required=zones, node_affinity_preferred=[liked]))
    assert pod["spec"]["affinity"]["nodeAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [*zones[0]["matchExpressions"], PRODUCT]},
                {"matchExpressions": [PRODUCT], "matchFields": zones[1]["matchFields"]},
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [liked, PREFERENCE],
    }


def test_a_workspace_without_gpus_sees_none_and_needs_no_gpu_node(made):
    pod = patched(made(env={"NVIDIA_VISIBLE_DEVICES": "void"}), WITHOUT)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "8", "memory": "64Gi"}
    assert not pod["spec"].get("tolerations")
    assert not pod["spec"].get("affinity")


def test_no_other_container_of_the_pod_sees_a_gpu(made):
    others = {"extra_containers": [{"name": "side", "image": "x"}], "init_containers": [{"name": "init", "image": "x"}]}
    spec = patched(made(**others))["spec"]
    void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert [c["env"] for c in spec["initContainers"] + spec["containers"][1:]] == [void, void]
    assert not spec["containers"][0].get("env")  # the device plugin sets it


def test_the_pod_gets_time_to_end_no_credential_and_says_why_it_crashed(made):
    spec = patched(made())["spec"]
    assert spec["terminationGracePeriodSeconds"] == 45
    assert spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][3:] == ["gpuspawner-pre-stop", "40", "5"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_pod_settings_of_the_administrator_are_kept(made):
    own = {"terminationGracePeriodSeconds": 7, "runtimeClassName": "kata"}
    pod = patched(
        made(extra_pod_config=own, automount_service_account_token=True),
        settings=PodSettings(cpu_cores=1, memory_bytes=GIB, runtime_class="nvidia"),
    )
    assert {key: pod["spec"][key] for key in own} == own
    assert pod["spec"]["automountServiceAccountToken"] is True
    named = patched(made(service_account="spark"))["spec"]
    assert named["serviceAccountName"] == "spark"
    assert "automountServiceAccountToken" not in named, "who names an account wants its token"
    hooks = {"preStop": {"exec": {"command": ["drain"]}}, "postStart": {"exec": {"command": ["fetch"]}}}
    assert patched(made(lifecycle_hooks=hooks))["spec"]["containers"][0]["lifecycle"] == hooks
    kept = patched(made(lifecycle_hooks={"postStart": hooks["postStart"]}))["spec"]["containers"][0]["lifecycle"]
    assert kept["postStart"] == hooks["postStart"]
    assert "gpuspawner-pre-stop" in kept["preStop"]["exec"]["command"]


def test_the_runtime_class_is_for_pods_with_gpus(made):
    settings = PodSettings(cpu_cores=1, memory_bytes=GIB, runtime_class="nvidia")
    assert patched(made(), PATCH, settings)["spec"]["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in patched(made(), WITHOUT, settings)["spec"]


RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_every_container_fits_the_restricted_standard(made):
    spec = patched(made(uid=1000, extra_containers=[{"name": "side", "image": "x"}]))["spec"]
    assert spec["containers"][0]["securityContext"] == {"runAsUser": 1000, **RESTRICTED}
    assert spec["containers"][1]["securityContext"] == RESTRICTED


def test_a_container_that_was_given_rights_on_purpose_keeps_them(made):
    block = {"privileged": True, "runAsUser": 0, "capabilities": {"add": ["NET_ADMIN"]}}
    rootful = made(uid=0, init_containers=[{"name": "block-metadata", "image": "x", "securityContext": block}])
    spec = patched(rootful)["spec"]
    assert spec["initContainers"][0]["securityContext"] == block
    assert spec["containers"][0]["securityContext"] == {"runAsUser": 0, "allowPrivilegeEscalation": False}


def test_settings_of_the_whole_pod_are_not_repeated(made):
    whole = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "Localhost"}}
    spec = patched(made(pod_security_context=whole))["spec"]
    assert spec["securityContext"] == whole
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_restricted_standard_can_be_left_out(made):
    spec = patched(made(), PATCH, PodSettings(cpu_cores=1, memory_bytes=GIB, restricted=False))["spec"]
    assert spec["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}


@pytest.mark.parametrize(
    "own",
    [
        {"extra_resource_limits": {"nvidia.com/gpu": "1"}},
        {"extra_resource_guarantees": {"nvidia.com/mig-1g.10gb": "1"}},
        {"extra_resource_limits": {"amd.com/gpu": "1"}},
        {"extra_resource_limits": {"gpu.intel.com/i915": "1"}},
    ],
)
@pytest.mark.parametrize("patch", [PATCH, WITHOUT])
def test_promise_10_gpus_of_the_hubs_own_settings_are_refused_by_name(made, own, patch):
    (name,) = next(iter(own.values()))
    with pytest.raises(Conflict) as refused:
        patched(made(**own), patch)
    assert f"c.KubeSpawner.extra_resource_limits (or a profile's) names {name}. GPUs come" in str(refused.value)


TRAINS = {"name": "trains", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 4}}}


@pytest.mark.parametrize(("patch", "leased"), [(PATCH, 2), (WITHOUT, 0)])
@pytest.mark.parametrize("where", ["extra_containers", "init_containers"])
def test_promise_10_gpus_of_another_container_are_refused_by_name(made, patch, leased, where):
    with pytest.raises(Conflict) as refused:
        patched(made(**{where: [TRAINS]}), patch)
    taken = leased + 4 if where == "extra_containers" else 4  # what only prepares has them before the server
    assert str(refused.value) == (
        "A container of c.KubeSpawner.extra_containers, init_containers or extra_pod_config (or of a profile's) makes "
        f"the pod take {taken} nvidia.com/gpu; the lease is for {leased}. Let it ask for none: GPUs come from the "
        "lease alone."
    )


@pytest.mark.parametrize("patch", [PATCH, WITHOUT])
def test_promise_1_a_privileged_server_is_refused_for_it_sees_every_gpu(made, patch):
    with pytest.raises(Conflict, match="makes the server privileged, which sees every GPU of its node"):
        patched(made(container_security_context={"privileged": True}), patch)


def test_a_container_that_prepares_the_leased_gpus_may_ask_for_them(made):
    checks = {"name": "checks", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    assert patched(made(init_containers=[checks]))["spec"]["initContainers"][0]["resources"] == checks["resources"]


def test_promise_10_a_variable_that_shows_other_gpus_is_refused_by_name(made):
    with pytest.raises(Conflict, match=r"c\.KubeSpawner .* env sets NVIDIA_VISIBLE_DEVICES"):
        patched(made(env={"NVIDIA_VISIBLE_DEVICES": "all"}))


def without_label(pod):
    del pod["metadata"]["labels"]["gpuspawner.io/lease"]


def without_annotation(pod):
    del pod["metadata"]["annotations"]["gpuspawner.io/lease-document"]


def with_more_gpus(pod):
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 3


def with_another_resource(pod):
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] = "1"


def with_a_container_of_its_own(pod):
    pod["spec"]["containers"].append(TRAINS)


def renamed(pod):
    pod["spec"]["containers"][0]["name"] = "lab"


def made_privileged(pod):
    pod["spec"]["containers"][0]["securityContext"]["privileged"] = True


HOOKS = {
    without_label: "modify_pod_hook removes or changes gpuspawner.io/lease.",
    without_annotation: "modify_pod_hook removes or changes gpuspawner.io/lease-document.",
    with_more_gpus: "modify_pod_hook changes nvidia.com/gpu to 3; the lease is for 2.",
    with_another_resource: "modify_pod_hook changes nvidia.com/mig-1g.10gb to 1; the lease is for 0.",
    with_a_container_of_its_own: "modify_pod_hook makes the pod take 6 nvidia.com/gpu; the lease is for 2.",
    renamed: "The pod has no container `notebook`",
    made_privileged: "modify_pod_hook makes the server privileged, which sees every GPU of its node.",
}


@pytest.mark.parametrize(("hook", "words"), HOOKS.items())
def test_promise_10_a_hook_that_removes_the_lease_from_the_pod_is_reported(made, hook, words):
    pod = patched(made())
    assert find_contradiction(pod, PATCH, "m1") == ""
    hook(pod)
    assert words in find_contradiction(pod, PATCH, "m1")


def test_a_hook_gets_the_same_objects_as_from_kubespawner(api):
    model = make_pod(
        name="jupyter-alice",
        cmd=["x"],
        port=8888,
        image="lab:1",
        allow_privilege_escalation=False,
        volumes=[{"name": "home", "persistentVolumeClaim": {"claimName": "claim-alice"}}],
        volume_mounts=[{"name": "home", "mountPath": "/home"}],
        tolerations=[{"key": "a", "operator": "Exists"}],
    )
    home, toleration = model.spec.volumes[0], model.spec.tolerations[0]
    before = api.sanitize_for_serialization(model)
    after = with_lease(before, PATCH, SETTINGS, "m1")
    pod = apply_changes(model, before, after, "V1Pod")
    assert api.sanitize_for_serialization(pod) == after
    assert pod.spec.volumes[0] is home
    assert pod.spec.tolerations[0] is toleration
    assert pod.spec.containers[0].resources.limits["nvidia.com/gpu"] == "2"
    assert pod.spec.containers[0].security_context["capabilities"] == {"drop": ["ALL"]}
    assert pod.spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution[0].weight == 100


def test_a_shrunken_list_is_replaced(api):
    model = to_model({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}, "V1Pod")
    before = api.sanitize_for_serialization(model)
    after = {"spec": {"containers": [{"name": "b"}]}}
    assert api.sanitize_for_serialization(apply_changes(model, before, after, "V1Pod")) == after
