"""ResourceSlices, DeviceClasses and ResourceClaims as an API server gives them, with what NVIDIA's driver publishes."""

import itertools

DRIVER = "gpu.nvidia.com"
CLASSES = {
    "gpu.nvidia.com": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'",
    "mig.nvidia.com": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'",
}
A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
_uids = itertools.count(1)


def a_class(name=DRIVER, resource="", selector=None):
    cel = {"cel": {"expression": selector or CLASSES[name]}}
    spec = {"selectors": [cel], **({"extendedResourceName": resource} if resource else {})}
    return {"kind": "DeviceClass", "metadata": {"name": name, "uid": f"class-{name}"}, "spec": spec}


def a_gpu(number=0, product=A100, memory="80Gi", *, taints=(), **more):
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{number}"},
        "productName": {"string": product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Ampere"},
        "cudaComputeCapability": {"version": "8.0.0"},
        "driverVersion": {"version": "580.65.6"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }
    found = {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}
    if taints:
        found["taints"] = [{"key": key, "effect": effect} for key, effect in taints]
    return found


def a_shared_gpu(number=0, shares=None):
    """As the driver publishes one with --consumable-shares=memory, or a number of them."""
    policy = {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}}
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    if shares:
        none = {"default": "0", "validRange": {"min": "0", "max": "80Gi", "step": "1Mi"}}
        one = {"default": "1", "validRange": {"min": "1", "max": str(shares), "step": "1"}}
        capacity = {
            "memory": {"value": "80Gi", "requestPolicy": none},
            "shares": {"value": str(shares), "requestPolicy": one},
        }
    return {**a_gpu(number), "capacity": capacity, "allowMultipleAllocations": True}


def a_partitioned_gpu(number=0, product=A100):
    """Return one GPU with its MIG devices and its counters, as the driver publishes them with DynamicMIG."""
    counters = f"gpu-{number}-counter-set"
    slices = {f"memory-slice-{at}": {"value": "1"} for at in range(8)}
    whole = {"multiprocessors": {"value": "98"}, **slices}

    def takes(amount, memory):
        taken = {"multiprocessors": {"value": str(amount)}, **{f"memory-slice-{at}": {"value": "1"} for at in memory}}
        return [{"counterSet": counters, "counters": taken}]

    def part(profile, start, size, amount, memory):
        attributes = {**a_gpu(number, product)["attributes"], "type": {"string": "mig"}, "profile": {"string": profile}}
        attributes |= {"parentUUID": attributes.pop("uuid")}
        name = f"gpu-{number}-mig-{profile.replace('.', '')}-{start}-{size}"
        consumes = takes(amount, range(start, start + size))
        return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}} | {
            "consumesCounters": consumes
        }

    devices = [
        a_gpu(number, product, consumesCounters=[{"counterSet": counters, "counters": whole}]),
        *(part("1g.10gb", start, 1, 14, "9728Mi") for start in range(7)),
        *(part("3g.40gb", start, 4, 42, "40192Mi") for start in (0, 4)),
    ]
    return devices, [{"name": counters, "counters": whole}]


def a_slice(devices, node="gpu-1", *, counters=(), generation=1, of=1, name="", pool=""):
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": of},
        **({"sharedCounters": list(counters)} if counters else {"devices": list(devices)}),
    }
    name = name or f"{node}-{generation}"
    return {"kind": "ResourceSlice", "metadata": {"name": name, "uid": f"slice-{name}"}, "spec": spec}


def a_claim(devices, pod=None, name="claim", *, node="gpu-1", namespace="default", request="gpu", consumed=None):
    """A claim that has these devices, for a pod as `a_pod` makes it."""
    results = [
        {"request": request, "driver": DRIVER, "pool": node, "device": device}
        | ({"consumedCapacity": consumed, "shareID": "00000000-0000-0000-0000-000000000000"} if consumed else {})
        for device in devices
    ]
    status = {"allocation": {"devices": {"results": results}}}
    if pod is not None:
        namespace = pod["metadata"]["namespace"]
        status["reservedFor"] = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]
    metadata = {"name": name, "namespace": namespace, "uid": f"claim-{next(_uids)}"}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {}, "status": status}


def claiming(pod, claim="claim"):
    """The pod, with a claim in place of what it asks for."""
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}, "claims": [{"name": "gpu"}]}
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return pod
