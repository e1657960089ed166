"""Configurations in the how-to pages, in both forms: the hub starts with them, and the pod has the promised parts."""

import copy

import pytest
import yaml
from harness import pages
from traitlets.config import Config

from gpuspawner.catalog import load_catalog

HOME = {"home": {"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}}}
AT_HOME = {"home": {"name": "home", "mountPath": "/home/jovyan"}}


def shown(page, kind, number=0):
    return pages.blocks(pages.page(f"how-to/administrators/{page}"), kind)[number]


def by_python(page, number=0):
    """KubeSpawner's settings once the page's lines have run, in a hub that has homes."""
    before = {"environment": {}, "volumes": copy.deepcopy(HOME), "volume_mounts": copy.deepcopy(AT_HOME)}
    c = Config({"KubeSpawner": before})
    exec(shown(page, "python", number), {"c": c})
    return c


def by_values(page):
    """The same of the page's values, as the chart's own configuration makes settings of them."""
    values = yaml.safe_load(shown(page, "yaml"))
    storage = values["singleuser"]["storage"]
    settings = {"environment": values["singleuser"].get("extraEnv", {})}
    settings["volumes"] = {**copy.deepcopy(HOME), **storage["extraVolumes"]}
    settings["volume_mounts"] = {**copy.deepcopy(AT_HOME), **storage["extraVolumeMounts"]}
    return Config({"KubeSpawner": settings})


async def pod_of(spawner):
    pod = spawner._gpu_as_json(await spawner.get_pod_manifest())["spec"]
    server = pod["containers"][0]
    return pod["volumes"], server["volumeMounts"], [one for one in server["env"] if "valueFrom" in one]


async def test_both_forms_add_the_same_to_the_pod_and_take_no_home(a_spawner, configured, capsys):
    pods = []
    for c in (by_python("secrets"), by_values("secrets")):
        configured(copy.deepcopy(c))  # the hub starts with it
        pods.append(await pod_of(a_spawner({"template": "lab"}, **c.KubeSpawner)))
    assert "KubeSpawner" not in capsys.readouterr().err, "nothing of it is warned of"
    assert pods[0] == pods[1]
    volumes, mounts, taken = pods[0]
    assert {one["name"] for one in volumes} > {"home"}
    added = {one["name"]: one for one in mounts}
    (of_secret,) = [one["valueFrom"]["secretKeyRef"] for one in taken if one["name"] == "HF_TOKEN"]
    assert of_secret == {"name": "own-alice", "key": "HF_TOKEN", "optional": True}
    assert added["own-secret"]["readOnly"] is True
    (secret,) = [one["secret"] for one in volumes if one["name"] == "own-secret"]
    assert secret == {"secretName": "own-alice", "optional": True}


def catalog_of(page, number):
    catalog = {"version": 1, "gpus": {"a100": {"match": "A100", "memory": "80GiB"}}}
    return {**catalog, **yaml.safe_load(shown(page, "yaml", number))}


async def test_the_volumes_of_a_template_reach_its_pod(a_spawner, configured):
    written = catalog_of("data", 0)
    configured(catalog=written)
    spawner = a_spawner({"template": "imaging"}, catalog=load_catalog(written), volumes=HOME, volume_mounts=AT_HOME)
    spawner.user.groups = []
    volumes, mounts, _ = await pod_of(spawner)
    assert {one["name"] for one in volumes} >= {"home", "gpu-scans", "gpu-own", "gpu-scratch"}
    assert {one["mountPath"] for one in mounts} >= {"/home/jovyan", "/scans", "/own", "/scratch"}


@pytest.mark.parametrize("number", range(5))
def test_each_example_for_a_template_is_accepted(configured, number):
    configured(catalog=catalog_of("template-pods", number))


def test_the_hub_under_a_prefix_leads_to_the_service_below_it(configured):
    c = Config()
    exec(shown("prefix", "python"), {"c": c})
    assert configured(c).JupyterHub.spawner_class.gpu_service_prefix == "/jupyter/services/gpu/"
