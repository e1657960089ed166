"""Requests to a cluster about Volcano or KAI."""

from __future__ import annotations

from urllib.parse import quote

from gpuspawner.adoption.doctor import cluster_checks, pod_queue_checks
from gpuspawner.adoption.doctor.findings import Finding, State
from gpuspawner.adoption.doctor.kueue_reader import REVIEWS, Asked
from gpuspawner.catalog import PodQueues
from gpuspawner.schedulers.pod_queues import SYSTEMS

PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


async def judged(cluster: Asked, workspaces: str, queues: PodQueues) -> list[Finding]:
    """Return the findings of a scheduler with pod queues. ``workspaces`` is their namespace."""
    system, namespace = SYSTEMS[queues.system], quote(workspaces, safe="")
    found = [pod_queue_checks.served(system, await cluster.ask(f"/apis/{system.group_version}"))]
    if found[0].state is not State.GOOD:
        return found
    wanted = pod_queue_checks.rights_of(system)
    answers = {right: await cluster.ask(REVIEWS, cluster_checks.review_of(right, namespace)) for right in wanted}
    check = f"{system.title}'s rights"
    found += cluster_checks.rights(answers, namespace, check, pod_queue_checks.MANIFEST, "rights.podGroups")
    named = {queues.queue or system.default_queue, *queues.teams.values(), *queues.users.values()}
    for name in sorted(named):
        answer = await cluster.ask(f"{pod_queue_checks.QUEUES[queues.system]}/{quote(name, safe='')}")
        found.append(pod_queue_checks.queue(system, name, answer))
    for name in sorted({queues.priority_class, *queues.priority_classes.values()} - {""}):
        answer = await cluster.ask(f"{PRIORITY_CLASSES}/{quote(name, safe='')}")
        found.append(pod_queue_checks.priority_class(name, answer))
    return found
