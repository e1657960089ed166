"""Checks of schedulers in the cluster that own the queue, if the catalog names them: Kueue, Volcano and KAI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from gpuspawner.adoption.doctor import cluster_checks
from gpuspawner.adoption.doctor.cluster_checks import Right, rights_to
from gpuspawner.adoption.doctor.findings import Answer, Finding, State, bad, good, unknown
from gpuspawner.catalog import KueueQueues, PodQueues
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
from gpuspawner.schedulers.pod_queues import SYSTEMS, PodQueueSystem

CHECK = "Kueue"
KUEUE_MANIFEST, PODGROUPS_MANIFEST = "kubernetes-kueue-rbac.yaml", "kubernetes-podgroups-rbac.yaml"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
VISIBILITY = f"visibility.{GROUP}"
POD_SETS = 18
"""How many pod sets a Workload may have in Kueue 0.19 or newer. Older versions allow 10. No other part of the API shows
the version."""
UPGRADE = "Install Kueue 0.19 or newer."
FIX_RIGHTS = "Fix the findings about Kueue's rights first."
FIX_API_SERVER = "Fix the finding about the API server first."
_NOT_GRANTED = "nothing is granted"
KUEUE_RIGHTS = (
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
"""The rights of KUEUE_MANIFEST. A test compares them."""
KINDS = frozenset(right.resource for right in KUEUE_RIGHTS if right.group == GROUP)
QUEUES: Mapping[str, str] = {
    "volcano": "/apis/scheduling.volcano.sh/v1beta1/queues",
    "kai": "/apis/scheduling.run.ai/v2/queues",
}
"""The paths of the queues of all namespaces, in Volcano 1.15.1 and in KAI's source of March 2026."""
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


class ApiReader(Protocol):
    """An API server, asked as the service's account."""

    async def ask(self, path: str, body: Any = None) -> Answer:
        """Return the answer to a GET, or to a POST of ``body``. Never raises."""
        ...


def judge_missing(check: str, answer: Answer, question: str, missing: str, remedies: tuple[str, str]) -> Finding | None:
    """Judge the answer to an object that the catalog names. Return None if the object exists.

    Args:
        check: the name of the check.
        answer: the answer.
        question: what the API server was asked, after "whether", for example "there is a LocalQueue main".
        missing: a sentence for an object that does not exist.
        remedies: what to do about that, and if the API server does not say whether the object exists.
    """
    if answer.ok:
        return None
    if answer.status == NOT_FOUND:
        return bad(check, missing, remedies[0])
    return unknown(check, f"The API server did not say whether {question} ({answer.why}).", remedies[1])


async def ask_rights(
    cluster: ApiReader, namespace: str, title: str, rights: Iterable[Right], manifest: str, value: str
) -> Iterable[Finding]:
    """Ask for rights of the service's account. ``value`` of the chart gives them, and so does ``manifest``."""
    answers = {right: await cluster.ask(REVIEWS, cluster_checks.review_of(right, namespace)) for right in rights}
    return cluster_checks.rights(answers, namespace, f"{title}'s rights", manifest, value)


async def judge_kueue(cluster: ApiReader, workspaces: str, queues: KueueQueues) -> list[Finding]:
    """Return the findings of Kueue. ``workspaces`` is the namespace of the workspaces."""
    group = await cluster.ask(f"/apis/{GROUP}")
    if not group.ok and group.status != NOT_FOUND:
        return [_kinds_unknown(CHECK, group)]
    if why := explain_unusable(group.body if group.ok else None):
        return [bad(CHECK, why, UPGRADE)]
    found = [judge_kueue_version(await cluster.ask(API), await cluster.ask(f"/openapi/v3{API}"))]
    namespace = quote(queues.namespace or workspaces, safe="")
    found += await ask_rights(cluster, namespace, CHECK, KUEUE_RIGHTS, KUEUE_MANIFEST, "rights.kueue")
    for name in sorted({queues.queue, *queues.teams.values(), *queues.users.values()}):
        found.append(await _judge_queue(cluster, namespace, name))
    if name := queues.priority_class:
        answer = await cluster.ask(f"{API}/workloadpriorityclasses/{quote(name)}")
        noun = f"WorkloadPriorityClass {name}"
        missing = f"There is no {noun}, so Kueue refuses every Workload that names it."
        remedy = "Create it, or take priority_class out of the catalog's scheduler: {kueue: ...}."
        problem = judge_missing("priority class", answer, f"there is a {noun}", missing, (remedy, FIX_RIGHTS))
        found.append(problem or good("priority class", f"The {noun} is there."))
    path = f"{POSITIONS}/namespaces/{namespace}/localqueues/{quote(queues.queue)}/pendingworkloads?limit=1"
    found.append(judge_positions(await cluster.ask(path)))
    query = "&".join(f"{name}={value}" for name, value in DRY_RUN.items())
    path = f"/api/v1/namespaces/{quote(workspaces, safe='')}/pods?{query}"
    found.append(judge_dry_run(await cluster.ask(path, trial_pod()), workspaces))
    return found


def _kinds_unknown(title: str, answer: Answer) -> Finding:
    """Return the finding for an answer that does not show whether a scheduler is installed."""
    return unknown(title, f"The API server did not list {title}'s kinds ({answer.why}).", FIX_API_SERVER)


def judge_kueue_version(kinds: Answer, schema: Answer) -> Finding:
    """Judge the kinds that the cluster serves, and the version that their schema shows."""
    if not kinds.ok:
        return _kinds_unknown(CHECK, kinds)
    missing = sorted(KINDS - {str(one.get("name")) for one in kinds.body.get("resources") or ()})
    if missing:
        return bad(CHECK, f"The cluster does not serve Kueue's {', '.join(missing)}.", UPGRADE)
    try:
        of_kind = schema.body["components"]["schemas"][f"io.x-k8s.kueue.{VERSION}.Workload"]["properties"]["spec"]
        pod_sets = int(of_kind["properties"]["podSets"]["maxItems"])
    except (KeyError, TypeError, ValueError):
        words = "The API server did not send the schema of Kueue's kinds, which shows Kueue's version."
        return unknown(CHECK, words, "Run this with an account that may read /openapi.")
    if pod_sets < POD_SETS:
        return bad(CHECK, "Kueue is older than 0.19.", UPGRADE)
    return good(CHECK, f"Kueue is installed, is 0.19 or newer, and serves {VERSION}.")


async def _judge_queue(cluster: ApiReader, namespace: str, name: str) -> Finding:
    """Judge a LocalQueue that the catalog names, and the ClusterQueue behind it."""
    check = f"queue {name}"
    local = await cluster.ask(f"{API}/namespaces/{namespace}/localqueues/{quote(name)}")
    if problem := _judge_missing_queue(check, f"LocalQueue {name} in namespace {namespace}", local):
        return problem
    behind = str(spec_of(local.body).get("clusterQueue") or "")
    if not behind:
        words = f"The LocalQueue {name} names no ClusterQueue, so Kueue admits no workspace from it."
        return bad(check, words, "Create it again with spec.clusterQueue, or name another in the catalog.")
    answer = await cluster.ask(f"{API}/clusterqueues/{quote(behind)}")
    if problem := _judge_missing_queue(check, f"ClusterQueue {behind}, which the LocalQueue {name} names", answer):
        return problem
    rules = (spec_of(answer.body).get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    checks = [await cluster.ask(f"{API}/admissionchecks/{quote(rule['name'])}") for rule in rules]
    found = to_queue(name, local.body, answer.body, {}, [x.body for x in checks if x.ok])
    return judge_queue(found, answer.body)


def _judge_missing_queue(check: str, what: str, answer: Answer) -> Finding | None:
    remedy = "Create it, or name another in the catalog's scheduler: {kueue: ...}."
    return judge_missing(check, answer, f"there is a {what}", f"There is no {what}.", (remedy, FIX_RIGHTS))


def judge_queue(found: Queue, cluster_queue: Mapping[str, Any]) -> Finding:
    """Judge a LocalQueue with its ClusterQueue, which both exist."""
    check = f"queue {found.name}"
    if found.why_refused:
        return bad(check, found.why_refused, "Name another in the catalog's scheduler: {kueue: ...}.")
    if found.stopped:
        words = f"Kueue starts no new workspace from the queue {found.name}, because stopPolicy is {found.stopped}."
        return bad(check, words, f"Set stopPolicy: None of LocalQueue and ClusterQueue {found.cluster_queue}.")
    conditions = (cluster_queue.get("status") or {}).get("conditions") or ()
    active: Mapping[str, Any] = next((one for one in conditions if one.get("type") == "Active"), {})
    if active.get("status") != "True":
        why = active.get("message") or "it gives no reason"
        words = f"The ClusterQueue {found.cluster_queue} is not active: {why}."
        return bad(check, words, "Correct the fault that it names. kubectl describe clusterqueue shows more.")
    return good(check, f"The queue {found.name} belongs to the ClusterQueue {found.cluster_queue}, which is active.")


def judge_positions(answer: Answer) -> Finding:
    """Judge the answer of the visibility API."""
    if answer.ok:
        return good("places", "Kueue reports queue positions.")
    words = f"Kueue's visibility API does not answer ({answer.why}): users see no queue position."
    remedy = f"Look at the APIService {VERSION}.{VISIBILITY}, and at the findings about the queues and Kueue's rights."
    return bad("places", words, remedy)


def judge_dry_run(answer: Answer, namespace: str) -> Finding:
    """Judge whether Kueue manages the pods of the workspaces' namespace, by the dry run of a pod."""
    if not answer.ok:
        why = (answer.body.get("message") if isinstance(answer.body, dict) else "") or answer.why
        words = f"The check whether Kueue holds back the pods of namespace {namespace} failed ({why})."
        remedy = "Run this with an account that may create pods there, for example the hub's: --as."
        return unknown("pods", words, remedy)
    why, _, remedy = explain_gate(answer.body, namespace).partition(". ")
    return bad("pods", f"{why}.", remedy) if why else good("pods", f"Kueue leaves the pods of {namespace} alone.")


async def judge_pod_queues(cluster: ApiReader, workspaces: str, queues: PodQueues) -> list[Finding]:
    """Return the findings of Volcano or KAI. ``workspaces`` is the namespace of the workspaces."""
    system, namespace = SYSTEMS[queues.system], quote(workspaces, safe="")
    found = [judge_podgroups(system, await cluster.ask(f"/apis/{system.group_version}"))]
    if found[0].state is not State.GOOD:
        return found
    found += await ask_rights(
        cluster, namespace, system.title, rights_of(system), PODGROUPS_MANIFEST, "rights.podGroups"
    )
    for name in sorted({queues.queue or system.default_queue, *queues.teams.values(), *queues.users.values()}):
        answer = await cluster.ask(f"{QUEUES[queues.system]}/{quote(name, safe='')}")
        found.append(judge_pod_queue(system, name, answer))
    for name in sorted({queues.priority_class, *queues.priority_classes.values()} - {""}):
        answer = await cluster.ask(f"{PRIORITY_CLASSES}/{quote(name, safe='')}")
        check, noun = f"priority class {name}", f"PriorityClass {name}"
        missing = f"There is no {noun}: the cluster refuses every pod that names it."
        remedies = (
            "Create it, or name another in the catalog's scheduler.",
            "Run this with an account that may get priorityclasses.",
        )
        problem = judge_missing(check, answer, f"there is a {noun}", missing, remedies)
        found.append(problem or good(check, f"The {noun} is there."))
    return found


def rights_of(system: PodQueueSystem) -> list[Right]:
    """Return the rights of PODGROUPS_MANIFEST for a system."""
    group = system.group_version.partition("/")[0]
    return rights_to("podgroups", "list watch", "gpuspawner reads only from the pod why a workspace waits", group=group)


def judge_podgroups(system: PodQueueSystem, kinds: Answer) -> Finding:
    """Judge whether the cluster serves the PodGroups of a system, which say why a pod waits."""
    names = {one.get("name") for one in kinds.body.get("resources") or ()} if kinds.ok else set()
    if "podgroups" in names:
        return good(system.title, f"The cluster serves the PodGroups of {system.group_version}.")
    if not kinds.ok and kinds.status != NOT_FOUND:
        return _kinds_unknown(system.title, kinds)
    words = f"The catalog names {system.title}, and the cluster does not serve the PodGroups of {system.group_version}."
    return bad(system.title, words, f"Install {system.title}, or take it out of the catalog's scheduler.")


def judge_pod_queue(system: PodQueueSystem, name: str, answer: Answer) -> Finding:
    """Judge a queue of a system. Only Volcano reports whether it is open."""
    check = f"queue {name}"
    question = f"{system.title} has the queue {name}"
    missing = f"{system.title} has no queue {name}, so a pod that names it never starts."
    remedies = (
        "Create it, or name another in the catalog's scheduler.",
        "Run this with an account that may get queues. The service's account does not need that right.",
    )
    if problem := judge_missing(check, answer, question, missing, remedies):
        return problem
    state = str((answer.body.get("status") or {}).get("state") or "")
    if state in {"Closed", "Closing"}:
        words = f"The queue {name} is {state.lower()}, so it takes no new pod."
        return bad(check, words, f"Open it: vcctl queue operate -a open -n {name}.")
    return good(check, f"The queue {name} is there{' and open' if state == 'Open' else ''}.")
