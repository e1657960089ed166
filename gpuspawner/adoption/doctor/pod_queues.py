"""Checks of Volcano and KAI, where the catalog names their queues: kinds, rights, queues, priorities."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from gpuspawner.adoption.doctor import cluster_checks
from gpuspawner.adoption.doctor.cluster_checks import Right, rights_to
from gpuspawner.adoption.doctor.findings import Answer, Finding, State, bad, good, unknown
from gpuspawner.adoption.doctor.kueue import REVIEWS, Asked
from gpuspawner.catalog import PodQueues
from gpuspawner.schedulers.pod_queues import NOT_FOUND, SYSTEMS, PodQueueSystem

MANIFEST = "kubernetes-podgroups-rbac.yaml"
QUEUES: Mapping[str, str] = {
    "volcano": "/apis/scheduling.volcano.sh/v1beta1/queues",
    "kai": "/apis/scheduling.run.ai/v2/queues",
}
"""Where the queues of each are, of all namespaces: by the source of Volcano 1.15.1, and KAI's of March 2026."""


def rights_of(system: PodQueueSystem) -> tuple[Right, ...]:
    """Return the rights of MANIFEST that are about one of them."""
    group = system.group_version.partition("/")[0]
    return (
        *rights_to("podgroups", "list watch", "gpuspawner reads only from the pod why a workspace waits", group=group),
    )


def served(system: PodQueueSystem, kinds: Answer) -> Finding:
    """Judge whether the cluster serves the PodGroups in which it says why a pod waits."""
    names = {one.get("name") for one in kinds.body.get("resources") or ()} if kinds.ok else set()
    if "podgroups" in names:
        return good(system.title, f"The cluster serves the PodGroups of {system.group_version}.")
    if not kinds.ok and kinds.status != NOT_FOUND:
        words = f"The API server did not list {system.title}'s kinds ({kinds.problem or kinds.status})."
        return unknown(system.title, words, "Fix the finding about the API server first.")
    words = f"The catalog names {system.title}, and the cluster does not serve the PodGroups of {system.group_version}."
    return bad(system.title, words, f"Install {system.title}, or take it out of the catalog's scheduler.")


def queue(system: PodQueueSystem, name: str, answer: Answer) -> Finding:
    """Judge a queue that workspaces wait in. Volcano alone says whether it is open."""
    check = f"queue {name}"
    if answer.status == NOT_FOUND:
        words = f"{system.title} has no queue {name}, so a pod that names it never starts."
        return bad(check, words, "Create it, or name another in the catalog's scheduler.")
    if not answer.ok:
        status = answer.problem or answer.status
        words = f"The API server did not say whether {system.title} has the queue {name} ({status})."
        return unknown(
            check,
            words,
            "Run this with an account that may get queues. The service's account does not need that right.",
        )
    state = str((answer.body.get("status") or {}).get("state") or "")
    if state in {"Closed", "Closing"}:
        words = f"The queue {name} is {state.lower()}, so it takes no new pod."
        return bad(check, words, f"Open it: vcctl queue operate -a open -n {name}.")
    return good(check, f"The queue {name} is there{' and open' if state == 'Open' else ''}.")


def priority_class(name: str, answer: Answer) -> Finding:
    """Judge whether a PriorityClass is there that the catalog gives pods."""
    check = f"priority class {name}"
    if answer.status == NOT_FOUND:
        words = f"There is no PriorityClass {name}: the cluster refuses every pod that names it."
        return bad(check, words, "Create it, or name another in the catalog's scheduler.")
    if not answer.ok:
        words = (
            f"The API server did not say whether there is a PriorityClass {name} ({answer.problem or answer.status})."
        )
        return unknown(check, words, "Run this with an account that may get priorityclasses.")
    return good(check, f"The PriorityClass {name} is there.")


PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


async def judged(cluster: Asked, workspaces: str, queues: PodQueues) -> list[Finding]:
    """Return the findings of a scheduler with pod queues. ``workspaces`` is their namespace."""
    system, namespace = SYSTEMS[queues.system], quote(workspaces, safe="")
    found = [served(system, await cluster.ask(f"/apis/{system.group_version}"))]
    if found[0].state is not State.GOOD:
        return found
    wanted = rights_of(system)
    answers = {right: await cluster.ask(REVIEWS, cluster_checks.review_of(right, namespace)) for right in wanted}
    check = f"{system.title}'s rights"
    found += cluster_checks.rights(answers, namespace, check, MANIFEST, "rights.podGroups")
    named = {queues.queue or system.default_queue, *queues.teams.values(), *queues.users.values()}
    for name in sorted(named):
        answer = await cluster.ask(f"{QUEUES[queues.system]}/{quote(name, safe='')}")
        found.append(queue(system, name, answer))
    for name in sorted({queues.priority_class, *queues.priority_classes.values()} - {""}):
        answer = await cluster.ask(f"{PRIORITY_CLASSES}/{quote(name, safe='')}")
        found.append(priority_class(name, answer))
    return found
