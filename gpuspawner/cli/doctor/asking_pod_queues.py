"""What a cluster is asked about Volcano or KAI."""

from __future__ import annotations

from urllib.parse import quote

from gpuspawner.catalog import PodQueues
from gpuspawner.cli.doctor import of_cluster, of_pod_queues
from gpuspawner.cli.doctor.asking_kueue import REVIEWS, Asked
from gpuspawner.cli.doctor.findings import Finding, State
from gpuspawner.schedulers.pod_queues.systems import SYSTEMS

PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


async def judged(cluster: Asked, workspaces: str, queues: PodQueues) -> list[Finding]:
    """Return what is found of the scheduler in whose queues pods wait; ``workspaces`` is their namespace."""
    system, namespace = SYSTEMS[queues.system], quote(workspaces, safe="")
    found = [of_pod_queues.served(system, await cluster.ask(f"/apis/{system.group_version}"))]
    if found[0].state is not State.GOOD:
        return found
    wanted = of_pod_queues.rights_of(system)
    answers = {right: await cluster.ask(REVIEWS, of_cluster.review_of(right, namespace)) for right in wanted}
    check = f"{system.title}'s rights"
    found += of_cluster.rights(answers, namespace, check, of_pod_queues.MANIFEST, "rights.podGroups")
    named = {queues.queue or system.default_queue, *queues.teams.values(), *queues.users.values()}
    for name in sorted(named):
        answer = await cluster.ask(f"{of_pod_queues.QUEUES[queues.system]}/{quote(name, safe='')}")
        found.append(of_pod_queues.queue(system, name, answer))
    for name in sorted({queues.priority_class, *queues.priority_classes.values()} - {""}):
        answer = await cluster.ask(f"{PRIORITY_CLASSES}/{quote(name, safe='')}")
        found.append(of_pod_queues.priority_class(name, answer))
    return found
