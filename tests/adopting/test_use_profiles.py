"""``use_profiles(c)``: a hub with a ``profile_list`` and without a catalog starts with its profiles as templates."""

import pytest
import yaml
from traitlets.config import Config

from gpuspawner.adoption.profiles import use_profiles
from gpuspawner.spawner import configure

HOOK = {"postStart": {"exec": {"command": ["sh", "-c", "fetch"]}}}
GPU = {
    "display_name": "GPU",
    "default": True,
    "kubespawner_override": {
        "image": "registry.example.org/gpu:5",
        "mem_limit": "32G",
        "extra_resource_limits": {"nvidia.com/gpu": "1"},
        "node_selector": {"nvidia.com/gpu.product": "Tesla-T4"},
    },
}
COURSE = {"display_name": "Course", "kubespawner_override": {"cpu_limit": 2, "lifecycle_hooks": HOOK}}


@pytest.fixture
def config():
    c = Config()
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    return c


def test_each_profile_is_a_template_and_the_hub_starts_with_what_stays(config, tmp_path):
    config.KubeSpawner.profile_list = [COURSE, GPU]
    config.KubeSpawner.mem_limit = "4G"
    configure(config, catalog=use_profiles(config), data_dir=tmp_path / "gpu")
    catalog = config.JupyterHub.spawner_class.gpu_read_catalog()
    assert list(catalog.templates) == ["gpu", "course"], "the default profile is preselected"
    gpu, course = catalog.templates["gpu"], catalog.templates["course"]
    assert (list(gpu.gpus), gpu.image, gpu.bounds.memory_bytes) == (
        ["t4"],
        "registry.example.org/gpu:5",
        (2**35, 2**35),
    )
    assert (list(course.gpus), course.bounds.memory_bytes) == ([], (2**32, 2**32))
    kept = {one["slug"]: one["kubespawner_override"] for one in config.KubeSpawner.profile_list}
    assert kept == {"gpu": {}, "course": {"lifecycle_hooks": HOOK}}
    assert config.KubeSpawner.mem_limit is None, "the bounds of the templates say it"


def test_a_list_that_the_templates_say_in_full_is_empty_then(config, tmp_path):
    config.KubeSpawner.profile_list = {"b": GPU, "a": {"display_name": "Plain"}}
    catalog = use_profiles(config)
    assert config.KubeSpawner.profile_list == []
    configure(config, catalog={**catalog, "quotas": {}}, data_dir=tmp_path / "gpu")
    assert yaml.safe_load((tmp_path / "gpu" / "catalog.json").read_text())["templates"].keys() == {"gpu", "plain"}


def test_what_no_template_can_have_is_named(config, capsys):
    config.KubeSpawner.profile_list = [{"display_name": "Odd", "kubespawner_override": {"cpu_limit": "many"}}]
    use_profiles(config)
    assert "gpuspawner: not converted: Odd: cpu_limit:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profiles", "says"),
    [
        pytest.param([], r"not \[\]", id="none"),
        pytest.param(lambda _spawner: [], "not a function", id="a function"),
        pytest.param([{"slug": "x"}], "has no display_name that can be read", id="no title"),
    ],
)
def test_profiles_that_cannot_be_read_are_refused(config, profiles, says):
    config.KubeSpawner.profile_list = profiles
    with pytest.raises(SystemExit, match=says):
        use_profiles(config)
