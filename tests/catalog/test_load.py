import re
from pathlib import Path

import pytest
import yaml

from gpuspawner.catalog import (
    Bounds,
    Defaults,
    Exporter,
    Guarantee,
    check,
    default_url,
    load_catalog,
    load_text,
    resolve,
    scaled,
)
from gpuspawner.catalog.template_models import OnStop
from gpuspawner.core.gpus.fleet import Autoscale, GpuKind
from gpuspawner.core.idle.policies import ActivityPolicy, ExtendPolicy, IdlePolicy, KeepPolicy, LifecyclePolicy, Mode
from gpuspawner.core.rules import Rules

GIB = 2**30
EXAMPLE = Path(__file__).parents[2] / "hub_config" / "catalog.yaml"
SMALLEST = """\
version: 1
gpus:
  a100: {match: NVIDIA A100*, memory: 80GiB}
templates:
  lab: {gpus: {a100: 1}}
"""


def test_gpu_kinds(catalog):
    assert catalog.gpus == {
        "a100": GpuKind("a100", "A100 80 GB", 80 * GIB, "8.0", match="NVIDIA A100*", price_per_hour=2.1),
        "t4": GpuKind("t4", "t4", 16 * GIB, match="Tesla T4"),
        "half": GpuKind("half", "half", 40 * GIB, "8.0", price_per_hour=1.05, of="a100", shares=2),
    }
    assert catalog.simulated == {"a100": 4, "t4": 2}


def test_resources_of_kinds_and_images_of_templates():
    text = """\
version: 1
gpus:
  a100: {match: NVIDIA-A100*, memory: 80GiB}
  shared: {match: NVIDIA-A100*, memory: 20GiB, resource: nvidia.com/gpu.shared}
  slice: {memory: 10GiB, resource: nvidia.com/mig-1g.10gb}
  half: {of: shared, shares: 2}
templates:
  lab: {image: "registry.example.org:5000/ml/pytorch:2.9", gpus: {a100: 1}}
  big: {extends: lab, gpus: {a100: 2}}
  plain:
"""
    catalog = load_text(text)
    assert {name: kind.resource for name, kind in catalog.gpus.items()} == {
        "a100": "",
        "shared": "nvidia.com/gpu.shared",
        "slice": "nvidia.com/mig-1g.10gb",
        "half": "nvidia.com/gpu.shared",
    }
    image = "registry.example.org:5000/ml/pytorch:2.9"
    assert {name: template.image for name, template in catalog.templates.items()} == {
        "lab": image,
        "big": image,
        "plain": "",
    }


def test_guarantees_are_inherited_key_by_key():
    text = """\
version: 1
templates:
  lab: {guarantee: {cpu: 25%, memory: 50%}}
  sure: {extends: lab, guarantee: {memory: 100%}}
  plain:
"""
    catalog = load_text(text)
    assert {name: template.guarantee for name, template in catalog.templates.items()} == {
        "lab": Guarantee(25.0, 50.0),
        "sure": Guarantee(25.0, 100.0),
        "plain": None,
    }
    request = resolve(catalog, {"template": "sure"}, "alice")
    assert (request.cpu_guarantee_percent, request.memory_guarantee_percent) == (25.0, 100.0)


def test_nodes_that_a_cluster_starts():
    text = """\
version: 1
gpus:
  t4: {match: Tesla T4, memory: 16GiB, autoscale: {max: 8, start: 4m}}
  a100: {match: "*A100*", memory: 80GiB, autoscale: {max: 16, each: 8, start: 5m, labels: {pool: a100}}}
  slice: {memory: 10GiB, resource: nvidia.com/mig-1g.10gb, autoscale: {max: 7, each: 7, start: 90s}}
  mi: {match: MI300X, memory: 192GiB, resource: amd.com/gpu, autoscale: {max: 8, start: 5m, labels: {amd.com/f: AI}}}
  half: {of: a100, shares: 2}
templates:
  lab:
"""
    assert {name: kind.autoscale for name, kind in load_text(text).gpus.items()} == {
        "t4": Autoscale(8, 1, 240, (("nvidia.com/gpu.product", "Tesla-T4"),)),
        "a100": Autoscale(16, 8, 300, (("pool", "a100"),)),
        "slice": Autoscale(7, 7, 90),
        "mi": Autoscale(8, 1, 300, (("amd.com/f", "AI"),)),
        "half": None,
    }


def test_ways_to_open_a_workspace_and_its_first_page():
    text = """\
version: 1
templates:
  editor: {opens: [ssh, vscode, lab]}
  same: {extends: editor, title: Same}
  lab: {extends: editor, opens: [lab]}
  plain:
"""
    assert {
        name: (template.opens, default_url(template.opens)) for name, template in load_text(text).templates.items()
    } == {
        "editor": (("ssh", "vscode", "lab"), "/vscode/"),
        "same": (("ssh", "vscode", "lab"), "/vscode/"),
        "lab": (("lab",), "/lab"),
        "plain": ((), ""),
    }


@pytest.mark.parametrize(
    "image", ["lab", "a/b_c/d-e:2", "Registry.example.org/x@sha256:" + "a" * 64, "localhost:5000/x:V_1.2-c"]
)
def test_names_of_images(image):
    (template,) = load_text(SMALLEST.replace("lab: {", f'lab: {{image: "{image}", ')).templates.values()
    assert template.image == image


def test_a_template_has_what_was_written(catalog):
    template = catalog.templates["pytorch"]
    assert (template.title, template.policy) == ("PyTorch", "default")
    assert template.gpus == {"a100": (1, 4), "t4": (1, 1), "half": (1, 1)}
    assert template.bounds == Bounds((2, 32), (8 * GIB, 256 * GIB), (1800, 86400))
    assert template.default == Defaults("a100", 2, 8, 64 * GIB, 28800)


def test_inherited_values_are_moved_into_the_templates_bounds(catalog):
    template = catalog.templates["pytorch-4x"]
    assert (template.title, template.policy) == ("Four at once", "night")
    assert template.gpus == {"a100": (4, 4)}
    assert template.default.count == 4
    assert template.bounds.lifetime_seconds == (3600, 43200)


def test_a_template_without_keys_has_all_defaults(catalog):
    template = catalog.templates["cpu"]
    assert (template.title, template.gpus) == ("cpu", {})
    assert template.bounds == Bounds((1, 8), (GIB, 32 * GIB), (600, 172800))
    assert template.default == Defaults(None, 0, 2, 8 * GIB, 28800)


def test_policies(catalog):
    default = LifecyclePolicy(
        "default",
        mode=Mode.WARN,
        idle=IdlePolicy(
            below_percent=10,
            for_seconds=1200,
            sample_seconds=30,
            grace_seconds=300,
            start_up_seconds=90,
            soft_seconds=7200,
            soft_names=("kernel", "cpu", "editor"),
        ),
        keep=KeepPolicy(2, 3600),
        extend=ExtendPolicy(7200, 43200, (3600, 600)),
        lifetime_seconds=(600, 172800),
        activity=ActivityPolicy(10800, 900),
    )
    night = catalog.policies["night"]
    assert catalog.policies["default"] == default
    assert (night.mode, night.idle.for_seconds, night.idle.grace_seconds) == (Mode.WARN, 900, 300)
    assert (night.keep, night.idle.soft_names) == (KeepPolicy(1, 3600), ())
    assert night.activity == ActivityPolicy(10800, 300), "joined key by key, as idle is"
    assert catalog.policy_of("pytorch-4x") is night


def test_the_smallest_catalog_has_the_built_in_policy_and_no_quota():
    catalog = load_text(SMALLEST)
    assert catalog.policies == {"default": LifecyclePolicy()}
    assert catalog.policies["default"].mode is Mode.OBSERVE
    assert catalog.policies["default"].activity is None, "a workspace without a GPU is not judged unless it is written"
    assert (catalog.rules, catalog.simulated, catalog.fast) == (Rules(), {}, None)
    assert catalog.templates["lab"].default.gpu == "a100"


@pytest.mark.parametrize("section", ["activity:", "activity: {}", "activity: {none_for: 2h}"])
def test_an_empty_activity_section_makes_workspaces_without_a_gpu_idle(section):
    catalog = load_text(f"{SMALLEST}policies: {{default: {{{section}}}, night: {{extends: default}}}}\n")
    assert catalog.policies["default"].activity == ActivityPolicy()
    assert catalog.policies["night"].activity == ActivityPolicy()


def test_a_policy_may_extend_the_default_policy_that_is_not_written():
    catalog = load_text(f"{SMALLEST}policies: {{night: {{extends: default, mode: warn}}}}\n")
    assert list(catalog.policies) == ["default", "night"]
    assert catalog.policies["night"] == LifecyclePolicy("night", mode=Mode.WARN)


def test_a_dict_loads_as_its_file_does(catalog, text):
    assert load_catalog(yaml.safe_load(text)) == catalog


def test_the_example_passes():
    assert check(EXAMPLE) == ()
    catalog = load_catalog(str(EXAMPLE))
    assert {policy.mode for policy in catalog.policies.values()} == {Mode.OBSERVE}, "no workspace is stopped at first"
    assert not catalog.simulated, "no user gets a simulated GPU"


LEFT_OUT = re.compile(
    r"^( *)# ((?:timezone|contact|b200|needs|substitutes|priority|hours|student|eve|vision|all|teams|holds|make_room"
    r"|approve):.*|  (?:- {|vision:).*)$"
)


def test_the_comments_of_the_example_are_right_without_their_hash():
    lines = EXAMPLE.read_text().splitlines()
    found = [LEFT_OUT.sub(r"\1\2", line) if "needs: the" not in line else line for line in lines]
    assert sum(line != as_written for line, as_written in zip(found, lines, strict=True)) == 18
    catalog = load_text("\n".join(found))
    assert [quota.name for quota in catalog.rules.quotas] == ["each-user", "student", "eve", "vision", "all"]
    assert (len(catalog.rules.hours), len(catalog.rules.holds), len(catalog.rules.teams)) == (1, 1, 1)


def test_no_on_dates_and_times_are_text():
    catalog = load_text(SMALLEST.replace("lab:", "no:") + "  on: {title: 2024-01-01}\n  y: {title: 1:30}\n")
    assert {name: t.title for name, t in catalog.templates.items()} == {"no": "no", "on": "2024-01-01", "y": "1:30"}


def test_scaled_divides_every_time_and_nothing_else(catalog):
    fast = scaled(catalog, 30)
    policy, template = fast.policies["default"], fast.templates["pytorch"]
    assert (policy.idle.for_seconds, policy.idle.sample_seconds, policy.idle.grace_seconds) == (40, 1, 10)
    assert (policy.idle.start_up_seconds, policy.idle.soft_seconds) == (3, 240)
    assert policy.activity == ActivityPolicy(360, 30)
    assert (policy.idle.below_percent, policy.idle.coverage, policy.keep) == (10, 0.8, KeepPolicy(2, 120))
    assert (policy.extend, policy.lifetime_seconds) == (ExtendPolicy(240, 1440, (120, 20)), (20, 5760))
    assert (template.bounds.lifetime_seconds, template.default.lifetime_seconds) == ((60, 2880), 960)
    assert (template.bounds.cpu_cores, template.gpus) == ((2, 32), catalog.templates["pytorch"].gpus)
    assert (fast.fast, fast.gpus, fast.rules) == (30, catalog.gpus, catalog.rules)
    assert scaled(fast, 2).fast == 60


def test_scaled_does_not_shorten_times_that_a_real_program_needs():
    text = SMALLEST + "  saving: {on_stop: {command: save, timeout: 2m}}\n"
    text += "scheduler: {http: {url: http://batch:8080, timeout: 3s}}\n"
    catalog = load_text(text)
    fast = scaled(catalog, 60)
    assert fast.templates["saving"].on_stop == catalog.templates["saving"].on_stop == OnStop("save", 120)
    assert fast.templates["lab"].on_stop == OnStop()
    assert fast.scheduler == catalog.scheduler
    assert fast.scheduler.timeout_seconds == 3


@pytest.mark.parametrize("factor", [0, -1, 0.5, float("nan"), float("inf"), 1e9])
def test_scaled_refuses_other_factors(catalog, factor):
    with pytest.raises(ValueError, match="factor from 1 to 3600"):
        scaled(catalog, factor)


def test_readings_name_the_exporters_metrics_and_none_leaves_one_out(head: str) -> None:
    written = "readings: {prometheus: 'http://p:9090/', activity: none, encoder: my_encoder, interval: 1m}\n"
    exporter = load_text(head + written).exporter
    assert exporter == Exporter("http://p:9090", activity="", encoder="my_encoder", interval_seconds=60.0)
    assert load_text(head).exporter is None
