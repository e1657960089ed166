"""The chart that holds both, with a stand-in for Zero to JupyterHub's where its source is not at hand."""

import pytest
import yaml
from rendered import CHART, UMBRELLA, Z2JH, with_dependencies

from gpuspawner import __version__
from tools import chart_umbrella

SHOWS_ITS_VALUES = """
apiVersion: v1
kind: ConfigMap
metadata: {name: hub}
data:
  values.yaml: |
    {{- toYaml .Values | nindent 4 }}
"""


@pytest.fixture
def both(tmp_path):
    made = with_dependencies(tmp_path)
    if not Z2JH:
        (made / "charts" / "jupyterhub" / "templates" / "hub.yaml").write_text(SHOWS_ITS_VALUES)
    return made


def objects(chart, both, *arguments):
    text = chart.helm(
        "template", "jhub", both, "--namespace=jhub", f"--set-file=gpuspawner.catalog={chart.catalog}", *arguments
    )
    return {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(text) if part}


def test_its_values_are_what_the_command_prints_and_its_version_the_packages():
    assert chart_umbrella.VALUES.read_text() == chart_umbrella.text(), "run: python -m tools.chart_umbrella"
    about = yaml.safe_load((UMBRELLA / "Chart.yaml").read_text())
    ours = next(one for one in about["dependencies"] if one["name"] == "gpuspawner")
    assert {about["version"], about["appVersion"], ours["version"]} == {__version__}
    assert ours["repository"] == "file://../gpuspawner"
    assert (CHART / "Chart.yaml").exists()


def test_hub_and_service_name_the_same_objects(chart, both):
    found = objects(chart, both)
    assert {("Deployment", "gpuspawner"), ("Service", "gpuspawner"), ("ConfigMap", "gpuspawner-catalog")} <= set(found)
    if Z2JH:
        pod = found["Deployment", "hub"]["spec"]["template"]["spec"]
        mounted = {one["name"]: one for one in pod["volumes"]}
    else:
        values = yaml.safe_load(found["ConfigMap", "hub"]["data"]["values.yaml"])
        mounted = {one["name"]: one for one in values["hub"]["extraVolumes"]}
        assert 'service_url="http://gpuspawner:9470"' in values["hub"]["extraConfig"]["zz-gpuspawner"]
    assert mounted["gpuspawner-catalog"]["configMap"] == {"name": "gpuspawner-catalog"}
    made = found["Job", "gpuspawner-secret-make"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert mounted["gpuspawner-secret"]["secret"] == {"secretName": made[-1]}
    assert (
        f"--hub={'http://hub:8081/hub/api'}"
        in (found["Deployment", "gpuspawner"]["spec"]["template"]["spec"]["containers"][0]["args"])
    )


def test_the_image_of_ones_own_registry_is_the_services_and_brings_the_package(chart, both):
    (both / "values.yaml").write_text(chart_umbrella.text("registry:5000/ml/service:1"))
    found = objects(chart, both)
    (service,) = found["Deployment", "gpuspawner"]["spec"]["template"]["spec"]["containers"]
    if Z2JH:
        brings = found["Deployment", "hub"]["spec"]["template"]["spec"]["initContainers"]
    else:
        brings = yaml.safe_load(found["ConfigMap", "hub"]["data"]["values.yaml"])["hub"]["initContainers"]
    (package,) = [one for one in brings if one["name"] == "gpuspawner-package"]
    assert service["image"] == package["image"] == "registry:5000/ml/service:1"


def test_lint_finds_nothing(chart, both):
    if Z2JH:
        pytest.skip("helm lint needs fields that the source of JupyterHub's chart gets only at its release")
    chart.helm("lint", "--strict", both, f"--set-file=gpuspawner.catalog={chart.catalog}")


def test_without_a_hub_of_its_own_it_is_the_service_alone(chart, both):
    found = objects(chart, both, "--set=jupyterhub.enabled=false")
    assert ("Deployment", "gpuspawner") in found
    own = ("gpuspawner", "jhub-gpuspawner", "gpu-workspace")
    assert not [name for _, name in found if not name.startswith(own)]
