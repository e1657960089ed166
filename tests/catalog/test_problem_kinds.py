"""Every error of a GPU kind, with its line and entry."""

import pytest

# Appended to a file that ends with line 3, inside `gpus`.
KINDS = {
    "without memory": (
        "  t4: {match: T4}\n",
        "4 gpus.t4: memory is missing. Add the memory of one GPU, for example memory: 80GiB.",
    ),
    "without match": (
        "  t4: {memory: 16GiB}\n",
        (
            "4 gpus.t4: without match, no GPU is ever of this kind. "
            "Add match: with the name nvidia-smi shows, for example match: NVIDIA A100*; "
            "on Kubernetes also resource: or claim: with its device_class."
        ),
    ),
    "matching another's GPUs": (
        "  t4: {memory: 16GiB, match: NVIDIA A100*}\n",
        (
            "4 gpus.t4.match: the same as in `a100`. "
            "Let each GPU match one kind; divide a kind with of and shares; a kind of spot nodes has spot: true."
        ),
    ),
    "nodes to start by a label that no node can have": (
        "  t4: {memory: 16GiB, match: T4, autoscale: {max: 4, start: 3m, labels: {Größe: t4}}}\n",
        (
            "4 gpus.t4.autoscale.labels.Größe: 'Größe' is not the name of a label. "
            "Write it as kubectl get nodes --show-labels does, for example karpenter.sh/capacity-type."
        ),
    ),
    "resource without a domain": (
        "  t4: {memory: 16GiB, resource: gpu}\n",
        (
            "4 gpus.t4.resource: 'gpu' is not an extended resource of Kubernetes. "
            "Write it as nodes show it, for example nvidia.com/gpu or nvidia.com/mig-1g.10gb."
        ),
    ),
    "resource of Kubernetes itself": (
        "  t4: {memory: 16GiB, resource: kubernetes.io/batch-cpu}\n",
        (
            "4 gpus.t4.resource: 'kubernetes.io/batch-cpu' is not an extended resource of Kubernetes. "
            "Write it as nodes show it, for example nvidia.com/gpu or nvidia.com/mig-1g.10gb."
        ),
    ),
    "two kinds of one resource": (
        (
            "  s: {memory: 10GiB, resource: nvidia.com/mig-1g.10gb}\n"
            "  t: {memory: 10GiB, resource: nvidia.com/mig-1g.10gb}\n"
        ),
        "5 gpus.t.resource: the same as in `s`. Let each GPU match one kind; divide a kind with of and shares.",
    ),
    "shares of nothing": (
        "  t4: {shares: 2}\n",
        "4 gpus.t4.shares: of is missing. Add of: with the kind whose GPUs are divided.",
    ),
    "share without number": (
        "  t4: {of: a100}\n",
        "4 gpus.t4.of: shares is missing. Add shares: 2 or more.",
    ),
    "a single share": (
        "  t4: {of: a100, shares: 1}\n",
        "4 gpus.t4.shares: 1 is not from 2 to 64. Write a whole number from 2 to 64.",
    ),
    "share of what is not": (
        "  t4: {of: v100, shares: 2}\n",
        "4 gpus.t4.of: no GPU kind is called `v100`. Did you mean `a100`?",
    ),
    "share of a share": (
        "  half: {of: a100, shares: 2}\n  quarter: {of: half, shares: 2}\n",
        "5 gpus.quarter.of: `half` is itself a share. Divide a kind that has GPUs of its own.",
    ),
    "share that matches": (
        "  half: {of: a100, shares: 2, match: T4}\n",
        "4 gpus.half.match: a share has the GPUs of the kind it divides. Remove match.",
    ),
    "shares that do not fit": (
        "  half: {of: a100, shares: 2, memory: 80GiB}\n",
        "4 gpus.half.memory: 2 shares of 80 GiB are more than `a100` has. Write at most 40 GiB, or leave it out.",
    ),
    "simulated share": (
        "  half: {of: a100, shares: 2}\nsimulated: {half: 2}\n",
        "5 simulated.half: a share is not simulated by itself. Simulate `a100`, which it divides.",
    ),
    "nodes of which nothing is said": (
        "  t4: {match: Tesla-T4, memory: 16GiB, autoscale: {max: 8}}\n",
        ("4 gpus.t4.autoscale: start is missing. Add start: with its usual time, for example 4m."),
    ),
    "nodes without end": (
        "  t4: {match: Tesla-T4, memory: 16GiB, autoscale: {start: 4m}}\n",
        "4 gpus.t4.autoscale: max is missing. Add max: with all that the pool may have.",
    ),
    "nodes that are too large": (
        "  t4: {match: Tesla-T4, memory: 16GiB, autoscale: {max: 2, each: 4, start: 4m}}\n",
        "4 gpus.t4.autoscale.each: 4 on one node are more than 2 in all. Raise max.",
    ),
    "nodes of another vendor without a resource": (
        "  amd: {match: MI300X, memory: 192GiB, autoscale: {max: 8, start: 5m, labels: {amd.com/gpu.family: AI}}}\n",
        (
            "4 gpus.amd.autoscale: `amd.com/gpu.family` is not a label of NVIDIA nodes, but pods would request NVIDIA "
            "GPUs. Add resource: with what its nodes call their GPUs, for example resource: amd.com/gpu."
        ),
    ),
    "nodes without a label to ask for": (
        "  t4: {match: '*T4', memory: 16GiB, autoscale: {max: 8, start: 4m}}\n",
        (
            "4 gpus.t4.autoscale: '*T4' does not say which nodes to start. "
            "Add labels: as the pool's nodes have them, for example labels: {nvidia.com/gpu.product: Tesla-T4}."
        ),
    ),
    "spot nodes of a kind without spot": (
        (
            "  t4: {match: Tesla-T4, memory: 16GiB,"
            " autoscale: {max: 8, start: 4m, labels: {karpenter.sh/capacity-type: spot}}}\n"
        ),
        (
            "4 gpus.t4.autoscale.labels: these are spot nodes, which the cloud may take back at any time. "
            "Add spot: true, and a price of its own; users then get it only if they choose it."
        ),
    ),
    "spot nodes without labels": (
        "  t4: {match: Tesla-T4, memory: 16GiB, spot: true, autoscale: {max: 8, start: 4m}}\n",
        (
            "4 gpus.t4.autoscale: the labels of spot nodes are missing. Add labels: as the "
            "spot pool's nodes have them, for example labels: {karpenter.sh/capacity-type: spot}."
        ),
    ),
    "nodes of a share": (
        "  half: {of: a100, shares: 2, autoscale: {max: 8, start: 4m}}\n",
        (
            "4 gpus.half.autoscale: no node is started for a share. "
            "Remove it; in `a100` autoscale starts nodes for whole GPUs."
        ),
    ),
    "a label that is a number": (
        "  t4: {match: T4, memory: 16GiB, autoscale: {max: 8, start: 4m, labels: {pool: 4}}}\n",
        (
            "4 gpus.t4.autoscale.labels.pool: 4 is not the value of a label. Write it as kubectl get nodes "
            "--show-labels does, and in quotes if it looks like something else."
        ),
    ),
    "counts in parts of nothing": (
        "  t4: {match: T4, memory: 16GiB, counts: 1/0}\n",
        (
            "4 gpus.t4.counts: '1/0' is not how much one GPU counts. "
            "Write how much one GPU counts, for example 2, 0.5 or 1/7."
        ),
    ),
    "compute in words": (
        "  t4: {match: T4, memory: 16GiB, compute: ampere}\n",
        "4 gpus.t4.compute: 'ampere' is not a compute capability. Write it as NVIDIA does, for example 8.0.",
    ),
    "price with currency": (
        "  t4: {match: T4, memory: 16GiB, price: 2 EUR}\n",
        "4 gpus.t4.price: '2 EUR' is not a price. Write a plain number, the price of an hour, for example 2.10.",
    ),
    "price that is not a number": (
        "  t4: {match: T4, memory: 16GiB, price: .nan}\n",
        "4 gpus.t4.price: '.nan' is not a price. Write a plain number, the price of an hour, for example 2.10.",
    ),
}


@pytest.mark.parametrize(("appended", "problem"), KINDS.values(), ids=KINDS)
def test_promise_10_a_gpu_kind_that_is_wrong_is_refused_by_its_line(appended, problem, head, problems_of):
    start, rest = head[: head.index("templates")], head[head.index("templates") :]
    assert problems_of(start + appended + rest) == [problem]
