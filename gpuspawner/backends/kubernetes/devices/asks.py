"""What a pod's ResourceClaim says (``resource.k8s.io/v1``). Pure: plain JSON of the API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpuspawner.core.gpus.fleet import DeviceClaim, GpuKind

Json = dict[str, Any]

REQUEST = "gpu"
"""What the request is called of which the scheduler takes the first kind that it finds free."""


def claim_spec(kinds: Sequence[GpuKind], count: int) -> Json:
    """Return the spec of a claim of ``count`` GPUs: of the first kind or, where there are more, the first that is free.

    Each request is called as its kind, by which the claim's status tells what was given.
    """
    asked = [(kind.resource.rpartition("/")[2], kind.claim) for kind in kinds if kind.claim is not None]
    if len(asked) == 1:
        name, claim = asked[0]
        requests: list[Json] = [{"name": name, "exactly": _exactly(claim, count)}]
    else:
        wishes = [{"name": name, **_exactly(claim, count)} for name, claim in asked]
        requests = [{"name": REQUEST, "firstAvailable": wishes}]
    prefix = "" if len(asked) == 1 else f"{REQUEST}/"
    config = [
        {"requests": [f"{prefix}{name}"], "opaque": {"driver": one.driver, "parameters": json.loads(one.parameters)}}
        for name, claim in asked
        for one in claim.config
    ]
    return {"devices": {"requests": requests, **({"config": config} if config else {})}}


def _exactly(claim: DeviceClaim, count: int) -> Json:
    asked: Json = {"deviceClassName": claim.device_class, "allocationMode": "ExactCount", "count": count}
    if claim.selectors:
        asked["selectors"] = [{"cel": {"expression": expression}} for expression in claim.selectors]
    if claim.capacity:
        asked["capacity"] = {"requests": dict(claim.capacity)}
    return asked
