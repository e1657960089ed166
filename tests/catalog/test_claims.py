"""Kinds of GPU that pods claim: what is read, and what is refused, with its line and the remedy."""

from pathlib import Path

import pytest

from gpuspawner.catalog import load_catalog
from gpuspawner.core.gpus.claims import DeviceClaim, DriverConfig
from gpuspawner.core.gpus.vendors import NVIDIA, vendor_of

SELECTOR = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H100')"


def test_a_kind_is_served_by_claims(tmp_path: Path) -> None:
    """Class, selectors, capacity and the driver's own settings are read; it is counted under a name of its own."""
    (tmp_path / "c.yaml").write_text(f"""\
version: 1
gpus:
  h100:
    memory: 80GiB
    claim:
      device_class: gpu.nvidia.com
      selectors: ["{SELECTOR}"]
      capacity: {{memory: 10Gi, shares: 1}}
      config:
        - driver: gpu.nvidia.com
          parameters:
            apiVersion: resource.nvidia.com/v1beta1
            kind: GpuConfig
            sharing: {{strategy: TimeSlicing}}
policies: {{default: {{}}}}
templates: {{lab: {{gpus: {{h100: 1}}}}}}
""")
    kind = load_catalog(tmp_path / "c.yaml").gpus["h100"]
    parameters = (
        '{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}'
    )
    config = (DriverConfig("gpu.nvidia.com", parameters),)
    capacity = (("memory", "10Gi"), ("shares", "1"))
    assert kind.claim == DeviceClaim("gpu.nvidia.com", (SELECTOR,), capacity, config)
    assert kind.resource == "gpu.nvidia.com/h100"
    assert vendor_of(kind.resource) is NVIDIA


REFUSED = {
    "claims and a resource": (
        "  t4: {memory: 16GiB, resource: nvidia.com/gpu, claim: {device_class: gpu.nvidia.com}}\n",
        (
            "4 gpus.t4.resource: a kind that is served by claims has none. "
            "Keep resource where pods ask for a resource, claim where they have claims."
        ),
    ),
    "claims and a product": (
        "  t4: {memory: 16GiB, match: T4, claim: {device_class: gpu.nvidia.com}}\n",
        (
            "4 gpus.t4.match: a kind that is served by claims has none. "
            "Remove match; add selectors to claim where not every device of its class is of this kind."
        ),
    ),
    "a share with claims": (
        "  half: {of: a100, shares: 2, claim: {device_class: gpu.nvidia.com}}\n",
        (
            "4 gpus.half.of: a kind that is served by claims has none. "
            "Remove of and shares; divide GPUs by capacity of claim, or by a DeviceClass of their parts."
        ),
    ),
    "a share of what is claimed": (
        "  t4: {memory: 16GiB, claim: {device_class: gpu.nvidia.com}}\n  half: {of: t4, shares: 2}\n",
        (
            "5 gpus.half.of: `t4` is served by claims, which no share divides. "
            "Give this kind a claim of its own, with the capacity of its part."
        ),
    ),
    "no class": (
        "  t4: {memory: 16GiB, claim: {selectors: ['true']}}\n",
        "4 gpus.t4.claim: of which DeviceClass is not said. Add device_class: for example gpu.nvidia.com.",
    ),
    "two kinds of the same devices": (
        "  s: {memory: 1GiB, claim: {device_class: x.org}}\n  t: {memory: 1GiB, claim: {device_class: x.org}}\n",
        "5 gpus.t.claim: the same as that of `s`. Let each GPU match one kind; divide a kind by of and shares.",
    ),
    "no CEL": (
        "  t4: {memory: 16GiB, claim: {device_class: x.org, selectors: ['device.driver ==']}}\n",
        (
            "4 gpus.t4.claim.selectors: 'device.driver ==' is no CEL expression. "
            "Write it as in a ResourceClaim, in double quotes, and text within it in single ones."
        ),
    ),
    "no quantity": (
        "  t4: {memory: 16GiB, claim: {device_class: x.org, capacity: {memory: 10 GiB}}}\n",
        "4 gpus.t4.claim.capacity.memory: '10 GiB' is no quantity. Write it as Kubernetes does, for example 10Gi.",
    ),
    "claims under Kueue": (
        ("  t4: {memory: 16GiB, claim: {device_class: gpu.nvidia.com}}\nscheduler: {kueue: {queue: workspaces}}\n"),
        ("4 gpus.t4.claim: with Kueue, what is claimed would be in no quota. Write match or resource in its place."),
    ),
    "settings of nobody": (
        "  t4: {memory: 16GiB, claim: {device_class: x.org, config: [{parameters: {apiVersion: a, kind: b}}]}}\n",
        "4 gpus.t4.claim.config.0: driver is missing. Write driver: and parameters:.",
    ),
    "settings without a kind": (
        "  t4: {memory: 16GiB, claim: {device_class: x.org, config: [{driver: x.org, parameters: {a: 1}}]}}\n",
        (
            "4 gpus.t4.claim.config.0.parameters: {'a': 1} has no apiVersion and kind. "
            "Write what the driver's documentation shows, with apiVersion and kind."
        ),
    ),
}


@pytest.mark.parametrize(("appended", "problem"), REFUSED.values(), ids=REFUSED)
def test_promise_10_a_claim_that_is_wrong_is_refused_by_its_line(appended, problem, head, problems_of):
    start, rest = head[: head.index("templates")], head[head.index("templates") :]
    assert problems_of(start + appended + rest) == [problem]
