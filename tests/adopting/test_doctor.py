"""``gpuspawner server doctor`` finds the one fault of each installation, and its remedy."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiohttp import web
from apart import HubApart
from cluster_objects import A100, T4, a_container, a_node, a_workspace
from harness.hub import ADMIN_TOKEN, eventually
from kube_api import KubeApi, ends_with
from manifests import asked_for, rights_of

from gpuspawner import __version__
from gpuspawner.adoption.doctor import cluster_reader, findings, hub_checks, source_checks
from gpuspawner.adoption.doctor.cluster_checks import RIGHTS, kinds_there, network
from gpuspawner.adoption.doctor.findings import Answer, State
from gpuspawner.catalog import load_text
from gpuspawner.cli import main
from gpuspawner.spawner.hub.service import SERVICE_SCOPES

GOOD, BAD = 0, 1
NOBODY = ["--hub", "http://127.0.0.1:9/hub/api", "--service", "http://127.0.0.1:9"]
CATALOG = """\
version: 1
gpus:
  a100: {match: NVIDIA-A100-SXM4-80GB, memory: 80GiB}
templates: {lab: {image: "lab:cu130", gpus: {a100: 1}}, cpu: {image: "cpu:cu130"}}
quotas: {each-user: {each: user, gpus: {hard: 4}}}
"""


class Cluster(KubeApi):
    """Also answers reviews of rights. ``missing`` has (verb, resource, namespace) of missing rights."""

    def __init__(self):
        super().__init__()
        self.missing, self.reviewed = set(), []
        self.priority_classes = [a_class()]
        self.policies, self.namespaces = [], {"jhub"}
        self.late_seconds = 0
        self.strange = None

    def _of(self, path, query):
        """All pods here are workspaces, so the query for a hub's label is ignored."""
        return super()._of(path, {key: value for key, value in query.items() if key != "labelSelector"})

    async def _serve(self, request):  # noqa: PLR0911 - one answer for each path
        path = "/" + request.match_info["path"]
        if self.strange is not None:
            return web.Response(body=self.strange, content_type="application/json")
        if path == "/version":
            headers = {"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + self.late_seconds))}
            return web.json_response({"gitVersion": "v1.34.1"}, headers=headers)
        if path.endswith("/selfsubjectaccessreviews"):
            asked = (await request.json())["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            one = asked["verb"], resource, asked.get("namespace", "")
            self.reviewed.append((*one, request.headers.get("Impersonate-User")))
            return web.json_response({"status": {"allowed": one not in self.missing}}, status=201)
        if path.startswith("/api/v1/namespaces/") and path.count("/") == 4:
            there = path.rpartition("/")[2] in self.namespaces
            return web.json_response({"kind": "Namespace"}) if there else self._status(404, "not found")
        if path.endswith("/networkpolicies"):
            return web.json_response({"items": self.policies})
        if path.endswith("/priorityclasses"):
            return web.json_response({"items": self.priority_classes})
        return await super()._serve(request)


def a_class(value=-5, policy="Never"):
    return {"metadata": {"name": "gpu-workspace"}, "value": value, "preemptionPolicy": policy}


def a_running_workspace():
    pod = a_workspace("jupyter-ada")
    pod["metadata"]["labels"] |= {"app": "jupyterhub", "component": "singleuser-server"}
    pod["spec"] |= {"priorityClassName": "gpu-workspace", "containers": [a_container()]}
    return pod


@pytest.fixture
async def cluster():
    """A cluster without faults, with one workspace."""
    api = Cluster()
    await api.start()
    api.put(a_node("gpu-1"))
    api.put(a_running_workspace())
    api.execs["jupyter-ada"] = ends_with(0)
    yield api
    await api.stop()


@pytest.fixture
def examine(cluster, tmp_path, capsys):
    """Return a function that runs doctor on the cluster and returns the findings that are not good, by check."""
    (tmp_path / "catalog.yaml").write_text(CATALOG)

    async def examine(*more):
        arguments = [
            "server",
            "doctor",
            "--json",
            "--kubernetes",
            "--kubeconfig",
            cluster.kubeconfig(tmp_path),
            *NOBODY,
        ]
        await asyncio.to_thread(main, [*arguments, "--catalog", str(tmp_path / "catalog.yaml"), *more])
        found = json.loads(capsys.readouterr().out)["findings"]
        assert {one["check"] for one in found} >= {"hub", "service", "API server"}
        return {one["check"]: one for one in found if one["state"] != "good" and one["check"] not in {"hub", "service"}}

    return examine


async def test_a_cluster_on_which_all_is_well_has_no_findings(examine, cluster):
    assert await examine("--as", "system:serviceaccount:jhub:hub") == {}
    assert {account for *_, account in cluster.reviewed} == {"system:serviceaccount:jhub:hub"}


def test_the_rights_that_are_asked_for_are_exactly_those_of_the_manifest():
    written = rights_of("kubernetes-service-rbac.yaml")
    assert asked_for(RIGHTS) == written
    assert len(RIGHTS) == len(written)


async def test_a_right_that_is_missing_is_named_with_what_stops_without_it(examine, cluster):
    cluster.missing = {("create", "pods/exec", "jhub"), ("list", "pods", "")}
    found = (await examine())["rights"]
    assert found["state"] == "bad"
    assert "hub_config/kubernetes-service-rbac.yaml" in found["remedy"]
    assert "The right to create pods/exec in namespace jhub is missing: the service measures no GPU" in found["words"]


def no_device_plugin(api):
    api.put(a_node("gpu-2", A100, {}))


def plugin_ended(api):
    api.put(a_node("gpu-2", healthy={"nvidia.com/gpu": 0}))


def one_unhealthy(api):
    api.put(a_node("gpu-2", healthy={"nvidia.com/gpu": 7}))


def unhealthy_in_a_workspace(api):
    pod = a_running_workspace()
    health = {"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1", "health": "Unhealthy"}]}
    pod["status"]["containerStatuses"] = [{"name": "notebook", "allocatedResourcesStatus": [health]}]
    api.put(pod)


def old_driver(api):
    cuda = {"nvidia.com/cuda.driver-version.full": "535.261.03", "nvidia.com/cuda.runtime-version.full": "12.2"}
    labels = {**A100, **cuda}
    api.put(a_node("gpu-2", labels))
    api.put(a_node("gpu-3", labels))
    api.put(a_node("gpu-4", {**labels, **T4}))


def no_labels(api):
    api.put(a_node("gpu-2", {}, {"nvidia.com/gpu": 2}))


def another_model(api):
    api.put(a_node("gpu-1", T4))


def closed_network(api):
    dns = {"ports": [{"port": 53, "protocol": "UDP"}]}
    hub = {"ports": [{"port": 8081}], "to": [{"podSelector": {"matchLabels": {"component": "hub"}}}]}
    internet = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}
    selector = {"matchLabels": {"component": "singleuser-server", "release": "jhub"}}
    spec = {"podSelector": selector, "policyTypes": ["Egress"], "egress": [dns, hub, internet]}
    api.policies = [{"metadata": {"name": "singleuser"}, "spec": spec}]


def no_class(api):
    api.priority_classes = []


def preempting_class(api):
    api.priority_classes = [a_class(1000, "PreemptLowerPriority")]


def no_exec(api):
    api.refused.add(("exec", "/api/v1/namespaces/jhub/pods/jupyter-ada/exec"))


def two_hubs(api):
    pod = a_running_workspace()
    pod["metadata"] |= {"name": "jupyter-bob", "uid": "bob"}
    pod["metadata"]["labels"] = {**pod["metadata"]["labels"], "gpuspawner.io/hub": "another"}
    api.put(pod)
    api.execs["jupyter-bob"] = ends_with(0)


def no_namespace(api):
    api.namespaces.clear()


def wrong_clock(api):
    api.late_seconds = 90


@pytest.mark.parametrize(
    ("broken", "check", "words", "remedy"),
    [
        (
            no_device_plugin,
            "device plugin",
            "gpu-2 has an NVIDIA GPU but does not advertise it",
            "GPU Operator or device",
        ),
        (plugin_ended, "device plugin", "gpu-2: all 8 nvidia.com/gpu are unhealthy", "the device plugin's pod"),
        (one_unhealthy, "device plugin", "gpu-2: 1 of 8 nvidia.com/gpu are unhealthy.", "After the repair restart"),
        (
            unhealthy_in_a_workspace,
            "GPU health",
            "jupyter-ada on gpu-1 has unhealthy GPUs: GPU-1.",
            "can move the workspace",
        ),
        (
            old_driver,
            "CUDA",
            "The image lab:cu130 of the template lab has CUDA 13.0, and the driver 535.261.03 on gpu-2, gpu-3 supports",
            "Update the driver",
        ),
        (no_labels, "GPU labels", "gpu-2: no label gives the model of its 2 nvidia.com/gpu", "GPU Feature Discovery"),
        (another_model, "catalog", "No GPU matches the kind a100", "match: '*Tesla-T4*'"),
        (closed_network, "network policy", "from port 9: warnings and Keep", "singleuser.networkPolicy.egress"),
        (no_class, "priority", "There is no priority class 'gpu-workspace'", "hub_config/kubernetes-hub.yaml"),
        (preempting_class, "priority", "may preempt the pods of others", "hub_config/kubernetes-hub.yaml"),
        (
            no_exec,
            "exec",
            "An exec in the pod jupyter-ada failed: HTTP 403",
            "hub_config/kubernetes-service-rbac.yaml (pods/exec: get and create)",
        ),
        (two_hubs, "one hub", "Workspaces of 2 hubs run in namespace jhub.", "Give each hub a namespace of its own."),
        (no_namespace, "namespace", "There is no namespace jhub.", "Name the workspaces' namespace by --namespace"),
        (wrong_clock, "clock", "s ahead of this machine's", "NTP"),
    ],
)
async def test_a_broken_cluster_is_found_with_its_remedy(examine, cluster, broken, check, words, remedy):
    broken(cluster)
    found = await examine()
    assert set(found) == {check}
    assert found[check]["state"] == "bad"
    assert words in found[check]["words"]
    assert remedy in found[check]["remedy"]


def test_nodes_whose_driver_is_too_old_for_what_a_template_needs_are_found():
    catalog = load_text("""\
version: 1
gpus:
  new: {match: NVIDIA-A100-SXM4-80GB, memory: 80GiB, driver: 570, cuda: 12.8}
  t4: {match: Tesla-T4, memory: 16GiB}
templates: {lab: {gpus: {new: 1}, needs: {driver: 570, cuda: 12.8}}, other: {gpus: {t4: 1}}}
""")
    versions = {"nvidia.com/cuda.driver-version.full": "535.104.05", "nvidia.com/cuda.runtime-version.full": "12.2"}
    nodes = [a_node("gpu-1", {**A100, **versions}), a_node("gpu-2", {**T4, **versions})]
    found = list(source_checks.drivers_of_nodes(nodes, catalog))
    assert [(one.check, one.state) for one in found] == [("driver", State.BAD), ("CUDA", State.BAD)]
    assert [one.words for one in found] == [
        "The template lab needs driver 570 and gets no GPU of the driver 535.104.05 on gpu-1.",
        "The template lab needs CUDA 12.8 and gets no GPU of the driver 535.104.05 on gpu-1, which supports 12.2.",
    ]
    assert {one.remedy for one in found} == {"Update the driver, or lower needs of the template lab."}
    computes = {"nvidia.com/gpu.compute.major": "7", "nvidia.com/gpu.compute.minor": "5"}
    kinds = load_text(CATALOG.replace("80GiB}", "80GiB, compute: 8.0}")).gpus
    assert [one.words for one in kinds_there(kinds, [a_node("gpu-1", {**A100, **computes})])][-1] == (
        "The kind a100 says compute: 8.0, and its GPUs have 7.5."
    )
    versions = {key: version.replace("535", "570").replace("12.2", "12.8") for key, version in versions.items()}
    assert list(source_checks.drivers_of_nodes([a_node("gpu-1", {**A100, **versions})], catalog)) == []


def test_a_port_within_a_range_or_to_everybody_lets_workspaces_out():
    def judged(*egress):
        policies = [{"spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": list(egress)}}]
        return network(Answer(200, policies), {}, 9470).state

    assert judged() is State.BAD
    assert judged({}) is State.GOOD
    assert judged({"ports": [{"port": 9000, "endPort": 9999}]}) is State.GOOD
    assert judged({"ports": [{"protocol": "TCP"}]}) is State.GOOD
    assert judged({"ports": [{"port": "https"}]}) is State.BAD


async def test_a_cluster_that_is_away_says_which_way_was_tried(cluster, examine, tmp_path):
    await cluster.stop()
    found = await examine()
    assert found["API server"]["state"] == "bad"
    assert "--kubeconfig" in found["API server"]["remedy"]


STRANGE = {
    "text": b"<html>Sign in</html>",
    "nothing": b"null",
    "a list": b"[1, 2]",
    "no items": b"{}",
    "items of another kind": b'{"items": [{"metadata": {"name": "a"}, "spec": "none"}, 7]}',
    "deep": b"[" * 100_000,
    "endless": b" " * 2**20,
}
"""A page that a proxy or another server at this address answers with status 200."""


@pytest.mark.parametrize("name", STRANGE)
async def test_answers_of_another_program_are_reported_in_words(cluster, tmp_path, monkeypatch, capsys, name):
    for module in (findings, cluster_reader):
        monkeypatch.setattr(module, "MOST_BYTES" if module is findings else "LONGEST_ANSWER_BYTES", 2**20 - 1)
    cluster.strange = STRANGE[name]
    (tmp_path / "catalog.yaml").write_text(CATALOG)
    config = json.loads((kubeconfig := Path(cluster.kubeconfig(tmp_path))).read_text())
    here = [f"--hub={config['clusters'][0]['cluster']['server']}/hub/api", f"--service={NOBODY[3]}"]
    arguments = ["server", "doctor", "--json", "--kubernetes", "--kubeconfig", str(kubeconfig), *here]
    assert await asyncio.to_thread(main, [*arguments, "--catalog", str(tmp_path / "catalog.yaml")]) == BAD
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["hub"]["state"] == "bad"
    told = found.get("rights", found["API server"])["words"] + found["hub"]["words"]
    assert any(
        part in told for part in ("not a JSON object", "longer than 1 MiB", "did not say which rights the account has")
    ), told


def test_a_token_without_the_service_s_scopes():
    held = [scope for scope in SERVICE_SCOPES if scope != "delete:servers"]
    found = hub_checks.scopes(Answer(200, {"kind": "service", "name": "gpu", "scopes": held}))
    assert (found.state, found.words) == (State.BAD, "The service lacks the scopes delete:servers.")
    assert "configure(c, ...) the last line" in found.remedy


@pytest.mark.parametrize(
    ("hub", "service", "words"),
    [
        ("4.1.6", __version__, "JupyterHub 4.1.6 is not supported."),
        ("6.1.1", "0.0.1", f"The service is gpuspawner 0.0.1, and this is {__version__}."),
    ],
)
def test_versions_that_do_not_go_together(hub, service, words):
    found = hub_checks.versions(__version__, Answer(200, {"version": hub}), Answer(200, {"version": service}), None)
    assert [one.words for one in found] == [words]


def test_a_service_that_was_told_another_prefix_than_its_hub():
    (found,) = hub_checks.below_prefix("/jupyter", Answer(404, "<html>"))
    assert "no pages at /jupyter/services/gpu/" in found.words
    assert "--base-url /jupyter/" in found.remedy
    assert list(hub_checks.below_prefix("", Answer(200, {"version": __version__}))) == []


CULLER = """
c.JupyterHub.services.append({"name": "jupyterhub-idle-culler", "api_token": "a-culler-s-token"})
c.JupyterHub.load_roles[0]["scopes"].append("admin:services")
"""


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Answer(200, {"version": "1", "pages": "https://hub.example.org/services/gpu"}), "good"),
        (Answer(200, {"version": "1", "pages": None}), "unknown"),
        (Answer(403, "Sign in"), ""),
    ],
)
def test_an_address_that_the_service_does_not_know_is_named_with_the_value_that_gives_it(answer, state):
    found = list(hub_checks.public_address(answer))
    assert [one.state.value for one in found] == ([state] if state else [])
    if state == "unknown":
        assert all(name in found[0].remedy for name in ("hub.publicUrl", "--public-url", "c.JupyterHub.public_url"))


@pytest.mark.parametrize(
    ("answer", "states"),
    [
        (Answer(200, {"secrets": 3, "unreadable": 0, "users_affected": 0}), [State.GOOD]),
        (Answer(200, {"secrets": 3, "unreadable": 2, "users_affected": 1}), [State.BAD]),
        (Answer(200, {"secrets": 0, "unreadable": 0, "users_affected": 0}), []),
        (Answer(403, {}), [State.UNKNOWN]),
    ],
    ids=["all", "some", "no secret", "not allowed"],
)
def test_secrets_of_users_with_another_key_are_found(answer, states):
    found = list(hub_checks.secrets_readable(answer))
    assert [one.state for one in found] == states
    if states == [State.BAD]:
        assert "cannot decrypt 2 of 3 secrets" in found[0].words
        assert "change-the-secret.md" in found[0].remedy


def test_a_real_hub_that_is_well_and_then_broken_in_four_ways(tmp_path, capsys, monkeypatch):
    for name in ("GPUSPAWNER_TOKEN", "JUPYTERHUB_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hub = HubApart(tmp_path, gpus=1, extra=CULLER)
    where = ["--hub", f"http://127.0.0.1:{hub.hub_port}/hub/api", "--service", f"http://127.0.0.1:{hub.service_port}"]

    def examine(*more, code=BAD):
        assert main(["server", "doctor", "--json", *where, *more]) == code
        found = json.loads(capsys.readouterr().out)["findings"]
        return {one["check"]: (one["state"], one["words"], one["remedy"]) for one in found}

    try:
        hub.start()
        hub.until_it_answers()
        secret = str(tmp_path / "gpu" / "secret")
        catalog = str(hub.catalog)
        found = examine("--secret-file", secret, "--catalog", catalog, code=GOOD)
        assert {check for check, (state, *_) in found.items() if state == "good"} >= {
            "hub", "token", "scopes", "clock", "service", "versions",
        }  # fmt: skip
        assert found["cullers"][0] == "unknown"
        assert main(["server", "doctor", *where, "--secret-file", secret]) == GOOD
        assert "good  scopes: The service gpu has the scopes that it needs." in capsys.readouterr().out

        monkeypatch.setenv("GPUSPAWNER_TOKEN", ADMIN_TOKEN)
        state, words, remedy = examine()["cullers"]
        assert (state, "jupyterhub-idle-culler" in words, "cull: {enabled: false}" in remedy) == ("bad", True, True)

        assert examine()["public address"][0] == "unknown", "this hub has no c.JupyterHub.public_url"

        monkeypatch.delenv("GPUSPAWNER_TOKEN")
        found = examine(code=GOOD)
        assert (found["token"][0], "scopes" in found) == ("unknown", False), "nothing is wrong with a token not given"

        monkeypatch.setenv("GPUSPAWNER_TOKEN", "nobody-s-token")
        state, words, remedy = examine()["token"]
        assert (state, words, "--secret-file" in remedy) == ("bad", "The hub does not know this token.", True)

        hub.end_service()
        state, words, remedy = examine("--secret-file", secret)["service"]
        assert (state, words.startswith("No GPU service answers at"), "Its log" in remedy) == ("bad", True, True)

        hub.terminate_hub()
        eventually(lambda: examine("--secret-file", secret)["hub"][0] == "bad", 30)
        assert "Is the hub running?" in examine("--secret-file", secret)["hub"][2]
    finally:
        hub.close()


def test_a_secret_that_cannot_be_read_and_a_catalog_that_is_wrong(tmp_path, capsys):
    assert main(["server", "doctor", *NOBODY, "--secret-file", str(tmp_path / "absent")]) == 2
    assert "absent cannot be read as a secret: No such file or directory." in capsys.readouterr().err
    (tmp_path / "secret").write_text("no digits\n")
    assert main(["server", "doctor", *NOBODY, "--secret-file", str(tmp_path / "secret")]) == 2
    assert "secret cannot be read as a secret: it does not consist of 64 hexadecimal digits." in capsys.readouterr().err
    (tmp_path / "catalog.yaml").write_text("version: 2\n")
    assert main(["server", "doctor", *NOBODY, "--catalog", str(tmp_path / "catalog.yaml")]) == BAD
    out = capsys.readouterr().out
    assert f" BAD  catalog: {tmp_path}/catalog.yaml cannot be used." in out
    assert "version 2 is not known" in out


@pytest.mark.parametrize("address", ["http://[::1", "http://hub:99999", "file:///etc/passwd", "http://a b/"])
def test_an_invalid_address_is_reported_like_an_unreachable_one(address, capsys):
    assert main(["server", "doctor", "--hub", address, "--service", address]) == BAD
    told = capsys.readouterr().out
    assert f"No hub answers at {address.rstrip('/')} (" in told
    assert "No GPU service answers at" in told


@pytest.mark.parametrize("option", ["--hub", "--service"])
def test_a_password_in_an_address_is_refused_and_not_shown(option, capsys):
    assert main(["server", "doctor", option, "http://gpu:geheim@127.0.0.1:1/hub/api"]) == BAD
    told = capsys.readouterr()
    assert told.err.startswith(f"{option}: the address has a name or a password")
    assert "geheim" not in told.out + told.err


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path, capsys):
    for command in (["server", "doctor", *NOBODY], ["server", "init", str(tmp_path / "catalog.yaml")]):
        assert main([*command, "--kubernetes", "--kubeconfig", str(tmp_path / "absent")]) == BAD
        told = f"--kubeconfig: {tmp_path}/absent does not exist. Name the file that kubectl uses.\n"
        assert capsys.readouterr() == ("", told)


def test_without_a_kubeconfig_the_places_are_named_at_which_one_was_looked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    sentence = "no kubeconfig ($KUBECONFIG, ~/.kube/config) exists, and this is not a pod."
    main(["server", "doctor", *NOBODY, "--kubernetes"])
    assert sentence.rstrip(".") in capsys.readouterr().out
    main(["server", "init", "-", "--kubernetes"])
    told = capsys.readouterr().err
    assert f"{sentence} Or name another way to the cluster: --kubeconfig FILE" in told
    assert "service account" not in told


def test_kinds_that_a_share_divides_need_not_be_there_whole():
    shared = {**A100, "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "2"}
    catalog = load_text(CATALOG.replace("templates:", "  half: {of: a100, shares: 2}\ntemplates:"))
    assert [one.state for one in kinds_there(catalog.gpus, [a_node("a", shared)])] == [State.GOOD]
