"""A simulated Kueue in memory, with the calls of the API server that the adapter makes. It has one ClusterQueue.

It admits what fits, evicts what is deactivated or taken back, and frees quota only where the adapter clears it.
"""

import asyncio
import copy
import secrets

from gpuspawner.backends.kubernetes.api import ApiRefused
from gpuspawner.core.errors import Unavailable

WHEN = "2026-11-25T12:00:00Z"
RESOURCE = "nvidia.com/gpu"


class FakeKueue:
    """A simulated Kueue. ``flavors`` has quotas by flavor, ``labels`` and ``nodes`` the labels and names of nodes."""

    def __init__(self, flavors, labels, nodes):
        self.flavors, self.labels, self.nodes = flavors, labels, nodes
        self.workloads, self.version, self.created = {}, 0, 0
        self.stop, self.checks, self.away, self.places_away = "None", {}, False, False
        self.serves, self.gates, self.lets_make_pods = ("v1beta1", "v1beta2"), False, True
        self.refuses, self.writes, self._heard = "", [], asyncio.Event()

    # what the adapter calls

    async def get(self, path, query=None):
        self._answers()
        if path == "/apis/kueue.x-k8s.io":
            if not self.serves:
                raise ApiRefused(404, "there is none")
            return {"versions": [{"version": version} for version in self.serves]}
        if path.startswith("/api/v1/nodes"):
            asked = dict(part.split("=") for part in query["labelSelector"].split(","))
            found = [name for flavor, names in self.nodes.items() if self.labels[flavor] == asked for name in names]
            return {"items": [{"metadata": {"name": name}} for name in found], "metadata": {}}
        if path.endswith("/pendingworkloads"):
            if self.places_away:
                raise ApiRefused(503, "HTTP 503: no endpoints")
            items = [
                {"metadata": {"name": x["metadata"]["name"]}, "priority": x["spec"]["priority"],
                 "positionInClusterQueue": n} for n, x in enumerate(self._pending())
            ]  # fmt: skip
            return {"items": items}
        kind, name = path.split("/")[-2:]
        if name == "workloads":
            asked = (query or {}).get("fieldSelector", "").removeprefix("metadata.name=")
            found = [x for x in self.workloads.values() if asked in {"", x["metadata"]["name"]}]
            return {"items": copy.deepcopy(found), "metadata": {"resourceVersion": "1"}}
        return self._queue_object(kind, name)

    async def write(self, method, path, body, query=None):
        self._answers()
        if query == {"dryRun": "All"}:
            return self._try_a_pod(path, body)
        return self._post(body) if method == "POST" else self._put(path, body)

    def _post(self, body):
        name = body["metadata"]["name"]
        if name in self.workloads:
            raise ApiRefused(409, "there is one")
        if name == self.refuses:
            raise ApiRefused(422, f"{name} is invalid")
        self.created += 1
        one = copy.deepcopy(body)
        one["metadata"] |= {"uid": secrets.token_hex(4), "generation": 1, "order": self.created}
        self.writes.append(("create", name))
        self.workloads[name] = one
        return self._changed(one)

    def _try_a_pod(self, path, body):
        assert path == "/api/v1/namespaces/jhub/pods"
        if not self.lets_make_pods:
            raise ApiRefused(403, "pods is forbidden: it may not create them")
        gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]} if self.gates else {}
        return {**body, "spec": {**body["spec"], **gates}}

    def _put(self, path, body):
        part = path.endswith("/status")
        name = path.removesuffix("/status").rpartition("/")[2]
        before = self.workloads.get(name)
        if before is None:
            raise ApiRefused(404, "it is gone")
        if body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
            raise ApiRefused(409, "it changed")
        if not part and is_true(before, "QuotaReserved") and body["spec"]["podSets"] != before["spec"]["podSets"]:
            raise ApiRefused(422, "podSets can't change while quota is reserved")
        self.writes.append(("status" if part else "spec", name))
        one = copy.deepcopy(before)
        if part:
            one["status"] = copy.deepcopy(body["status"])
        else:
            one["spec"], one["metadata"] = copy.deepcopy(body["spec"]), copy.deepcopy(body["metadata"])
        self.workloads[name] = one
        return self._changed(one)

    async def delete(self, path, _options):
        self._answers()
        name = path.rpartition("/")[2]
        if self.workloads.pop(name, None) is None:
            raise ApiRefused(404, "it is gone")
        self.writes.append(("delete", name))
        self.decide()

    async def watch(self, _path, _query, _silent_seconds):
        yield {}
        known = {}
        while True:
            now = {x["metadata"]["uid"]: copy.deepcopy(x) for x in self.workloads.values()}
            for uid, one in now.items():
                if known.get(uid) != one:
                    yield {"type": "MODIFIED", "object": copy.deepcopy(one)}
            for uid in known.keys() - now.keys():
                yield {"type": "DELETED", "object": known[uid]}
            known = now
            self._heard.clear()
            await self._heard.wait()

    # what the tests do to it

    def forget(self):
        """Delete every Workload, as a person may do."""
        self.workloads.clear()
        self._heard.set()

    def evict(self, name, reason="Preempted", preempted="InCohortReclamation"):
        """Evict a Workload."""
        one = self.workloads[name]
        condition(one, "Evicted", "True", reason)
        if reason == "Preempted":
            condition(one, "Preempted", "True", preempted)
        self._changed(one, decide=False)

    def decide(self):
        """Make the changes that Kueue's controllers and scheduler would make."""
        for one in self.workloads.values():
            active = one["spec"].get("active", True)
            if not active and is_true(one, "QuotaReserved") and not is_true(one, "Evicted"):
                condition(one, "Evicted", "True", "Deactivated")
                self._bump(one)
            if active and requeued(one) == "Deactivated":
                condition(one, "Requeued", "True", "Reactivated")
                self._bump(one)
        for one in self._pending():
            if self.stop != "None":
                break
            wants = int(
                one["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"][RESOURCE]
            )
            flavor = next((x for x in self.flavors if self._allows(one, x) and self._left(x) >= wants), None)
            if flavor is None:
                total = max((self.flavors[x] for x in self.flavors if self._allows(one, x)), default=0)
                says = "maximum capacity" if wants > total else "insufficient unused quota"
                condition(one, "QuotaReserved", "False", "Pending", says)
                continue
            one.setdefault("status", {})["admission"] = {
                "clusterQueue": "cq",
                "podSetAssignments": [{"name": "main", "flavors": {RESOURCE: flavor}, "usage": wants}],
            }
            for kind, value in (("QuotaReserved", "True"), ("Admitted", "True"), ("Evicted", "False")):
                condition(one, kind, value, "Admitted")
            self._bump(one)
        self._heard.set()

    # inside

    def _answers(self):
        if self.away:
            raise Unavailable("The Kubernetes API server does not answer: it is off.")

    def _queue_object(self, kind, name):
        if kind == "localqueues" and name == "lq":
            return {"metadata": {"name": name}, "spec": {"clusterQueue": "cq"}}
        if kind == "localqueues" and name == "bare":
            return {"metadata": {"name": name}}
        if kind == "resourceflavors":
            return {"metadata": {"name": name}, "spec": {"nodeLabels": self.labels[name]}}
        if kind == "admissionchecks" and name in self.checks:
            return {"metadata": {"name": name}, "spec": {"controllerName": self.checks[name]}}
        if kind == "clusterqueues" and name == "cq":
            flavors = [
                {"name": x, "resources": [{"name": RESOURCE, "nominalQuota": q}]} for x, q in self.flavors.items()
            ]
            reserved = [
                {"name": x, "resources": [{"name": RESOURCE, "total": str(q - self._left(x))}]}
                for x, q in self.flavors.items()
            ]
            spec = {
                "stopPolicy": self.stop,
                "resourceGroups": [{"coveredResources": [RESOURCE], "flavors": flavors}],
                "admissionChecksStrategy": {"admissionChecks": [{"name": check} for check in self.checks]},
            }
            return {"metadata": {"name": name}, "spec": spec, "status": {"flavorsReservation": reserved}}
        raise ApiRefused(404, f"there is no {kind} {name}")

    def _pending(self):
        waits = [
            x for x in self.workloads.values()
            if not is_true(x, "QuotaReserved") and x["spec"].get("active", True) and not is_true(x, "Finished")
            and requeued(x) is None
        ]  # fmt: skip
        return sorted(waits, key=lambda x: (-x["spec"]["priority"], x["metadata"]["order"]))

    def _left(self, flavor):
        used = 0
        for one in self.workloads.values():
            for part in ((one.get("status") or {}).get("admission") or {}).get("podSetAssignments", ()):
                used += part["usage"] * (part["flavors"][RESOURCE] == flavor and not is_true(one, "Finished"))
        return self.flavors[flavor] - used

    def _allows(self, one, flavor):
        affinity = one["spec"]["podSets"][0]["template"]["spec"].get("affinity")
        if affinity is None:
            return True
        (terms,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].values()
        return any(
            all(self.labels[flavor].get(x["key"]) in x["values"] for x in term["matchExpressions"]) for term in terms
        )

    def _bump(self, one):
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)

    def _changed(self, one, *, decide=True):
        self._bump(one)
        told = copy.deepcopy(one)
        if decide:
            self.decide()
        self._heard.set()
        return told


def condition(one, kind, value, reason, message=""):
    """Set a condition of a Workload."""
    kept = [x for x in one.setdefault("status", {}).get("conditions", ()) if x["type"] != kind]
    new = {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": WHEN}
    one["status"]["conditions"] = [*kept, new]


def is_true(one, kind):
    """Return whether a condition of a Workload is True."""
    conditions = (one.get("status") or {}).get("conditions", ())
    return any(x["type"] == kind and x["status"] == "True" for x in conditions)


def requeued(one):
    """Return why a Workload has not returned to the queue, or None if it has."""
    conditions = (one.get("status") or {}).get("conditions", ())
    return next((x["reason"] for x in conditions if x["type"] == "Requeued" and x["status"] == "False"), None)
