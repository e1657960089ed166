"""The chart on a real cluster under the restricted standard, with a hub in a pod that behaves as that of z2jh."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import yaml
from chart_hub import beside
from chart_release import CHART, NAME, Release
from custom import Typed, installed
from gpus import simulated
from harness import pages
from kube_hub import eventually

from gpuspawner import __version__
from tools.cluster.build import ensure_component
from tools.cluster.recipes import OTHERS_KINDS
from tools.progress import StepError

WAIT_SECONDS = 300
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="module")
def release(one_machine, tmp_path_factory):
    with simulated(one_machine, 2), one_machine.namespace(**RESTRICTED) as namespace:
        release = Release(one_machine, namespace, tmp_path_factory.mktemp("release"))
        try:
            yield release
        finally:
            release.close()


@pytest.fixture(scope="module")
def hub(release, tmp_path_factory):
    """Without gpuspawner first; then the chart is installed, and the hub has the values that are printed for it."""
    with beside(release, tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def offered(hub, session):
    """The form of fay, who has no server."""
    return session.get(f"{hub.url}/hub/spawn/fay", timeout=30).text


def begin(hub, user, template="lab", **options):
    hub.add_user(user)
    eventually(lambda: hub.begin(user, template=template, **options).status_code in {201, 202}, 90, f"{user} starts")


def test_a_user_starts_by_form_and_another_by_api_are_warned_and_one_is_stopped(hub):
    hub.add_user("ada")
    sent = hub.submit(hub.login("ada"), "ada", template="lab", gpu="a100", count="1")
    assert sent.status_code == 302, sent.text[:500]
    begin(hub, "bob")
    leases = {user: hub.until(user, "running", WAIT_SECONDS) for user in ("ada", "bob")}
    assert hub.pod("ada").spec.priority < 0, "training can preempt it, by the class of the chart"
    token = hub.api("POST", "/users/ada/tokens", {}).json()["token"]
    for user in ("ada", "bob"):
        told = eventually(lambda user=user: hub.lease(user)["warning"], WAIT_SECONDS, f"{user} is warned")
        assert told["kind"] == "idle"
    hub.gpu(f"/workspaces/{leases['ada']['id']}/keep", "POST", token=token)
    assert hub.until_ended("bob", "idle", WAIT_SECONDS)["id"] == leases["bob"]["id"]
    eventually(lambda: hub.pod("bob") is None, WAIT_SECONDS, "bob's pod is gone")
    assert hub.lease("ada")["id"] == leases["ada"]["id"], "who kept it has it"


@pytest.mark.slow
def test_a_hub_killed_in_an_upgrade_and_a_rollback_keep_leases_places_deadlines_and_the_secret(hub, release):
    for user in ("cem", "dee"):
        begin(hub, user, count=2)
        eventually(lambda user=user: hub.lease(user), 60, f"{user} waits")
    before, secret, pod = kept(hub), release.secret(), hub.pod("ada").metadata.uid
    assert [before[user]["place"] for user in ("cem", "dee")] == [1, 2]
    first = release.service_pod().metadata
    release.values["settings"]["settle_seconds"] = 2.0
    with ThreadPoolExecutor() as beside:
        upgrade = beside.submit(release.run, "upgrade")
        eventually(
            lambda: first.uid not in [pod.metadata.uid for pod in release.service_pods()],
            120,
            "the service of before ends",
        )
        hub.kill()
        assert not upgrade.done(), "it is under way"
        done = upgrade.result()
    release.values["settings"]["settle_seconds"] = 1.0
    assert done.returncode == 0, done.stderr
    second = release.service_pod().metadata.uid
    assert second != first.uid, "settings are read at the start"
    eventually(lambda: hub.restarts() == 1, 60, "the hub's pod is the one of before")
    eventually(lambda: hub.gpu("/"), 90, "the service answers behind the hub")
    eventually(lambda: kept(hub) == before, 60, f"all of it is as it was: {before}")
    release.helm("rollback", NAME, f"--namespace={release.namespace}", "--wait", "--timeout=180s")
    assert release.service_pod().metadata.uid not in {first.uid, second}
    eventually(lambda: hub.gpu("/"), 60, "the service answers behind its hub")
    eventually(lambda: kept(hub) == before, 60, f"all of it is as it was: {before}")
    assert (hub.pod("ada").metadata.uid, release.secret()) == (pod, secret)


def kept(hub):
    """Of who has a workspace and who waits, what neither a restart nor an upgrade may change."""
    found = {}
    for user in ("ada", "cem", "dee"):
        lease = hub.lease(user)
        found[user] = {name: lease[name] for name in ("id", "asked_at", "ends_at")}
        found[user] |= {"gpus": [one["id"] for one in lease["gpus"]], "place": (lease["queue"] or {}).get("place")}
    return found


def test_the_tutorials_doctor_finds_nothing_bad(hub, release, tmp_path):
    lines = pages.commands(pages.page("tutorials/zero-to-jupyterhub"))
    (line,) = [one for one in lines if " gpuspawner server doctor " in one]
    found = release.typed(line.replace("http://hub:8081/hub/api", release.values["hub"]["url"]), tmp_path)
    assert "good  rights: The account has the " in found
    assert "good  exec: An exec in the pod jupyter-ada works" in found


@pytest.mark.slow
def test_a_changed_catalog_is_in_force_without_a_restart(hub, release):
    hub.add_user("fay")
    hub_pod = hub.kubectl("get", "pods", "--selector=component=hub", "--output=name")
    service = release.service_pod()
    session = hub.login("fay")
    assert "Quick look" not in offered(hub, session)
    release.catalog = release.catalog.replace("policies:", "  look: {extends: lab, title: Quick look}\npolicies:")
    done = release.run("upgrade")
    assert done.returncode == 0, done.stderr
    eventually(lambda: "Quick look" in offered(hub, session), 150, "the hub's form has the new template")
    hub.add_user("dan")
    # The pod of the service gets it a while before or after the hub's: until then it refuses.
    known = eventually(lambda: hub.begin("dan", template="look") and hub.lease("dan"), 150, "the service knows it")
    assert known["request"]["template"] == "look"
    hub.stop("dan")
    again = release.service_pod()
    assert (again.metadata.uid, again.status.container_statuses[0].restart_count) == (service.metadata.uid, 0)
    assert hub.kubectl("get", "pods", "--selector=component=hub", "--output=name") == hub_pod


def test_a_wrong_catalog_changes_nothing_and_helm_tells_what_is_wrong(hub, release):
    good, before = release.catalog, release.service_pod().metadata.uid
    release.catalog = good.replace("gpus: {a100: 1-2}", "gpus: {b200: 1-2}")
    done = release.run("upgrade")
    release.catalog = good
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "gpuspawner-check" in said
    assert "templates.lab.gpus" in said, f"what the Job found: {said}"
    held = release.cluster.core.read_namespaced_config_map(f"{NAME}-catalog", release.namespace)
    assert "b200" not in held.data["catalog.yaml"]
    assert release.service_pod().metadata.uid == before
    done = release.run("upgrade")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_pages_commands_back_up_and_restore_and_what_began_since_is_adopted(hub, release, tmp_path):
    page = pages.section(pages.page("how-to/administrators/back-up"), "With the chart")
    take, *put_back = pages.commands(page)
    (pod,) = pages.blocks(page, "yaml")
    pod = pod.replace(
        f"registry.example.org/ml/service:{__version__}", f"{release.image}\n      imagePullPolicy: Never"
    )
    (tmp_path / "restore.yaml").write_text(pod)
    before = kept(hub)
    release.typed(take, tmp_path)
    begin(hub, "gus", "cpu")
    later = hub.until("gus", "running", WAIT_SECONDS)
    said = "".join(release.typed(line, tmp_path) for line in put_back)
    assert "Workspaces that run are adopted" in said
    eventually(lambda: hub.gpu("/"), 90, "the service answers behind its hub")
    eventually(lambda: kept(hub) == before, 60, f"all of it is as it was: {before}")
    assert hub.until("gus", "running", 60)["id"] == later["id"], "rebuilt from its pod"
    hub.stop("gus")


def output_of_a_failure(hub, before):
    """Return the output that the user `fails` reads of a server that failed since ``before``."""
    begin(hub, "fails", "cpu")
    ended = eventually(lambda: (end := hub.last_end("fails"))["id"] != before and end, WAIT_SECONDS, "it fails")
    token = hub.api("POST", "/users/fails/tokens", {}).json()["token"]
    path = f"/workspaces/{ended['id']}/output"
    return ended["id"], str(eventually(lambda: hub.gpu(path, token=token), 30, "its output is kept"))


def may_read_output(hub):
    """Whether the API server lets the hub do so now: rights take a moment to be in force."""
    account = f"--as=system:serviceaccount:{hub.namespace}:hub"
    try:
        return hub.kubectl("auth", "can-i", "get", "pods", "--subresource=log", account).strip() == "yes"
    except StepError:
        return False


@pytest.mark.slow
def test_without_the_right_to_read_output_its_user_is_told_so(hub, release):
    before, text = output_of_a_failure(hub, "")
    assert "told by the server" in text
    assert "no right to read it" not in text
    release.values["hub"]["rights"]["output"] = False
    done = release.run("upgrade")
    assert done.returncode == 0, done.stderr
    eventually(lambda: not may_read_output(hub), 60, "the right is gone")
    assert "no right to read it" in output_of_a_failure(hub, before)[1]


@pytest.fixture
def kinds_of_others(one_machine):
    """Install the kinds of the Gateway API and of the Prometheus Operator, from their own definitions."""
    kubectl, files = one_machine.own.kubectl, []
    for component in OTHERS_KINDS:
        folder = ensure_component(component).parent
        files += [f"--filename={folder / Path(name).name}" for name in component.data]
    try:
        kubectl("apply", "--server-side", *files)
        kubectl("wait", "--for=condition=Established", "--timeout=60s", *files)
        yield
    finally:
        kubectl("delete", "--ignore-not-found", *files)


WAYS_IN = {
    "cluster-ip": {"enabled": True, "ingress": {"enabled": True}},
    "node-port": {
        "enabled": True,
        "service": {"type": "NodePort", "nodePort": 30080, "annotations": {"example.org/a": "b"}},
        "ingress": {"enabled": True, "className": "public", "hosts": ["hub.example.org"], "tlsSecret": "tls"},
    },
    "load-balancer": {
        "enabled": True,
        "service": {"type": "LoadBalancer", "nodePort": 30081, "sourceRanges": ["192.0.2.0/24", "2001:db8::/32"]},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}], "hosts": ["a.b"]},
    },
}


@pytest.mark.slow
def test_the_api_server_takes_all_that_is_rendered_by_each_way_in(release, hub, kinds_of_others):
    every = {
        "hub": {**release.values["hub"], "rights": {"kubespawner": True, "output": True}},
        "priorityClass": {"create": True, "name": f"{release.namespace}-workspace"},
        "prePuller": {"enabled": True},
        "monitoring": {
            "dashboards": {"enabled": True},
            "rules": {"enabled": True},
            "serviceMonitor": {"enabled": True, "tokenSecret": "prometheus"},
        },
    }
    before, catalog = release.values, release.catalog
    release.catalog = catalog.replace("title: Lab", "title: Lab\n    image: registry.example.org/lab:1")
    kinds = set()
    for expose in WAYS_IN.values():
        release.values = {**before, **every, "expose": expose}
        rendered = release.run("template")
        assert rendered.returncode == 0, rendered.stderr
        kinds |= {part["kind"] for part in yaml.safe_load_all(rendered.stdout) if part}
        said = hub.kubectl("apply", "--dry-run=server", "--filename=-", given=rendered.stdout)
        assert all(line.endswith("(server dry run)") for line in said.splitlines())
    release.values, release.catalog = before, catalog
    templates = "".join(file.read_text() for file in (CHART / "templates").glob("*.yaml"))
    made = set(re.findall(r"^kind: (.*)", templates, re.MULTILINE))
    assert kinds == made, "each kind that the chart can make"


@pytest.mark.slow
def test_uninstalling_lets_requests_go_and_leaves_nothing_of_it_and_a_hub_that_works(release, hub, tmp_path):
    pod, kubectl = hub.pod("ada").metadata.uid, Typed(release.cluster, release.namespace)

    def held():
        return kubectl("get", "devgpuvmrequests", "--output=jsonpath={.items[*].metadata.finalizers}")

    with installed(release.cluster, tmp_path):
        release.values = {**release.values, "customResources": {"enabled": True}, "keepOnUninstall": False}
        upgraded = release.run("upgrade")
        assert upgraded.returncode == 0, upgraded.stderr
        eventually(held, WAIT_SECONDS, "ada's workspace has a request, which is kept until it has ended")
        hub.values = {}
        hub.start()  # with the values taken out
        release.helm("uninstall", NAME, f"--namespace={release.namespace}", "--wait", "--timeout=120s")
        assert kubectl("get", "devgpuvmrequests", "--output=name").strip(), "it stays"
        assert held() == "", "and may be deleted"
    eventually(lambda: not release.left(), 60, "nothing is left")
    assert hub.pod("ada").metadata.uid == pod, "who had a workspace has it"
    assert hub.stop("ada").status_code in {202, 204}
    eventually(lambda: hub.pod("ada") is None, 60, "the hub ends it")
    hub.add_user("eve", "fay")
    assert hub.api("POST", "/users/eve/server").status_code in {201, 202}
    eventually(lambda: hub.server("eve")["ready"], WAIT_SECONDS, "a server of the hub's own starts")
    page = hub.login("fay").get(f"{hub.url}/hub/home", timeout=20)
    assert "gpuspawner" not in page.text
    assert requests.get(f"{hub.url}/services/gpu/", timeout=20).status_code == 404
