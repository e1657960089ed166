"""The fleet as nodes and pods tell it."""

from collections import Counter

import pytest
from cluster_objects import A100, MIG_MIXED, MIG_SINGLE, SHARED, T4, a_container, a_node, a_pod, a_workspace, fleet_of

from gpuspawner.backends.kubernetes.fleet import Toleration, cluster_kinds, gpus_of_node
from gpuspawner.backends.kubernetes.nodes import count_of, to_node
from gpuspawner.backends.kubernetes.pods import requested_gpus, to_pod
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.units import MOST_GPUS
from gpuspawner.service.engine.sampling.gpu_states import find_unmatched_kinds

GIB = 2**30
HUB = "h" * 32
KINDS = cluster_kinds(
    {
        kind.name: kind
        for kind in (
            GpuKind("a100", "A100 80 GB", 80 * GIB, match="NVIDIA-A100-*-80GB*"),
            GpuKind("half", "Half an A100", 40 * GIB, of="a100", shares=2),
            GpuKind("slice", "A100 slice", 10 * GIB, match="*A100*-MIG-1g.10gb"),
            GpuKind("t4", "T4", 16 * GIB, match="Tesla T4"),
            GpuKind("t4-shared", "T4, shared", 4 * GIB, match="*T4-SHARED"),
            GpuKind("mi300", "MI300X", 192 * GIB, match="AMD Instinct MI300X*"),
            GpuKind("max", "Max 1100", 48 * GIB, match="Max_1100"),
            GpuKind("mig2", "Two slices", 20 * GIB, resource="nvidia.com/mig-2g.20gb"),
            GpuKind("xe", "Any Intel", 16 * GIB, resource="gpu.intel.com/xe"),
            GpuKind("a10g", "A10G", 24 * GIB, match="NVIDIA-A10G*"),
            GpuKind("a10g-part", "A part of it", 6 * GIB, match="NVIDIA-A10G-SHARED"),
            GpuKind("l4", "L4", 24 * GIB, match="l4"),
            GpuKind("l4-third", "A third of it", 8 * GIB, resource="nvidia.com/gpu.shared", of="l4", shares=3),
            GpuKind("l40s", "L40S", 48 * GIB, match="l40s"),
        )
    }
)
A10G = {"nvidia.com/gpu.product": "NVIDIA-A10G"}


def fleet(*nodes, pods=(), tolerations=()):
    named = frozenset(kind.resource for kind in KINDS.values() if kind.resource)
    trimmed = [pod for pod in (to_pod(pod, named) for pod in pods) if pod is not None]
    return fleet_of([to_node(node, named) for node in nodes], trimmed, list(KINDS.values()), HUB, tolerations)


def pools(*nodes, **more):
    return dict(Counter(gpu.pool for gpu in fleet(*nodes, **more).gpus))


def grantable(*nodes, **more):
    return sum(gpu.healthy and not gpu.foreign for gpu in fleet(*nodes, **more).gpus)


def test_a_gpu_is_named_by_node_resource_and_number():
    seen = fleet(a_node(gpus={"nvidia.com/gpu": 2}))
    assert seen.complete
    assert [(gpu.id, gpu.node, gpu.index, gpu.group) for gpu in seen.gpus] == [
        ("gpu-1/nvidia.com/gpu/0", "gpu-1", 0, ("gpu-1", "nvidia.com/gpu", "")),
        ("gpu-1/nvidia.com/gpu/1", "gpu-1", 1, ("gpu-1", "nvidia.com/gpu", "")),
    ]
    assert {(gpu.model, gpu.memory_bytes) for gpu in seen.gpus} == {("NVIDIA-A100-SXM4-80GB", 80 * GIB)}


NEW = GpuKind("new", "New A100", 80 * GIB, match="*A100*", driver="570", cuda="12.8")
OLD_DRIVER = {
    **A100,
    "nvidia.com/cuda.driver-version.full": "535.104.05",
    "nvidia.com/cuda.runtime-version.full": "12.2",
}
NEW_DRIVER = {
    **A100,
    "nvidia.com/cuda.driver-version.full": "570.86.15",
    "nvidia.com/cuda.runtime-version.full": "12.8",
}


def test_the_driver_of_a_node_decides_whether_its_gpus_are_of_a_kind():
    nodes = [
        to_node(a_node(name, labels)) for name, labels in (("old", OLD_DRIVER), ("new", NEW_DRIVER), ("bare", A100))
    ]
    seen = fleet_of(nodes, (), [NEW], HUB, ())
    told = {gpu.node: (gpu.pool, gpu.note) for gpu in seen.gpus}
    needed = "and the kind new needs driver 570 and CUDA 12.8"
    assert told == {
        "old": ("", f"the driver 535.104.05 supports CUDA up to 12.2, {needed}"),
        "new": ("new", ""),
        "bare": ("", f"the driver is unknown, {needed}"),
    }
    (sentence,) = find_unmatched_kinds([NEW], fleet_of(nodes[:1], (), [NEW], HUB, ()))
    assert "(match: *A100*, driver: 570, cuda: 12.8)" in sentence
    assert sentence.endswith(f"because {told['old'][1]}. Update the driver, or lower driver and cuda.")
    older = GpuKind("older", "Older A100", 80 * GIB, match="*A100*")
    assert {gpu.node: gpu.pool for gpu in fleet_of(nodes, (), [NEW, older], HUB, ()).gpus} == {
        "old": "older", "new": "new", "bare": "older",
    }  # fmt: skip


def test_a_gpu_is_in_the_zone_that_its_node_is_labelled_with():
    seen = fleet(a_node(labels={**A100, "topology.kubernetes.io/zone": "eu-1a"}), a_node("gpu-2"))
    assert {(gpu.node, gpu.zone) for gpu in seen.gpus} == {("gpu-1", "eu-1a"), ("gpu-2", "")}


@pytest.mark.parametrize(
    ("labels", "resource", "kind"),
    [
        pytest.param(A100, "nvidia.com/gpu", "a100", id="whole"),
        pytest.param(SHARED, "nvidia.com/gpu", "half", id="two replicas serve the share of two"),
        pytest.param(
            {**A100, "nvidia.com/gpu.replicas": "2"}, "nvidia.com/gpu.shared", "half", id="replicas, renamed"
        ),
        pytest.param({**SHARED, "nvidia.com/gpu.replicas": "3"}, "nvidia.com/gpu", "", id="no share has three parts"),
        pytest.param({**T4, "nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"},
                     "nvidia.com/gpu", "t4-shared", id="replicas that a kind names"),
        pytest.param(MIG_SINGLE, "nvidia.com/gpu", "slice", id="MIG, one profile"),
        pytest.param(MIG_MIXED, "nvidia.com/gpu", "a100", id="MIG, mixed: the devices left whole"),
        pytest.param(MIG_MIXED, "nvidia.com/mig-1g.10gb", "slice", id="MIG, mixed: the slices"),
        pytest.param(MIG_MIXED, "nvidia.com/mig-2g.20gb", "mig2", id="MIG, mixed: by resource"),
        pytest.param(MIG_MIXED, "nvidia.com/mig-3g.40gb", "", id="MIG, mixed: a profile nobody named"),
        pytest.param({}, "nvidia.com/gpu", "", id="no label"),
        pytest.param({}, "nvidia.com/mig-2g.20gb", "mig2", id="no label, but a kind of that resource"),
        pytest.param({"cloud.google.com/gke-accelerator": "tesla-t4"}, "nvidia.com/gpu", "t4", id="GKE"),
        pytest.param({"cloud.google.com/gke-accelerator": "nvidia-a100-sxm-80gb",
                      "cloud.google.com/gke-gpu-partition-size": "1g.10gb"}, "nvidia.com/gpu", "slice", id="GKE slice"),
        pytest.param({"cloud.google.com/gke-accelerator": "nvidia-a100-sxm-80gb",
                      "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                      "cloud.google.com/gke-max-shared-clients-per-gpu": "2"}, "nvidia.com/gpu", "half", id="GKE, two"),
        pytest.param({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "amd.com/gpu", "mi300", id="AMD"),
        pytest.param({"gpu.intel.com/product": "Max_1100"}, "gpu.intel.com/i915", "max", id="Intel"),
        pytest.param({"gpu.intel.com/product": "Arc_B580"}, "gpu.intel.com/xe", "xe", id="Intel by resource"),
        pytest.param({"amd.com/gpu.product-name": "Tesla-T4"}, "nvidia.com/gpu", "", id="another vendor's label"),
        pytest.param(A10G, "nvidia.com/gpu", "a10g", id="one whole"),
        pytest.param(A10G, "nvidia.com/gpu.shared", "a10g-part", id="shared by its resource, by how many is not told"),
        pytest.param({**A10G, "nvidia.com/gpu.replicas": "1"}, "nvidia.com/gpu.shared", "a10g-part", id="nor known"),
        pytest.param({"nvidia.com/gpu.product": "NVIDIA-A10G-SHARED"}, "nvidia.com/gpu", "a10g-part", id="by product"),
        pytest.param({"eks.amazonaws.com/instance-gpu-name": "l4"}, "nvidia.com/gpu", "l4", id="EKS"),
        pytest.param({"eks.amazonaws.com/instance-gpu-name": "l4"}, "nvidia.com/gpu.shared", "l4-third",
                     id="shared, and by how many the catalog says of the resource"),
        pytest.param({"eks.amazonaws.com/instance-gpu-name": "l40s"}, "nvidia.com/gpu.shared", "", id="nobody says"),
        pytest.param({}, "nvidia.com/gpu.shared", "", id="shared, no label"),
        pytest.param({**MIG_MIXED, "nvidia.com/mig-1g.10gb.replicas": "1"}, "nvidia.com/mig-1g.10gb.shared", "",
                     id="a shared slice, by how many is not told"),
        pytest.param({**MIG_MIXED, "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED"},
                     "nvidia.com/mig-1g.10gb", "", id="a shared slice by its product"),
    ],
)  # fmt: skip
def test_a_kind_is_matched_by_its_labels(labels, resource, kind):
    assert pools(a_node(labels=labels, gpus={resource: 1})) == {kind: 1}


@pytest.mark.parametrize(
    ("labels", "resource", "fits"),
    [
        pytest.param(A100, "nvidia.com/gpu", True, id="whole"),
        pytest.param(SHARED, "nvidia.com/gpu", False, id="by halves"),
        pytest.param(MIG_SINGLE, "nvidia.com/gpu", False, id="slices"),
        pytest.param({**A100, "nvidia.com/gpu.replicas": "2"}, "nvidia.com/gpu.shared", True, id="by halves, renamed"),
        pytest.param(MIG_MIXED, "nvidia.com/mig-1g.10gb", True, id="slices by resource"),
        pytest.param({**MIG_MIXED, "nvidia.com/mig-1g.10gb.replicas": "2"}, "nvidia.com/mig-1g.10gb", False,
                     id="half slices"),
        pytest.param({**MIG_MIXED, "nvidia.com/mig-1g.10gb.replicas": "2"}, "nvidia.com/mig-1g.10gb.shared", True,
                     id="half slices, renamed"),
    ],
)  # fmt: skip
def test_a_kind_of_product_and_resource_has_what_is_divided_only_where_one_of_them_says_so(labels, resource, fits):
    kind = GpuKind("kind", "Kind", GIB, match="*A100-SXM4-80GB*", resource=resource)
    (gpu,) = gpus_of_node(to_node(a_node(labels=labels, gpus={resource: 1})), (), [kind], HUB, ())
    assert (gpu.pool == "kind") is fits


@pytest.mark.parametrize(
    ("labels", "resource", "gibibytes"),
    [
        pytest.param(A100, "nvidia.com/gpu", 80, id="whole"),
        pytest.param(SHARED, "nvidia.com/gpu", 40, id="a replica's part"),
        pytest.param(MIG_MIXED, "nvidia.com/mig-1g.10gb", 9.5, id="a slice's own"),
        pytest.param(
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}, "amd.com/gpu", 192,
            id="AMD",
        ),
        pytest.param({"eks.amazonaws.com/instance-gpu-name": "t4", "eks.amazonaws.com/instance-gpu-memory": "16384"},
                     "nvidia.com/gpu", 16, id="EKS"),
        pytest.param({"cloud.google.com/gke-accelerator": "tesla-t4"}, "nvidia.com/gpu", 16, id="the kind's own"),
    ],
)  # fmt: skip
def test_memory_is_that_of_one_unit(labels, resource, gibibytes):
    assert [gpu.memory_bytes for gpu in fleet(a_node(labels=labels, gpus={resource: 1})).gpus] == [gibibytes * GIB]


@pytest.mark.parametrize(
    ("labels", "resource", "model", "named"),
    [
        pytest.param({"eks.amazonaws.com/instance-gpu-name": "l40s"}, "nvidia.com/gpu.shared", "l40s-SHARED",
                     "match: l40s-SHARED", id="its product is known"),
        pytest.param({}, "nvidia.com/gpu.shared", "nvidia.com/gpu.shared", "resource: nvidia.com/gpu.shared",
                     id="nothing is"),
    ],
)  # fmt: skip
def test_gpus_shared_by_an_unknown_number_have_a_note_with_the_remedy(labels, resource, model, named):
    node = a_node(labels=labels, gpus={resource: 1})
    (gpu,) = fleet(node).gpus
    note = f"no label says how many share it: to offer it, add a kind with {named} to the catalog"
    assert (gpu.pool, gpu.model, gpu.memory_bytes, gpu.note) == ("", model, 0, note)
    key, _, value = named.partition(": ")
    (given,) = gpus_of_node(to_node(node), (), [GpuKind("part", "Part", GIB, **{key: value})], HUB, ())
    assert (given.pool, given.memory_bytes, given.note) == ("part", GIB, "")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        pytest.param({"ready": False}, "gpu-1 is not ready", id="not ready"),
        pytest.param({"cordoned": True}, "gpu-1 is cordoned", id="cordoned"),
        pytest.param({"taints": [("team", "a", "NoSchedule")]}, "gpu-1 is tainted team", id="tainted"),
        pytest.param({"taints": [("node.kubernetes.io/out-of-service", "", "NoExecute")]},
                     "gpu-1 is tainted node.kubernetes.io/out-of-service", id="emptied"),
    ],
)  # fmt: skip
def test_a_node_that_accepts_no_pods_grants_nothing_and_has_a_note(changes, note):
    seen = fleet(a_node(gpus={"nvidia.com/gpu": 2}, **changes))
    assert [(gpu.healthy, gpu.note) for gpu in seen.gpus] == [(False, note)] * 2


@pytest.mark.parametrize(
    "taint",
    [
        pytest.param(("nvidia.com/gpu", "present", "NoSchedule"), id="the GPUs' own"),
        pytest.param(("team", "a", "PreferNoSchedule"), id="only preferred"),
        pytest.param(("hub.jupyter.org/dedicated", "user", "NoSchedule"), id="tolerated"),
    ],
)
def test_a_taint_that_workspaces_tolerate_excludes_no_workspace(taint):
    tolerated = [Toleration("hub.jupyter.org/dedicated", "Equal", "user", "NoSchedule")]
    assert grantable(a_node(taints=[taint]), tolerations=tolerated) == 8


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        pytest.param(Toleration("team", "Equal", "a"), True, id="any effect"),
        pytest.param(Toleration("team", "Equal", "b"), False, id="another value"),
        pytest.param(Toleration("team", "Exists"), True, id="any value"),
        pytest.param(Toleration("team", "Exists", effect="NoExecute"), False, id="another effect"),
        pytest.param(Toleration("", "Exists"), True, id="everything"),
        pytest.param(Toleration("", "Equal", "a"), False, id="no key"),
    ],
)
def test_tolerations_are_read_as_kubernetes_does(toleration, fits):
    assert (grantable(a_node(taints=[("team", "a", "NoSchedule")]), tolerations=[toleration]) == 8) is fits


def test_pods_of_others_take_from_the_end_and_then_come_the_unhealthy():
    seen = fleet(a_node(healthy={"nvidia.com/gpu": 7}), pods=[a_pod(gpus={"nvidia.com/gpu": 2}, namespace="train")])
    assert [gpu.foreign for gpu in seen.gpus] == [False] * 6 + [True] * 2
    assert [gpu.healthy for gpu in seen.gpus] == [True] * 5 + [False] + [True] * 2
    assert (seen.gpus[5].note, seen.gpus[6].note) == (
        "1 of 8 on gpu-1 are reported unhealthy",
        "used by namespace train",
    )


def test_each_foreign_gpu_has_one_holder_and_each_holder_as_many_as_it_holds():
    ray = a_pod(gpus={"nvidia.com/gpu": 2}, namespace="team-a", labels={"ray.io/cluster": "nightly"})
    alone = a_pod("notebook", gpus={"nvidia.com/gpu": 1}, namespace="team-b")
    held = [gpu.holder for gpu in fleet(a_node(), pods=[alone, ray]).gpus]
    assert held == [""] * 5 + ["RayCluster team-a/nightly"] * 2 + ["Pod team-b/notebook"]


@pytest.mark.parametrize(
    ("pod", "taken"),
    [
        pytest.param(a_pod(), 1, id="running"),
        pytest.param(a_pod(deleting=True), 1, id="terminating: it holds until it is gone"),
        pytest.param(a_pod(phase="Pending"), 1, id="bound, not started"),
        pytest.param(a_pod(phase="Succeeded"), 0, id="done"),
        pytest.param(a_pod(phase="Failed"), 0, id="failed"),
        pytest.param(a_pod(node="", phase="Pending"), 0, id="not bound"),
        pytest.param(a_pod(node="gpu-2"), 0, id="on another node"),
        pytest.param(a_pod(gpus={}), 0, id="without a GPU"),
        pytest.param(a_pod(gpus={"amd.com/gpu": 1}), 0, id="of another resource"),
        pytest.param(a_workspace(gpus={"nvidia.com/gpu": 2}), 0, id="our own: its lease holds them"),
        pytest.param(a_workspace(hub="another", gpus={"nvidia.com/gpu": 2}), 2, id="another hub's"),
        pytest.param(a_pod(gpus={"nvidia.com/gpu": 99}), 8, id="more than there are"),
    ],
)
def test_gpus_of_a_pod(pod, taken):
    assert 8 - grantable(a_node(), pods=[pod]) == taken


ONE, TWO, FOUR = ({"nvidia.com/gpu": count} for count in (1, 2, 4))


@pytest.mark.parametrize(
    ("spec", "counted"),
    [
        pytest.param({"containers": [a_container(gpus=ONE), a_container(gpus=TWO)]}, 3, id="containers add up"),
        pytest.param({"containers": [a_container(gpus=ONE)], "initContainers": [a_container(gpus=FOUR)]}, 4,
                     id="a larger init container counts instead"),
        pytest.param({"containers": [a_container(gpus=TWO)], "initContainers": [a_container(gpus=ONE)] * 2}, 2,
                     id="init containers run one after the other"),
        pytest.param({"containers": [a_container(gpus=TWO)],
                      "initContainers": [a_container(gpus=ONE, restartPolicy="Always")]}, 3,
                     id="a sidecar runs beside the containers"),
        pytest.param({"containers": [a_container(gpus=ONE)],
                      "initContainers": [a_container(gpus=ONE, restartPolicy="Always"), a_container(gpus=FOUR)]}, 5,
                     id="and beside the init containers after it"),
        pytest.param({"containers": [a_container(gpus=ONE)],
                      "initContainers": [a_container(gpus=FOUR), a_container(gpus=ONE, restartPolicy="Always")]}, 4,
                     id="not beside those before it"),
        pytest.param({"containers": [a_container()]}, 0, id="none"),
    ],
)  # fmt: skip
def test_a_pod_reserves_what_kube_scheduler_reserves(spec, counted):
    assert requested_gpus(spec).get("nvidia.com/gpu", 0) == counted


@pytest.mark.parametrize(
    ("quantity", "count"), [("8", 8), ("0", 0), (3, 3), ("1k", 1000), ("1e1", 10), ("2000m", 2), ("?", 0)]
)
def test_quantities_of_devices_are_whole(quantity, count):
    assert count_of(quantity) == count


def test_objects_without_gpus_are_not_kept():
    node = to_node(a_node(labels=MIG_MIXED))
    assert set(node.labels) == {
        "kubernetes.io/hostname", "nvidia.com/gpu.product", "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas",
        "nvidia.com/mig-1g.10gb.memory", "nvidia.com/mig-1g.10gb.replicas", "nvidia.com/mig-1g.10gb.product",
    }  # fmt: skip
    assert node.capacity == {"nvidia.com/gpu": 8}
    assert to_pod(a_pod(gpus={})) is None


def test_a_pod_without_gpus_counts_where_it_is_a_workspace():
    pod = to_pod(a_workspace(gpus={}, deleting=True))
    assert (pod.hub, pod.requests, pod.deleting, pod.variables["GPUSPAWNER_LEASE_ID"]) == (HUB, {}, True, "a" * 32)


@pytest.mark.parametrize("make", [a_pod, a_workspace])
def test_a_pod_that_names_its_node_itself_and_asks_for_any_number_is_counted_in_a_moment(make):
    pod = make(gpus={"nvidia.com/gpu": 2**63 - 1})
    assert to_pod(pod).requests == {"nvidia.com/gpu": MOST_GPUS}
    assert grantable(a_node(), pods=[pod]) == (0 if make is a_pod else 8)
    many = [make(f"p-{n}", gpus={"nvidia.com/gpu": 2**63 - 1}) for n in range(50)]
    assert len(fleet(a_node(), pods=many).gpus) == 8
