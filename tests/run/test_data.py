"""The settings of make run, and the data that it keeps between runs."""

import asyncio
import platform
import stat
from collections import Counter
from pathlib import Path

import pytest
import yaml

from demo import colleagues, data, external, machine, place
from demo.data import Settings
from demo.launcher import take_lock
from demo.scheduler.inventory import Inventory
from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.derived import scaled
from tools.install import ROOT
from tools.progress import StepError


def test_nothing_given_means_port_8000_real_minutes_and_colleagues():
    assert Settings.from_environment({}) == Settings(8000, ROOT / ".run", None, colleagues=True)


def test_every_setting_is_read():
    given = {"PORT": "8001", "DATA": "/elsewhere", "FAST": "1", "DEMO": "0"}
    assert Settings.from_environment(given) == Settings(8001, Path("/elsewhere"), 30.0, colleagues=False)


def test_another_scheduler_is_named():
    assert Settings.from_environment({"SCHEDULER": "http"}).external


def test_the_reference_scheduler_has_the_demo_s_gpus_and_its_catalog_names_it(tmp_path):
    external.main(tmp_path, machine.CATALOG, "http://127.0.0.1:9470", "http://127.0.0.1:8000")
    inventory = Inventory.read((tmp_path / "inventory.yaml").read_text())
    counts = Counter((gpu.cluster, gpu.kind) for gpu in inventory.gpus.values())
    assert counts == {("onsite", "a100"): 4, ("onsite", "t4"): 2, ("cloud", "h100"): 2}
    assert {gpu.node for gpu in inventory.gpus.values()} == {platform.node()}
    catalog = load_catalog(tmp_path / "catalog.yaml")
    assert set(catalog.gpus) == set(inventory.kinds)
    assert catalog.scheduler.url == "http://127.0.0.1:9470"
    token = tmp_path / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    before = token.read_text()
    external.main(tmp_path, machine.CATALOG, "http://127.0.0.1:9471", "http://127.0.0.1:8000")
    assert token.read_text() == before


def test_a_machine_s_own_gpus_are_the_scheduler_s_too():
    own = machine.with_own(yaml.safe_load(machine.CATALOG.read_text()), Counter({("L40S", "46068", "8.9"): 3}))
    (cluster,) = external.inventory_of(own, "here")["clusters"]
    assert cluster["nodes"] == {"here": {"l40s": 3}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCHEDULER", "slurm"),
        *(("PORT", value) for value in ("eight", "0", "80", "65536", "-1", "8000.0", "\uff18000", " 8000")),
        ("FAST", "yes"),
        ("NVIDIA", "a100/.."),
        ("DEMO", "false"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_what_would_be_right(name, value):
    with pytest.raises(StepError, match=rf"(?s)^{name}={value} .*{name}="):
        Settings.from_environment({name: value})


@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null"])
def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(folder):
    settings = Settings.from_environment({"DATA": folder})
    with pytest.raises(StepError, match=rf"^DATA={folder} is no folder to write to \(.*\).\nName one that is yours"):
        take_lock(settings, "make run")


def test_passwords_are_private_to_each_person_and_kept(tmp_path):
    settings = Settings(8000, tmp_path / "data", None, colleagues=True)
    first = data.prepare(settings)
    assert set(first) == {"alice", "bob", "admin"}
    assert len(set(first.values())) == 3
    assert stat.S_IMODE((settings.data / "secrets.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.data.stat().st_mode) == 0o700
    assert data.prepare(settings) == first


def test_a_home_keeps_the_notebook_that_its_user_changed(tmp_path):
    settings = Settings(8000, tmp_path / "data", None, colleagues=True)
    data.prepare(settings)
    notebook = settings.data / "homes" / "alice" / "demo.ipynb"
    notebook.write_text("mine")
    data.prepare(settings)
    assert notebook.read_text() == "mine"


def test_the_welcome_says_all_that_is_needed(tmp_path):
    settings = Settings(8001, tmp_path / "data", 30.0, colleagues=True)
    passwords = data.prepare(settings)
    simulated = data.Machine("catalog.yaml", "8 simulated GPUs, this machine has none", simulated=True)
    text = data.welcome(settings, passwords, simulated)
    for part in ("http://127.0.0.1:8001", *passwords.values(), "8 simulated GPUs", "carol-demo", "30 times", "Ctrl-C"):
        assert part in text
    real = data.Machine("catalog.yaml", "this machine's own: 1 NVIDIA L40S", simulated=False)
    assert "carol-demo" not in data.welcome(settings, passwords, real)


def test_gpus_of_nvidias_simulated_driver_are_called_so_and_have_data_of_their_own():
    settings = Settings.from_environment({"NVIDIA": "a100"})
    assert (settings.nvidia, settings.data) == ("a100", ROOT / ".run" / "nvidia-a100")
    assert Settings.from_environment({"NVIDIA": "none"}) == Settings.from_environment({}), "our own simulation"
    own = Counter({("NVIDIA A100-SXM4-40GB", "40960", "8.0"): 8})
    written = yaml.safe_load(machine.CATALOG.read_text())
    catalog = load_catalog(machine.with_own(written, own, data.SIMULATED_DRIVER))
    assert {kind.title for kind in catalog.gpus.values()} == {"NVIDIA A100-SXM4-40GB (simulated driver)"}
    found = data.Machine("catalog.yaml", "of NVIDIA's simulated driver: 8 NVIDIA A100-SXM4-40GB", simulated=False)
    text = data.welcome(settings, {"alice": "a", "bob": "b", "admin": "c"}, found)
    assert "nvml-mock-ctl util --gpu all 64" in text
    assert "demo.ipynb" not in text
    assert "the GPUs are real" not in text


A100_MACHINE = Counter({("NVIDIA A100-SXM4-40GB", "40960", "8.0"): 8})


def catalogs():
    """Return the catalog of each way to run the demo on A100."""
    for name in ("catalog.yaml", "cluster_catalog.yaml"):
        written = yaml.safe_load((data.DEMO / name).read_text())
        yield from (written, machine.with_own(written, A100_MACHINE, data.SIMULATED_DRIVER))


@pytest.mark.parametrize("fast", [1.0, data.FAST_FACTOR])
def test_the_command_of_the_readme_starts_a_workspace_in_each_demo(fast):
    """gpuspawner start --gpu a100 --lifetime 2h"""
    for written in catalogs():
        template = scaled(load_catalog(written), fast).templates["pytorch"]
        low, high = template.bounds.lifetime_seconds
        assert low <= 2 * 3600 <= high
        assert "a100" in template.gpus


def test_one_user_may_have_all_gpus_of_a_kind_so_that_the_next_one_meets_a_queue():
    for written in catalogs():
        catalog = load_catalog(written)
        most = catalog.templates["pytorch"].gpus["a100"][1]
        (limit,) = next(one for one in catalog.rules.quotas if one.name == "each-user").limits
        assert limit.hard >= most


def test_two_products_of_one_model_keep_their_whole_names():
    names = machine.kind_names(["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"])
    assert list(names.values()) == ["nvidia-a100-sxm4-40gb", "nvidia-a100-sxm4-80gb", "rtx-4090"]


@pytest.mark.parametrize("waiting", [0, 1])
async def test_carol_asks_for_her_next_workspace_before_she_stops_unless_others_wait(monkeypatch, waiting):
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _seconds: sleep(0))
    steps, looks = [], iter([waiting, waiting, 0, waiting, waiting, 0])

    class Recorder(colleagues.Hub):
        async def ask(self, method, path, _body=None):
            if path.endswith("/offers"):
                return {"offers": [{"kind": "a100", "waiting": next(looks)}, {"kind": "h100", "waiting": 1}]}
            steps.append((method, path.partition("/users/")[2]))
            return {"servers": {path: {"ready": True} for path in started}}

        async def request_start(self, _user, _options, name=""):
            steps.append(("start", name))
            started.add(name)

        async def run(self, _user, _code, name=""):
            return f"ran in {name}"

    started = set()
    await colleagues.carol(Recorder("http://127.0.0.1", "token"), fast=True)
    done = [step for step in steps if step[0] != "GET"]
    overlap = [] if waiting else [("start", "evaluate")]
    assert done[: 2 + len(overlap)] == [("start", "train"), *overlap, ("DELETE", "carol-demo/servers/train")]
    assert done[-1] == ("DELETE", "carol-demo/servers/evaluate")
    assert next(looks, None) == (None if waiting else 0)  # she asks again as soon as nobody is waiting


def test_bob_is_told_of_a_queue_that_he_meets():
    passwords = dict.fromkeys(data.PEOPLE, "p")
    simulated = data.Machine("catalog.yaml", "8 simulated GPUs", simulated=True)
    for options, sentence in (
        ({"colleagues": True}, data.QUEUE_BEHIND_CAROL),
        ({"colleagues": False}, data.QUEUE_BEHIND_ALICE),
    ):
        assert sentence in data.welcome(Settings(8000, ROOT / ".run", None, **options), passwords, simulated)


def test_the_demos_catalog_is_right_and_enforces():
    catalog = load_catalog(machine.CATALOG)
    assert dict(catalog.simulated) == {"a100": 4, "h100": 2, "t4": 2}
    assert {policy.mode for policy in catalog.policies.values()} == {"enforce"}
    assert set(catalog.rules.teams) == {"vision", "speech"}
    assert [(len(entry.limits), len(entry.budgets)) for entry in catalog.rules.quotas] == [(1, 0), (0, 1)]
    assert dict(catalog.templates["pytorch"].substitutes) == {"a100": ("h100",)}


def test_a_machine_with_gpus_offers_its_own_by_name(tmp_path):
    own = Counter({("NVIDIA H100 80GB HBM3", "81559", "9.0"): 2, ("Tesla T4", "15360", "7.5"): 1})
    catalog = load_catalog(machine.with_own(yaml.safe_load(machine.CATALOG.read_text()), own))
    assert {kind.match for kind in catalog.gpus.values()} == {"NVIDIA H100 80GB HBM3", "Tesla T4"}
    assert dict(catalog.templates["pytorch"].gpus) == {"h100": (1, 2), "t4": (1, 1)}
    assert not catalog.simulated


def test_another_cluster_offers_what_its_nodes_labels_tell_of():
    def labels(product, count, **more):
        told = {"product": product, "memory": "81920", "compute.major": "8", "compute.minor": "0", "count": count}
        return {f"nvidia.com/gpu.{name}": value for name, value in {**told, **more}.items()}

    nodes = [labels("NVIDIA-A100", "2"), labels("NVIDIA-A100", "8"), labels("NVIDIA-H100", "0"), {"pool": "cpu"}]
    kinds = place.kinds_of(nodes)
    assert kinds == [("NVIDIA-A100", "81920", "8.0", 8)]
    written = yaml.safe_load((data.DEMO / "cluster_catalog.yaml").read_text())
    catalog = load_catalog(machine.with_own(written, Counter({kind[:3]: kind[3] for kind in kinds})))
    assert dict(catalog.templates["pytorch"].gpus) == {"a100": (1, 8)}
    assert list(load_catalog(machine.with_own(written, Counter())).templates) == ["cpu"]


def test_the_clusters_catalog_is_right_enforces_and_calls_its_gpus_simulated():
    catalog = load_catalog(data.DEMO / "cluster_catalog.yaml")
    assert {policy.mode for policy in catalog.policies.values()} == {"enforce"}
    assert all("simulated" in kind.title for kind in catalog.gpus.values())
