"""Statuses and events as the API server 1.36, kube-scheduler, kubelet and containerd 2 write them."""

import pytest

from gpuspawner.spawner.pod_start import SETTLED_SECONDS, Verdict, judge, refusal

IMAGE = "registry.example.org/ml/pytorch:2.9"
SCHEDULED = {"type": "PodScheduled", "status": "True"}


def event(reason, message=""):
    return {"reason": reason, "message": message, "type": "Normal"}


def pod(*containers, node="node-7", conditions=(SCHEDULED,), **status):
    document = {
        "metadata": {"name": "jupyter-alice", "uid": "u1"},
        "spec": {"nodeName": node, "containers": [{"name": "notebook"}]},
        "status": {"phase": "Pending", "conditions": list(conditions), **status},
    }
    if containers:
        document["status"]["containerStatuses"] = list(containers)
    return document


def container(state=None, name="notebook", last=None, restarts=0):
    return {
        "name": name,
        "image": IMAGE,
        "state": state or {"waiting": {"reason": "ContainerCreating"}},
        "lastState": {"terminated": last} if last else {},
        "restartCount": restarts,
    }


def waiting(reason, message=""):
    return container({"waiting": {"reason": reason, "message": message}})


def unscheduled(message, reason="Unschedulable"):
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(node=None, conditions=(condition,))


PULLING = event("Pulling", f'Pulling image "{IMAGE}"')
PULLED = event(
    "Pulled",
    f'Successfully pulled image "{IMAGE}" in 41.2s (41.2s including waiting). Image size: 2254857830 bytes.',
)

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
        "Started on node-7; waiting for its server to answer.",
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
        "Its volume pvc-1 is still attached to another node; it comes when that one lets go.",
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
}


@pytest.mark.parametrize(("seen", "events", "progress", "words"), STEPS.values(), ids=STEPS)
def test_a_step_is_told_and_the_start_goes_on(seen, events, progress, words):
    verdict = judge(seen, events, 60.0)
    assert (verdict.progress, verdict.words, verdict.fatal, verdict.shortage) == (progress, words, "", "")


RESOLVE = f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": '
TELL = " Tell your administrator, who names the image in the template; nothing was charged."
FATAL = {
    "image not found": (
        pod(waiting("ErrImagePull", f"rpc error: code = NotFound desc = {RESOLVE}{IMAGE}: not found")),
        [],
        f"The image {IMAGE} does not exist in its registry.{TELL}",
    ),
    "image not found, told by its event alone": (
        pod(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')),
        [event("Failed", f'Failed to pull image "{IMAGE}": {RESOLVE}{IMAGE}: not found')],
        f"The image {IMAGE} does not exist in its registry.{TELL}",
    ),
    "image refused": (
        pod(
            waiting(
                "ErrImagePull",
                f"{RESOLVE}pull access denied, repository does not exist or may require authorization: "
                "authorization failed: no basic auth credentials",
            )
        ),
        [],
        f"The registry does not let this cluster pull {IMAGE} (or it does not exist): unauthorized.{TELL}",
    ),
    "image name": (
        pod(waiting("InvalidImageName", "couldn't parse image name: invalid reference format")),
        [],
        f"{IMAGE} is no valid name of an image.{TELL}",
    ),
    "image never pulled": (
        pod(waiting("ErrImageNeverPull", f'Container image "{IMAGE}" is not present with pull policy of Never')),
        [],
        f"The node does not have the image {IMAGE}, and the settings forbid to pull it.{TELL}",
    ),
    "image of another architecture": (
        pod(waiting("ErrImagePull", "no match for platform in manifest")),
        [],
        f"The image {IMAGE} is made for other processors than this node's.{TELL}",
    ),
    "claim missing": (
        unscheduled('0/3 nodes are available: persistentvolumeclaim "claim-alice" not found.'),
        [],
        (
            "Its volume claim-alice is missing. Your administrator must create the claim or take it out of the "
            "settings; nothing was charged."
        ),
    ),
    "config map missing": (
        pod(container()),
        [event("FailedMount", 'MountVolume.SetUp failed for volume "conf" : configmap "conf-x" not found')],
        (
            'Its volume conf is missing: configmap "conf-x" not found. Your administrator must create it or take it '
            "out of the settings; nothing was charged."
        ),
    ),
    "image of root": (
        pod(waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root (pod: ...)")),
        [],
        (
            "The image wants to run as root, which this cluster forbids. Your administrator must choose an image "
            "with a numeric user, or set c.KubeSpawner.uid."
        ),
    ),
    "secret missing": (
        pod(waiting("CreateContainerConfigError", 'secret "token" not found')),
        [],
        (
            'Its container cannot be made: secret "token" not found. Your administrator can mend this; nothing was '
            "charged."
        ),
    ),
    "no such program": (
        pod(
            container(
                {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}},
                last={
                    "exitCode": 128,
                    "reason": "StartError",
                    "message": 'exec: "jupyterhub-singleuser": executable file not found in $PATH',
                },
            )
        ),
        [],
        (
            'Its server cannot be run: exec: "jupyterhub-singleuser": executable file not found in $PATH. '
            "Your administrator must mend image or command."
        ),
    ),
    "no such program, says its entry point": (
        pod(container({"terminated": {"exitCode": 127, "reason": "Error", "message": "exec x failed"}})),
        [],
        ("Its server cannot be run: exec x failed. Your administrator must mend image or command."),
    ),
    "crashed again": (
        pod(container({"terminated": {"exitCode": 1, "reason": "Error"}}, restarts=1), phase="Running"),
        [],
        "Its server ended with exit code 1 each time it was started. Tell your administrator.",
    ),
    "crash loop": (
        pod(
            container(
                {"waiting": {"reason": "CrashLoopBackOff"}},
                last={
                    "exitCode": 1,
                    "reason": "Error",
                    "message": "ModuleNotFoundError: No module named 'jupyterhub'\n",
                },
                restarts=2,
            ),
            phase="Running",
        ),
        [],
        (
            "Its server ended with exit code 1 each time it was started. It said: ModuleNotFoundError: No module named "
            "'jupyterhub'. Tell your administrator."
        ),
    ),
    "out of memory from the start": (
        pod(container({"waiting": {"reason": "CrashLoopBackOff"}}, last={"exitCode": 137, "reason": "OOMKilled"})),
        [],
        "Its server needed more memory than it has, again and again. Start it with more memory.",
    ),
    "init container crashes": (
        pod(
            initContainerStatuses=[
                container(
                    {"waiting": {"reason": "CrashLoopBackOff"}}, name="copy", last={"exitCode": 3, "reason": "Error"}
                )
            ]
        ),
        [],
        "Its container copy ended with exit code 3 each time it was started. Tell your administrator.",
    ),
    "failed outright": (
        pod(phase="Failed", reason="SysctlForbidden", message="forbidden sysctl"),
        [],
        "The cluster ended it before it ran: forbidden sysctl. Start it again.",
    ),
}


@pytest.mark.parametrize(("seen", "events", "fatal"), FATAL.values(), ids=FATAL)
def test_what_can_never_start_is_told_with_its_remedy(seen, events, fatal):
    assert judge(seen, events, SETTLED_SECONDS).fatal == fatal


def test_a_first_crash_is_given_another_try():
    verdict = judge(pod(container({"terminated": {"exitCode": 1, "reason": "Error"}}), phase="Running"), [], 5.0)
    assert verdict.fatal == ""


@pytest.mark.parametrize("name", ["claim missing", "config map missing"])
def test_what_may_be_on_its_way_is_given_a_moment(name):
    seen, events, _ = FATAL[name]
    assert judge(seen, events, 1.0).fatal == ""


def test_a_claim_that_the_start_itself_made_is_waited_for_however_late_the_scheduler_sees_it():
    seen, events, _ = FATAL["claim missing"]
    verdict = judge(seen, events, 60.0, own_claim="claim-alice")
    assert (verdict.fatal, verdict.shortage) == ("", "")
    assert verdict.words == "Its volume claim-alice was made just now; the cluster has yet to see it."
    assert judge(seen, events, 60.0, own_claim="claim-bob").fatal


@pytest.mark.parametrize(
    ("events", "fatal"),
    [
        ([], "Its pod was deleted before it started. Start it again, or ask your administrator who deleted it."),
        (
            [event("Preempted", "Preempted by pod 12 on node node-7")],
            "The cluster took its place for more important work before it started. Start it again to queue.",
        ),
    ],
)
def test_a_pod_that_is_deleted_while_it_starts_is_not_waited_for(events, fatal):
    seen = pod(container({"running": {}}))
    seen["metadata"]["deletionTimestamp"] = "2026-11-21T15:00:00Z"
    assert judge(seen, events, 1.0).fatal == fatal


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
}


@pytest.mark.parametrize("seen", LOST.values(), ids=LOST)
def test_promise_6_a_shortage_that_only_the_cluster_saw_is_no_failure(seen):
    verdict = judge(seen, [], SETTLED_SECONDS)
    assert (verdict.shortage, verdict.fatal) == ("lost", "")


def test_a_shortage_is_told_without_the_schedulers_own_thoughts():
    seen = unscheduled(
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No victims."
    )
    verdict = judge(seen, [], 60.0)
    assert (verdict.shortage, verdict.fatal) == ("waiting", "")
    assert verdict.words == (
        "No node fits now: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu. "
        "This start goes on; the cluster looks again at each change."
    )


def test_a_node_that_is_being_started_is_told():
    events = [event("FailedScheduling"), event("TriggeredScaleUp", "pod triggered scale-up: [{pool 0->1 (max: 8)}]")]
    verdict = judge(unscheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu."), events, 60.0)
    assert verdict.words == "No node has room; the cluster is starting one. This takes some minutes."
    assert (verdict.shortage, verdict.fatal) == ("waiting", "")


REFUSALS = {
    "quota": (
        403,
        (
            'pods "jupyter-alice" is forbidden: exceeded quota: ml-team, requested: requests.nvidia.com/gpu=2, '
            "used: requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=4"
        ),
        (
            "The cluster's quota ml-team leaves no room: 2 nvidia.com/gpu asked, 3 nvidia.com/gpu of 4 nvidia.com/gpu "
            "in use. Ask for less, or start when a colleague of the same namespace stops."
        ),
    ),
    "quota of memory": (
        403,
        (
            'pods "x" is forbidden: exceeded quota: small, requested: limits.memory=2Gi,requests.memory=2Gi, '
            "used: limits.memory=1Gi,requests.memory=1Gi, limited: limits.memory=2Gi,requests.memory=2Gi"
        ),
        (
            "The cluster's quota small leaves no room: 2Gi memory asked, 1Gi memory of 2Gi memory in use. "
            "Ask for less, or start when a colleague of the same namespace stops."
        ),
    ),
    "security": (
        403,
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
        (
            'The cluster\'s security standard refuses this workspace: violates PodSecurity "restricted:latest": '
            "runAsNonRoot != true. Your administrator must change the hub's KubeSpawner settings or the namespace's "
            "standard."
        ),
    ),
    "invalid": (
        422,
        'Pod "x" is invalid: spec.containers[0].image: Required value',
        (
            "The cluster refuses this workspace: spec.containers[0].image: Required value. "
            "Your administrator can mend this; nothing was charged."
        ),
    ),
    "no runtime class": (
        403,
        'pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
        (
            'The cluster refuses this workspace: pod rejected: RuntimeClass "nvidia" not found. '
            "Your administrator can mend this; nothing was charged."
        ),
    ),
    "no namespace": (
        404,
        'namespaces "gone" not found',
        (
            'The cluster has no place for it: namespaces "gone" not found. '
            "Your administrator must create it or name another."
        ),
    ),
    "too many requests": (429, "the server has received too many requests", ""),
    "server trouble": (500, "etcdserver: request timed out", ""),
    "no server": (503, "apiserver not ready", ""),
}


@pytest.mark.parametrize(("code", "message", "words"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_of_the_api_server_is_final_or_worth_another_try(code, message, words):
    assert refusal(code, message) == words


def test_a_node_that_starts_for_it_is_told_with_its_time():
    verdict = judge(unscheduled("0/3 nodes are available."), [], 1.0, node_seconds=240.0)
    assert verdict == Verdict(55, "A node starts for it, in about 4 min. You can close this page.", shortage="waiting")
