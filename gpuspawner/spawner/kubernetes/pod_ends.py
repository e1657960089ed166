"""The end of a pod: why it ended, its last output, and which answers of the API server refuse it for good."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException

from gpuspawner.backends.kubernetes.nodes import amount_of
from gpuspawner.backends.kubernetes.pods import DISRUPTION_SENTENCES, disruption_words, is_eviction
from gpuspawner.core.leases.reports import LINES, likely_cause
from gpuspawner.spawner.kubernetes.pod_states import NOTEBOOK, last_event, server_of, short
from gpuspawner.spawner.servers import LocalServer

if TYPE_CHECKING:
    from gpuspawner.spawner.kubernetes.starting import PodStart

Json = Mapping[str, Any]

LOG_SECONDS = 2.0
"""Maximum wait for a failed server's output. The end is reported without it rather than late."""
LOG_BYTES = 65536
NO_RIGHT = (
    "[Not its whole output: this hub has no right to read it. Its administrator can give it `get` on `pods/log` in "
    "this namespace.]"
)
"""Shown instead of lines."""


def has_run(pod: Json) -> bool:
    """Return whether the server ever ran: then it may have output."""
    server = server_of(pod)
    return bool(server.get("restartCount") or {"running", "terminated"} & server.get("state", {}).keys())


def is_previous_run(pod: Json) -> bool:
    """Return whether the failed run is not the current run."""
    server = server_of(pod)
    return "running" in server.get("state", {}) and server.get("restartCount", 0) > 0


def saved_output(pod: Json) -> str:
    """Return the output of the last ended run that the kubelet saved, or ""."""
    server = server_of(pod)
    ended: Json = server.get("state", {}).get("terminated") or server.get("lastState", {}).get("terminated") or {}
    return str(ended.get("message") or "")


def server_spec(pod: Json) -> Json:
    """Return the server's container in a pod's spec, or {}."""
    return next((one for one in pod.get("spec", {}).get("containers", []) if one.get("name") == NOTEBOOK), {})


class PodServer(LocalServer):
    """The server of a spawner in a pod."""

    _spawner: PodStart

    async def wait_until_up(self, started: Any) -> None:
        """Return at once: `PodStart._gpu_watched` observes the server by its pod."""

    async def last_output(self) -> str:
        """Return the end of the server's output. Without the right to read it: the part that the kubelet saved."""
        spawner, pod = self._spawner, self._spawner._gpu_last_look()
        if pod is None or not has_run(pod):
            return ""
        before, limit = is_previous_run(pod), LOG_BYTES
        asked = spawner.api.read_namespaced_pod_log(
            spawner.pod_name,
            spawner.namespace,
            container=NOTEBOOK,
            tail_lines=LINES,
            limit_bytes=limit,
            previous=before,
        )
        try:
            return str(await asyncio.wait_for(asked, LOG_SECONDS) or saved_output(pod))
        except ApiException as error:
            refused = error.status == HTTPStatus.FORBIDDEN
            return f"{saved_output(pod)}\n{NO_RIGHT}" if refused else saved_output(pod)
        except (ClientError, OSError, asyncio.TimeoutError):
            return saved_output(pod)

    def environment(self) -> Mapping[str, str] | None:
        """Return the variables of the start and of the pod. None without a pod."""
        pod = self._spawner._gpu_last_look()
        if pod is None:
            return None
        in_pod = {one["name"]: str(one.get("value") or "") for one in server_spec(pod).get("env", [])}
        return {**(self._spawner._gpu_attempt.environment or {}), **in_pod}


FILES = "Your files on its volume are untouched."
KILLED = 137
TERMINATED = 143

_EVENTS = {
    "Preempted": DISRUPTION_SENTENCES["PreemptionByScheduler"],
    "TaintManagerEviction": DISRUPTION_SENTENCES["DeletionByTaintManager"],
    "NodeNotReady": DISRUPTION_SENTENCES["DeletionByTaintManager"],
    "EvictedByVPA": "The cluster moved it to change its size.",
}
_NODE = {
    "NodeShutdown": "Its node was shut down.",
    "Shutdown": "Its node was shut down.",
    "Terminated": "Its node was shut down.",
    "NodeLost": DISRUPTION_SENTENCES["DeletionByTaintManager"],
    "NodeAffinity": "Its node no longer fits what it asked for.",
    "DeadlineExceeded": "It reached the longest time that the cluster lets a pod run.",
}


_SPARED = "Cancelling deletion"
"""Begin of a TaintManagerEviction's message for a pod that stays: its node answers again."""


def why_ended(pod: Json | None, events: Sequence[Json]) -> str:
    """Return why a pod ended and what its user can do, or "".

    Args:
        pod: Its last observed state, or None.
        events: The events of this pod, oldest first.
    """
    cause = _cause(pod or {}, _current_events(events))
    return f"{cause} {FILES}" if cause else ""


def restarts(pod: Json | None) -> int:
    """Return the number of restarts of the server's container."""
    return int(server_of(pod or {}).get("restartCount", 0))


def has_ended(pod: Json) -> bool:
    """Return whether the server has ended and was not restarted."""
    return _terminated(pod) is not None


def before_restart(pod: Json) -> Json:
    """Return a pod with a restarted server as it was before: its server ended, with its reason."""
    status = pod["status"]
    servers = [
        {**one, "state": one.get("lastState", {})} if one.get("name") == NOTEBOOK else one
        for one in status["containerStatuses"]
    ]
    return {**pod, "status": {**status, "containerStatuses": servers}}


def outcome_of(pod: Json | None, events: Sequence[Json]) -> str:
    """Return the outcome of a server that ended by itself: one of ``leases.reports.OUTCOMES``. See `why_ended`."""
    if _was_disrupted(pod, events):
        return "preempted"
    terminated = _terminated(pod or {})
    is_evicted = (pod or {}).get("status", {}).get("reason") == "Evicted"
    ended = is_evicted or (pod or {}).get("metadata", {}).get("deletionTimestamp")
    return "quit" if terminated and terminated.get("exitCode") == 0 and not ended else "died"


def _was_disrupted(pod: Json | None, events: Sequence[Json]) -> bool:
    """Return whether the cluster ended a pod for another reason than its own excess: preempted, drained or lost."""
    for condition in (pod or {}).get("status", {}).get("conditions", []):
        if condition.get("status") == "True" and condition.get("type") in {"DisruptionTarget", "TerminationTarget"}:
            return not is_eviction(condition)
    return _is_lost(pod or {}) or bool(last_event(_current_events(events), "Preempted", "TaintManagerEviction"))


def _current_events(events: Sequence[Json]) -> Sequence[Json]:
    """Return the events since its node last came back."""
    spared = [at for at, event in enumerate(events, 1) if str(event.get("message", "")).startswith(_SPARED)]
    return events[spared[-1] :] if spared else events


def _cause(pod: Json, events: Sequence[Json]) -> str:
    """Return the first known cause: the cluster's reason for the pod, the server's own end, the events."""
    status = pod.get("status", {})
    message, reason = str(status.get("message", "")), str(status.get("reason", ""))
    failed = f"The cluster ended it: {short(message)}" if status.get("phase") == "Failed" and message else ""
    return (
        (_evicted(message) if reason == "Evicted" else "")
        or _disruption(status)
        or _NODE.get(reason, "")
        or ("Its node, or what runs containers on it, was restarted: what ran in it is lost." if _is_lost(pod) else "")
        or _container_end(pod)
        or failed
        or _find_event_cause(events)
        or ("Its pod was deleted in the cluster, by a person or a program with the right to." if _is_gone(pod) else "")
    )


def _find_event_cause(events: Sequence[Json]) -> str:
    event = last_event(events, "Evicted", *_EVENTS)
    if event.get("reason") == "Evicted":
        return _evicted(str(event.get("message", "")))
    return _EVENTS.get(event.get("reason", ""), "")


def _disruption(status: Json) -> str:
    for condition in status.get("conditions", []):
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "TerminationTarget":
            return DISRUPTION_SENTENCES["TerminationTarget"]
        if condition.get("type") == "DisruptionTarget":
            if is_eviction(condition):
                return _evicted(str(condition.get("message", "")))
            said = short(condition.get("message", condition.get("reason", "")))
            return disruption_words(condition) or f"The cluster ended it: {said}"
    return ""


def _evicted(message: str) -> str:
    """Return a sentence about a node that evicted the pod for lack of a resource."""
    for resource, words in (
        ("EmptyDir", "It wrote more to its temporary files or shared memory than it may"),
        ("ephemeral", "It or its node ran out of temporary disk space"),
        ("memory", "Its node ran out of memory"),
        ("inodes", "Its node ran out of disk space for files"),
        ("pids", "Its node ran out of processes"),
    ):
        if resource in message:
            return f"{words} (evicted): {short(message)}"
    return f"Its node ended it (evicted): {short(message)}" if message else "Its node ended it (evicted)."


def _container_end(pod: Json) -> str:
    terminated = _terminated(pod)
    if terminated is None:
        return ""
    code, reason = terminated.get("exitCode"), terminated.get("reason", "")
    if reason == "OOMKilled":
        limit = server_spec(pod).get("resources", {}).get("limits", {}).get("memory")
        return f"It used more memory than {limit or 'it has'} and was ended. Start it with more memory, or use less."
    if pod.get("metadata", {}).get("deletionTimestamp") and code in {0, KILLED, TERMINATED}:
        return ""  # another component ended it and gives the reason
    if code == 0:
        return "It was shut down from inside, for example from JupyterLab's menu."
    if code == KILLED:
        return "Its server was killed from outside (signal 9), perhaps because its node ran out of memory."
    cause = likely_cause(str(terminated.get("message", "")))
    return f"Its server ended by itself with exit code {code}{f': {cause}' if cause else ''}."


def _is_lost(pod: Json) -> bool:
    """Return whether the server's end was not observed. containerd and the kubelet report this after a restart."""
    told = pod.get("metadata", {}).get("deletionTimestamp") or pod.get("status", {}).get("reason") == "Evicted"
    return not told and (_terminated(pod) or {}).get("reason") in {"Unknown", "ContainerStatusUnknown"}


def _terminated(pod: Json) -> Json | None:
    terminated: Json | None = server_of(pod).get("state", {}).get("terminated")
    return terminated


def _is_gone(pod: Json) -> bool:
    """Return whether an observed pod is being deleted or gone, without another reason."""
    deleted = pod.get("metadata", {}).get("deletionTimestamp")
    return bool(deleted or pod.get("status", {}).get("phase") == "Running")


AGAIN = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
"""Refusals that may end by themselves."""


def message_of(error: ApiException) -> str:
    """Return the message of the API server."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return short(str(error.reason))


def refusal(code: int, message: str) -> str:
    """Return why the API server's refusal of a pod is final, or "" if another attempt may succeed."""
    if code in AGAIN or code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ""
    if "status unknown for quota" in message:  # new: nothing is counted yet, so everything is refused
        return ""
    cause = short(re.sub(r'^(pods|Pod) "[^"]*" is (forbidden|invalid): ', "", message))
    quota = _quota(message)
    if quota is not None:
        remedy = (
            "Your administrator must raise it, or remove unused volumes. Nothing was charged."
            if message.startswith("persistentvolumeclaims ")
            else "Ask for less, or start when a colleague of the same namespace stops."
            if quota.passes
            else "Ask for less, or ask your administrator to raise it: that is more than all may have together."
        )
        return f"{quota.words} {remedy}"
    if "violates PodSecurity" in message:
        return (
            f"The cluster's security standard refuses this workspace: {cause} "
            "Your administrator must change the hub's KubeSpawner settings or the namespace's standard."
        )
    if code == HTTPStatus.NOT_FOUND:
        return f"Its pod cannot be made: {cause} Your administrator must create it or name another."
    return f"The cluster refuses this workspace: {cause} Your administrator can mend this; nothing was charged."


def shortage(code: int, message: str) -> str:
    """Return the quota that leaves no room for a pod now, or "" for each other refusal.

    The request would fit without the current use. Quota becomes free like a GPU, so this is no failure.
    """
    quota = _quota(message) if code == HTTPStatus.FORBIDDEN else None
    return quota.words if quota is not None and quota.passes else ""


@dataclass(frozen=True)
class _Quota:
    """The API server's message about an exceeded quota. ``passes``: the request alone is within the quota."""

    words: str
    passes: bool


def _quota(message: str) -> _Quota | None:
    found = re.search(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)", message)
    if found is None:
        return None
    name, asked, used, limit = found.groups()
    words = (
        f"The cluster's quota {name} leaves no room: {_plain(asked)} asked, {_plain(used)} of {_plain(limit)} in use."
    )
    most = _amounts(limit)
    pairs = ((amount, most.get(resource)) for resource, amount in _amounts(asked).items())
    passes = all(amount is not None and bound is not None and amount <= bound for amount, bound in pairs)
    return _Quota(words, passes)


def _amounts(quantities: str) -> dict[str, int | None]:
    """Return ``requests.cpu=500m`` as whole numbers by name, or None for an unknown quantity."""
    parts = (part.partition("=") for part in quantities.split(","))
    return {name: amount_of(name.rpartition(".")[2], quantity) for name, _, quantity in parts}


def _plain(quantities: str) -> str:
    """Return ``requests.nvidia.com/gpu=2`` as ``2 nvidia.com/gpu``, joined by "and"."""
    parts = (part.partition("=") for part in quantities.split(","))
    named = (f"{value} {name.removeprefix('requests.').removeprefix('limits.')}" for name, _, value in parts)
    return " and ".join(dict.fromkeys(named))
