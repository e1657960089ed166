"""What a pod claims (dynamic resource allocation): the claim that is made for it, and where the pod names it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuspawner.backends.kubernetes.pods import to_metadata

Json = dict[str, Any]

CLAIM, CLAIM_API = "gpu", "resource.k8s.io/v1"
"""What a pod calls its claim, and the API that serves claims from Kubernetes 1.34 on."""


def claim_of(patch: Mapping[str, Any], mark: str) -> Json:
    """Return the ResourceClaim of a start's pod, which that is to own; {} for a pod that claims nothing.

    The name is the start's own: that of the start before may still be ending.
    """
    spec = patch.get("pod", {}).get("claim")
    if not spec:
        return {}
    labels, _ = to_metadata(patch.get("environment", {}))
    metadata = {"name": f"gpuspawner-{mark}", "labels": labels}
    return {"apiVersion": CLAIM_API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def owned(claim: Mapping[str, Any], pod: Mapping[str, Any]) -> Json:
    """Return the claim of a pod that is there, whose owner that is: the cluster deletes it with the pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {**claim, "metadata": {**claim["metadata"], "ownerReferences": [{**owner, "controller": True}]}}


def name_claim(spec: Json, server: Json, claim: Mapping[str, Any]) -> None:
    """Let a pod wait for its claim, and its server have the devices."""
    if claim:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimName": claim["metadata"]["name"]}]
        server["resources"] = {**(server.get("resources") or {}), "claims": [{"name": CLAIM}]}


def without_claim(pod: Mapping[str, Any], server: Json, claim: Mapping[str, Any]) -> tuple[Json, Json] | None:
    """Return a pod and its server without their claim; None where they claim other than that."""
    named: tuple[Json, Json] = ({}, {})
    name_claim(*named, claim)
    resources = server.get("resources") or {}
    if (pod["spec"].get("resourceClaims") or []) != named[0].get("resourceClaims", []):
        return None
    if (resources.get("claims") or []) != named[1].get("resources", {}).get("claims", []):
        return None
    return {**pod, "spec": {**pod["spec"], "resourceClaims": []}}, {**server, "resources": {**resources, "claims": []}}
