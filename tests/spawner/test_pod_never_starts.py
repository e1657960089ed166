"""A start that waiting cannot mend ends at once, with its remedy; what may yet come is waited for."""

import pytest
from pod_statuses import IMAGE, container, event, pod, unscheduled, waiting

from gpuspawner.spawner.kubernetes.pod_states import SETTLED_SECONDS, stage_of

RESOLVE = f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": '
TELL = " Tell your administrator, who names the image in the template; nothing was charged."
SANDBOX = "Failed to create pod sandbox: rpc error: code = Unknown desc = "
DONE = (
    "Its server ended before it answered, with exit code 0: its command is done, and starts no server that stays. "
    "Tell your administrator, who names image and command; nothing was charged."
)
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
    "claim gone after its pod was placed": (
        pod(container()),
        [
            event(
                "FailedMount",
                "Unable to attach or mount volumes: error processing PVC hub/claim-a: failed to fetch PVC from API "
                'server: persistentvolumeclaims "claim-a" not found',
            )
        ],
        (
            "Its volume is missing: Unable to attach or mount volumes: error processing PVC hub/claim-a: failed to "
            'fetch PVC from API server: persistentvolumeclaims "claim-a" not found. Your administrator must create it '
            "or take it out of the settings; nothing was charged."
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
        ("Its server cannot be run: a command was not found. Your administrator must mend image or command."),
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
            "Its server ended with exit code 1 each time it was started: a module was not found. "
            "Tell your administrator."
        ),
    ),
    "several shares of a GPU, of which its device plugin gives one": (
        pod(
            phase="Failed",
            reason="UnexpectedAdmissionError",
            message="Allocate failed due to rpc error: code = Unknown desc = request for 'nvidia.com/gpu: 2' too "
            "large: maximum request size for shared resources is 1, which is unexpected",
        ),
        [],
        (
            "The cluster gives no workspace more than one share of a GPU. Start it with a count of 1. Your "
            "administrator can write no more than 1 of it in the templates; nothing was charged."
        ),
    ),
    "no such runtime": (
        pod(container()),
        [
            event("FailedMount", 'MountVolume.SetUp failed for volume "home" : timed out'),
            event(
                "FailedCreatePodSandBox", SANDBOX + 'failed to get sandbox runtime: no runtime for "nv" is configured'
            ),
        ],
        (
            "Its node does not have the container runtime that it asks for: failed to get sandbox runtime: no runtime "
            'for "nv" is configured. Your administrator must set c.GPUSpawner.gpu_runtime_class to one that the nodes '
            "have; nothing was charged."
        ),
    ),
    "its command is done": (
        pod(container({"terminated": {"exitCode": 0, "reason": "Completed"}}), phase="Succeeded"),
        [event("Pulled", f'Container image "{IMAGE}" already present on machine')],
        DONE,
    ),
    "its command is done, beside another container": (
        pod(
            container({"terminated": {"exitCode": 0, "reason": "Completed"}}),
            container({"running": {}}, name="beside"),
            phase="Running",
        ),
        [],
        DONE,
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
    "out of memory at its only start": (
        pod(container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), phase="Failed"),
        [],
        "Its server needed more memory than it has. Start it with more memory.",
    ),
    "crashed at its only start": (
        pod(container({"terminated": {"exitCode": 1, "reason": "Error", "message": "No lab"}}), phase="Failed"),
        [],
        "Its server ended with exit code 1 before it answered. Tell your administrator.",
    ),
    **{
        f"evicted: {message}": (
            pod(phase="Failed", reason="Evicted", message=message),
            [],
            f"It wrote more to its temporary files than it may: {message} Tell your administrator.",
        )
        for message in (
            'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi".',
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
            'Container notebook exceeded its local ephemeral storage limit "1Gi".',
        )
    },
    "failed outright": (
        pod(phase="Failed", reason="SysctlForbidden", message="forbidden sysctl"),
        [],
        "The cluster ended it before it ran: forbidden sysctl. Start it again.",
    ),
}


@pytest.mark.parametrize(("seen", "events", "fatal"), FATAL.values(), ids=FATAL)
def test_a_hopeless_start_is_reported_with_its_remedy(seen, events, fatal):
    assert stage_of(seen, events, SETTLED_SECONDS).fatal == fatal


def test_a_first_crash_is_given_another_try():
    stage = stage_of(pod(container({"terminated": {"exitCode": 1, "reason": "Error"}}), phase="Running"), [], 5.0)
    assert stage.fatal == ""


def test_a_node_that_cannot_start_the_pod_yet_is_reported_until_it_can():
    network = event("FailedCreatePodSandBox", SANDBOX + "plugin type=calico failed (add): no addresses left")
    stage = stage_of(pod(container()), [network], 60.0)
    assert stage.words == (
        "Its node cannot begin it yet: plugin type=calico failed (add): no addresses left. The cluster keeps trying."
    )
    assert stage.fatal == ""
    later = stage_of(pod(container()), [network, event("Pulling", f'Pulling image "{IMAGE}"')], 60.0)
    assert later.words.startswith(f"Pulling the image {IMAGE}")


def test_a_restarted_command_is_waited_for_and_an_init_container_may_end():
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    again = pod(container(done), phase="Running")
    again["spec"]["restartPolicy"] = "Always"
    for seen in (again, pod(initContainerStatuses=[container(done, name="copy")])):
        assert stage_of(seen, [], 60.0).fatal == ""


@pytest.mark.parametrize("name", ["claim missing", "config map missing"])
def test_an_image_that_may_come_late_gets_some_time(name):
    seen, events, _ = FATAL[name]
    assert stage_of(seen, events, 1.0).fatal == ""


def test_a_claim_that_the_start_made_is_waited_for_even_if_the_scheduler_is_slow():
    seen, events, _ = FATAL["claim missing"]
    stage = stage_of(seen, events, 60.0, own_claim="claim-alice")
    assert (stage.fatal, stage.shortage) == ("", "")
    assert stage.words == "Its volume claim-alice was made just now; the cluster has yet to see it."
    assert stage_of(seen, events, 60.0, own_claim="claim-bob").fatal


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
    assert stage_of(seen, events, 1.0).fatal == fatal
