"""Connections under the chart's network policy, and under those of Zero to JupyterHub if its source is available.

Pods with the labels of the charts replace the real ones. Each listens at every port that is asked for, so a refusal
is the policies'.
"""

import json
import sys
from pathlib import Path

import pytest
import yaml
from chart_release import CATALOG, CHART
from nodes import wait_for
from policies import enforced

from tools.cluster.clients import Helm

sys.path.insert(0, str(Path(__file__).parents[1] / "chart"))

from rendered import Z2JH, with_dependencies

pytestmark = pytest.mark.slow

HUB, SERVER, SERVICE, OTHER = 8081, 8888, 9470, 9999
LISTEN = f"for port in {HUB} {SERVER} {SERVICE} {OTHER}; do python3 -m http.server $port & done; wait"
ASK = """
import json, socket, sys
def reaches(address, port):
    try:
        socket.create_connection((address, port), 3).close()
        return True
    except OSError:
        return False
print(json.dumps([reaches(*one) for one in json.loads(sys.argv[1])]))
"""
OF_OURS = {
    ("workspace", "service", SERVICE): True,
    ("hub", "service", SERVICE): True,
    ("proxy", "service", SERVICE): True,
    ("stranger", "service", SERVICE): False,
    ("workspace", "service", OTHER): False,
    ("service", "hub", HUB): True,
    ("service", "workspace", SERVER): False,
}
OF_BOTH = {
    **OF_OURS,
    ("workspace", "hub", HUB): True,
    ("stranger", "hub", HUB): False,
    ("hub", "workspace", SERVER): True,
    ("stranger", "workspace", SERVER): False,
    ("workspace", "stranger", SERVICE): False,
}


@pytest.fixture(scope="module", autouse=True)
def firewall(one_machine):
    with enforced(one_machine):
        yield


def rendered(chart, namespace, folder, values):
    """Return what a chart renders as the release jhub, by kind and name; each kind that has pods with their labels."""
    text = Helm(folder)(
        "template", "jhub", chart, f"--namespace={namespace}", "--values=-", given=yaml.safe_dump(values)
    )
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text) if one}


def labels(found, name):
    return found["Deployment", name]["spec"]["template"]["metadata"]["labels"]


def make(cluster, namespace, found, pods):
    """Start pods of those labels. Return a function that reports their connections under the policies."""
    for name, its_labels in pods.items():
        cluster.start_pod(namespace, name, ["sh", "-c", LISTEN], wait=False)
        cluster.core.patch_namespaced_pod(name, namespace, {"metadata": {"labels": its_labels}})
    for name in pods:
        cluster.wait_for_phase(namespace, name, "Running")
    address = {name: cluster.core.read_namespaced_pod(name, namespace).status.pod_ip for name in pods}

    def ways(asked):
        told = {}
        for source in pods:
            ours = [way for way in asked if way[0] == source]
            question = json.dumps([(address[target], port) for _, target, port in ours])
            code, printed, said = cluster.run_in(namespace, source, "python3", "-c", ASK, question)
            assert code == 0, said
            told |= dict(zip(ours, json.loads(printed), strict=True))
        return told

    everywhere = dict.fromkeys(OF_BOTH, True)
    wait_for(lambda: ways(everywhere) == everywhere, "all reach all where there is no policy")
    policies = [one for (kind, _), one in found.items() if kind == "NetworkPolicy"]
    cluster.own.kubectl("apply", f"--namespace={namespace}", "--filename=-", given=yaml.safe_dump_all(policies))
    return ways


def shown(ways, expected):
    wait_for(lambda: ways(expected) == expected or None, f"{expected}; the first look: {ways(expected)}")


def test_the_service_is_reached_by_hub_proxy_and_workspaces_and_reaches_the_hub_alone(one_machine, namespace, tmp_path):
    values = {"catalog": CATALOG, "image": {"name": "localhost/any"}}
    found = rendered(CHART, namespace, tmp_path, values)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    pods = {
        "hub": defaults["hub"]["podLabels"],
        "proxy": defaults["hub"]["proxyPodLabels"],
        "workspace": defaults["workspaces"]["podLabels"],
        "service": labels(found, "jhub-gpuspawner"),
        "stranger": {},
    }
    shown(make(one_machine, namespace, found, pods), OF_OURS)


@pytest.mark.skipif(not Z2JH, reason="GPUSPAWNER_TEST_Z2JH names no folder with the chart's source")
def test_with_the_policies_of_zero_to_jupyterhub_workspaces_reach_hub_and_service(one_machine, namespace, tmp_path):
    values = {"gpuspawner": {"catalog": CATALOG, "image": {"name": "localhost/any"}}}
    found = rendered(with_dependencies(tmp_path), namespace, tmp_path, values)
    hub = labels(found, "hub")
    server = found["NetworkPolicy", "singleuser"]["spec"]["podSelector"]["matchLabels"]
    pods = {
        "hub": hub,
        "proxy": labels(found, "proxy"),
        "workspace": {**server, "hub.jupyter.org/network-access-hub": "true"},
        "service": labels(found, "gpuspawner"),
        "stranger": {},
    }
    ways = make(one_machine, namespace, found, pods)
    shown(ways, OF_BOTH)
    policy = found["NetworkPolicy", "singleuser"]
    ours = [rule for rule in policy["spec"]["egress"] if {"port": SERVICE} in rule.get("ports", [])]
    assert len(ours) == 1
    policy["spec"]["egress"].remove(ours[0])
    one_machine.own.kubectl("apply", f"--namespace={namespace}", "--filename=-", given=yaml.safe_dump(policy))
    shown(ways, {**OF_BOTH, ("workspace", "service", SERVICE): False})
