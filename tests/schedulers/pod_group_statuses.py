"""The PodGroup statuses of Volcano and KAI for a waiting pod.

KAI's is written down by its source of March 2026 (72de64fc): ``pkg/apis/scheduling/v2alpha2/podgroup_types.go`` has
the fields and reasons, ``capacity_policy`` and ``common_info`` of ``pkg/scheduler`` the words.
"""

WHEN = "2026-11-26T12:00:00Z"
NOT_READY = (
    "1/1 tasks in gang unschedulable: pod group is not ready, 1 Pending, 1 minAvailable; Pending: 1 Unschedulable"
)


def volcano(phase, message):
    """A PodGroup that Volcano could not place."""
    condition = {
        "type": "Unschedulable",
        "status": "True",
        "reason": "NotEnoughResources",
        "message": message,
        "transitionID": "1",
        "lastTransitionTime": WHEN,
    }
    return {"phase": phase, "conditions": [condition]}


VOLCANO_NO_ROOM = volcano(
    "Inqueue", f"{NOT_READY}. Origin reason is jupyter-a: 0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."
)
VOLCANO_NOT_TAKEN = volcano("Pending", NOT_READY)


def kai(reason, message):
    """A PodGroup that KAI could not place for one reason."""
    told = {"reason": reason, "message": message} if reason else None
    condition = {
        "type": "UnschedulableOnNodePool",
        "nodePool": "default",
        "reason": "Unschedulable",
        "message": message,
        "transitionID": "1",
        "lastTransitionTime": WHEN,
        "status": "True",
    }
    return {"phase": "Pending", "schedulingConditions": [{**condition, **({"reasons": [told]} if told else {})}]}


KAI_NO_ROOM = kai("", "no nodes with enough resources were found")
KAI_OVER_LIMIT = kai(
    "OverLimit",
    "ml quota has reached the allowable limit of GPUs. Limit is 2 GPUs, currently 2 GPUs allocated and workload "
    "requested 1 GPUs",
)
KAI_OVER_QUOTA = kai(
    "NonPreemptibleOverQuota",
    "Non-preemptible workload is over quota. Workload requested 1 GPUs, but ml quota is 2 GPUs, while 2 GPUs are "
    "already allocated for non-preemptible pods.",
)
KAI_NO_QUEUE = kai("QueueDoesNotExist", "Queue 'ml' does not exist")
