"""Checks of Kueue, where the catalog names its queues: version, rights, queues, positions, pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from gpuspawner.adoption.doctor import cluster_checks
from gpuspawner.adoption.doctor.cluster_checks import rights_to
from gpuspawner.adoption.doctor.findings import Answer, Finding, bad, good, unknown
from gpuspawner.catalog import KueueQueues
from gpuspawner.schedulers.kueue.cluster import API, NOT_FOUND, POSITIONS
from gpuspawner.schedulers.kueue.models import (
    DRY_RUN,
    GROUP,
    VERSION,
    Queue,
    explain_gate,
    explain_unusable,
    spec_of,
    to_queue,
    trial_pod,
)

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
    *rights_to("workloads/status", "update", "the quota of ended workspaces stays in use", group=GROUP),
    *rights_to("localqueues", "get", _NOT_GRANTED, group=GROUP),
    *rights_to("localqueues/pendingworkloads", "get", "users cannot see their queue position", group=VISIBILITY),
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
        words = "The API server did not send the schema of Kueue's kinds, which shows Kueue's version."
        return [unknown(CHECK, words, "Run this with an account that may read /openapi.")]
    if most < POD_SETS:
        return [bad(CHECK, "Kueue is older than 0.19.", UPGRADE)]
    return [good(CHECK, f"Kueue is installed, is 0.19 or newer, and serves {VERSION}.")]


def not_told(answer: Answer) -> Finding:
    """Judge an answer that says neither that Kueue is there nor that it is not."""
    words = f"The API server did not list Kueue's kinds ({answer.problem or answer.status})."
    return unknown(CHECK, words, "Fix the finding about the API server first.")


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
        remedy = "Create it, or name another in the catalog's scheduler: {kueue: ...}."
        return bad(f"queue {name}", f"There is no {what}.", remedy)
    words = f"The API server did not say whether there is a {what} ({answer.problem or answer.status})."
    return unknown(f"queue {name}", words, "Fix the findings about Kueue's rights first.")


def leads_nowhere(name: str) -> Finding:
    """Judge a LocalQueue that names no ClusterQueue."""
    words = f"The LocalQueue {name} names no ClusterQueue, so Kueue admits no workspace from it."
    return bad(f"queue {name}", words, "Create it again with spec.clusterQueue, or name another in the catalog.")


def queue(found: Queue, cluster_queue: Mapping[str, Any]) -> Iterable[Finding]:
    """Yield faults of a LocalQueue that the catalog names, and of its ClusterQueue."""
    check = f"queue {found.name}"
    if found.why_refused:
        return [bad(check, found.why_refused, "Name another in the catalog's scheduler: {kueue: ...}.")]
    if found.stopped:
        words = f"Kueue starts no new workspace from the queue {found.name}, because stopPolicy is {found.stopped}."
        return [bad(check, words, f"Set stopPolicy: None of LocalQueue and ClusterQueue {found.cluster_queue}.")]
    conditions = (cluster_queue.get("status") or {}).get("conditions") or ()
    active: Mapping[str, Any] = next((one for one in conditions if one.get("type") == "Active"), {})
    if active.get("status") != "True":
        words = (
            f"The ClusterQueue {found.cluster_queue} is not active: {active.get('message') or 'it gives no reason'}."
        )
        return [bad(check, words, "Correct what it names: kubectl describe clusterqueue shows more.")]
    return [good(check, f"The queue {found.name} belongs to the ClusterQueue {found.cluster_queue}, which is active.")]


def places(answer: Answer) -> Finding:
    """Judge the answer of the visibility API."""
    if answer.ok:
        return good("places", "Kueue reports queue positions.")
    words = f"Kueue's visibility API does not answer ({answer.problem or answer.status}): users see no queue position."
    remedy = f"Look at the APIService {VERSION}.{VISIBILITY}, and at the findings about the queues and Kueue's rights."
    return bad("places", words, remedy)


def priority_class(name: str, answer: Answer) -> Finding:
    """Judge whether the WorkloadPriorityClass is there that the catalog names."""
    if answer.ok:
        return good("priority class", f"The WorkloadPriorityClass {name} is there.")
    if answer.status != NOT_FOUND:
        status = answer.problem or answer.status
        words = f"The API server did not say whether there is a WorkloadPriorityClass {name} ({status})."
        return unknown("priority class", words, "Fix the findings about Kueue's rights first.")
    words = f"There is no WorkloadPriorityClass {name}, so Kueue refuses every Workload that names it."
    return bad(
        "priority class", words, "Create it, or take priority_class out of the catalog's scheduler: {kueue: ...}."
    )


def pods(answer: Answer, namespace: str) -> Finding:
    """Judge what a dry run of a pod became in the workspaces' namespace."""
    if not answer.ok:
        words = f"The check whether Kueue holds back the pods of namespace {namespace} failed ({_why(answer)})."
        return unknown(
            "pods", words, "Run this with an account that may create pods there, for example the hub's: --as."
        )
    why, _, remedy = explain_gate(answer.body, namespace).partition(". ")
    return bad("pods", f"{why}.", remedy) if why else good("pods", f"Kueue leaves the pods of {namespace} alone.")


def _why(answer: Answer) -> str:
    told = answer.body.get("message") if isinstance(answer.body, dict) else ""
    return str(told or answer.problem or answer.status)


REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Asked(Protocol):
    """An API server, asked as the service's account."""

    async def ask(self, path: str, body: Any = None) -> Answer:
        """Return the answer to a GET, or to a POST of ``body``. Never raises."""
        ...


async def judged(cluster: Asked, workspaces: str, queues: KueueQueues) -> list[Finding]:
    """Return the findings of Kueue. ``workspaces`` is their namespace."""
    group = await cluster.ask(f"/apis/{GROUP}")
    if not group.ok and group.status != NOT_FOUND:
        return [not_told(group)]
    if why := explain_unusable(group.body if group.ok else None):
        return [bad(CHECK, why, UPGRADE)]
    found = [*served(await cluster.ask(API), await cluster.ask(f"/openapi/v3{API}"))]
    namespace = quote(queues.namespace or workspaces, safe="")
    answers = {right: await cluster.ask(REVIEWS, cluster_checks.review_of(right, namespace)) for right in RIGHTS}
    found += cluster_checks.rights(answers, namespace, "Kueue's rights", MANIFEST, "rights.kueue")
    for name in sorted({queues.queue, *queues.teams.values(), *queues.users.values()}):
        found += await _queue(cluster, namespace, name)
    if queues.priority_class:
        answer = await cluster.ask(f"{API}/workloadpriorityclasses/{quote(queues.priority_class)}")
        found.append(priority_class(queues.priority_class, answer))
    path = f"{POSITIONS}/namespaces/{namespace}/localqueues/{quote(queues.queue)}/pendingworkloads?limit=1"
    found.append(places(await cluster.ask(path)))
    query = "&".join(f"{name}={value}" for name, value in DRY_RUN.items())
    path = f"/api/v1/namespaces/{quote(workspaces, safe='')}/pods?{query}"
    found.append(pods(await cluster.ask(path, trial_pod()), workspaces))
    return found


async def _queue(cluster: Asked, namespace: str, name: str) -> list[Finding]:
    local = await cluster.ask(f"{API}/namespaces/{namespace}/localqueues/{quote(name)}")
    if not local.ok:
        return [not_seen(name, f"LocalQueue {name} in namespace {namespace}", local)]
    behind = str(spec_of(local.body).get("clusterQueue") or "")
    if not behind:
        return [leads_nowhere(name)]
    answer = await cluster.ask(f"{API}/clusterqueues/{quote(behind)}")
    if not answer.ok:
        return [not_seen(name, f"ClusterQueue {behind}, which the LocalQueue {name} names", answer)]
    rules = (spec_of(answer.body).get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    checks = [await cluster.ask(f"{API}/admissionchecks/{quote(rule['name'])}") for rule in rules]
    found = to_queue(name, local.body, answer.body, {}, [x.body for x in checks if x.ok])
    return [*queue(found, answer.body)]
