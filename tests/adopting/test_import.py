"""``gpuspawner server import`` makes a catalog of profiles in all documented forms, and names what it cannot import."""

import json
from datetime import date

import pytest
import yaml
from kubespawner import KubeSpawner
from slugify import slugify
from traitlets.config import Config

from gpuspawner.adoption.draft import render
from gpuspawner.adoption.profiles.overrides import read_override
from gpuspawner.adoption.profiles.sources import Source, read_source
from gpuspawner.adoption.profiles.templates import convert_profiles
from gpuspawner.catalog import load_catalog, load_text
from gpuspawner.cli import main
from gpuspawner.core.units import GIBIBYTE, MEBIBYTE
from gpuspawner.spawner.kubernetes.conflicts import find_conflicts

DONE, INVALID, REFUSED = 0, 1, 2

# The form of the chart's documented examples: several environments, one with a hook; a GPU; sizes for all.
VALUES = """\
singleuser:
  image: {name: registry.example.org/base, tag: "5"}
  memory: {limit: 4G, guarantee: 1G}
  cpu: {limit: 2}
  profileList:
    - display_name: Plain Python
      description: "Nothing <b>but</b> Python &amp; its library."
    - display_name: Statistics
      default: true
      kubespawner_override:
        image: registry.example.org/stats:5
    - display_name: Course materials
      kubespawner_override:
        image: registry.example.org/course:5
        lifecycle_hooks: {postStart: {exec: {command: [sh, -c, "fetch-materials"]}}}
    - display_name: GPU server
      kubespawner_override:
        image: registry.example.org/gpu:5
        default_url: /lab
        mem_limit: 32G
        extra_resource_limits: {nvidia.com/gpu: "1"}
        node_selector: {nvidia.com/gpu.product: Tesla-T4, pool: gpus}
"""

# The form of fancy-profiles: images to choose, written or built, and sizes.
UNLISTED = {
    "enabled": True,
    "display_name": "Other image",
    "display_name_in_choices": "Name an image",
    "validation_regex": "^registry.example.org/.+:.+$",
    "kubespawner_override": {"image": "{value}"},
}
IMAGES = {
    "python": {"display_name": "Python", "kubespawner_override": {"image": "registry.example.org/python:1"}},
    "r": {"display_name": "R", "default": True, "kubespawner_override": {"image": "registry.example.org/r:1"}},
}
SIZES = {
    "small": {
        "display_name": "3 GB",
        "default": True,
        "kubespawner_override": {"mem_guarantee": "1G", "mem_limit": 3 * GIBIBYTE, "cpu_limit": 3.5},
    },
    "large": {
        "display_name": "12 GB",
        "kubespawner_override": {
            "mem_guarantee": "12G",
            "mem_limit": "12G",
            "cpu_limit": 3.5,
            "node_selector": {"a": "b"},
        },
    },
}


def of(*profiles, base=None):
    """Import these profiles. Return the output and the catalog, which must be valid."""
    found = convert_profiles(Source(profiles, "singleuser.profileList", base or {}), slugify)
    return found, load_text(render(found.draft))


def profile(title="One", **more):
    return {"display_name": title, **more}


def options(**choices_of):
    return {
        name: {"display_name": name, **({"choices": one} if "choices" not in one else one)}
        for name, one in choices_of.items()
    }


def test_the_values_of_a_release_become_templates_and_a_kind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "values.yaml").write_text(VALUES)
    assert main(["server", "import", "values.yaml"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 profiles of values.yaml: 4 templates, 1 GPU kind."
    assert [line for line in lines if line.startswith("Stays")] == [
        "Stays in profile_list: Course materials: lifecycle_hooks: a setting of the profile, which its template names.",
        "Stays in profile_list: GPU server: node_selector: a setting of the profile, which its template names.",
    ]
    assert not [line for line in lines if line.startswith("Not converted")]
    assert any(
        line.startswith("Remove the settings for all profiles (cpu_limit, mem_limit, mem_guar") for line in lines
    )
    assert main(["server", "check", "catalog.yaml"]) == DONE
    catalog = load_catalog("catalog.yaml")
    assert list(catalog.templates) == ["statistics", "plain-python", "course-materials", "gpu-server"]
    assert catalog.templates["plain-python"].description == "Nothing but Python & its library."
    assert catalog.templates["plain-python"].image == "", "the hub's own"
    gpu = catalog.templates["gpu-server"]
    assert (gpu.image, gpu.opens, gpu.gpus) == ("registry.example.org/gpu:5", ("lab",), {"t4": (1, 1)})
    assert gpu.bounds.memory_bytes == (32 * GIBIBYTE, 32 * GIBIBYTE)
    assert gpu.bounds.cpu_cores == (2, 2)
    assert catalog.templates["statistics"].guarantee.memory_percent == 25
    assert (catalog.gpus["t4"].match, catalog.gpus["t4"].memory_bytes) == ("Tesla-T4", 16 * GIBIBYTE)
    assert {template.profile for template in catalog.templates.values()} >= {"course-materials", "statistics"}


def test_a_hub_accepts_the_catalog_with_the_remaining_profiles():
    written = yaml.safe_load(VALUES)["singleuser"]["profileList"]
    found, catalog = of(*written)
    c = Config()
    c.KubeSpawner.profile_list = written
    assert list(find_conflicts(c, KubeSpawner, catalog)), "all of them beside it are refused"
    stays = {"lifecycle_hooks": written[2]["kubespawner_override"]["lifecycle_hooks"]}
    c.KubeSpawner.profile_list = [
        {"display_name": one["display_name"], "kubespawner_override": stays if one is written[2] else {}}
        for one in written
    ]
    assert list(find_conflicts(c, KubeSpawner, catalog)) == []
    assert found.next_steps[-1].startswith(
        "Keep singleuser.profileList, but in each profile only the settings that stay"
    )


def test_without_anything_that_stays_no_template_names_a_profile_and_the_list_may_go():
    found, catalog = of(profile(kubespawner_override={"image": "registry.example.org/a:1", "cpu_limit": 2}))
    assert not catalog.templates["one"].profile
    assert found.next_steps == ("Remove singleuser.profileList. The catalog replaces all of it.",)


def test_images_to_choose_become_templates_and_sizes_become_bounds():
    found, catalog = of(profile(profile_options=options(image=IMAGES, size=SIZES)))
    assert [(name, one.title, one.image) for name, one in catalog.templates.items()] == [
        ("one-r", "One: R", "registry.example.org/r:1"),
        ("one-python", "One: Python", "registry.example.org/python:1"),
    ]
    template = catalog.templates["one-r"]
    assert template.bounds.memory_bytes == (3 * GIBIBYTE, 12 * GIBIBYTE)
    assert template.bounds.cpu_cores == (3.5, 3.5)
    assert template.default.memory_bytes == 3 * GIBIBYTE
    assert template.guarantee.memory_percent == 34
    assert [line.partition(". ")[0] for line in found.lost] == [
        "One: size, 12 GB: node_selector: users choose any size, so a choice of a size cannot set it",
        "One: guarantee of memory: choices guarantee different parts",
    ]


def test_values_that_are_not_listed_and_images_that_are_built_stay_or_are_named():
    building = {"choices": {}, "unlisted_choice": UNLISTED, "dynamic_image_building": {"enabled": True}}
    alone = {"choices": {}, "dynamic_image_building": {"enabled": True}}
    found, catalog = of(
        profile("Choose", profile_options=options(image={"choices": IMAGES, "unlisted_choice": UNLISTED})),
        profile("Build", profile_options=options(image=building), default=True),
        profile("Only build", profile_options=options(image=alone)),
    )
    assert {name: one.profile for name, one in catalog.templates.items()} == {
        "build": "build",
        "choose": "choose",
        "only-build": "only-build",
    }
    assert found.stays == (
        "Build: image: an option of the profile, which the form shows. It takes values that are not listed.",
        "Choose: image: an option of the profile, which the form shows. It takes values that are not listed.",
    )
    assert found.lost == (
        (
            "Build: image: dynamic_image_building: gpuspawner builds no images from repositories; users may name an "
            "image that is built elsewhere."
        ),
        (
            "Only build: image: dynamic_image_building: gpuspawner builds no images from repositories; build images "
            "elsewhere."
        ),
        "Only build: image: it has no choices.",
    )


def test_gpus_to_choose_become_kinds_and_counts():
    def gpus(count, product, **more):
        limits = {"nvidia.com/gpu": count}
        return {"kubespawner_override": {"extra_resource_limits": limits, "node_selector": {GKE: product}}, **more}

    choices = {
        "none": {
            "display_name": "None",
            "kubespawner_override": {"cpu_limit": 1, "extra_resource_limits": {"nvidia.com/gpu": 0}},
        },
        "one": gpus(1, "nvidia-l4", default=True),
        "four": gpus("4", "nvidia-l4"),
        "large": gpus(8, "nvidia-h100-80gb"),
    }
    found, catalog = of(profile(profile_options=options(gpu=choices)))
    template = catalog.templates["one"]
    assert template.gpus == {"l4": (1, 4), "h100-80gb": (8, 8)}
    assert (template.default.gpu, template.default.count) == ("l4", 1)
    assert catalog.rules.quotas[0].limits[0].hard == 8
    assert not found.lost


GKE = "cloud.google.com/gke-accelerator"


def test_gpus_without_a_label_are_a_kind_whose_memory_a_person_must_write():
    found, catalog = of(
        profile(kubespawner_override={"extra_resource_guarantees": {"nvidia.com/gpu": "2", "x.io/fuse": 1}})
    )
    assert catalog.templates["one"].gpus == {"gpu": (2, 2)}
    assert catalog.gpus["gpu"].resource == "nvidia.com/gpu"
    assert "# Decide: memory. The memory of one GPU is unknown" in render(found.draft)
    assert found.stays == ("One: extra_resource_guarantees: a setting of the profile, which its template names.",)


PYTHON = """\
import os
c = get_config()
course = {"image": "registry.example.org/course:1"}
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.cpu_limit = 2
c.KubeSpawner.profile_list = [
    {"display_name": "Course", "kubespawner_override": course},
    {"display_name": "Own", "kubespawner_override": {"image": os.environ["IMAGE"], "environment": lambda spawner: {}}},
]
if os.environ.get("GPUS"):
    c.KubeSpawner.profile_list.append({"display_name": "GPU"})
"""


def test_a_configuration_is_read_and_not_run(tmp_path, capsys):
    (tmp_path / "jupyterhub_config.py").write_text(PYTHON)
    assert main(["server", "import", str(tmp_path / "jupyterhub_config.py"), "-"]) == DONE
    out, err = capsys.readouterr()
    catalog = load_text(out)
    assert catalog.templates["course"].image == "registry.example.org/course:1"
    assert catalog.templates["own"].bounds.cpu_cores == (2, 2)
    assert "Not converted: c.KubeSpawner.profile_list: line 10: profiles that are added there were not read." in err
    assert "Own: image: a setting of the profile, which its template names." in err
    assert "Own: environment: a setting of the profile" in err


FUNCTION = "def of(spawner):\n    return []\nc.KubeSpawner.profile_list = of\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param(
            "c.py", FUNCTION, "c.py:3: of is not a list that can be read. Write what it returns", id="a function"
        ),
        pytest.param("c.py", "c.Spawner.cpu_limit = 1\n", "has no line c.KubeSpawner.profile_list = ...", id="none"),
        pytest.param("c.py", "c.KubeSpawner.profile_list = [\n", "c.py is not Python: ", id="no Python"),
        pytest.param(
            "v.yaml", "singleuser: {}\n", "has no profiles: neither singleuser.profileList, hub.config", id="no list"
        ),
        pytest.param(
            "v.yaml", "singleuser: {profileList: 3}\n", "profiles are a list, or a dict by slug.", id="a number"
        ),
        pytest.param("v.yaml", "a: [\n", "v.yaml is not YAML or JSON: ", id="no YAML"),
        pytest.param("v.yaml", "", "has no profiles: ", id="empty"),
        pytest.param("v.yaml", "- {}\n", "No profile can be read. Nothing was written.", id="nothing in it"),
    ],
)
def test_an_empty_configuration_says_what_to_do(tmp_path, monkeypatch, capsys, name, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert main(["server", "import", name]) == INVALID
    assert said in capsys.readouterr().err
    assert not (tmp_path / "catalog.yaml").exists()
    assert main(["server", "import", "absent.yaml"]) == INVALID
    assert "absent.yaml cannot be read: No such file or directory." in capsys.readouterr().err


@pytest.mark.parametrize("data", [[profile()], {"b": profile("Two"), "a": profile()}, {"profile_list": [profile()]}])
def test_profiles_returned_by_a_function_are_read_from_json(tmp_path, data):
    (tmp_path / "profiles.json").write_text(json.dumps(data))
    source = read_source(tmp_path / "profiles.json")
    assert source.profiles[0]["display_name"] == "One"


def test_a_catalog_that_is_there_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "values.yaml").write_text(VALUES)
    (tmp_path / "catalog.yaml").write_text("mine\n")
    assert main(["server", "import", "values.yaml"]) == REFUSED
    assert (tmp_path / "catalog.yaml").read_text() == "mine\n"
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "lost"),
    [
        (
            {"image": "Not An Image"},
            'image: "Not An Image" is not an image for the catalog. Write registry/name:tag.',
        ),
        ({"mem_limit": "much"}, 'mem_limit: "much" is not an amount that can be read. Write bounds: in the template.'),
        ({"extra_resource_limits": {"nvidia.com/gpu": "all"}}, "nvidia.com/gpu: 'all' is not a whole number."),
        ({"extra_resource_limits": {"nvidia.com/gpu": 2000}}, "nvidia.com/gpu: 2000 is not from 0 to 1024."),
        ({"extra_resource_limits": {"nvidia.com/mig-": 1}}, "'nvidia.com/mig-' is not an extended resource"),
        ({"cpu_limit": -3}, "cpu_limit: -3 is not from 0 to 4096 cores. Write bounds: in the template."),
        ({"cpu_limit": 1e300}, "cpu_limit: 1e+300 is not from 0 to 4096 cores."),
        ({"mem_limit": "99999T"}, 'mem_limit: "99999T" is not from 0 to 1024 TiB.'),
        ({"mem_limit": "1" * 400}, "1111 is not from 0 to 1024 TiB."),
        (
            [{date(2026, 1, 1): 1}],
            "kubespawner_override: [{datetime.date(2026, 1, 1): 1}] is not a dict that can be read.",
        ),
        ("text", 'kubespawner_override: "text" is not a dict that can be read.'),
    ],
)
def test_unreadable_profiles_are_named_and_the_rest_is_imported(override, lost):
    found, catalog = of(profile(kubespawner_override=override, description="Kept"), 7, profile(" "))
    assert catalog.templates["one"].description == "Kept"
    assert [line for line in found.lost if lost in line]
    assert any(line.startswith("profile 2: 7 has no display_name") for line in found.lost)
    assert any(line.startswith('profile 3: {"display_name": " "} has no display_name') for line in found.lost)


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        ("2G", 2 * GIBIBYTE),
        ("1.5G", 1.5 * GIBIBYTE),
        (512 * MEBIBYTE, 512 * MEBIBYTE),
        ("100M", 100 * MEBIBYTE),
        (0, None),
    ],
)
def test_memory_is_what_kubespawner_reads_of_it(written, bytes_):
    assert read_override({"mem_limit": written}).memory.limit == bytes_


@pytest.mark.parametrize("name", ["🦊", "---", "a" * 200, "None", "yes"])
def test_any_title_gives_a_catalog_that_is_good(name):
    _, catalog = of(profile(name), profile(name), profile(name, description=": {} # - 'x' \n \"y\" *a &b !c %d @e"))
    assert len(catalog.templates) == 3


def test_unsupported_profiles_are_reported_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    override = {"extra_resource_limits": {"nvidia.com/gpu": 1}, "node_selector": {"nvidia.com/gpu.product": "a" * 300}}
    (tmp_path / "profiles.json").write_text(json.dumps([profile("Wrong label", kubespawner_override=override)]))
    assert main(["server", "import", "profiles.json"]) == INVALID
    said = capsys.readouterr().err
    assert "The profiles of profiles.json do not make a good catalog, and nothing was written: gpus." in said
    assert not (tmp_path / "catalog.yaml").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(
            "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
            "over 100,000 values once its aliases (*name) are written out",
            id="a bomb",
        ),
        pytest.param("a: &a {b: *a}\n", "over 100,000 values once its aliases", id="one that holds itself"),
        pytest.param("#" * (8 * 2**20 + 1), "is longer than 8 MiB", id="a large file"),
        pytest.param("[" * 5000, "is not YAML or JSON", id="a deep one"),
    ],
)
def test_an_oversized_configuration_is_refused_at_once(tmp_path, monkeypatch, capsys, text, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "values.yaml").write_text(text)
    assert main(["server", "import", "values.yaml"]) == INVALID
    assert told in capsys.readouterr().err


def test_aliases_as_people_use_them_are_read(tmp_path):
    (tmp_path / "values.yaml").write_text(
        "size: &size {mem_limit: 4G}\nsingleuser: {profileList: [{display_name: A, kubespawner_override: *size},"
        " {display_name: B, kubespawner_override: {<<: *size, cpu_limit: 2}}]}\n"
    )
    profiles = read_source(tmp_path / "values.yaml").profiles
    assert [one["kubespawner_override"] for one in profiles] == [
        {"mem_limit": "4G"},
        {"mem_limit": "4G", "cpu_limit": 2},
    ]
