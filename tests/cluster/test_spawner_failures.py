"""A start that can never succeed ends at once, with the reason and the remedy; on a real cluster."""

import time

import pytest
from kube_hub import KubeHub, eventually
from kubernetes.client import NodeV1Api

pytestmark = pytest.mark.slow

PROFILES = """
claim = {"name": "data", "persistentVolumeClaim": {"claimName": "there-is-none"}}
config = {"name": "data", "configMap": {"name": "there-is-none"}}
secret = {"valueFrom": {"secretKeyRef": {"name": "there-is-none", "key": "k"}}}
mounts = [{"name": "data", "mountPath": "/data"}]
trains = {"name": "trains", "image": "there-is-none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


def forget(spawner, pod):
    if spawner.user.name == "hook":
        del pod.metadata.labels["gpuspawner.io/lease"]
    return pod


c.KubeSpawner.modify_pod_hook = forget
c.KubeSpawner.profile_list = [
    {"display_name": "plain", "default": True},
    {"display_name": "crash", "kubespawner_override": {"cmd": ["sh", "-c", "echo No licence found. >&2; exit 3"]}},
    {"display_name": "done", "kubespawner_override": {"cmd": ["true"]}},
    {"display_name": "silent", "kubespawner_override": {"cmd": ["sleep", "600"], "http_timeout": 5}},
    {"display_name": "runtime", "kubespawner_override": {"extra_pod_config": {"runtimeClassName": "NAMESPACE"}}},
    {"display_name": "claim", "kubespawner_override": {"volumes": [claim], "volume_mounts": mounts}},
    {"display_name": "config", "kubespawner_override": {"volumes": [config], "volume_mounts": mounts}},
    {"display_name": "secret", "kubespawner_override": {"environment": {"TOKEN": secret}}},
    {"display_name": "invalid", "kubespawner_override": {"working_dir": "a", "extra_labels": {"a": "b c"}}},
    {"display_name": "root", "kubespawner_override": {"uid": 0}},
    {"display_name": "gpus", "kubespawner_override": {"extra_containers": lambda spawner: [trains]}},
]
"""
TEMPLATES = "".join(
    f"  {name}: {{extends: cpu, profile: {name}}}\n"
    for name in ("crash", "done", "silent", "runtime", "claim", "config", "secret", "invalid", "root", "gpus")
)
START_SECONDS = 120
EVERY_POD = {"matchExpressions": [{"scopeName": "NotTerminating", "operator": "Exists"}]}
QUOTA = {"metadata": {"name": "small"}, "spec": {"hard": {"limits.memory": "7Gi"}, "scopeSelector": EVERY_POD}}
"""Which pods it counts is for the API server to say: the service cannot refuse in advance."""

FAILURES = {
    "crash": "Its server ended with exit code 3 each time it was started. Tell your administrator.",
    "done": "Its server ended before it answered, with exit code 0: its command is done",
    "silent": ":8888 within 5 s (c.Spawner.http_timeout). Its page shows the server's last output.",
    "runtime": "Its node does not have the container runtime that it asks for: ",
    "config": 'Its volume data is missing: configmap "there-is-none" not found.',
    "secret": 'Its container cannot be made: secret "there-is-none" not found.',
    "invalid": "The cluster refuses this workspace: metadata.labels: Invalid value",
    "root": "The cluster's security standard refuses this workspace",
    "gpus": "makes the pod take 1 nvidia.com/gpu; the lease is for 0. Let it ask for none",
    "quota": "The cluster's quota small leaves no room: 8Gi memory asked",
    "hook": "This hub is set up wrongly: c.KubeSpawner.modify_pod_hook removes or changes gpuspawner.io/lease.",
}


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    with one_machine.namespace(**restricted) as namespace:
        one_machine.core.create_namespaced_resource_quota(namespace, QUOTA)
        runtimes = NodeV1Api(one_machine.api)
        runtimes.create_runtime_class({"metadata": {"name": namespace}, "handler": "there-is-none"})
        extra = PROFILES.replace("NAMESPACE", namespace)
        hub = KubeHub(
            tmp_path_factory.mktemp("hub"), cluster=one_machine, namespace=namespace, extra=extra, failure_limit=0
        )
        hub.catalog.write_text(
            hub.catalog.read_text().replace("templates:\n", f"templates:\n{TEMPLATES}").replace("-2GiB", "-8GiB")
        )
        try:
            yield hub.start()
        finally:
            hub.close()
            runtimes.delete_runtime_class(namespace)


@pytest.mark.parametrize(("template", "words"), FAILURES.items())
def test_a_hopeless_start_is_reported_long_before_the_start_timeout(hub, template, words):
    hub.add_user(template)
    options = {"quota": {"template": "cpu", "memory": "8GiB"}, "hook": {"template": "cpu"}}
    begun = time.monotonic()
    hub.begin(template, **options.get(template, {"template": template}))
    assert words in hub.failure(template)
    took = time.monotonic() - begun
    assert took < START_SECONDS / 4  # ten seconds on a machine at rest, this many on a busy one
    eventually(lambda: hub.pod(template) is None, 30, "its pod is gone")
    end = eventually(lambda: hub.last_end(template), 30, "its lease has ended")
    assert end["end"]["reason"] == "failed"


def test_a_hub_that_dies_during_a_hopeless_start_ends_it_with_its_reason(hub):
    hub.add_user("ghost")
    hub.begin("ghost", template="claim")
    eventually(lambda: hub.pod("ghost"), 30, "its pod is there")
    hub.kill_hub()
    hub.start_hub()
    end = eventually(lambda: hub.last_end("ghost"), 150, "its lease has ended")["end"]
    assert end["reason"] == "failed"
    assert "Its volume there-is-none is missing." in end["message"]
    eventually(lambda: hub.pod("ghost") is None, 30, "its pod is gone")
    eventually(lambda: hub.begin("ghost", template="cpu").status_code in {201, 202}, 30, "it can be started again")
    hub.until("ghost", "running", 90)
