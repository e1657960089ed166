"""The values in the how-to pages: both charts accept them, and they have the documented effect."""

import json
import re
import shlex
import shutil
import subprocess

import pytest
import yaml
from harness import pages
from harness.command_lines import read_command
from rendered import Z2JH, with_dependencies

from tools.cluster.build import cache

REGISTRY = "registry.example.org/"


def values_of(page):
    return [yaml.safe_load(one) for one in pages.blocks(pages.page(f"how-to/administrators/{page}"), "yaml")]


def images(text):
    """The images of all containers that are rendered, as the page's own command finds them."""
    page = pages.page("how-to/administrators/offline")
    pattern = re.search(r"sed -n 's/(.*)/\\1/p'", page)[1]
    pattern = re.sub(r"\\([(){}])", r"\1", pattern)  # as Python writes it
    return set(re.findall(pattern, text, re.MULTILINE))


def test_without_internet_the_services_images_are_of_the_own_registry(chart):
    _, own = values_of("offline")
    paths = {f"image.{key}": value for key, value in own["image"].items()}
    catalog = chart.catalog.read_text().replace("quay.io/jupyter/", REGISTRY)
    text = chart.text({**paths, "catalog": catalog})
    found = images(text)
    assert len(found) == 2, "the service's, and a template's"
    assert all(one.startswith(REGISTRY) for one in found)
    assert text.count("imagePullSecrets") == text.count("kind: Job") + 1


def test_the_way_to_postgresql_loses_no_file(chart):
    lines = pages.commands(pages.page("how-to/administrators/postgresql"))
    commands = [line for line in lines if line.startswith("helm upgrade gpuspawner ")]
    assert all("--reset-then-reuse-values" in one for one in commands), "a release of before lacks newer values"
    there, kept = (dict(re.findall(r"--set (\S+?)=(\S+)", one)) for one in commands)
    claim = chart.objects({name: value == "true" for name, value in kept.items()})
    assert claim["PersistentVolumeClaim", "gpuspawner-data"]["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep"
    }, "what a release renders no more is deleted unless it says so"
    after = chart.objects({**there, "replicas": int(there["replicas"])})
    assert [name for kind, name in after if kind == "PersistentVolumeClaim"] == []
    (pod,) = values_of("postgresql")
    arguments = pod["spec"]["containers"][0]["command"]
    asked = read_command(arguments[1:])
    assert (asked.params["store"], str(asked.params["data"])) == (there["store.postgresql.url"], "/var/lib/gpuspawner")
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "gpuspawner-data"
    assert volumes["store"]["secret"]["secretName"] == there["store.postgresql.existingSecret"]


@pytest.mark.skipif(not Z2JH, reason="GPUSPAWNER_TEST_Z2JH names no folder with the hub's chart")
@pytest.mark.parametrize(("page", "number"), [("offline", 0), ("prefix", 0), ("secrets", 0), ("data", 0)])
def test_the_hubs_chart_takes_the_values_and_has_no_image_of_elsewhere(chart, tmp_path, page, number):
    (tmp_path / "hub.yaml").write_text(yaml.safe_dump(values_of(page)[number]))
    hub = with_dependencies(tmp_path) / "charts" / "jupyterhub"
    schema = yaml.safe_load((hub / "values.schema.yaml").read_text())
    (hub / "values.schema.json").write_text(json.dumps(schema))  # as its release has it
    text = chart.helm("template", "jhub", hub, "--namespace=jhub", f"--values={tmp_path / 'hub.yaml'}")
    if page == "offline":
        found = images(text)
        assert len(found) > 3
        assert [one for one in found if not one.startswith(REGISTRY)] == []


def test_each_option_that_a_page_sets_is_one_of_the_chart(chart, tmp_path):
    """`helm install` and `helm upgrade` of the pages, as `helm template`."""
    found = {}
    for path in pages.DOCS.rglob("*.md"):
        for line in pages.commands(path.read_text()):
            if re.match(r"helm (install|upgrade) gpuspawner helm/gpuspawner ", line):
                found |= dict.fromkeys(re.findall(r"--set (\S+)", line), path.stem)
    assert len(found) > 8
    sets = [f"--set={pair}" for pair in found if not pair.startswith("customResources.enabled=false")]
    assert "kind: Deployment" in chart.text({}, *sets), found


def test_each_command_of_helm_and_kubectl_has_the_options_of_the_program(chart):
    """With --help each program reads its command line, refuses what it does not know, and asks no cluster."""
    programs = {"helm": chart.helm.program}
    if kubectl := next(cache().glob("kubernetes-*/bin/kubectl"), None) or shutil.which("kubectl"):
        programs["kubectl"] = kubectl
    found = {}
    for path in [*pages.DOCS.rglob("*.md"), pages.REPO / "RELEASE.md"]:
        text = path.read_text()
        needs_hardware = "".join(pages.blocks(text, "text")).splitlines()
        for line in [*pages.commands(text), *(one for one in needs_hardware if one.startswith(("helm ", "kubectl ")))]:
            words = shlex.split(line)
            end = next((place for place, word in enumerate(words) if word in {"--", "|", "<", ">"}), len(words))
            if words[0] in programs:
                found[line] = words[:end]
    assert len(found) > 20
    for line, (program, *words) in found.items():
        done = subprocess.run([programs[program], *words, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)


def test_the_chart_takes_the_values_of_a_hub_without_the_chart_of_zero_to_jupyterhub(chart):
    (values,) = [
        one for one in map(yaml.safe_load, pages.blocks(pages.page("tutorials/kubernetes"), "yaml")) if "hub" in one
    ]
    objects = chart.objects(values)
    bound = [one for (kind, _), one in objects.items() if kind == "RoleBinding" and one["subjects"][0]["name"] == "hub"]
    assert {one["metadata"]["namespace"] for one in bound} == {"gpu-workspaces"}, "KubeSpawner's rights for the hub"
