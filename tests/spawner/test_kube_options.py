"""The effect of a request and its user's options on KubeSpawner's own settings, with the real class."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from traitlets.config import Config

from gpuspawner.catalog import load_text, resolve
from gpuspawner.spawner.kubernetes.conflicts import read_menus
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner

GIB = 2**30


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"template": "lab"}, ("8", "2", "16Gi", "8Gi")),
        ({"template": "lab", "cpu": "1.5", "memory": "1GiB"}, ("1.5", "0.375", "1Gi", "512Mi")),
        ({"template": "whole"}, ("8", "8", "16Gi", "8Gi")),
        ({"template": "usual"}, ("0.5", "0.5", "1Gi", "1Gi")),
    ],
)
async def test_the_pod_and_its_environment_have_guarantees_and_limits(a_spawner, options, sizes):
    spawner = a_spawner(options, mem_guarantee="1G", cpu_guarantee=0.1)
    pod = spawner._gpu_as_json(await spawner.get_pod_manifest())
    server = pod["spec"]["containers"][0]
    limits, requests = server["resources"]["limits"], server["resources"]["requests"]
    assert (limits["cpu"], requests["cpu"], limits["memory"], requests["memory"]) == sizes
    told = {variable["name"]: variable.get("value") for variable in server["env"]}
    units = {"Gi": GIB, "Mi": 2**20}
    for name, quantity in {"MEM_LIMIT": sizes[2], "MEM_GUARANTEE": sizes[3]}.items():
        assert int(told[name]) == int(quantity[:-2]) * units[quantity[-2:]]
    assert (float(told["CPU_LIMIT"]), float(told["CPU_GUARANTEE"])) == (float(sizes[0]), float(sizes[1]))


def with_image(**settings):
    return {"display_name": str(settings), "kubespawner_override": settings}


PROFILES = [
    {
        "display_name": "Torch",
        "kubespawner_override": {"image": "torch:1"},
        "profile_options": {
            "image": {
                "choices": {
                    "old": with_image(image="torch:0"),
                    "new": {**with_image(image="torch:2"), "default": True},
                },
                "unlisted_choice": {"enabled": True, "kubespawner_override": {"image": "{value}"}},
            }
        },
    },
    {"display_name": "Plain"},
]
OFFERED = load_text("version: 1\ntemplates: {lab: {profile: torch}, plain: {profile: plain, image: 'own:1'}}")


@pytest.mark.parametrize(
    ("options", "image"),
    [
        ({"template": "lab"}, "torch:2"),
        ({"profile": "torch", "image": "old"}, "torch:0"),
        ({"profile": "torch", "image--unlisted-choice": "quay.io/a:1"}, "quay.io/a:1"),
        ({"profile": "plain"}, "own:1"),
        ({"template": "plain"}, "own:1"),
    ],
)
async def test_choices_of_a_profile_are_those_that_kubespawner_applies(a_spawner, options, image):
    c = Config({"KubeSpawner": {"profile_list": PROFILES}})
    catalog = replace(OFFERED, menus=read_menus(c, GPUSpawner, OFFERED))
    spawner = a_spawner(options, catalog, profile_list=PROFILES)
    await spawner.load_user_options()
    assert spawner.image == image
    assert spawner.user_options == options, "what its user asked stays what is saved"


async def test_a_users_own_image_and_repository_are_those_of_this_start_alone(a_spawner):
    catalog = load_text("version: 1\ntemplates: {lab: {own_images: 'r.example.org/*'}}")
    options = {"own_image": "r.example.org/a:1", "repository": "https://git.example.org/a"}
    spawner = a_spawner(options, catalog)
    await spawner.load_user_options()
    assert spawner.image == "r.example.org/a:1"
    assert spawner.get_env()["GPUSPAWNER_REPOSITORY"] == "https://git.example.org/a"
    spawner.user_options = {}
    await spawner.load_user_options()
    assert spawner.image == "usual:1"
    assert "GPUSPAWNER_REPOSITORY" not in spawner.get_env()


async def test_selected_tools_reach_the_workspace_with_their_packages(a_spawner):
    catalog = load_text("version: 1\ntemplates: {lab: {tools: {nlp: [transformers, 'datasets>=3'], cv: [timm]}}}")
    spawner = a_spawner({"tools": ["nlp"]}, catalog)
    await spawner.load_user_options()
    told = json.loads(spawner.get_env()["GPUSPAWNER_TOOLS"])
    assert told == {"template": "lab", "tools": {"nlp": ["transformers", "datasets>=3"]}}
    spawner.user_options = {}
    assert "GPUSPAWNER_TOOLS" not in spawner.get_env()


@pytest.mark.parametrize(
    ("opens", "page", "ssh"),
    [
        pytest.param("[vscode, ssh]", "/vscode/", "1", id="another page than the administrator's"),
        pytest.param("[lab, vscode]", None, None, id="the administrator's page is within it"),
        pytest.param("[vscode]", "/vscode/", None, id="no SSH"),
    ],
)
async def test_a_templates_first_page_opens_unless_the_administrators_page_is_below_it(a_spawner, opens, page, ssh):
    catalog = load_text(f"version: 1\ntemplates: {{lab: {{image: 'own:1', opens: {opens}}}}}")
    spawner = a_spawner({"template": "lab"}, catalog)
    spawner.default_url = "/lab/tree/first.ipynb"
    await spawner.load_user_options()
    environment = spawner.get_env()
    usual = spawner.default_url
    assert environment.get("JUPYTERHUB_DEFAULT_URL", usual) == (page or usual)
    assert environment.get("GPUSPAWNER_SSH") == ssh


async def test_the_server_follows_the_lease_and_not_the_hubs_catalog(a_spawner):
    catalog = load_text("version: 1\ntemplates: {lab: {image: 'own:2', opens: [vscode]}}")
    spawner = a_spawner({"template": "lab", "cpu": 1}, catalog)
    asked = replace(resolve(catalog, {"template": "lab"}, "ann"), image="own:1", opens=("lab", "ssh"), cpu_cores=3.0)
    spawner._gpu_attempt = spawner._gpu_attempt.granted(asked, {}, 0.0)
    await spawner.load_user_options()
    environment = spawner.get_env()
    assert spawner.image == "own:1"
    assert (environment["CPU_LIMIT"], environment["GPUSPAWNER_SSH"]) == ("3.0", "1")
    assert environment["JUPYTERHUB_DEFAULT_URL"].startswith("/lab")
