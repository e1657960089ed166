"""Requests to a cluster about Kueue."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

from gpuspawner.adoption.doctor import cluster_checks, kueue_checks
from gpuspawner.adoption.doctor.findings import Answer, Finding, bad
from gpuspawner.catalog import KueueQueues
from gpuspawner.schedulers.kueue.cluster import API, NOT_FOUND, POSITIONS
from gpuspawner.schedulers.kueue.models import DRY_RUN, GROUP, explain_unusable, spec_of, to_queue, trial_pod

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
        return [kueue_checks.not_told(group)]
    if why := explain_unusable(group.body if group.ok else None):
        return [bad(kueue_checks.CHECK, why, kueue_checks.UPGRADE)]
    found = [*kueue_checks.served(await cluster.ask(API), await cluster.ask(f"/openapi/v3{API}"))]
    namespace = quote(queues.namespace or workspaces, safe="")
    answers = {
        right: await cluster.ask(REVIEWS, cluster_checks.review_of(right, namespace)) for right in kueue_checks.RIGHTS
    }
    found += cluster_checks.rights(answers, namespace, "Kueue's rights", kueue_checks.MANIFEST, "rights.kueue")
    for name in sorted({queues.queue, *queues.teams.values(), *queues.users.values()}):
        found += await _queue(cluster, namespace, name)
    if queues.priority_class:
        answer = await cluster.ask(f"{API}/workloadpriorityclasses/{quote(queues.priority_class)}")
        found.append(kueue_checks.priority_class(queues.priority_class, answer))
    path = f"{POSITIONS}/namespaces/{namespace}/localqueues/{quote(queues.queue)}/pendingworkloads?limit=1"
    found.append(kueue_checks.places(await cluster.ask(path)))
    query = "&".join(f"{name}={value}" for name, value in DRY_RUN.items())
    path = f"/api/v1/namespaces/{quote(workspaces, safe='')}/pods?{query}"
    found.append(kueue_checks.pods(await cluster.ask(path, trial_pod()), workspaces))
    return found


async def _queue(cluster: Asked, namespace: str, name: str) -> list[Finding]:
    local = await cluster.ask(f"{API}/namespaces/{namespace}/localqueues/{quote(name)}")
    if not local.ok:
        return [kueue_checks.not_seen(name, f"LocalQueue {name} in namespace {namespace}", local)]
    behind = str(spec_of(local.body).get("clusterQueue") or "")
    if not behind:
        return [kueue_checks.leads_nowhere(name)]
    answer = await cluster.ask(f"{API}/clusterqueues/{quote(behind)}")
    if not answer.ok:
        return [kueue_checks.not_seen(name, f"ClusterQueue {behind}, to which the LocalQueue {name} leads", answer)]
    rules = (spec_of(answer.body).get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    checks = [await cluster.ask(f"{API}/admissionchecks/{quote(rule['name'])}") for rule in rules]
    queue = to_queue(name, local.body, answer.body, {}, [x.body for x in checks if x.ok])
    return [*kueue_checks.queue(queue, answer.body)]
