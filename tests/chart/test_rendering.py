"""The chart as it is rendered: every value changes something, and what is made is restricted."""

import json

import pytest
import yaml
from harness.command_lines import read_command
from rendered import CHART, ROOT

from gpuspawner import __version__
from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.resources.definitions import API_GROUP, API_VERSION, KINDS, POLICY, REQUESTS, USERS
from gpuspawner.service.loops import ALIVE
from tools import chart_schema
from tools.progress import StepError

MONITOR = {"monitoring.serviceMonitor.enabled": True, "monitoring.serviceMonitor.tokenSecret": "prometheus"}
EXPOSED = {"expose.enabled": True}
INGRESS = {**EXPOSED, "expose.ingress.enabled": True}
ROUTE = {**EXPOSED, "expose.httpRoute.enabled": True, "expose.httpRoute.parentRefs": [{"name": "public"}]}
PULLER = {"prePuller.enabled": True}
OTHERS = {
    "hub.url": "http://other:8081/hub/api",
    "hub.baseUrl": "/other-prefix/",
    "hub.publicUrl": "https://public.example.org",
    "hub.servicePublicUrl": "https://gpu--service.public.example.org",
    "hub.podLabels": {"app": "other-hub"},
    "hub.proxyPodLabels": {"app": "other-proxy"},
    "hub.serviceAccount.name": "other-account",
    "hub.serviceAccount.namespace": "other-namespace",
    "workspaces.namespace": "gpu-workspaces",
    "workspaces.podLabels": {"app": "other-workspace"},
    "workspaces.podNamePrefix": "other-pods-",
    "cluster": {"placement": "required"},
    "settings": {"keep_ended_seconds": 61234},
    "existingSecret": "other-secret",
    "clusterSecret": "gpu-clusters",
    "store.postgresql.url": "postgresql://gpu@db/gpu",
    "store.postgresql.existingSecret": "gpu-store",
    "store.postgresql.secretKey": "other-key",
    "persistence.existingClaim": "other-claim",
    "persistence.size": "7077Gi",
    "persistence.storageClass": "other-storage",
    "persistence.accessModes": ["ReadWriteOncePod"],
    "rights.serviceAccount": "other-rights",
    "customResources.resources": {"limits": {"memory": "1234Gi"}},
    "image.name": "registry.example.org/service",
    "image.tag": "9.8.7",
    "image.digest": "sha256:4f2a",
    "image.pullPolicy": "Always",
    "image.pullSecrets": ["other-registry"],
    "resources": {"limits": {"memory": "2022Gi"}},
    "nodeSelector": {"pool": "other-nodes"},
    "tolerations": [{"key": "other-toleration"}],
    "priorityClassName": "other-priority",
    "podAnnotations": {"example.org/a": "of-pods"},
    "expose.service.type": "NodePort",
    "expose.service.targetPort": 8443,
    "expose.service.nodePort": 30080,
    "expose.service.sourceRanges": ["192.0.2.0/24"],
    "expose.service.annotations": {"example.org/a": "of-a-service"},
    "expose.ingress.className": "other-class",
    "expose.ingress.hosts": ["ingress.example.org"],
    "expose.ingress.tlsSecret": "hub-tls",
    "expose.ingress.annotations": {"example.org/a": "of-an-ingress"},
    "expose.httpRoute.parentRefs": [{"name": "other-gateway"}],
    "expose.httpRoute.hosts": ["route.example.org"],
    "expose.httpRoute.annotations": {"example.org/a": "of-a-route"},
    "networkPolicy.ingress": [{"ports": [{"port": 12345}]}],
    "networkPolicy.egress": [{"ports": [{"port": 25025}]}],
    "priorityClass.name": "other-class-of-priority",
    "priorityClass.value": -4711,
    "prePuller.nodeSelector": {"pool": "other-gpus"},
    "prePuller.tolerations": [{"key": "toleration-of-puller"}],
    "monitoring.serviceMonitor.labels": {"release": "of-monitor"},
    "monitoring.serviceMonitor.interval": "1517s",
    "monitoring.serviceMonitor.tokenSecret": "other-token",
    "monitoring.serviceMonitor.podLabels": {"app": "other-prometheus"},
    "monitoring.rules.labels": {"release": "of-rules"},
    "monitoring.dashboards.labels": {"grafana": "of-dashboards"},
    "fullnameOverride": "other-name",
}
"""For each value that is no switch, a text or number that stands nowhere else in what is rendered."""
WITH = {
    "customResources.ownProcess": {"customResources.enabled": True},
    "customResources.edit": {"customResources.enabled": True},
    "customResources.resources": {"customResources.enabled": True, "customResources.ownProcess": True},
    "expose.ingress.enabled": EXPOSED,
    "expose.httpRoute.enabled": ROUTE,
    "monitoring.serviceMonitor.": MONITOR,
}
"""Settings that a switch needs to have an effect, by the beginning of the switch's path."""
DEFAULTS = yaml.safe_load(chart_schema.VALUES.read_text())
VALUES = dict(chart_schema.paths(chart_schema.schema()))
SETTABLE = sorted(VALUES.keys() - {"catalog", "global", "replicas"})
"""Tests of their own cover the catalog and the replicas."""
EVERYTHING = {
    "hub.rights.kubespawner": True,
    "hub.rights.output": True,
    **INGRESS,
    **ROUTE,
    **PULLER,
    **MONITOR,
    "monitoring.rules.enabled": True,
    "monitoring.dashboards.enabled": True,
    "customResources.enabled": True,
    "customResources.ownProcess": True,
    "keepOnUninstall": False,
}


def default(path):
    found = DEFAULTS
    for key in path.split("."):
        found = found[key]
    return found


def test_the_chart_has_the_packages_version(chart):
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (__version__, __version__)


def test_the_schema_is_what_values_and_models_make(chart):
    assert chart_schema.SCHEMA.read_text() == chart_schema.text(), "run: python -m tools.chart_schema"
    assert [path for path, one in VALUES.items() if path != "global" and not one.get("description")] == []


def test_lint_finds_nothing(chart):
    chart.helm("lint", "--strict", CHART, f"--set-file=catalog={chart.catalog}")


@pytest.mark.parametrize("path", [path for path in SETTABLE if isinstance(default(path), bool)])
def test_each_switch_changes_what_is_rendered(chart, path):
    beside = next((more for beginning, more in WITH.items() if path.startswith(beginning)), {})
    on, off = ({**beside, path: value} for value in (True, False))
    assert chart.text(on) != chart.text(off)


def test_each_value_is_rendered(chart):
    """A claim of one's own needs neither a size nor a database, so three renderings show all values."""
    assert OTHERS.keys() == {path for path in SETTABLE if not isinstance(default(path), bool)}
    base = {**EVERYTHING, "rights.create": False}
    files = {path: value for path, value in OTHERS.items() if not path.startswith("store.")}
    claim = {path: value for path, value in files.items() if path != "persistence.existingClaim"}
    before, *after = (chart.text({**base, **values}) for values in ({}, OTHERS, files, claim))
    tokens = {path: [str(leaf) for leaf in leaves(value)] for path, value in OTHERS.items()}
    assert len({token for found in tokens.values() for token in found}) == len(OTHERS), (
        "each value has one token of its own"
    )
    assert [path for path, (token,) in tokens.items() if token in before] == []
    assert [path for path, (token,) in tokens.items() if not any(token in text for text in after)] == []


def leaves(value):
    """Return the texts and numbers in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if inner is None else [leaf for one in inner for leaf in leaves(one)]


def test_ingress_and_route_lead_to_the_proxy_under_the_hubs_prefix_where_the_hub_is(chart):
    values = {**INGRESS, **ROUTE, "hub.baseUrl": "/jupyter/", "hub.serviceAccount.namespace": "hub"}
    made = chart.objects({**values, "expose.service.type": "LoadBalancer", "expose.ingress.hosts": ["a.example.org"]})
    service, ingress, route = (made[kind, "gpuspawner-hub"] for kind in ("Service", "Ingress", "HTTPRoute"))
    assert {one["metadata"]["namespace"] for one in (service, ingress, route)} == {"hub"}
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["selector"] == {"app": "jupyterhub", "component": "proxy"}
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": 8000}], "SSH needs no other"
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("a.example.org", "/jupyter/")
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    (rule,) = route["spec"]["rules"]
    assert rule["matches"][0]["path"]["value"] == "/jupyter/"
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": 80}]
    assert rule["timeouts"] == {"request": "0s"}, "what lasts is not cut"
    assert ("Service", "gpuspawner-hub") not in chart.objects()


def test_rendering_again_changes_nothing_so_no_secret_is_made_again(chart):
    assert chart.text(EVERYTHING) == chart.text(EVERYTHING)
    assert [name for kind, name in chart.objects(EVERYTHING) if kind == "Secret"] == ["gpuspawner-settings"]


def test_on_postgresql_there_is_no_claim_and_a_second_service_may_be_standby(chart):
    url = "postgresql://gpu@db.example.org:5433/gpu?sslmode=verify-full"
    made = chart.objects({"store.postgresql.url": url, "store.postgresql.existingSecret": "gpu-store", "replicas": 2})
    assert [name for kind, name in made if kind == "PersistentVolumeClaim"] == []
    deployment = made["Deployment", "gpuspawner"]["spec"]
    pod = deployment["template"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]["rollingUpdate"]["maxUnavailable"]) == (2, "100%")
    assert {f"--store={url}", "--store-password-file=/etc/gpuspawner/store/password"} <= set(
        pod["containers"][0]["args"]
    )
    volumes = {one.pop("name"): one for one in pod["volumes"]}
    secret = {"secretName": "gpu-store", "defaultMode": 0o440, "items": [{"key": "password", "path": "password"}]}
    assert volumes["store"]["secret"] == secret
    assert volumes["data"] == {"emptyDir": {}}
    allowed = [rule["ports"] for rule in made["NetworkPolicy", "gpuspawner"]["spec"]["egress"] if "to" not in rule]
    assert [{"port": 5433}] in allowed
    with pytest.raises(StepError):
        chart.text({"replicas": 2})
    with pytest.raises(StepError):
        chart.text({"store.postgresql.url": "postgresql://gpu:geheim@db/gpu"})


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("postgresql://gpu@db/gpu", [5432]),
        ("postgresql://gpu@db:5433?sslmode=require", [5433]),
        ("postgres://gpu@one:5433,two:5434,three/gpu?target_session_attrs=any", [5433, 5434, 5432]),
        ("postgresql://one:5433,two:5433/gpu", [5433]),
        ("postgresql://gpu@[2001:db8::5]/gpu", [5432]),
        ("postgresql:///gpu?host=one,two&port=5433,5434&sslmode=require", [5433, 5434]),
    ],
)
def test_the_service_reaches_each_server_that_its_store_s_address_names(chart, url, ports):
    policy = chart.objects({"store.postgresql.url": url})["NetworkPolicy", "gpuspawner"]
    allowed = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]
    assert allowed[0] == [{"port": port} for port in ports]


def test_kept_objects_are_neither_removed_nor_removable(chart):
    removed, kept = chart.objects({"keepOnUninstall": False}), chart.objects()
    assert removed["Job", "gpuspawner-secret-remove"]["metadata"]["annotations"]["helm.sh/hook"] == "post-delete"
    assert ("Job", "gpuspawner-secret-remove") not in kept
    assert [rule["verbs"] for rule in kept["Role", "gpuspawner-secret"]["rules"]] == [["create"]]
    annotations = kept["PersistentVolumeClaim", "gpuspawner-data"]["metadata"]["annotations"]
    assert annotations == {"helm.sh/resource-policy": "keep"}
    own = chart.objects({"existingSecret": "ours", "persistence.existingClaim": "ours"})
    assert not {name for kind, name in own if kind in {"Job", "PersistentVolumeClaim"}} - {"gpuspawner-check"}


def test_the_services_rights_are_those_that_hub_config_explains_and_tests_take_away(chart):
    text = (ROOT / "hub_config" / "kubernetes-service-rbac.yaml").read_text()
    explained = {part["kind"]: part for part in yaml.safe_load_all(text)}
    rendered = chart.objects({"workspaces.namespace": "gpu-workspaces"})
    cluster, role = rendered["ClusterRole", "jhub-gpuspawner"], rendered["Role", "gpuspawner"]
    assert cluster["rules"] == explained["ClusterRole"]["rules"]
    assert role["rules"] == explained["Role"]["rules"]
    assert role["metadata"]["namespace"] == explained["Role"]["metadata"]["namespace"]


def test_the_services_rights_on_kueue_are_those_that_hub_config_explains_and_are_given_on_asking(chart):
    text = (ROOT / "hub_config" / "kubernetes-kueue-rbac.yaml").read_text()
    explained = {part["kind"]: part["rules"] for part in yaml.safe_load_all(text) if "rules" in part}
    without, rendered = (chart.objects({"rights.kueue": kueue}) for kueue in (False, True))
    for kind, name in (("ClusterRole", "jhub-gpuspawner"), ("Role", "gpuspawner")):
        more = [rule for rule in rendered[kind, name]["rules"] if rule not in without[kind, name]["rules"]]
        assert more == explained[kind]


@pytest.mark.parametrize("prefix", ["h", "hub-", "pro"])
def test_a_beginning_of_names_that_hub_or_proxy_have_too_is_refused(chart, prefix):
    values = {"workspaces.podNamePrefix": prefix}
    with pytest.raises(StepError, match=f"podNamePrefix: {prefix} is also the beginning of"):
        chart.text(values)
    assert chart.text({**values, "workspaces.namespace": "gpu-workspaces"}), "no such pod is there"
    assert chart.text({"workspaces.podNamePrefix": f"{prefix}workspace-"})


def test_the_policy_bounds_workloads_where_the_service_may_change_them(chart):
    def rendered(kueue):
        policy = chart.objects({"rights.kueue": kueue})["ValidatingAdmissionPolicy", "jhub-gpuspawner-workspaces-only"]
        spec = policy["spec"]
        of_kueue = [one for one in spec["matchConstraints"]["resourceRules"] if one["apiGroups"] == ["kueue.x-k8s.io"]]
        return of_kueue, [one["message"] for one in spec["validations"]]

    (rule,), messages = rendered(kueue=True)
    assert (rule["resources"], rule["operations"]) == (["workloads", "workloads/status"], ["UPDATE", "DELETE"])
    without, fewer = rendered(kueue=False)
    assert (without, [one for one in messages if one not in fewer]) == (
        [],
        ["the GPU service may change Workloads of workspaces alone, and not which hub they are of"],
    )


def test_the_right_to_see_podgroups_is_the_one_that_hub_config_explains_and_is_given_on_asking(chart):
    text = (ROOT / "hub_config" / "kubernetes-podgroups-rbac.yaml").read_text()
    (explained,) = (part["rules"] for part in yaml.safe_load_all(text) if "rules" in part)
    without, rendered = (chart.objects({"rights.podGroups": given}) for given in (False, True))
    before = without["Role", "gpuspawner"]["rules"]
    assert [rule for rule in rendered["Role", "gpuspawner"]["rules"] if rule not in before] == explained


def test_rights_on_claims_are_those_that_hub_config_explains_and_are_given_on_asking(chart):
    text = (ROOT / "hub_config" / "kubernetes-claims-rbac.yaml").read_text()
    explained = {part["kind"]: part["rules"] for part in yaml.safe_load_all(text) if "rules" in part}
    without, rendered = (chart.objects({"rights.claims": claims}) for claims in (False, True))
    cluster = rendered["ClusterRole", "jhub-gpuspawner"]["rules"]
    before = without["ClusterRole", "jhub-gpuspawner"]["rules"]
    assert [rule for rule in cluster if rule not in before] == explained["ClusterRole"]
    assert rendered["Role", "gpuspawner-hub"]["rules"] == explained["Role"]
    assert "claims: true" in rendered["Secret", "gpuspawner-settings"]["stringData"]["cluster.yaml"]
    assert rendered["Role", "gpuspawner"]["rules"] == without["Role", "gpuspawner"]["rules"]


def test_custom_resources_bring_their_rights_and_no_others(chart):
    rendered = chart.objects({"customResources.enabled": True})
    assert "custom_resources: jhub" in rendered["Secret", "gpuspawner-settings"]["stringData"]["cluster.yaml"]
    own, kinds = ("gpuspawner-requests", "gpuspawner-entries"), ("Role", "ClusterRole")
    roles = {
        (kind, name): rendered[kind, f"{'jhub-' * (kind != 'Role')}{name}"]["rules"] for kind in kinds for name in own
    }
    assert {"apiGroups": [API_GROUP], "resources": [USERS], "verbs": ["use"]} in roles["Role", own[0]]
    definitions = [f"{kind.plural}.{API_GROUP}" for kind in KINDS]
    cluster = roles["ClusterRole", own[0]]
    assert [rule["resourceNames"] for rule in cluster] == [definitions[:1], ["jhub"], [POLICY]]
    read, namespace, *of_cluster = roles["ClusterRole", own[1]]
    assert [read["resourceNames"], namespace["resourceNames"]] == [definitions[1:], ["jhub"]]
    (wide,) = (kind.plural for kind in KINDS if kind.cluster_wide)
    assert [(rule["resources"], rule["verbs"]) for rule in of_cluster] == [
        ([wide], ["list", "watch"]),
        ([f"{wide}/status"], ["patch"]),
    ]
    rules = roles["Role", own[1]]
    entries = [kind.plural for kind in KINDS[1:] if not kind.cluster_wide]
    assert {"apiGroups": [API_GROUP], "resources": entries, "verbs": ["list", "watch"]} in rules
    edited = chart.objects({"customResources.enabled": True, "customResources.edit": True})
    first, verbs = edited["Role", own[1]]["rules"][0], ["list", "watch", "create", "patch", "delete"]
    assert first == {"apiGroups": [API_GROUP], "resources": entries, "verbs": verbs}
    told = [f"{name}/status" for name in entries]
    assert {"apiGroups": [API_GROUP], "resources": told, "verbs": ["patch"]} in rules
    verbs = {verb for rule in [*cluster, read, namespace] for verb in rule["verbs"]}
    assert verbs == {"get"}
    assert ("Role", "gpuspawner-requests") not in chart.objects()
    values = {"customResources.enabled": True, "customResources.ownProcess": True, "settings": {"log_format": "json"}}
    apart = chart.objects(values)
    assert "operated_elsewhere: true" in apart["Secret", "gpuspawner-settings"]["stringData"]["cluster.yaml"]
    bound = {name: apart["RoleBinding", name]["subjects"][0]["name"] for name in own}
    assert bound == {own[0]: "gpuspawner-operator", own[1]: "gpuspawner"}, "the service has no right to requests"
    (container,) = apart["Deployment", "gpuspawner-operator"]["spec"]["template"]["spec"]["containers"]
    asked = read_command(container["args"][1:])
    assert (asked.command_path, asked.params["listen"]) == ("gpuspawner kube operate", "0.0.0.0:9471")
    assert asked.params["log_format"] == "json"
    (service,) = apart["Deployment", "gpuspawner"]["spec"]["template"]["spec"]["containers"]
    for probed in (container, service):
        assert probed["livenessProbe"]["httpGet"]["path"] == ALIVE, "they are ended where they do not converge"


def test_requests_lose_their_finalizers_once_the_service_and_its_rights_are_gone(chart):
    rendered = chart.objects({"customResources.enabled": True})
    parts = [rendered[kind, "gpuspawner-finalizers"] for kind in ("ServiceAccount", "Role", "RoleBinding", "Job")]
    assert {part["metadata"]["annotations"]["helm.sh/hook"] for part in parts} == {"post-delete"}
    _, role, _, job = parts
    assert role["rules"] == [
        {"apiGroups": [API_GROUP], "resources": [REQUESTS], "verbs": ["list", "patch"]},
        {"apiGroups": [API_GROUP], "resources": [USERS], "verbs": ["use"]},
    ]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    asked = read_command(container["args"][1:])
    options = {name: asked.params[name] for name in ("release_finalizers", "namespace", "yes")}
    assert asked.command_path == "gpuspawner kube crd"
    assert options == {"release_finalizers": True, "namespace": "jhub", "yes": True}
    for values in ({}, {"customResources.enabled": True, "rights.create": False, "rights.serviceAccount": "own"}):
        assert ("Job", "gpuspawner-finalizers") not in chart.objects(values)
    off = chart.objects({}, f"--api-versions={API_GROUP}/{API_VERSION}")
    assert off["Job", "gpuspawner-finalizers"]["metadata"]["annotations"]["helm.sh/hook"] == "post-upgrade"


def test_a_hub_without_a_chart_gets_the_rights_that_hub_config_explains(chart):
    parts = yaml.safe_load_all((ROOT / "hub_config" / "kubernetes-hub.yaml").read_text())
    explained = {part["kind"]: part for part in parts}
    rendered = chart.objects({"hub.rights.kubespawner": True})
    assert rendered["Role", "gpuspawner-hub"]["rules"] == explained["Role"]["rules"]
    (subject,) = rendered["RoleBinding", "gpuspawner-hub"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "hub", "namespace": "jhub"}
    made = rendered["PriorityClass", "gpu-workspace"]
    assert {key: made[key] for key in explained["PriorityClass"] if key != "metadata"} == {
        key: value for key, value in explained["PriorityClass"].items() if key != "metadata"
    }
    output = chart.objects({"hub.rights.output": True})["Role", "gpuspawner-hub"]["rules"]
    assert output == [{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}]
    assert ("Role", "gpuspawner-hub") not in chart.objects()


def test_every_pod_is_restricted_and_follows_folders(chart):
    pods = pod_specs(chart.objects(EVERYTHING))
    assert len(pods) == 7, "service, operator, check, secret made and removed, finalizers, images"
    for pod in pods:
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert all("subPath" not in mount for mount in container.get("volumeMounts", []))


def pod_specs(objects):
    return [one["spec"]["template"]["spec"] for one in objects.values() if "template" in one.get("spec", {})]


def test_the_catalog_is_the_same_as_text_and_as_values(chart):
    written = load_catalog(chart.catalog)
    for catalog in (chart.catalog.read_text(), yaml.safe_load(chart.catalog.read_text())):
        data = chart.objects({"catalog": catalog})["ConfigMap", "gpuspawner-catalog"]["data"]
        assert load_catalog(yaml.safe_load(data["catalog.yaml"])) == written


def test_the_image_puller_has_the_images_of_the_templates(chart):
    for catalog in (chart.catalog.read_text(), yaml.safe_load(chart.catalog.read_text())):
        pulled = chart.objects({"catalog": catalog, **PULLER})["DaemonSet", "gpuspawner-images"]
        images = [one["image"] for one in pulled["spec"]["template"]["spec"]["containers"]]
        assert images == ["quay.io/jupyter/pytorch-notebook:cuda12-latest"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        pytest.param({"catalog": {}}, "gpuspawner server init", id="no catalog"),
        pytest.param({"catalog": {"templatse": {}}}, "additional properties 'templatse'", id="catalog key"),
        pytest.param({"catalog": {"templates": {"a": "b"}}}, "/catalog/templates/a", id="catalog shape"),
        pytest.param({"hub.address": "x"}, "additional properties 'address'", id="value"),
        pytest.param({"settings": {"log_format": "xml"}}, "/settings/log_format", id="form of the log"),
        pytest.param({"settings": {"log_fromat": "json"}}, "additional properties 'log_fromat'", id="setting"),
        pytest.param({"image.pullPolicy": "Sometimes"}, "'IfNotPresent'", id="choice"),
        pytest.param({"persistence.size": "lots"}, "/persistence/size", id="size"),
        pytest.param({**MONITOR, "monitoring.serviceMonitor.interval": "soon"}, "/interval", id="time"),
        pytest.param({**ROUTE, "expose.httpRoute.parentRefs": []}, "Name the Gateway", id="no gateway"),
        pytest.param({"expose.service.type": "External"}, "'NodePort'", id="type of Service"),
    ],
)
def test_invalid_values_are_reported_before_any_object_is_made(chart, values, told):
    with pytest.raises(StepError, match="helm template") as refused:
        chart.text(values)
    assert told in str(refused.value)


def test_the_schema_takes_what_the_catalog_takes(chart):
    catalog = yaml.safe_load((ROOT / "hub_config" / "catalog.yaml").read_text())
    config = {
        "driver": "gpu.nvidia.com",
        "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"},
    }
    catalog["gpus"]["claimed"] = {"memory": "80GiB", "claim": {"device_class": "gpu.nvidia.com", "config": [config]}}
    chart.text({"catalog": catalog})
    assert json.loads(chart_schema.SCHEMA.read_text())["$defs"]["Template"]["additionalProperties"] is False


def test_metrics_that_name_people_are_scraped_where_that_is_asked_for(chart):
    for people, paths in (
        (False, ["/services/gpu/metrics"]),
        (True, ["/services/gpu/metrics", "/services/gpu/metrics/people"]),
    ):
        made = chart.objects({**MONITOR, "monitoring.serviceMonitor.people": people})["ServiceMonitor", "gpuspawner"]
        assert [one["path"] for one in made["spec"]["endpoints"]] == paths


@pytest.mark.parametrize("existing", ["", "ours"])
def test_prometheus_gets_a_token_of_its_own_without_handwork(chart, existing):
    made = chart.objects({"monitoring.serviceMonitor.enabled": True, "existingSecret": existing})
    job = made["Job", "gpuspawner-secret-make"]["spec"]["template"]["spec"]["containers"][0]
    shared = [] if existing else ["gpuspawner-secret"]
    assert job["args"] == ["gpuspawner", "kube", "secret", "make", *shared, "gpuspawner-metrics"]
    (endpoint,) = made["ServiceMonitor", "gpuspawner"]["spec"]["endpoints"]
    credentials = {"name": "gpuspawner-metrics", "key": "secret"}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": credentials}
    pod = made["Deployment", "gpuspawner"]["spec"]["template"]["spec"]
    assert "--metrics-token-file=/etc/gpuspawner/metrics/secret" in pod["containers"][0]["args"]
    assert {"name": "metrics", "secret": {"secretName": "gpuspawner-metrics"}} in pod["volumes"]
    prometheus = made["NetworkPolicy", "gpuspawner"]["spec"]["ingress"][-1]["from"][0]
    assert prometheus["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}


def test_a_token_of_prometheus_goes_with_the_release_where_nothing_is_kept(chart):
    made = chart.objects({"monitoring.serviceMonitor.enabled": True, "keepOnUninstall": False})
    both = ["gpuspawner-secret", "gpuspawner-metrics"]
    assert made["Job", "gpuspawner-secret-remove"]["spec"]["template"]["spec"]["containers"][0]["args"][4:] == both
    assert made["Role", "gpuspawner-secret"]["rules"][1]["resourceNames"] == both


def test_without_a_token_to_make_and_with_a_secret_that_is_there_no_job_runs(chart):
    made = chart.objects({**MONITOR, "existingSecret": "ours"})
    assert ("Job", "gpuspawner-secret-make") not in made
    (endpoint,) = made["ServiceMonitor", "gpuspawner"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "prometheus", "key": "token"}


def test_a_drained_node_waits_neither_for_the_active_service_nor_for_the_standby(chart):
    """A disruption budget would count the standby as missing, as it is never ready, and let no pod go."""
    with_standby = chart.objects({"replicas": 2, "store.postgresql.url": "postgresql://gpu@db/gpu"})
    assert "PodDisruptionBudget" not in {kind for kind, _ in with_standby}


def test_the_operators_process_has_a_memory_limit_and_is_ready_after_a_round(chart):
    own = chart.objects({"customResources.enabled": True, "customResources.ownProcess": True})
    (container,) = own["Deployment", "gpuspawner-operator"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "512Mi"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
