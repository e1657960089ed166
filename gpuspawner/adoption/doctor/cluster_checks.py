"""Checks of a cluster: rights, GPUs, labels, claimed devices, network policy, priority and one exec. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuspawner.adoption.doctor.findings import Answer, Finding, bad, good, unknown
from gpuspawner.adoption.found_gpus import compute_of_node
from gpuspawner.backends.kubernetes.dra.counting import serves
from gpuspawner.backends.kubernetes.dra.models import to_class, to_slice
from gpuspawner.backends.kubernetes.fleet import cluster_kinds, gpus_of_node
from gpuspawner.backends.kubernetes.nodes import model_of, to_node
from gpuspawner.backends.kubernetes.pods import HUB_LABEL, to_pod
from gpuspawner.catalog import Cluster
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, is_at_least
from gpuspawner.service.engine.sampling.gpu_states import find_unmatched_kinds

MANIFEST = "kubernetes-service-rbac.yaml"
PRIORITY_CLASS = "gpu-workspace"
LEAST_PRIORITY = -10
"""The cluster autoscaler starts no node for pods of a lower priority (--expendable-pods-priority-cutoff)."""
PRESENT = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
"""Labels of GPU Feature Discovery and Node Feature Discovery for nodes with an NVIDIA device."""


@dataclass(frozen=True)
class Right:
    """One right of the service's account, in the workspaces' namespace or in each namespace."""

    verb: str
    resource: str
    everywhere: bool
    without: str
    """The function that needs it."""
    group: str = ""


PAGE = "docs/how-to/administrators/prepare-gpu-nodes.md says how."


def rights_to(resource: str, verbs: str, without: str, *, everywhere: bool = False, group: str = "") -> list[Right]:
    """Return the rights to do ``verbs`` with a resource."""
    return [Right(verb, resource, everywhere, without, group) for verb in verbs.split()]


RIGHTS = (
    *rights_to("nodes", "list watch", "the service sees no GPU and grants no GPU", everywhere=True),
    *rights_to("pods", "list watch", "the service shows GPUs as free that other pods use", everywhere=True),
    *rights_to("pods", "list watch", "the service does not see workspaces"),
    *rights_to("pods", "delete", "the service cannot remove the pods that a workspace left behind"),
    *rights_to("pods/exec", "get create", "the service measures no GPU, so no workspace counts as idle"),
    *rights_to("resourcequotas", "list watch", "the service promises starts that the cluster then refuses"),
    *rights_to("limitranges", "list watch", "the service promises starts that the cluster then refuses"),
)
"""The rights of hub_config/kubernetes-service-rbac.yaml. A test compares them."""


OTHER_MANIFEST = "kubernetes-other-cluster.yaml"
_NOT_STARTED, _NOT_REACHED = "no workspace starts there", "no workspace is reached there"
OF_HUB_THERE = (
    *rights_to("pods", "get create", _NOT_STARTED),
    *rights_to("events", "list watch", "users cannot see why a start takes long"),
    *rights_to("persistentvolumeclaims", "get create", _NOT_STARTED),
    *rights_to("persistentvolumeclaims", "delete", "the home volumes of deleted users are not deleted"),
)
"""The hub's rights in another cluster, in addition to RIGHTS and the rights of the way there."""
SERVICES_THERE = (*rights_to("services", "get create", _NOT_REACHED),)
ROUTES_THERE: Mapping[str, tuple[Right, ...]] = {
    "ingress": (*rights_to("ingresses", "create", _NOT_REACHED, group="networking.k8s.io"),),
    "gateway": (*rights_to("httproutes", "create", _NOT_REACHED, group="gateway.networking.k8s.io"),),
}


def rights_there(cluster: Cluster) -> tuple[Right, ...]:
    """Return the rights that hub and service need in a cluster that is not the hub's own."""
    route = cluster.route
    services = SERVICES_THERE if cluster.nodes or route else ()
    routes = ROUTES_THERE["gateway" if route.gateway else "ingress"] if route else ()
    return (*RIGHTS, *OF_HUB_THERE, *services, *routes)


def review_of(right: Right, namespace: str) -> dict[str, Any]:
    """Return the SelfSubjectAccessReview that asks the API server for a right."""
    resource, _, subresource = right.resource.partition("/")
    asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
    attributes = asked if right.everywhere else {**asked, "namespace": namespace}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    return {**kind, "spec": {"resourceAttributes": attributes}}


def rights(
    answers: Mapping[Right, Answer], namespace: str, check: str = "rights", manifest: str = MANIFEST, value: str = ""
) -> Iterable[Finding]:
    """Yield each missing right. A manifest in hub_config gives them, and so does a ``value`` of the chart."""
    found, of_chart = [], f"; in the hub's own cluster the chart does it, by {value}: true" if value else ""
    for right, answer in answers.items():
        status = answer.body.get("status") if answer.ok and isinstance(answer.body, dict) else None
        if status is None:
            words = f"The API server did not say which rights the account has ({answer.why})."
            return [unknown(check, words, "Fix the finding about the API server first.")]
        if not status.get("allowed"):
            where = "in all namespaces" if right.everywhere else f"in namespace {namespace}"
            words = f"The right to {right.verb} {right.resource} {where} is missing: {right.without}."
            found.append(bad(check, words, f"Apply hub_config/{manifest}, with your namespaces and account{of_chart}."))
    return found or [good(check, f"The account has the {len(answers)} rights that the service needs.")]


WAY_HERE = "Name the cluster by --kubeconfig and --context, or run this in the service's pod."
WAY_THERE = (
    "Correct the kubeconfig that the catalog names, or run this where that file is, for example in the service's pod."
)


def reached(answer: Answer, remedy: str = WAY_HERE) -> Finding:
    """Judge the API server's answer to its version."""
    if answer.ok:
        return good("API server", "The API server answers.")
    words = f"The API server does not answer ({answer.why})."
    return bad("API server", words, remedy)


def namespace_there(name: str, answer: Answer) -> Iterable[Finding]:
    """Yield a fault if there is no such namespace. An account that may not read namespaces gets another answer."""
    if answer.status == 404:  # noqa: PLR2004 - HTTP's own
        words = f"There is no namespace {name}."
        yield bad(
            "namespace", words, "Name the workspaces' namespace by --namespace: kubectl get namespaces lists all."
        )


def one_hub(namespace: str, pods: Iterable[Mapping[str, Any]]) -> Iterable[Finding]:
    """Yield a fault if workspaces of several hubs run in the namespace."""
    hubs = {str((pod["metadata"].get("labels") or {}).get(HUB_LABEL, "")) for pod in pods} - {""}
    if len(hubs) > 1:
        words = (
            f"Workspaces of {len(hubs)} hubs run in namespace {namespace}. No right and no admission policy keeps the "
            "service of one from the workspaces of another."
        )
        yield bad("one hub", words, "Give each hub a namespace of its own.")


def devices(nodes: Iterable[Mapping[str, Any]], claimed: frozenset[str] = frozenset()) -> Iterable[Finding]:
    """Yield faults of device plugins and labels. A GPU without a model has no kind by match.

    Nodes whose devices are ``claimed`` need no plugin.
    """
    found, count = [], 0
    for item in nodes:
        node, labels = to_node(item), item["metadata"].get("labels") or {}
        gpus = {name: number for name, number in node.capacity.items() if number}
        count += sum(gpus.values())
        if not gpus and node.name not in claimed and any(labels.get(name) == "true" for name in PRESENT):
            words = f"{node.name} has an NVIDIA GPU but does not advertise it. Its device plugin does not run."
            remedy = (
                f"Install NVIDIA's GPU Operator or device plugin. If it is there, look at its pod on that node. {PAGE}"
            )
            found.append(bad("device plugin", words, remedy))
        for name, number in gpus.items():
            if (left := node.allocatable.get(name, 0)) < number:
                found.append(_unhealthy(node.name, name, number, left))
            if not model_of(node.labels, name).name:
                words = f"{node.name}: no label gives the model of its {number} {name}, so no match: includes them."
                remedy = f"Install GPU Feature Discovery, or give the kind resource: alone. {PAGE}"
                found.append(bad("GPU labels", words, remedy))
    if not count and not found and not claimed:
        return [bad("device plugin", "No node advertises a GPU.", f"Install the device plugin on GPU nodes. {PAGE}")]
    return found or [good("GPU labels", f"The nodes advertise {count} GPUs, and their labels give the models.")]


def _unhealthy(node: str, resource: str, number: int, left: int) -> Finding:
    """Return the finding for a resource of which a node cannot give everything."""
    if left:
        words = f"{node}: {number - left} of {number} {resource} are unhealthy."
    else:
        words = f"{node}: all {number} {resource} are unhealthy, or their device plugin has ended."
    remedy = (
        "Look at the device plugin's pod and nvidia-smi on that node. After the repair restart NVIDIA's device plugin: "
        "it takes no GPU back by itself."
    )
    return bad("device plugin", words, remedy)


def unhealthy_of_pods(pods: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield each workspace that has a GPU which its node calls unhealthy."""
    for item in pods:
        pod = to_pod(item)
        if pod is not None and pod.unhealthy:
            words = f"The pod {pod.name} on {pod.node} has unhealthy GPUs: {', '.join(pod.unhealthy)}."
            yield bad(
                "GPU health", words, "Its user gets a message and can move the workspace. Repair or reset the GPU."
            )


def kinds_there(kinds: Mapping[str, GpuKind], nodes: Iterable[Mapping[str, Any]]) -> Iterable[Finding]:
    """Yield each kind of the catalog that no node has now, and no autoscaler can start."""
    here = cluster_kinds(kinds)
    named = frozenset(kind.resource for kind in here.values() if kind.resource)
    on = [(item, gpus_of_node(to_node(item, named), (), list(here.values()), "", ())) for item in nodes]
    yield from of_fleet(kinds, Fleet(tuple(gpu for _, gpus in on for gpu in gpus), complete=True))
    yield from wrong_compute(kinds, ((gpu.pool, compute_of_node(item)) for item, gpus in on for gpu in gpus))


def wrong_compute(kinds: Mapping[str, GpuKind], found: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield each kind that says more than its GPUs have.

    ``found`` has pairs of a kind's name and a compute capability, which is "" if unknown.
    """
    for name, compute in dict.fromkeys(found):
        kind = kinds.get(name)
        if kind is not None and compute and not is_at_least(compute, kind.compute):
            words = f"The kind {name} says compute: {kind.compute}, and its GPUs have {compute}."
            yield bad("catalog", words, f"Write compute: {compute}. needs: of a template compares with it.")


def of_fleet(kinds: Mapping[str, GpuKind], fleet: Fleet) -> Iterable[Finding]:
    """Yield each kind of the catalog without a GPU. A kind that only shares divide needs no GPU of its own."""
    divided = {kind.of for kind in kinds.values()}
    missing = find_unmatched_kinds([kind for kind in kinds.values() if kind.name not in divided], fleet)
    found = [bad("catalog", sentence.partition(". ")[0] + ".", sentence.partition(". ")[2]) for sentence in missing]
    return found or [good("catalog", f"All GPU kinds of the catalog exist ({len(kinds)}).")]


def network(policies: Answer, labels: Mapping[str, str], port: int) -> Finding:
    """Judge whether network policies let workspaces reach the service's port, which warnings and Keep need."""
    if not policies.ok:
        remedy = "Run this with an account that may list networkpolicies."
        return unknown("network policy", "The API server did not list the namespace's network policies.", remedy)
    egress = [item["spec"] for item in policies.body if _binds(item["spec"], labels)]
    if any(_lets_out(rule, port) for spec in egress for rule in spec.get("egress") or ()) or not egress:
        return good("network policy", f"No network policy keeps workspaces from the service's port {port}.")
    words = f"Network policies keep workspaces from port {port}: warnings and Keep in JupyterLab do not work."
    remedy = (
        f"Allow that port; with Zero to JupyterHub by singleuser.networkPolicy.egress: [{{ports: [{{port: {port}}}], "
        "to: [{podSelector: {matchLabels: {component: hub}}}]}], as in hub_config/z2jh-values.yaml."
    )
    return bad("network policy", words, remedy)


def _binds(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a policy limits the outgoing connections of pods with these labels."""
    wanted = (spec.get("podSelector") or {}).get("matchLabels") or {}
    types = spec.get("policyTypes") or (["Egress"] if "egress" in spec else [])
    known = {name: value for name, value in wanted.items() if name != "release"}  # only running pods show their release
    return "Egress" in types and all(labels.get(name) == value for name, value in known.items())


def _lets_out(rule: Mapping[str, Any], port: int) -> bool:
    """Return whether a rule lets pods reach some pods of the cluster at a port. Address blocks count as outside."""
    peers = rule.get("to") or []
    if peers and all("ipBlock" in peer for peer in peers):
        return False
    ports = rule.get("ports") or []
    return not ports or any(_is_port(one, port) for one in ports)


def _is_port(written: Mapping[str, Any], port: int) -> bool:
    first = written.get("port")
    if first is None:
        return str(written.get("protocol", "TCP")) == "TCP"
    return isinstance(first, int) and first <= port <= int(written.get("endPort") or first)


def priority(classes: Answer, pods: Iterable[Mapping[str, Any]]) -> Finding:
    """Judge the priority classes of running workspaces: whom they preempt, and whether nodes are started for them."""
    if not classes.ok:
        remedy = "Run this with an account that may list priorityclasses."
        return unknown("priority", "The API server did not list the priority classes.", remedy)
    by_name = {item["metadata"]["name"]: item for item in classes.body}
    used = sorted({str(pod["spec"].get("priorityClassName") or "") for pod in pods}) or [PRIORITY_CLASS]
    remedy = (
        "Apply the PriorityClass of hub_config/kubernetes-hub.yaml, and set c.KubeSpawner.priority_class_name = "
        f"{PRIORITY_CLASS!r}."
    )
    for name in used:
        one = by_name.get(name)
        if one is None:
            what = f"There is no priority class {name!r}." if name else "Running workspaces have no priority class."
            words = f"{what} Workspaces have the same priority as other pods, so training jobs cannot preempt them."
            return bad("priority", words, remedy)
        if one["value"] < LEAST_PRIORITY:
            words = (
                f"The class {name} is below {LEAST_PRIORITY}: the cluster autoscaler starts no node for a workspace."
            )
            return bad("priority", words, remedy)
        if one["value"] >= 0 and one.get("preemptionPolicy") != "Never":
            words = f"Workspaces of the class {name} ({one['value']}) may preempt the pods of others."
            return bad("priority", words, remedy)
    return good("priority", f"Workspaces preempt no other pod, and other pods can preempt them ({', '.join(used)}).")


def exec_tried(pod: str, problem: str) -> Finding:
    """Judge one exec in a workspace. ``pod`` is "" if no workspace runs."""
    if not pod:
        return unknown("exec", "No workspace runs, so no exec was tried.", "Start a workspace, and run this again.")
    if not problem:
        return good("exec", f"An exec in the pod {pod} works: its GPUs can be measured.")
    words = f"An exec in the pod {pod} failed: {problem}. Its GPUs are not measured, so it never counts as idle."
    remedy = (
        f"Apply hub_config/{MANIFEST} (pods/exec: get and create). The image needs sh, and the container the name "
        "notebook. With the chart, workspaces.podNamePrefix must be the beginning of the pod's name."
    )
    return bad("exec", words, remedy)


CLAIMS_MANIFEST = "kubernetes-claims-rbac.yaml"


def nodes_of(slices: Answer | None) -> frozenset[str]:
    """Return the nodes whose devices are claimed."""
    found = (_slice(item) for item in (slices.body if slices and slices.ok else ()))
    return frozenset(one.node for one in found if one is not None)


def kinds_met(kinds: Mapping[str, GpuKind], slices: Answer, classes: Answer) -> Iterable[Finding]:
    """Yield each of these kinds without a device."""
    for what, answer in (("ResourceSlices", slices), ("DeviceClasses", classes)):
        if not answer.ok:
            words = f"The API server did not list {what} ({answer.why}), so the service sees no GPU with claims."
            chart = "with the chart, set rights.claims: true. Claims need Kubernetes 1.34 or newer."
            remedy = f"Apply hub_config/{CLAIMS_MANIFEST}; {chart}"
            return [bad("claims", words, remedy)]
    devices = [device for item in slices.body if (one := _slice(item)) is not None for device in one.devices]
    known = {item["metadata"]["name"]: to_class(item) for item in classes.body}
    found: list[Finding] = []
    for name, kind in kinds.items():
        own = [device for device in devices if serves(device, kind, known)]
        versions = (str(device.attribute("cudaComputeCapability") or "") for device in own)
        found += wrong_compute(kinds, ((name, version.removesuffix(".0")) for version in versions))
        if not own:
            words = f"No device of a ResourceSlice is of the kind {name}."
            chosen = kind.claim.device_class if kind.claim else ""
            remedy = (
                "Correct the kind's selectors or capacity: kubectl get resourceslices --output=yaml shows the devices."
            )
            if chosen not in known:
                remedy = f"There is no DeviceClass {chosen}: install the DRA driver, or correct device_class."
            found.append(bad("claims", words, remedy))
    return found or [
        good(
            "claims",
            "The kind with claims has devices."
            if len(kinds) == 1
            else f"Each of the {len(kinds)} kinds with claims has devices.",
        )
    ]


def _slice(item: Mapping[str, Any]) -> Any:
    """Return a slice, or None if it is not a slice: the answer may not come from an API server."""
    try:
        return to_slice(item)
    except (KeyError, TypeError, AttributeError, StopIteration):
        return None
