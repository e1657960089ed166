"""GPU kinds that pods claim: right and wrong claims, with the line and the remedy."""

from pathlib import Path

import pytest

from gpuspawner.catalog import load_catalog
from gpuspawner.core.gpus.fleet import DeviceClaim, DriverConfig
from gpuspawner.core.gpus.vendors import NVIDIA, vendor_of

SELECTOR = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H100')"


def test_pods_claim_a_kind_with_class_selectors_capacity_and_driver_settings(tmp_path: Path) -> None:
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
            "4 gpus.t4.resource: not allowed together with claim. "
            "Keep resource if pods request a resource, or claim if they claim devices."
        ),
    ),
    "claims and a product": (
        "  t4: {memory: 16GiB, match: T4, claim: {device_class: gpu.nvidia.com}}\n",
        (
            "4 gpus.t4.match: not allowed together with claim. "
            "Remove match; add selectors to claim if not every device of its class is of this kind."
        ),
    ),
    "a share with claims": (
        "  half: {of: a100, shares: 2, claim: {device_class: gpu.nvidia.com}}\n",
        (
            "4 gpus.half.of: not allowed together with claim. "
            "Remove of and shares; divide GPUs by capacity of claim, or by a DeviceClass of their parts."
        ),
    ),
    "a share of what is claimed": (
        "  t4: {memory: 16GiB, claim: {device_class: gpu.nvidia.com}}\n  half: {of: t4, shares: 2}\n",
        (
            "5 gpus.half.of: `t4` has a claim, and a share cannot divide claimed devices. "
            "Give this kind a claim of its own, with the capacity of its part."
        ),
    ),
    "no class": (
        "  t4: {memory: 16GiB, claim: {selectors: ['true']}}\n",
        "4 gpus.t4.claim: device_class is missing. Add device_class: for example gpu.nvidia.com.",
    ),
    "two kinds of the same devices": (
        "  s: {memory: 1GiB, claim: {device_class: x.org}}\n  t: {memory: 1GiB, claim: {device_class: x.org}}\n",
        "5 gpus.t.claim: the same as in `s`. Let each GPU match one kind; divide a kind with of and shares.",
    ),
    "no CEL": (
        "  t4: {memory: 16GiB, claim: {device_class: x.org, selectors: ['device.driver ==']}}\n",
        (
            "4 gpus.t4.claim.selectors: 'device.driver ==' is not a CEL expression. "
            "Write it as in a ResourceClaim, in double quotes, and text within it in single ones."
        ),
    ),
    "no quantity": (
        "  t4: {memory: 16GiB, claim: {device_class: x.org, capacity: {memory: 10 GiB}}}\n",
        "4 gpus.t4.claim.capacity.memory: '10 GiB' is not a quantity. Write it as Kubernetes does, for example 10Gi.",
    ),
    "claims under Kueue": (
        ("  t4: {memory: 16GiB, claim: {device_class: gpu.nvidia.com}}\nscheduler: {kueue: {queue: workspaces}}\n"),
        ("4 gpus.t4.claim: with Kueue, claimed devices would count in no quota. Write match or resource instead."),
    ),
    "settings without a driver": (
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
