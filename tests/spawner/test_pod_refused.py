"""Refusals of pods by the API server 1.36 as sentences: a quota, a standard, a namespace."""

import pytest

from gpuspawner.spawner.kubernetes.pod_ends import refusal, shortage

REFUSALS = {
    "quota": (
        403,
        (
            'pods "jupyter-alice" is forbidden: exceeded quota: ml-team, requested: requests.nvidia.com/gpu=2, '
            "used: requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=4"
        ),
        (
            "The cluster's quota ml-team leaves no room: 2 nvidia.com/gpu asked, 3 nvidia.com/gpu of 4 nvidia.com/gpu "
            "in use. Ask for less, or start when a colleague of the same namespace stops."
        ),
    ),
    "quota of memory": (
        403,
        (
            'pods "x" is forbidden: exceeded quota: small, requested: limits.memory=2Gi,requests.memory=2Gi, '
            "used: limits.memory=1Gi,requests.memory=1Gi, limited: limits.memory=2Gi,requests.memory=2Gi"
        ),
        (
            "The cluster's quota small leaves no room: 2Gi memory asked, 1Gi memory of 2Gi memory in use. "
            "Ask for less, or start when a colleague of the same namespace stops."
        ),
    ),
    "more than the quota ever lets through": (
        403,
        (
            "exceeded quota: small, requested: limits.cpu=1500m,pods=1, used: limits.cpu=0,pods=1, "
            "limited: limits.cpu=1200m,pods=1"
        ),
        (
            "The cluster's quota small leaves no room: 1500m cpu and 1 pods asked, 0 cpu and 1 pods of 1200m cpu and "
            "1 pods in use. Ask for less, or ask your administrator to raise it: that is more than all may have "
            "together."
        ),
    ),
    "full quota of storage": (
        403,
        (
            'persistentvolumeclaims "claim-bob" is forbidden: exceeded quota: disks, requested: requests.storage=20Gi, '
            "used: requests.storage=100Gi, limited: requests.storage=100Gi"
        ),
        (
            "The cluster's quota disks leaves no room: 20Gi storage asked, 100Gi storage of 100Gi storage in use. "
            "Your administrator must raise it, or remove unused volumes. Nothing was charged."
        ),
    ),
    "security": (
        403,
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
        (
            'The cluster\'s security standard refuses this workspace: violates PodSecurity "restricted:latest": '
            "runAsNonRoot != true. Your administrator must change the hub's KubeSpawner settings or the namespace's "
            "standard."
        ),
    ),
    "invalid": (
        422,
        'Pod "x" is invalid: spec.containers[0].image: Required value',
        (
            "The cluster refuses this workspace: spec.containers[0].image: Required value. "
            "Your administrator can mend this; nothing was charged."
        ),
    ),
    "no runtime class": (
        403,
        'pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
        (
            'The cluster refuses this workspace: pod rejected: RuntimeClass "nvidia" not found. '
            "Your administrator can mend this; nothing was charged."
        ),
    ),
    "no namespace": (
        404,
        'namespaces "gone" not found',
        ('Its pod cannot be made: namespaces "gone" not found. Your administrator must create it or name another.'),
    ),
    "too many requests": (429, "the server has received too many requests", ""),
    "server trouble": (500, "etcdserver: request timed out", ""),
    "no server": (503, "apiserver not ready", ""),
}


@pytest.mark.parametrize(("code", "message", "words"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_of_the_api_server_is_final_or_temporary(code, message, words):
    assert refusal(code, message) == words


QUOTA = "exceeded quota: q, requested: {}, used: limits.memory=1Gi, limited: {}"


@pytest.mark.parametrize(
    ("code", "message", "passes"),
    [
        pytest.param(403, REFUSALS["quota"][1], True, id="used up by others"),
        pytest.param(403, REFUSALS["quota of memory"][1], True, id="exactly all of it"),
        pytest.param(403, QUOTA.format("limits.memory=1025Mi", "limits.memory=1Gi"), False, id="more than all of it"),
        pytest.param(403, QUOTA.format("requests.cpu=900m", "requests.cpu=1"), True, id="thousandths of a core"),
        pytest.param(403, QUOTA.format("cpu=1100m", "cpu=1050m"), False, id="thousandths too many"),
        pytest.param(403, QUOTA.format("pods=1,cpu=3", "pods=1,cpu=2"), False, id="one of two never fits"),
        pytest.param(403, QUOTA.format("pods=1", "pods=0"), False, id="nothing at all is let through"),
        pytest.param(403, QUOTA.format("cpu=much", "cpu=2"), False, id="not understood"),
        pytest.param(403, REFUSALS["security"][1], False, id="another refusal"),
        pytest.param(422, REFUSALS["quota"][1], False, id="no refusal of a quota's"),
    ],
)
def test_promise_6_a_quota_that_others_use_up_is_a_shortage(code, message, passes):
    words = shortage(code, message)
    assert bool(words) == passes
    assert not words or refusal(code, message).startswith(words)
