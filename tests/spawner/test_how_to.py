"""Configurations in the how-to pages, in both forms: the hub starts with them, and the pod has the promised parts."""

import copy

import pytest
import yaml
from harness import pages
from traitlets.config import Config

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


@pytest.mark.parametrize("page", ["secrets", "data"])
async def test_both_forms_add_the_same_to_the_pod_and_take_no_home(a_spawner, configured, capsys, page):
    pods = []
    for c in (by_python(page), by_values(page)):
        configured(copy.deepcopy(c))  # the hub starts with it
        pods.append(await pod_of(a_spawner({"template": "lab"}, **c.KubeSpawner)))
    assert "KubeSpawner" not in capsys.readouterr().err, "nothing of it is warned of"
    assert pods[0] == pods[1]
    volumes, mounts, taken = pods[0]
    assert {one["name"] for one in volumes} > {"home"}
    added = {one["name"]: one for one in mounts}
    if page == "secrets":
        (of_secret,) = [one["valueFrom"]["secretKeyRef"] for one in taken if one["name"] == "HF_TOKEN"]
        assert of_secret == {"name": "own-alice", "key": "HF_TOKEN", "optional": True}
        assert added["own-secret"]["readOnly"] is True
        (secret,) = [one["secret"] for one in volumes if one["name"] == "own-secret"]
        assert secret == {"secretName": "own-alice", "optional": True}
    else:
        assert (added["datasets"]["mountPath"], added["datasets"]["readOnly"]) == ("/data", True)


def test_the_volume_of_one_template_is_a_profiles(configured):
    c = by_python("data", 1)
    catalog = {"version": 1, "gpus": {"a100": {"match": "A100", "memory": "80GiB"}}}
    c = configured(c, catalog={**catalog, **yaml.safe_load(shown("data", "yaml", 1))})
    assert c.KubeSpawner.profile_list[0]["slug"] == "imaging"


def test_the_hub_under_a_prefix_leads_to_the_service_below_it(configured):
    c = Config()
    exec(shown("prefix", "python"), {"c": c})
    assert configured(c).GPUSpawnerMixin.gpu_service_prefix == "/jupyter/services/gpu/"
