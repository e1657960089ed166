"""The custom resources on the real API server: what it takes, refuses and serves; who may write; upgrades by helm."""

import copy
import json
import re
import subprocess
import sys

import pytest
import yaml
from custom import CHART, Typed, installed, manifest
from harness import pages
from kubernetes import client
from nodes import ROOT, wait_for

from gpuspawner.backends.custom_resources.cluster import FINALIZER
from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.resources.definitions import API_GROUP, KINDS, POLICY, RequestSpec

WIDE = "DevGPUVMClusterLifecyclePolicy"
GOOD = {
    "DevGPUVMRequest": {"user": "ada", "template": "lab", "gpu": "a100", "count": 2, "cpu": "0.5", "lifetime": "8h",
                        "substitutes": ["a100@us-east"]},
    "DevGPUVMTemplate": {
        "title": "Lab", "gpus": {"a100": "1-8", "t4": 1}, "bounds": {"cpu": "1-8", "memory": "1GiB-32GiB"},
        "default": {"gpu": "a100", "cpu": 2}, "opens": ["lab", "ssh"], "tools": {"nlp": ["transformers"]},
    },
    "DevGPUVMLifecyclePolicy": {"mode": "warn", "idle": {"for": "30m"}, "extend": {"warn": ["1h", "10m"]}},
    "DevGPUVMQuota": {"each": "user", "gpus": {"hard": 4}, "gpu_hours": {"per": "month", "hard": 40}},
    WIDE: {"mode": "warn", "idle": {"for": "30m"}},
}  # fmt: skip
BAD = [
    ("DevGPUVMRequest", {"template": "lab"}, "spec.user: Required value"),
    ("DevGPUVMRequest", {"user": "ada", "count": -1}, "spec.count in body should be greater than or equal to 0"),
    ("DevGPUVMRequest", {"user": "ada", "gpu": "none", "count": 1}, "gpu is none, so count must be 0 or left out"),
    ("DevGPUVMRequest", {"user": "ada", "server": "a/b"}, "server is the name of a workspace, without /"),
    ("DevGPUVMRequest", {"user": "ada", "gpus": 1}, 'unknown field "spec.gpus"'),
    ("DevGPUVMRequest", {"user": "ada", "gpu": "a100@@x"}, "spec.gpu in body should match"),
    ("DevGPUVMRequest", {"user": "ada", "ready_at": {"days": "daily"}}, "spec.ready_at.time: Required value"),
    ("DevGPUVMTemplate", {"opens": ["ssh"]}, "ssh alone leaves nothing for the browser to open"),
    ("DevGPUVMTemplate", {"policy": "No Such"}, "spec.policy in body should match"),
    ("DevGPUVMLifecyclePolicy", {"mode": "kill"}, 'supported values: "observe", "warn", "enforce"'),
    ("DevGPUVMLifecyclePolicy", {"keep": {"times": 1000}}, "spec.keep.times in body should be less than or equal"),
    (WIDE, {"mode": "kill"}, 'supported values: "observe", "warn", "enforce"'),
    ("DevGPUVMQuota", {"gpus": {"hard": 4}}, "a quota is for one of"),
    ("DevGPUVMQuota", {"user": "ada", "everybody": True}, "a quota is for one of"),
]  # fmt: skip


@pytest.fixture(scope="module")
def helm(one_machine, tmp_path_factory):
    with installed(one_machine, tmp_path_factory.mktemp("helm")) as helm:
        yield helm


@pytest.fixture
def kubectl(one_machine, helm, namespace):
    return Typed(one_machine, namespace)


def test_good_ones_are_taken_and_bad_ones_refused_in_words(kubectl):
    """Each is sent without kubectl, whose 17 runs would take longer than all that the API server does."""

    def create(kind, spec):
        plural = next(one.plural for one in KINDS if one.name == kind)
        body, how = json.loads(manifest(kind, spec)), {"dry_run": "All", "field_validation": "Strict"}
        if kind == WIDE:
            kubectl.objects.create_cluster_custom_object(API_GROUP, "v1alpha1", plural, body, **how)
            return
        where = (API_GROUP, "v1alpha1", kubectl.requests[2], plural)
        kubectl.objects.create_namespaced_custom_object(*where, body, **how)

    for kind, spec in GOOD.items():
        create(kind, spec)
    for kind, spec, words in BAD:
        with pytest.raises(client.ApiException) as refused:
            create(kind, spec)
        assert words in json.loads(refused.value.body)["message"], (kind, spec)


@pytest.mark.slow
def test_the_server_fills_in_and_what_a_request_is_stays(kubectl):
    kubectl("create", "-f", "-", given=manifest("DevGPUVMRequest", GOOD["DevGPUVMRequest"]))
    assert json.loads(kubectl("get", "gvm", "one", "-o", "json"))["spec"]["server"] == ""
    morning = manifest("DevGPUVMRequest", {"user": "ada", "ready_at": {"time": "8:00"}}, "morning")
    kubectl("create", "-f", "-", given=morning)
    assert json.loads(kubectl("get", "gvm", "morning", "-o", "json"))["spec"]["ready_at"]["days"] == "weekdays"
    for name, value in {
        "user": "bob",
        "gpu": "t4",
        "count": 1,
        "cpu": 1,
        "memory": "1GiB",
        "server": "x",
        "ready_at": {"time": "8:00"},
    }.items():
        patch = json.dumps({"spec": {name: value}})
        done = kubectl.run("patch", "gvm", "one", "--type=merge", "--patch", patch)
        assert f"{name} cannot be changed: delete this request, and make another one" in done.stderr
    kubectl("patch", "gvm", "one", "--type=merge", "--patch", json.dumps({"spec": {"lifetime": "12h"}}))


@pytest.mark.slow
def test_lists_and_explanations_read_well(kubectl):
    for kind, spec in GOOD.items():
        if kind != WIDE:
            kubectl("create", "-f", "-", given=manifest(kind, spec))
    assert kubectl("get", "gvm").split("\n")[0].split() == ["NAME", "USER", "PHASE", "GPU", "ENDS", "REASON", "AGE"]
    assert len(kubectl("get", "gpuspawner", "-o", "name").split()) == len(KINDS) - 1, "without the kind of the cluster"
    for kind in KINDS:
        wait_for(lambda kind=kind: "FIELDS:" in kubectl("explain", f"{kind.plural}.spec"), f"{kind.name} is explained")
    said = " ".join(kubectl("explain", "gvm.spec.lifetime").split())
    assert "A longer lifetime extends a running workspace" in said
    shown = kubectl("explain", "devgpuvmrequests.spec")
    assert set(re.findall(r"^  (\w+)\t", shown, re.MULTILINE)) == set(keys_of(RequestSpec))


def test_only_who_may_use_a_user_writes_their_requests_and_a_namespace_can_go(kubectl, one_machine):
    rights, *_ = pages.blocks(pages.page("how-to/administrators/custom-resources"), "yaml")
    kubectl("apply", "-f", "-", given=rights)
    own, others = (manifest("DevGPUVMRequest", {"user": user}, user) for user in ("ada", "bob"))
    kubectl("create", "-f", "-", given=others)
    wait_for(
        lambda: "may not ask for workspaces of bob: that needs the verb use on devgpuvmusers/bob of gpuspawner.io"
        in kubectl.run("create", "--dry-run=server", "-f", "-", "--as=ada@example.org",
                       given=manifest("DevGPUVMRequest", {"user": "bob"}, "other")).stderr,
        "the policy is in force",
    )  # fmt: skip
    kubectl("create", "-f", "-", "--as=ada@example.org", given=own)
    for refused in (["delete", "gvm", "bob"], ["label", "gvm", "bob", "a=b"]):
        done = kubectl.run(*refused, "--as=ada@example.org")
        assert "may not ask for workspaces of bob" in done.stderr
    kubectl("delete", "gvm", "ada", "--as=ada@example.org")
    with one_machine.namespace() as going:
        Typed(one_machine, going)("create", "-f", "-", given=others)
    assert wait_for(lambda: going not in kubectl("get", "namespaces", "-o", "name"), "a namespace with requests goes")


@pytest.mark.slow
def test_the_chart_upgrades_definitions_and_what_is_stored_stays(helm, kubectl, tmp_path):
    for kind, spec in GOOD.items():
        kubectl("create", "-f", "-", given=manifest(kind, spec))
    newer = tmp_path / "newer"
    (newer / "templates").mkdir(parents=True)
    (newer / "Chart.yaml").write_text((CHART / "Chart.yaml").read_text().replace("version: ", "version: 9", 1))
    documents = list(yaml.safe_load_all((CHART / "templates" / "crds.yaml").read_text()))
    changed = copy.deepcopy(documents)
    for one in changed[: len(KINDS)]:
        properties = one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        properties["added"] = {"type": "string", "default": "by the new version"}
    (newer / "templates" / "crds.yaml").write_text(yaml.safe_dump_all(changed))
    try:
        helm("upgrade", "crds", newer, "--namespace=default", "--wait")
        for kind, spec in GOOD.items():
            found = wait_for(
                lambda kind=kind: (
                    (spec := json.loads(kubectl("get", kind, "one", "-o", "json"))["spec"]).get("added") and spec
                ),
                f"{kind} is served as the new version has it",
            )
            assert found.items() >= spec.items()
    finally:
        helm("upgrade", "crds", CHART, "--namespace=default", "--wait")


@pytest.mark.slow
def test_leftover_finalizers_are_removed_with_the_charts_own_rights(helm, kubectl, one_machine, namespace, tmp_path):
    told = [f"--namespace={namespace}", f"--set-file=catalog={ROOT / 'hub_config' / 'kubernetes-catalog.yaml'}"]
    told += ["--set=customResources.enabled=true", "--show-only=templates/finalizers-job.yaml"]
    *rights, job = yaml.safe_load_all(helm("template", "gpuspawner", ROOT / "helm" / "gpuspawner", *told))
    kubectl("apply", "-f", "-", given=yaml.safe_dump_all(rights))
    for name in ("stays", "goes"):
        held = json.loads(manifest("DevGPUVMRequest", {"user": "ada"}, name))
        held["metadata"]["finalizers"] = [FINALIZER]
        kubectl("create", "-f", "-", given=json.dumps(held))
    kubectl("delete", "gvm", "goes", "--wait=false")
    config = yaml.safe_load(one_machine.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": kubectl("create", "token", "gpuspawner-finalizers").strip()}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = [
        sys.executable,
        "-m",
        "gpuspawner.cli",
        *container["args"][1:],
        f"--kubeconfig={path}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == f"2 DevGPUVMRequests in {namespace} are released. No workspace was stopped.\n", done.stderr
    (left,) = json.loads(kubectl("get", "gvm", "--output=json"))["items"]
    assert (left["metadata"]["name"], "finalizers" in left["metadata"]) == ("stays", False)


@pytest.mark.slow
def test_to_uninstall_the_chart_takes_no_object_and_the_policy_alone(helm, kubectl):
    kubectl("create", "-f", "-", given=manifest("DevGPUVMQuota", GOOD["DevGPUVMQuota"]))
    helm("uninstall", "crds", "--namespace=default", "--wait")
    try:
        assert kubectl("get", "gvmq", "-o", "name").split() == [f"devgpuvmquota.{API_GROUP}/one"]
        assert "NotFound" in kubectl.run("get", "validatingadmissionpolicy", POLICY).stderr
    finally:
        helm("upgrade", "--install", "crds", CHART, "--namespace=default", "--wait")
