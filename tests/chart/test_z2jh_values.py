"""The values for Zero to JupyterHub: they add to what a release has, and take nothing of it."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from rendered import ROOT, Z2JH

from gpuspawner.catalog import load_catalog
from gpuspawner.cli import main
from gpuspawner.cli.kube.values import PURE, ValuesRequest, as_text, z2jh_values

SELECTOR = {"app.kubernetes.io/name": "gpuspawner", "app.kubernetes.io/component": "service"}
RULE = {"ports": [{"port": 9470}], "to": [{"podSelector": {"matchLabels": SELECTOR}}]}
MAIL = {"ports": [{"port": 25}]}
THEIRS = {
    "hub": {
        "image": {"name": "registry.example.org/hub", "tag": "7"},
        "extraEnv": {"PYTHONPATH": "/srv/own", "A": "b"},
        "extraVolumes": [{"name": "own", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "own", "mountPath": "/own"}],
        "initContainers": [{"name": "own", "image": "own"}],
        "extraConfig": {"00-first": "a = 1", "zzz-last": "b = 2"},
        "networkPolicy": {"egress": [MAIL]},
    },
    "proxy": {"chp": {"networkPolicy": {"egress": [MAIL]}}},
    "singleuser": {"networkPolicy": {"egress": [MAIL]}, "storage": {"capacity": "3Gi"}},
}


def merged(below, above):
    """Values as helm merges two files: mappings by key, all else replaced."""
    out = copy.deepcopy(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else copy.deepcopy(value)
    return out


def named(entries):
    return [one["name"] for one in entries]


def test_the_file_in_hub_config_is_what_the_command_prints():
    printed = as_text(z2jh_values(ValuesRequest(), {}))
    assert (ROOT / "hub_config" / "z2jh-values.yaml").read_text() == printed, (
        "run: gpuspawner kube values > hub_config/z2jh-values.yaml"
    )


def test_nothing_of_the_release_is_lost_and_what_is_a_list_there_holds_both():
    both = merged(THEIRS, z2jh_values(ValuesRequest(), THEIRS))
    hub = both["hub"]
    assert (hub["image"], both["singleuser"]["storage"]) == (THEIRS["hub"]["image"], {"capacity": "3Gi"})
    assert hub["extraEnv"] == {"PYTHONPATH": "/opt/gpuspawner:/srv/own", "A": "b"}
    assert named(hub["initContainers"]) == ["own", "gpuspawner-package"]
    assert named(hub["extraVolumes"]) == ["own", "gpuspawner-catalog", "gpuspawner-secret", "gpuspawner-package"]
    assert named(hub["extraVolumeMounts"]) == named(hub["extraVolumes"])
    assert max(hub["extraConfig"]) == "zzz-last-zz-gpuspawner"
    for policy in (hub, both["proxy"]["chp"], both["singleuser"]):
        assert policy["networkPolicy"]["egress"] == [MAIL, RULE]
    assert both["cull"] == {"enabled": False}


def test_variables_that_are_a_list_stay_one():
    theirs = {"hub": {"extraEnv": [{"name": "A", "value": "b"}, {"name": "PYTHONPATH", "value": "/srv/own"}]}}
    env = z2jh_values(ValuesRequest(), theirs)["hub"]["extraEnv"]
    assert env == [{"name": "A", "value": "b"}, {"name": "PYTHONPATH", "value": "/opt/gpuspawner:/srv/own"}]


def test_it_may_be_run_again_on_a_release_that_has_its_values():
    once = merged(THEIRS, z2jh_values(ValuesRequest(), THEIRS))
    assert merged(once, z2jh_values(ValuesRequest(), once)) == once


def test_a_hub_image_that_has_the_package_needs_no_init_container():
    hub = z2jh_values(ValuesRequest(name="gpus", hub_image="registry:5000/gpuspawner/hub:0.1.0"), {})["hub"]
    assert hub["image"] == {"name": "registry:5000/gpuspawner/hub", "tag": "0.1.0"}
    assert not {"initContainers", "extraEnv"} & hub.keys()
    assert named(hub["extraVolumes"]) == ["gpus-catalog", "gpus-secret"]
    assert 'service_url="http://gpus:9470"' in hub["extraConfig"]["zz-gpuspawner"]


def test_the_chart_pulls_the_catalogs_images():
    catalog = load_catalog(
        {
            "version": 1,
            "gpus": {"a100": {"match": "A100", "memory": "80GiB"}},
            "templates": {
                "torch": {"gpus": {"a100": 1}, "image": "registry:5000/torch:2.9"},
                "digest": {"image": f"torch@sha256:{'a' * 64}"},
                "none": {},
            },
        }
    )
    assert z2jh_values(ValuesRequest(), {}, catalog)["prePuller"]["extraImages"] == {
        "torch": {"name": "registry:5000/torch", "tag": "2.9"},
        "digest": {"name": "torch@sha256", "tag": "a" * 64},
    }


def test_files_added_to_the_hubs_image_are_python_alone():
    found = [__import__(name) for name in PURE]
    compiled = [path for module in found for path in Path(module.__path__[0]).rglob("*.so")]
    assert compiled == []


def command(*arguments, given=""):
    return subprocess.run(
        [sys.executable, "-m", "gpuspawner.cli", "kube", "values", *arguments],
        input=given, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip


def test_the_command_reads_what_helm_prints_of_a_release():
    done = command("--values=-", given=json.dumps(THEIRS))
    assert yaml.safe_load(done.stdout) == z2jh_values(ValuesRequest(), THEIRS)
    done = command("--values=-", given="null")
    assert done.stdout == (ROOT / "hub_config" / "z2jh-values.yaml").read_text()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param("[1]", "holds no values of a release. Write what `helm get values", id="no mapping"),
        pytest.param("a: [", "cannot be read as YAML", id="no YAML"),
    ],
)
def test_invalid_values_are_refused(given, told):
    done = command("--values=-", given=given)
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr


@pytest.mark.skipif(not Z2JH, reason="GPUSPAWNER_TEST_Z2JH names no folder with the chart's source")
def test_the_charts_own_schema_takes_the_values_and_its_templates_render_them(chart):
    values = merged(yaml.safe_load((Path(Z2JH) / "values.yaml").read_text()), z2jh_values(ValuesRequest(), THEIRS))
    jsonschema.validate(values, yaml.safe_load((Path(Z2JH) / "values.schema.yaml").read_text()))
    rendered = chart.helm(
        "template", "jhub", Z2JH, "--namespace=jhub", "--values=-", given=yaml.safe_dump(merged(THEIRS, values))
    )
    parts = {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(rendered) if part}
    pod = parts["Deployment", "hub"]["spec"]["template"]["spec"]
    assert "gpuspawner-package" in named(pod["initContainers"])
    assert {"gpuspawner-catalog", "gpuspawner-secret"} < set(named(pod["volumes"]))
    for name in ("hub", "proxy", "singleuser"):
        assert RULE in parts["NetworkPolicy", name]["spec"]["egress"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("hub: {initContainers: 3}", "hub.initContainers is '3', not a list."),
        ("hub: {extraVolumes: {a: b}}", "hub.extraVolumes is \"{'a': 'b'}\", not a list."),
        ("hub: {extraEnv: hello}", "hub.extraEnv is 'hello', not a mapping or a list."),
        ("hub: {extraConfig: [1]}", "hub.extraConfig is '[1]', not a mapping."),
        ("hub: hello", "hub is 'hello', not a mapping."),
        ("proxy: {chp: {networkPolicy: {egress: x}}}", "proxy.chp.networkPolicy.egress is 'x', not a list."),
        ("a: 2020-13-45", "cannot be read as YAML (month must be in 1..12)."),
        ("a: " + "[" * 5000, "cannot be read as YAML"),
    ],
)
def test_values_unknown_to_the_release_are_refused_by_their_key(tmp_path, capsys, values, told):
    (tmp_path / "hub.yaml").write_text(values)
    assert main(["kube", "values", "--values", str(tmp_path / "hub.yaml")]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--name", "GPU service", "--name: 'GPU service' is not a Service's name"),
        ("--name", "a" * 51, "is not a Service's name"),
        ("--service-url", "gpuspawner:9470", "--service-url: 'gpuspawner:9470' is no address of a service."),
        ("--service-url", "http://gpuspawner:9470/api", "is no address of a service."),
    ],
)
def test_an_invalid_name_or_address_is_refused(capsys, option, value, told):
    assert main(["kube", "values", option, value]) == 1
    assert told in capsys.readouterr().err
