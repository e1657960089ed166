"""The stages of a pod's start for its user: the current step, and whether the start can still succeed.

Pure: from a pod and its events as plain JSON of the Kubernetes API to sentences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuspawner.backends.kubernetes.pods import waits_for_volume, without_preemption
from gpuspawner.core.leases.reports import likely_cause
from gpuspawner.core.units import show_bytes, show_duration
from gpuspawner.schedulers.pod_queues import explain_reason

Json = Mapping[str, Any]

NOTEBOOK = "notebook"
"""KubeSpawner's name of the server's container."""
SETTLED_SECONDS = 6.0
"""An object that is still missing this long after the pod was made will not come by itself: a claim, a secret.

KubeSpawner makes the secret of an encrypted hub just after the pod.
"""
LONGEST_CAUSE = 300
_MISSING = re.compile(r'\b(secret|configmap|persistentvolumeclaim)s? "[^"]*" not found|hostPath type check failed')
"""The kubelet's messages about objects that an administrator makes. A storage driver is "not found" too until it has
registered on a new node, and so is a node that its cloud has not reserved: both come by themselves.
"""
BEGUN = ("Pulling", "Pulled", "Created", "Started")
"""Reasons of events once a pod's node has begun with its containers."""
REFUSED = "unauthorized|authorization failed|authentication required|access denied|forbidden"
"""The refusals of registries, from containerd or CRI-O."""


@dataclass(frozen=True)
class Stage:
    """The stage of a start. ``fatal`` is why it can never succeed, or "".

    ``shortage`` is set if the cluster has no room although GPUs were granted: ``waiting`` while the scheduler still
    searches, ``lost`` if this pod can never have room. Then the pod is deleted and its workspace queues again.
    """

    progress: int
    words: str
    fatal: str = ""
    shortage: Literal["", "waiting", "lost"] = ""
    link: str = ""
    """The page on which its user can correct it, or "". ``link_text`` is its text."""
    link_text: str = ""
    stop: str = ""
    """The lease of another workspace of its user that this start waits for, or ""."""


def _fatal(progress: int, sentence: str) -> Stage:
    return Stage(progress, sentence, sentence)


def last_event(events: Sequence[Json], *reasons: str) -> Json:
    """Return the last of these events that has one of these reasons, or {}."""
    return next((event for event in reversed(events) if event.get("reason") in reasons), {})


def server_of(pod: Json) -> Json:
    """Return the state of a pod's server, or {}."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return next((one for one in statuses if one.get("name") == NOTEBOOK), {})


def stage_of(
    pod: Json | None,
    events: Sequence[Json],
    seconds: float,
    own_claim: str = "",
    node_seconds: float = 0.0,
    waits_in: str = "",
    answer_seconds: float = 0.0,
) -> Stage:
    """Return the stage of a pod's start, ``seconds`` after the pod was made.

    Args:
        pod: The pod in the API server, or None.
        events: The events of this pod, oldest first.
        seconds: Time since the pod was made, by the spawner's clock.
        own_claim: The claim that this start made for the pod, or "".
        node_seconds: Time that the start of a new node takes, or 0.
        waits_in: The queue of the cluster in which it waits, in words, or "".
        answer_seconds: Time limit for the server's answer once the pod is ready, or 0.
    """
    if pod is None:
        return Stage(55, "Creating its pod.")
    if pod["metadata"].get("deletionTimestamp"):
        return _fatal(55, _deleted(events))
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        return _failed(status)
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") != "True":
        waits = Stage(55, _queueing(scheduled, waits_in), shortage="waiting") if waits_in else None
        return _scheduling(scheduled, events, seconds, own_claim, node_seconds, waits)
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        found = _container(container, events)
        if found is not None:
            return found
    return (
        _over(pod)
        or _sandbox(events)
        or _preparing(events)
        or _mounting(status, events, seconds)
        or _under_way(pod, events, answer_seconds)
    )


def _queueing(scheduled: Json, waits_in: str) -> str:
    """Return that it waits in a queue of the cluster, with the queue's reason if there is one."""
    why = explain_reason("", str(scheduled.get("message", "")))
    return f"It waits {waits_in}. {why}".rstrip() + " This start goes on; you can close this page."


def _scheduling(
    scheduled: Json, events: Sequence[Json], seconds: float, own_claim: str, node_seconds: float, waits: Stage | None
) -> Stage:
    message = str(scheduled.get("message", ""))
    if scheduled.get("reason") == "SchedulingGated":
        return Stage(55, "Waiting for the cluster's own queue to admit it.")
    if scheduled.get("reason") != "Unschedulable":
        return waits or Stage(55, "Looking for a node.")
    volume = re.search(r'persistentvolumeclaim "([^"]+)" (not found|is being deleted)', message)
    if volume:
        return _volume(volume[1], seconds, new=volume[1] == own_claim and volume[2] == "not found")
    if waits_for_volume(message):
        return Stage(55, "Its volume is not ready yet: the cluster's storage is making it. This start goes on.")
    if waits is not None:
        return waits
    words = f"No node fits now: {_nodes(message)}. This start goes on; the cluster looks again at each change."
    if node_seconds:
        words = f"A node starts for it, in about {show_duration(node_seconds)}. You can close this page."
    elif last_event(events, "TriggeredScaleUp"):
        words = "No node has room; the cluster is starting one. This takes some minutes."
    return Stage(55, words, shortage="waiting")


def _volume(name: str, seconds: float, *, new: bool) -> Stage:
    if new:
        return Stage(55, f"Its volume {name} was made just now; the cluster has yet to see it.")
    words = f"Its volume {name} is missing."
    remedy = f"{words} Your administrator must create the claim or take it out of the settings; nothing was charged."
    return Stage(55, words, remedy if seconds >= SETTLED_SECONDS else "")


_NO_ROOM = {
    *("UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "TaintToleration"),  # not admitted
    *("Evicted", "NodeShutdown", "Terminated", "Preempting"),  # evicted
}
"""Reasons of a kubelet to fail a pod for which the scheduler saw room on the node."""


def _failed(status: Json) -> Stage:
    """Return the stage of a pod that failed before it ran: the node had no room, or evicted it."""
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    if "maximum request size for shared resources" in message:
        return _fatal(
            55,
            "The cluster gives no workspace more than one share of a GPU. Start it with a count of 1. Your "
            "administrator can write no more than 1 of it in the templates; nothing was charged.",
        )
    if reason == "Evicted" and re.search("exceed(s|ed) (the|its) .*limit", message):  # the same on any node
        return _fatal(
            55, f"It wrote more to its temporary files than it may: {short(message)} Tell your administrator."
        )
    if reason.startswith("OutOf") or reason in _NO_ROOM:
        return Stage(55, f"Its node had no room after all: {short(message or reason)}", shortage="lost")
    servers = status.get("containerStatuses", [])
    crashed = next((c for c in servers if c.get("state", {}).get("terminated", {}).get("exitCode")), None)
    if crashed is not None and not reason:  # the settings forbid a restart
        return _crashed(crashed, crashed["state"]["terminated"], often=False)
    return _fatal(
        55, f"The cluster ended it before it ran: {short(message or reason or 'without a reason')} Start it again."
    )


def _container(container: Json, events: Sequence[Json]) -> Stage | None:
    """Return the stage of a container that cannot be pulled, made or kept running, or None."""
    state = container.get("state", {})
    waiting, terminated = state.get("waiting", {}), state.get("terminated", {})
    reason, message, image = waiting.get("reason", ""), waiting.get("message", ""), container.get("image", "")
    if reason in {"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "InvalidImageName", "ErrImageNeverPull"}:
        return _pull(image, reason, [message, *(e.get("message", "") for e in events if e.get("reason") == "Failed")])
    if reason in {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}:
        return _create(message)
    last = terminated or container.get("lastState", {}).get("terminated", {})
    if reason == "CrashLoopBackOff":
        return _crashed(container, last)
    if terminated.get("exitCode", 0) != 0 and (_unstartable(terminated) or container.get("restartCount", 0) > 0):
        return _crashed(container, last)
    return None


def _pull(image: str, reason: str, messages: Sequence[str]) -> Stage:
    text = " ".join(messages)
    tell = "Tell your administrator, who names the image in the template; nothing was charged."
    fatal = ""
    if reason == "InvalidImageName":
        fatal = f"{image} is no valid name of an image. {tell}"
    elif reason == "ErrImageNeverPull":
        fatal = f"The node does not have the image {image}, and the settings forbid to pull it. {tell}"
    elif re.search("toomanyrequests|too many requests", text, re.IGNORECASE):
        pass
    elif re.search(REFUSED, text, re.IGNORECASE):
        fatal = f"The registry does not let this cluster pull {image} (or it does not exist): unauthorized. {tell}"
    elif re.search(r"not found|manifest unknown|name unknown|code = NotFound", text) and "no such host" not in text:
        fatal = f"The image {image} does not exist in its registry. {tell}"
    elif "no match for platform" in text:
        fatal = f"The image {image} is made for other processors than this node's. {tell}"
    if fatal:
        return _fatal(62, fatal)
    cause = next((_cause(m) for m in messages if _cause(m)), "the registry does not answer")
    return Stage(62, f"The image {image} cannot be pulled yet: {cause} The cluster keeps trying.")


def _cause(message: str) -> str:
    """Return the last and most exact part of a chain of errors. "" if it only says that it waits."""
    if not message or message.startswith(("Back-off", "Error:")):
        return ""
    return short(message.rsplit(": ", 2)[-1] if len(message) > LONGEST_CAUSE // 2 else message)


def _create(message: str) -> Stage:
    if "runAsNonRoot" in message or "non-numeric user" in message:
        return _fatal(
            70,
            "The image wants to run as root, which this cluster forbids. Your administrator must choose an image "
            "with a numeric user, or set c.KubeSpawner.uid.",
        )
    final = re.search(r"not found|couldn't find key|no such file|permission denied|invalid|not allowed", message)
    if final and "sandbox container task" not in message:  # the kubelet replaces a dead sandbox
        return _fatal(
            70, f"Its container cannot be made: {short(message)} Your administrator can mend this; nothing was charged."
        )
    return Stage(70, f"Its container could not be made yet: {short(message)} The cluster keeps trying.")


def _unstartable(terminated: Json) -> bool:
    """Return whether the command itself is missing, by the runtime or by an entry point, for example tini."""
    return terminated.get("reason") in {"StartError", "ContainerCannotRun"} or terminated.get("exitCode") in {126, 127}


def _crashed(container: Json, last: Json, *, often: bool = True) -> Stage:
    name, code = container.get("name", ""), last.get("exitCode")
    what = "Its server" if name == NOTEBOOK else f"Its container {name}"
    said = short(str(last.get("message", "")))
    if last.get("reason") == "OOMKilled":
        again = ", again and again" if often else ""
        fatal = f"{what} needed more memory than it has{again}. Start it with more memory."
    elif _unstartable(last):
        own = code in {126, 127} and last.get("reason") == "Error"  # reported by a program, not by a runtime
        why = f"{likely_cause(said, code)}." if own or not said else said
        fatal = f"{what} cannot be run: {why} Your administrator must mend image or command."
    else:
        cause = likely_cause(said)
        when = "each time it was started" if often else "before it answered"
        fatal = f"{what} ended with exit code {code} {when}{f': {cause}' if cause else ''}. Tell your administrator."
    return _fatal(75, fatal)


def _over(pod: Json) -> Stage | None:
    """Return the stage of a server that ended successfully and is not restarted, or None."""
    ended = server_of(pod).get("state", {}).get("terminated", {}).get("exitCode") == 0
    if not ended or pod["spec"].get("restartPolicy") == "Always":
        return None
    return _fatal(
        75,
        "Its server ended before it answered, with exit code 0: its command is done, and starts no server that stays. "
        "Tell your administrator, who names image and command; nothing was charged.",
    )


def _sandbox(events: Sequence[Json]) -> Stage | None:
    """Return the stage of a pod that its node cannot begin: no network, or no such runtime."""
    last = last_event(events, "FailedCreatePodSandBox", *BEGUN)
    if last.get("reason") != "FailedCreatePodSandBox":
        return None
    cause = str(last.get("message", "")).rpartition(" desc = ")[2]
    if re.search(r"no runtime for \S+ is configured|failed to find runtime handler", cause):
        return _fatal(
            60,
            f"Its node does not have the container runtime that it asks for: {short(cause)} Your administrator must "
            "set c.GPUSpawner.gpu_runtime_class to one that the nodes have; nothing was charged.",
        )
    return Stage(60, f"Its node cannot begin it yet: {short(cause)} The cluster keeps trying.")


def _preparing(events: Sequence[Json]) -> Stage | None:
    """Return the stage of a pod whose node's driver does not provide the claimed devices and is asked repeatedly."""
    last = last_event(events, "FailedPrepareDynamicResources", *BEGUN)
    if last.get("reason") != "FailedPrepareDynamicResources":
        return None
    return Stage(60, f"Its node cannot give it its GPU yet: {short(str(last.get('message', '')))} It keeps trying.")


def _mounting(status: Json, events: Sequence[Json], seconds: float) -> Stage | None:
    if any("running" in c.get("state", {}) for c in status.get("containerStatuses", [])):
        return None
    last = last_event(events, "FailedMount", "FailedAttachVolume")
    if not last or last_event(events, "Pulling", "Pulled"):
        return None
    message = str(last.get("message", ""))
    volume = re.search(r'volume "([^"]+)"', message)
    name = f"volume {volume[1]}" if volume else "volume"
    if _MISSING.search(message):
        words = f"Its {name} is missing: {short(message.split(' : ', 1)[-1])}"
        fatal = f"{words} Your administrator must create it or take it out of the settings; nothing was charged."
        return Stage(60, words, fatal if seconds >= SETTLED_SECONDS else "")
    if "Multi-Attach" in message:
        return Stage(
            60, f"Its {name} is still attached to another node. The start continues once it is detached there."
        )
    return Stage(60, f"Its {name} is not there yet: {short(message)} The cluster keeps trying.")


def _under_way(pod: Json, events: Sequence[Json], answer_seconds: float) -> Stage:
    node, status = pod.get("spec", {}).get("nodeName", "its node"), pod.get("status", {})
    if "running" in server_of(pod).get("state", {}):
        if unready := sorted(c.get("name", "") for c in status["containerStatuses"] if c.get("ready") is False):
            return Stage(75, f"Started on {node}. Waiting until the cluster calls it ready ({', '.join(unready)}).")
        limit = f", {show_duration(answer_seconds)} at most" if answer_seconds else ""
        return Stage(76, f"Started on {node}. Its pod is ready. Waiting for its server to answer{limit}.")
    sidecars = {c["name"] for c in pod["spec"].get("initContainers", []) if c.get("restartPolicy") == "Always"}
    init = (c for c in status.get("initContainerStatuses", []) if c["name"] not in sidecars)
    preparing = next((c for c in init if "running" in c.get("state", {})), None)
    if preparing is not None:
        return Stage(64, f"Preparing it on {node} ({preparing['name']}).")
    last = last_event(events, "Pulling", "Pulled")
    if last.get("reason") == "Pulling":
        image = re.search(r'"([^"]+)"', last.get("message", ""))
        return Stage(64, f"Pulling the image {image[1] if image else ''} on {node}. Large ones take minutes, once.")
    if last:
        size = re.search(r"Image size: (\d+) bytes", last.get("message", ""))
        pulled = f"Image pulled ({show_bytes(int(size[1]))})" if size else "The image is there"
        return Stage(70, f"{pulled}; starting it on {node}.")
    return Stage(60, f"Placed on {node}.")


def _deleted(events: Sequence[Json]) -> str:
    if last_event(events, "Preempted"):
        return "The cluster took its place for more important work before it started. Start it again to queue."
    return "Its pod was deleted before it started. Start it again, or ask your administrator who deleted it."


def _condition(status: Json, kind: str) -> Json:
    found: Json = next((c for c in status.get("conditions", []) if c.get("type") == kind), {})
    return found


def _nodes(message: str) -> str:
    """Return why no node fits, without the scheduler's message about preemption."""
    return short(without_preemption(message)).rstrip(".")


def short(text: str) -> str:
    """Return the cluster's text as one short sentence."""
    line = " ".join(text.split())
    line = line if len(line) <= LONGEST_CAUSE else f"{line[: LONGEST_CAUSE - 1]}…"
    return line if not line or line.endswith((".", "…", "!")) else f"{line}."
