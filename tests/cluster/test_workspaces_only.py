"""The chart's admission policy: hub and proxy share the namespace, and the service may act only on workspaces."""

import pytest
import yaml
from custom import Typed
from kubernetes import client, config
from kubernetes.stream import stream
from kueue_world import API, apply, installed
from nodes import ROOT, wait_for

from tools.cluster.clients import Helm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kueue(one_machine):
    with installed(one_machine):
        yield


@pytest.fixture
def kubectl(kueue, one_machine, namespace, tmp_path):
    """kubectl where the chart's rights and its policy are, with pods that are and are not workspaces."""
    kubectl, helm = Typed(one_machine, namespace), Helm(tmp_path / "helm", one_machine.kubeconfig)
    catalog = ROOT / "hub_config" / "kubernetes-catalog.yaml"
    shown = [f"--show-only=templates/{name}.yaml" for name in ("service-rights", "workspaces-only")]
    told = [f"--namespace={namespace}", f"--set-file=catalog={catalog}"]
    rendered = helm("template", "gpuspawner", ROOT / "helm" / "gpuspawner", "--set=rights.kueue=true", *told, *shown)
    kubectl("apply", "--filename=-", given=rendered)
    for name in ("hub-1", "jupyter-alice", "proxy-1"):
        one_machine.start_pod(namespace, name, ["sleep", "600"])
    kubectl("label", "pod", "jupyter-alice", "gpuspawner.io/hub=h")
    yield kubectl
    kubectl("delete", "--ignore-not-found", "--filename=-", given=rendered)


@pytest.fixture
def api(one_machine, kubectl):
    """The API server as the service's account has it."""
    given = yaml.safe_load(one_machine.kubeconfig.read_text())
    given["users"][0]["user"] = {"token": kubectl("create", "token", "gpuspawner").strip()}
    with config.new_client_from_config_dict(given) as api:
        yield api


@pytest.fixture
def core(api):
    """The core API as the service's account has it."""
    return client.CoreV1Api(api)


def refusal(act, *arguments, **options):
    """Why the API server refuses this; "" where it does not."""
    try:
        act(*arguments, **options)
    except client.ApiException as error:
        return f"{error.reason} {error.body or ''}"
    return ""


def test_the_service_deletes_and_runs_commands_in_workspaces_alone(kubectl, core, namespace):
    how = {"container": "notebook", "command": ["true"], "stdout": True, "_preload_content": False}

    def run(pod):
        stream(core.connect_get_namespaced_pod_exec, pod, namespace, **how).close()

    def runs(pod):
        return refusal(run, pod)

    def deletes(pod):
        return refusal(core.delete_namespaced_pod, pod, namespace, grace_period_seconds=1)

    wait_for(lambda: "GPU service may" in refusal(
        core.delete_namespaced_pod, "hub-1", namespace, dry_run="All"
    ), "the policy is in force")  # fmt: skip
    assert "may delete workspaces alone" in deletes("proxy-1")
    assert "403" in runs("hub-1") or "Forbidden" in runs("hub-1")
    assert kubectl("exec", "hub-1", "--", "echo", "by others") == "by others\n", "others are not bound by it"
    assert runs("jupyter-alice") == ""
    assert deletes("jupyter-alice") == ""


def test_the_service_changes_and_deletes_workloads_of_workspaces_alone(kubectl, api, one_machine, namespace):
    pod = {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Never"}
    spec = {"queueName": "none", "podSets": [{"name": "main", "count": 1, "template": {"spec": pod}}]}
    labels = {"job-of-others": {}, "workspace-labelled": {"gpuspawner.io/hub": "h"}, "workspace-bare": {}}
    for name, own in labels.items():
        about = {"name": name, "namespace": namespace, "labels": own}
        apply(one_machine, {"kind": "Workload", "metadata": about, "spec": spec})
    custom = client.CustomObjectsApi(api)
    group, version = API.split("/")
    where = (group, version, namespace, "workloads")
    listed = custom.list_namespaced_custom_object(*where)["items"]
    assert {one["metadata"]["name"] for one in listed} == set(labels)

    def changes(name, **more):
        (one,) = (x for x in custom.list_namespaced_custom_object(*where)["items"] if x["metadata"]["name"] == name)
        one["metadata"].setdefault("labels", {}).update(more)
        return refusal(custom.replace_namespaced_custom_object, *where, name, one)

    def deletes(name):
        return refusal(custom.delete_namespaced_custom_object, *where, name)

    def is_bound():
        how = {"dry_run": "All"}
        return "GPU service may" in refusal(custom.delete_namespaced_custom_object, *where, "job-of-others", **how)

    wait_for(is_bound, "the policy is in force")
    assert "may delete workspaces alone" in deletes("job-of-others")
    assert "may change Workloads of workspaces alone" in changes("job-of-others", own="1")
    assert "may change Workloads of workspaces alone" in changes("job-of-others", **{"gpuspawner.io/hub": "h"})
    assert changes("workspace-labelled", own="1") == ""
    assert "not which hub they are of" in changes("workspace-labelled", **{"gpuspawner.io/hub": "other"})
    assert changes("workspace-bare", **{"gpuspawner.io/hub": "h"}) == "", "its label comes back"
    assert [deletes(name) for name in ("workspace-labelled", "workspace-bare")] == ["", ""]
