"""The steps of a start, in words for people, and shortages that the cluster alone saw."""

import pytest
from pod_statuses import IMAGE, container, event, pod, unscheduled, waiting

from gpuspawner.spawner.kubernetes.pod_states import SETTLED_SECONDS, Stage, stage_of

PULLING = event("Pulling", f'Pulling image "{IMAGE}"')
PULLED = event(
    "Pulled", f'Successfully pulled image "{IMAGE}" in 41.2s (41.2s including waiting). Image size: 2254857830 bytes.'
)

GONE = "no running task found: task 5b4d not found: not found"
DRIVER = "driver name ebs.csi.aws.com not found in the list of registered CSI drivers"
BOOKED = 'rpc error: code = NotFound desc = Instance "i-0abc" not found'
SIDECAR = pod(container(), initContainerStatuses=[container({"running": {}}, name="istio-proxy")])
SIDECAR["spec"]["initContainers"] = [{"name": "istio-proxy", "restartPolicy": "Always"}]
STEPS = {
    "no pod yet": (None, [], 55, "Creating its pod."),
    "just made": (pod(node=None, conditions=()), [], 55, "Looking for a node."),
    "gated": (unscheduled("", "SchedulingGated"), [], 55, "Waiting for the cluster's own queue to admit it."),
    "placed": (pod(container()), [event("Scheduled")], 60, "Placed on node-7."),
    "placed, kubelet silent": (pod(), [event("Scheduled")], 60, "Placed on node-7."),
    "pulling": (
        pod(container()),
        [event("Scheduled"), PULLING],
        64,
        f"Pulling the image {IMAGE} on node-7. Large ones take minutes, once.",
    ),
    "pulled": (pod(container()), [PULLING, PULLED], 70, "Image pulled (2.1 GiB); starting it on node-7."),
    "was there": (
        pod(container()),
        [event("Pulled", f'Container image "{IMAGE}" already present on machine')],
        70,
        "The image is there; starting it on node-7.",
    ),
    "preparing": (
        pod(container(), initContainerStatuses=[container({"running": {}}, name="copy-home")]),
        [PULLED],
        64,
        "Preparing it on node-7 (copy-home).",
    ),
    "running": (
        pod(container({"running": {"startedAt": "2026-11-21T15:00:00Z"}}), phase="Running"),
        [PULLED, event("Created"), event("Started")],
        76,
        "Started on node-7. Its pod is ready. Waiting for its server to answer.",
    ),
    "running and not ready": (
        pod({**container({"running": {"startedAt": "2026-11-21T15:00:00Z"}}), "ready": False}, phase="Running"),
        [PULLED, event("Created"), event("Started")],
        75,
        "Started on node-7. Waiting until the cluster calls it ready (notebook).",
    ),
    "volume not made yet": (
        unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"),
        [event("FailedScheduling")],
        55,
        "Its volume is not ready yet: the cluster's storage is making it. This start goes on.",
    ),
    "disk of another node": (
        pod(container()),
        [
            event(
                "FailedAttachVolume",
                'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) jupyter-alice',
            )
        ],
        60,
        "Its volume pvc-1 is still attached to another node. The start continues once it is detached there.",
    ),
    "slow volume": (
        pod(container()),
        [event("FailedMount", 'MountVolume.SetUp failed for volume "home" : mount failed: exit status 32')],
        60,
        (
            'Its volume home is not there yet: MountVolume.SetUp failed for volume "home" : mount failed: exit '
            "status 32. The cluster keeps trying."
        ),
    ),
    "registry too busy": (
        pod(waiting("ErrImagePull", "failed to resolve reference: unexpected status: 429 Too Many Requests")),
        [],
        62,
        (
            f"The image {IMAGE} cannot be pulled yet: failed to resolve reference: unexpected status: 429 Too Many "
            "Requests. The cluster keeps trying."
        ),
    ),
    "registry silent, as its event says": (
        pod(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')),
        [event("Failed", "dial tcp 10.0.0.1:443: i/o timeout"), event("Failed", "Error: ErrImagePull")],
        62,
        (f"The image {IMAGE} cannot be pulled yet: dial tcp 10.0.0.1:443: i/o timeout. The cluster keeps trying."),
    ),
    "name server silent": (
        pod(waiting("ErrImagePull", "dial tcp: lookup registry.example.org on 10.0.0.2:53: no such host")),
        [],
        62,
        (
            f"The image {IMAGE} cannot be pulled yet: dial tcp: lookup registry.example.org on 10.0.0.2:53: "
            "no such host. The cluster keeps trying."
        ),
    ),
    "container slow to make": (
        pod(waiting("CreateContainerError", "context deadline exceeded")),
        [PULLED],
        70,
        "Its container could not be made yet: context deadline exceeded. The cluster keeps trying.",
    ),
    "a sandbox that died": (
        pod(waiting("CreateContainerError", f"failed to get sandbox container task: {GONE}")),
        [PULLED],
        70,
        f"Its container could not be made yet: failed to get sandbox container task: {GONE}. The cluster keeps trying.",
    ),
    "a storage's driver that is not registered yet": (
        pod(container()),
        [event("FailedMount", f'MountVolume.MountDevice failed for volume "pvc-1" : {DRIVER}')],
        60,
        (
            f'Its volume pvc-1 is not there yet: MountVolume.MountDevice failed for volume "pvc-1" : {DRIVER}. '
            "The cluster keeps trying."
        ),
    ),
    "a node that its cloud has not booked yet": (
        pod(container()),
        [event("FailedAttachVolume", f'AttachVolume.Attach failed for volume "pvc-1" : {BOOKED}')],
        60,
        (
            f'Its volume pvc-1 is not there yet: AttachVolume.Attach failed for volume "pvc-1" : {BOOKED}. '
            "The cluster keeps trying."
        ),
    ),
    "beside a sidecar": (
        SIDECAR,
        [PULLING],
        64,
        f"Pulling the image {IMAGE} on node-7. Large ones take minutes, once.",
    ),
}


@pytest.mark.parametrize(("seen", "events", "progress", "words"), STEPS.values(), ids=STEPS)
def test_a_step_is_reported_and_the_start_continues(seen, events, progress, words):
    stage = stage_of(seen, events, 60.0)
    assert (stage.progress, stage.words, stage.fatal, stage.shortage) == (progress, words, "", "")


LOST = {
    "the scheduler knew less than the kubelet": pod(
        phase="Failed",
        reason="OutOfnvidia.com/gpu",
        message="Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 2, capacity: 2",
    ),
    "a device went away": pod(
        phase="Failed",
        reason="UnexpectedAdmissionError",
        message="Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1",
    ),
    "free GPUs on either side of a machine whose pods may not lie across": pod(
        phase="Failed",
        reason="TopologyAffinityError",
        message="Pod was rejected: Resources cannot be allocated with Topology locality",
    ),
    "a node that was tainted meanwhile": pod(
        phase="Failed", reason="TaintToleration", message="Pod was rejected: Predicate TaintToleration failed"
    ),
    "a node that ran short": pod(
        phase="Failed",
        reason="Evicted",
        message="The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi. ",
    ),
}


@pytest.mark.parametrize("seen", LOST.values(), ids=LOST)
def test_promise_6_a_shortage_that_only_the_cluster_saw_is_no_failure(seen):
    stage = stage_of(seen, [], SETTLED_SECONDS)
    assert (stage.shortage, stage.fatal) == ("lost", "")


def test_a_shortage_is_reported_without_the_schedulers_remarks():
    seen = unscheduled(
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No victims."
    )
    stage = stage_of(seen, [], 60.0)
    assert (stage.shortage, stage.fatal) == ("waiting", "")
    assert stage.words == (
        "No node fits now: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu. "
        "This start goes on; the cluster looks again at each change."
    )


def test_a_starting_node_is_reported():
    events = [event("FailedScheduling"), event("TriggeredScaleUp", "pod triggered scale-up: [{pool 0->1 (max: 8)}]")]
    stage = stage_of(unscheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu."), events, 60.0)
    assert stage.words == "No node has room; the cluster is starting one. This takes some minutes."
    assert (stage.shortage, stage.fatal) == ("waiting", "")


def test_a_node_that_starts_for_it_is_reported_with_its_time():
    stage = stage_of(unscheduled("0/3 nodes are available."), [], 1.0, node_seconds=240.0)
    assert stage == Stage(55, "A node starts for it, in about 4 min. You can close this page.", shortage="waiting")


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (pod(node=None, conditions=()), ""),
        (
            unscheduled("0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu."),
            " No node has enough free resources now.",
        ),
        (unscheduled("pod group is not ready, 1 Pending, 1 minAvailable"), " Its pod group is not ready yet."),
    ],
    ids=["not looked at", "no room", "not its turn"],
)
def test_a_pod_in_a_queue_of_the_cluster_waits_there_and_may_be_put_back(seen, why):
    stage = stage_of(seen, [], 60.0, waits_in="in Volcano's queue all")
    assert stage.words == f"It waits in Volcano's queue all.{why} This start goes on; you can close this page."
    assert (stage.fatal, stage.shortage) == ("", "waiting")
