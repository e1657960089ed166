"""Checks of Kueue, where the catalog names its queues: version, rights, queues, places, pods left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuspawner.adoption.doctor.cluster_checks import rights_to
from gpuspawner.adoption.doctor.findings import Answer, Finding, bad, good, unknown
from gpuspawner.schedulers.kueue.cluster import NOT_FOUND
from gpuspawner.schedulers.kueue.models import GROUP, VERSION, Queue, explain_gate

CHECK = "Kueue"
MANIFEST = "kubernetes-kueue-rbac.yaml"
VISIBILITY = f"visibility.{GROUP}"
POD_SETS = 18
"""The number of pod sets of a Workload from 0.19 on; 10 before. Kueue's kinds name no version, and this changed."""
UPGRADE = "Install Kueue 0.19 or newer."
_NOT_GRANTED = "nothing is granted"
RIGHTS = (
    *(
        right
        for resource in ("clusterqueues", "resourceflavors", "admissionchecks", "workloadpriorityclasses")
        for right in rights_to(resource, "get", _NOT_GRANTED, everywhere=True, group=GROUP)
    ),
    *rights_to("workloads", "list watch create update delete", _NOT_GRANTED, group=GROUP),
    *rights_to("workloads/status", "update", "the quota of what ended is never free again", group=GROUP),
    *rights_to("localqueues", "get", _NOT_GRANTED, group=GROUP),
    *rights_to("localqueues/pendingworkloads", "get", "nobody reads where they stand", group=VISIBILITY),
)
"""The rights of MANIFEST. A test compares them."""
KINDS = frozenset(right.resource for right in RIGHTS if right.group == GROUP)


def served(kinds: Answer, schema: Answer) -> Iterable[Finding]:
    """Yield faults of the kinds that are served, and of their version."""
    if not kinds.ok:
        return [not_told(kinds)]
    missing = sorted(KINDS - {str(one.get("name")) for one in kinds.body.get("resources") or ()})
    if missing:
        return [bad(CHECK, f"The cluster does not serve Kueue's {', '.join(missing)}.", UPGRADE)]
    most = _most_pod_sets(schema.body) if schema.ok else None
    if most is None:
        words = "The API server does not tell the schema of Kueue's kinds, by which its version is known."
        return [unknown(CHECK, words, "Ask as somebody who may read /openapi.")]
    if most < POD_SETS:
        return [bad(CHECK, "Kueue is older than 0.19.", UPGRADE)]
    return [good(CHECK, f"Kueue is there, 0.19 or newer, and speaks {VERSION}.")]


def not_told(answer: Answer) -> Finding:
    """Judge an answer that says neither that Kueue is there nor that it is not."""
    words = f"The API server does not tell Kueue's kinds ({answer.problem or answer.status})."
    return unknown(CHECK, words, "Mend what is said of the API server.")


def _most_pod_sets(schema: Any) -> int | None:
    """Return how many pod sets a Workload may have; None where the schema does not tell."""
    try:
        spec = schema["components"]["schemas"][f"io.x-k8s.kueue.{VERSION}.Workload"]["properties"]["spec"]
        return int(spec["properties"]["podSets"]["maxItems"])
    except (KeyError, TypeError, ValueError):
        return None


def not_seen(name: str, what: str, answer: Answer) -> Finding:
    """Judge the answer to a queue, or to the ClusterQueue behind it, that is not there, or can't be seen."""
    if answer.status == NOT_FOUND:
        remedy = "Make it, or name another in the catalog's scheduler: {kueue: ...}."
        return bad(f"queue {name}", f"There is no {what}.", remedy)
    words = f"Whether there is a {what} is not told ({answer.problem or answer.status})."
    return unknown(f"queue {name}", words, "See what is said of Kueue's rights.")


def leads_nowhere(name: str) -> Finding:
    """Judge a LocalQueue that names no ClusterQueue."""
    words = f"The LocalQueue {name} names no ClusterQueue: nothing is ever admitted from it."
    return bad(f"queue {name}", words, "Make it anew with spec.clusterQueue, or name another in the catalog.")


def queue(found: Queue, cluster_queue: Mapping[str, Any]) -> Iterable[Finding]:
    """Yield faults of a LocalQueue that the catalog names, and of its ClusterQueue."""
    check = f"queue {found.name}"
    if found.why_refused:
        return [bad(check, found.why_refused, "Name another in the catalog's scheduler: {kueue: ...}.")]
    if found.stopped:
        words = f"Nothing new starts from the queue {found.name}: stopPolicy is {found.stopped}."
        return [bad(check, words, f"Set stopPolicy: None of LocalQueue and ClusterQueue {found.cluster_queue}.")]
    conditions = (cluster_queue.get("status") or {}).get("conditions") or ()
    active: Mapping[str, Any] = next((one for one in conditions if one.get("type") == "Active"), {})
    if active.get("status") != "True":
        words = f"The ClusterQueue {found.cluster_queue} is not active: {active.get('message') or 'it says no reason'}."
        return [bad(check, words, "Mend what it names: kubectl describe clusterqueue tells more.")]
    return [good(check, f"The queue {found.name} leads to the ClusterQueue {found.cluster_queue}, which is active.")]


def places(answer: Answer) -> Finding:
    """Judge the answer of the visibility API."""
    if answer.ok:
        return good("places", "Kueue tells who stands where.")
    words = f"Kueue's visibility API does not answer ({answer.problem or answer.status}): nobody reads their place."
    remedy = f"Look at the APIService {VERSION}.{VISIBILITY}, and at what is said of the queues and of Kueue's rights."
    return bad("places", words, remedy)


def priority_class(name: str, answer: Answer) -> Finding:
    """Judge whether the WorkloadPriorityClass is there that the catalog names."""
    if answer.ok:
        return good("priority class", f"The WorkloadPriorityClass {name} is there.")
    if answer.status != NOT_FOUND:
        words = f"Whether there is a WorkloadPriorityClass {name} is not told ({answer.problem or answer.status})."
        return unknown("priority class", words, "See what is said of Kueue's rights.")
    words = f"There is no WorkloadPriorityClass {name}: Kueue takes no Workload that names it."
    return bad("priority class", words, "Make it, or take priority_class out of the catalog's scheduler: {kueue: ...}.")


def pods(answer: Answer, namespace: str) -> Finding:
    """Judge what a dry run of a pod became in the workspaces' namespace."""
    if not answer.ok:
        words = f"Whether Kueue holds back the pods of namespace {namespace} was not tried ({_why(answer)})."
        return unknown("pods", words, "Ask as an account that may create pods there, as the hub's: --as.")
    why, _, remedy = explain_gate(answer.body, namespace).partition(". ")
    return bad("pods", f"{why}.", remedy) if why else good("pods", f"Kueue leaves the pods of {namespace} alone.")


def _why(answer: Answer) -> str:
    told = answer.body.get("message") if isinstance(answer.body, dict) else ""
    return str(told or answer.problem or answer.status)
