import pytest

from gpuspawner.spawner.kubernetes.pod_ends import FILES, before_restart, outcome_of, restarts, why_ended


def pod(*, state=None, conditions=(), deleted=False, **status):
    document = {
        "metadata": {"name": "jupyter-alice"},
        "spec": {"containers": [{"name": "notebook", "resources": {"limits": {"memory": "8Gi"}}}]},
        "status": {"phase": "Running", "conditions": list(conditions), **status},
    }
    if deleted:
        document["metadata"]["deletionTimestamp"] = "2026-11-21T15:00:00Z"
    document["status"]["containerStatuses"] = [
        {"name": "sidecar", "state": {"running": {}}},
        {"name": "notebook", "state": state or {"running": {}}},
    ]
    return document


def disrupted(reason, message=""):
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


def terminated(code, reason="Error", message=""):
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


PREEMPTED = "The cluster needed its GPU for work with a higher priority."
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi."
CRITICAL = "Pod was preempted by Kubelet to accommodate a critical pod."
BLIP = [
    {"reason": "NodeNotReady", "message": "Node is not ready"},
    {"reason": "TaintManagerEviction", "message": "Cancelling deletion of Pod a/b"},
]
"""A node that was silent for a minute, and answered again."""
ENDS = {
    "node out of memory": (
        pod(phase="Failed", reason="Evicted", message=LOW),
        [],
        f"Its node ran out of memory (evicted): {LOW}",
    ),
    "disk full": (
        pod(phase="Failed", reason="Evicted", message="Pod ephemeral local storage usage exceeds the total limit 1Gi."),
        [],
        (
            "It or its node ran out of temporary disk space (evicted): "
            "Pod ephemeral local storage usage exceeds the total limit 1Gi."
        ),
    ),
    "preempted, as its pod said last": (
        pod(conditions=[disrupted("PreemptionByScheduler", "default-scheduler: preempting")], deleted=True),
        [],
        PREEMPTED,
    ),
    "preempted, as only an event says": (None, [{"reason": "Preempted", "message": "Preempted by pod 1"}], PREEMPTED),
    "preempted by Kueue": (
        pod(conditions=[{"type": "TerminationTarget", "status": "True", "reason": "StoppedByKueue"}]),
        [],
        "The cluster's queue needed its place for work with a higher priority.",
    ),
    "drained": (
        pod(conditions=[disrupted("EvictionByEvictionAPI", "Eviction API: evicting")]),
        [],
        "Its node is being drained, for example for maintenance.",
    ),
    "node lost": (
        pod(conditions=[disrupted("DeletionByTaintManager")], deleted=True),
        [],
        "Its node was lost or taken out of service.",
    ),
    "node lost, as only an event says": (
        pod(),
        [{"reason": "TaintManagerEviction", "message": "Marking for deletion Pod a/b"}],
        "Its node was lost or taken out of service.",
    ),
    "out of memory, on a node that was silent before": (
        pod(state=terminated(137, "OOMKilled"), phase="Failed"),
        BLIP,
        "It used more memory than 8Gi and was ended. Start it with more memory, or use less.",
    ),
    "deleted with kubectl, on a node that was silent before": (
        pod(deleted=True),
        BLIP,
        "Its pod was deleted in the cluster, by a person or a program with the right to.",
    ),
    "node lost, after it had come back once": (
        pod(),
        [*BLIP, {"reason": "TaintManagerEviction", "message": "Marking for deletion Pod a/b"}],
        "Its node was lost or taken out of service.",
    ),
    "lost in its node's restart": (
        pod(state=terminated(255, "Unknown")),
        [],
        "Its node, or what runs containers on it, was restarted: what ran in it is lost.",
    ),
    "lost by its kubelet": (
        pod(state=terminated(137, "ContainerStatusUnknown", "The container could not be located"), phase="Failed"),
        [],
        "Its node, or what runs containers on it, was restarted: what ran in it is lost.",
    ),
    "lost by its kubelet after it was thrown out": (
        pod(state=terminated(137, "ContainerStatusUnknown"), phase="Failed", reason="Evicted", message=LOW),
        [],
        f"Its node ran out of memory (evicted): {LOW}",
    ),
    "deleted with kubectl, and lost by its kubelet": (
        pod(deleted=True, state=terminated(137, "ContainerStatusUnknown")),
        [],
        "Its pod was deleted in the cluster, by a person or a program with the right to.",
    ),
    "preempted by the kubelet": (
        pod(
            conditions=[disrupted("TerminationByKubelet", CRITICAL)],
            phase="Failed",
            reason="Preempting",
            message="Preempted in order to admit critical pod",
        ),
        [],
        "Its node needed its place for a part of the cluster itself.",
    ),
    "node deleted": (pod(conditions=[disrupted("DeletionByPodGC")]), [], "Its node is gone."),
    "node shutting down": (
        pod(conditions=[disrupted("TerminationByKubelet", SHUTDOWN)]),
        [],
        "Its node is being shut down.",
    ),
    "node shut down": (pod(phase="Failed", reason="NodeShutdown", message=SHUTDOWN), [], "Its node was shut down."),
    "out of memory": (
        pod(state=terminated(137, "OOMKilled"), phase="Failed"),
        [],
        "It used more memory than 8Gi and was ended. Start it with more memory, or use less.",
    ),
    "shut down from its menu": (
        pod(state=terminated(0, "Completed"), phase="Succeeded"),
        [],
        "It was shut down from inside, for example from JupyterLab's menu.",
    ),
    "crashed": (
        pod(state=terminated(1, message="ImportError: no module\n")),
        [],
        "Its server ended by itself with exit code 1: a module could not be imported.",
    ),
    "killed": (
        pod(state=terminated(137)),
        [],
        "Its server was killed from outside (signal 9), perhaps because its node ran out of memory.",
    ),
    "deleted with kubectl": (
        pod(deleted=True, state=terminated(143)),
        [],
        "Its pod was deleted in the cluster, by a person or a program with the right to.",
    ),
    "gone while it ran": (pod(), [], "Its pod was deleted in the cluster, by a person or a program with the right to."),
    "ended by the cluster for another reason": (
        pod(phase="Failed", reason="Odd", message="quite odd"),
        [],
        "The cluster ended it: quite odd.",
    ),
}


@pytest.mark.parametrize(("seen", "events", "words"), ENDS.values(), ids=ENDS)
def test_an_end_is_reported_with_its_cause_and_the_files_that_stay(seen, events, words):
    assert why_ended(seen, events) == f"{words} {FILES}"


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("preempted, as its pod said last", "preempted"),
        ("out of memory, on a node that was silent before", "died"),
        ("node lost, after it had come back once", "preempted"),
        ("preempted, as only an event says", "preempted"),
        ("drained", "preempted"),
        ("lost in its node's restart", "preempted"),
        ("lost by its kubelet", "preempted"),
        ("lost by its kubelet after it was thrown out", "died"),
        ("deleted with kubectl, and lost by its kubelet", "died"),
        ("preempted by the kubelet", "preempted"),
        ("node lost", "preempted"),
        ("node shutting down", "preempted"),
        ("preempted by Kueue", "preempted"),
        ("shut down from its menu", "quit"),
        ("node out of memory", "died"),
        ("out of memory", "died"),
        ("crashed", "died"),
        ("deleted with kubectl", "died"),
    ],
)
def test_a_pod_ended_by_the_cluster_is_distinguished_from_one_that_ended_by_itself(name, outcome):
    seen, events, _ = ENDS[name]
    assert outcome_of(seen, events) == outcome


def test_an_eviction_by_its_node_is_no_preemption():
    assert outcome_of(pod(conditions=[disrupted("TerminationByKubelet", LOW)]), []) == "died"
    evicted = pod(state=terminated(0, "Completed"), phase="Failed", reason="Evicted", message=LOW)
    assert outcome_of(evicted, []) == "died", "a server that ends in good order when its node ends it did not quit"


def test_a_server_that_the_kubelet_restarted_is_reported_with_its_last_end():
    seen = pod()
    seen["status"]["containerStatuses"][1] |= {"restartCount": 2, "lastState": terminated(137, "OOMKilled")}
    assert (restarts(seen), restarts(pod()), restarts(None)) == (2, 0, 0)
    assert why_ended(before_restart(seen), []).startswith("It used more memory than 8Gi and was ended.")
    assert why_ended(seen, []).startswith("Its pod was deleted"), "as long as it runs, nothing ended it"


def test_a_server_that_was_asked_to_end_did_not_quit():
    assert outcome_of(pod(state=terminated(0, "Completed"), deleted=True), []) == "died"


def test_an_unobserved_pod_has_no_invented_cause():
    assert why_ended(None, []) == ""
