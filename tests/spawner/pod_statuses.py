"""Statuses and events as the API server 1.36, kube-scheduler, kubelet and containerd 2 write them."""

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
