"""``gpuspawner server init`` and ``doctor`` with NVIDIA's own nvidia-smi on NVIDIA's simulated driver."""

import json

import pytest
from harness.nvidia import machines, simulated_driver

from gpuspawner.adoption.doctor.findings import State
from gpuspawner.adoption.doctor.source_checks import cuda_of_image, cuda_of_packages, driver_supports
from gpuspawner.adoption.draft import MOST_GPUS
from gpuspawner.backends.local import nvidia
from gpuspawner.catalog import load_catalog
from gpuspawner.cli import main

COMPUTE = {"a100": "8.0", "b200": "10.0", "gb200": "10.0", "gb300": "10.0", "h100": "9.0", "l40s": "8.9", "t4": "7.5"}
"""The compute capabilities that the simulated drivers report. A real GB300 reports 10.3."""
CATALOG = """
version: 1
gpus: {a100: {match: NVIDIA A100-*, memory: 40GiB}}
templates: {lab: {gpus: {a100: 1}, image: "%s"}}
"""
NOBODY = ("--hub", "http://127.0.0.1:1/hub/api", "--service", "http://127.0.0.1:1")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make this machine one of the simulated ones, and return its driver."""
    monkeypatch.chdir(tmp_path)

    def make(profile="a100", **settings):
        driver = simulated_driver(tmp_path / "driver", profile, **settings)
        monkeypatch.setenv("PATH", f"{driver.programs}:/bin:/usr/bin")
        return driver

    return make


def examined(capsys, catalog):
    """Return doctor's findings on GPUs, drivers and the catalog, as (state, words, remedy)."""
    main(["server", "doctor", "--json", *NOBODY, "--catalog", str(catalog)])
    found = json.loads(capsys.readouterr().out)["findings"]
    return [(one["state"], one["words"], one["remedy"]) for one in found if one["check"] in {"GPUs", "CUDA", "catalog"}]


@pytest.mark.parametrize("profile", machines())
def test_each_machine_gets_a_catalog_that_check_and_doctor_find_good(machine, capsys, profile):
    driver = machine(profile)
    count = len(driver.uuids)
    assert main(["server", "init"]) == 0
    assert f"Found on this machine: {count} x " in capsys.readouterr().out
    assert main(["server", "check", "catalog.yaml"]) == 0
    capsys.readouterr()
    catalog = load_catalog("catalog.yaml")
    (kind,) = catalog.gpus.values()
    assert kind.compute == COMPUTE.get(profile, kind.compute)
    assert catalog.templates["gpu"].gpus == {kind.name: (1, min(count, MOST_GPUS))}
    assert catalog.policies["default"].mode.value == "observe"
    found = examined(capsys, "catalog.yaml")
    assert ("good", "All GPU kinds of the catalog exist (1).", "") in found
    assert {state for state, *_ in found} == {"good"}


@pytest.mark.parametrize("mode", ["lost", "fallen_off_bus"])
def test_a_lost_gpu_is_named_and_not_offered(machine, capsys, mode):
    driver = machine(gpus=3)
    driver.fail(mode, gpu=1, xid=79)
    assert main(["server", "init"]) == 0
    out = capsys.readouterr().out
    assert "Found on this machine: 2 x A100 SXM4 40GB." in out
    assert (
        "GPU 1 (NVIDIA A100-SXM4-40GB): the driver has lost it. It is not in the catalog. Remedy: look for its Xid"
        in out
    )
    found = [one for one in examined(capsys, "catalog.yaml") if one[0] == "bad"]
    remedy = "Look for its Xid in dmesg, then reset it or restart the machine."
    assert found == [("bad", "GPU 1 (NVIDIA A100-SXM4-40GB): the driver has lost it.", remedy)]
    driver.reset()
    assert [one for one in examined(capsys, "catalog.yaml") if one[0] == "bad"] == []


def test_a_gpu_with_memory_errors_is_named_and_stays_in_the_catalog(machine, capsys):
    machine(gpus=2).fail("ecc_uncorrectable", gpu=0)
    assert main(["server", "init"]) == 0
    out = capsys.readouterr().out
    assert "Found on this machine: 2 x A100 SXM4 40GB." in out
    assert "GPU 0 (NVIDIA A100-SXM4-40GB): it had " in out
    ((_, words, remedy),) = [one for one in examined(capsys, "catalog.yaml") if one[0] == "bad"]
    assert "memory errors that could not be corrected" in words
    assert remedy == "Reset it once no workspace uses it."


def test_a_gpu_in_mig_mode_without_a_mig_device_is_named_and_not_offered(machine, capsys):
    machine("h100", gpus=2).set_values(1, mig__mode_current="enabled")
    assert main(["server", "init"]) == 0
    out = capsys.readouterr().out
    assert "Found on this machine: 1 x " in out
    assert "GPU 1 (NVIDIA H100 80GB HBM3): MIG mode is on without a MIG device. It is not in the catalog." in out
    bad = [found for found in examined(capsys, "catalog.yaml") if found[0] == "bad"]
    assert bad == [
        (
            "bad",
            "GPU 1 (NVIDIA H100 80GB HBM3): MIG mode is on without a MIG device.",
            "Create some by nvidia-smi mig -cgi, or turn the mode off.",
        )
    ]


def test_a_driver_that_is_gone_is_named(machine, capsys, tmp_path):
    driver = machine()
    (tmp_path / "catalog.yaml").write_text(CATALOG % "lab")
    driver.remove_library()
    ((state, words, remedy),) = examined(capsys, "catalog.yaml")
    assert (state, remedy) == ("bad", "Repair the driver: nvidia-smi must list the GPUs.")
    assert "couldn't find libnvidia-ml.so" in words
    assert main(["server", "init", "-"]) != 0
    assert "couldn't find libnvidia-ml.so" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("release", "image", "state", "said"),
    [
        (
            "535",
            "nvcr.io/nvidia/cuda:13.0.1-runtime",
            "bad",
            "has CUDA 13.0, and the driver 535.261.03 supports CUDA up",
        ),
        ("535", "pytorch/pytorch:2.6.0-cuda12.4-cudnn9", "unknown", "supports CUDA up to 12.2: programs that compile"),
        ("550", "pytorch/pytorch:2.6.0-cuda12.4-cudnn9", "good", "The driver 550.163.01 supports CUDA up to 12.4"),
        ("535", "quay.io/jupyter/pytorch-notebook:cuda12-latest", "good", "supports CUDA up to 12.2, which is enough."),
    ],
)
def test_a_driver_too_old_for_a_templates_cuda_is_named(machine, capsys, tmp_path, release, image, state, said):
    machine(release=release)
    (tmp_path / "catalog.yaml").write_text(CATALOG % image)
    found = [one for one in examined(capsys, "catalog.yaml") if "CUDA" in one[1]]
    assert [one[0] for one in found] == [state]
    assert said in found[0][1]
    if state != "good":
        assert found[0][1].startswith(f"The image {image} of the template lab has CUDA")
        assert found[0][2] == "Update the driver, or use packages for CUDA 12.2."


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvidia/cuda:12.4.1-base-ubuntu22.04", (12, 4)),
        ("quay.io/jupyter/pytorch-notebook:cuda11-python-3.11", (11, 0)),
        ("registry.example.org/ml/torch:2.5-cu124", (12, 4)),
        ("registry.example.org/cuda-lab:1.2", None),
        ("registry.example.org/cucumber:123", None),
        ("", None),
    ],
)
def test_the_cuda_version_of_an_image_is_read_from_its_name(image, version):
    assert cuda_of_image(image) == version


def test_the_cuda_version_of_python_packages_is_that_of_their_runtime():
    installed = {"torch": "2.6.0", "nvidia-cuda-runtime-cu12": "12.4.127", "nvidia-cuda-nvrtc-cu12": "12.9.86"}
    assert cuda_of_packages(installed) == (12, 4)
    assert cuda_of_packages({"nvidia_cuda_runtime": "13.0.48"}) == (13, 0)
    assert cuda_of_packages({"torch": "2.6.0"}) is None
    (found,) = driver_supports("535.261.03", (12, 2), {"this Python's packages": (13, 0)}, "on gpu-node")
    assert found.state is State.BAD
    assert found.words.startswith(
        "This Python's packages has CUDA 13.0, and the driver 535.261.03 on gpu-node supports"
    )


def test_doctor_compares_what_needs_compares_with_what_the_driver_has(machine, capsys, tmp_path):
    machine(release="550")
    text = (CATALOG % "lab").replace("40GiB", "40GiB, compute: 9.0, cuda: 99.0")
    (tmp_path / "catalog.yaml").write_text(text.replace("image:", "needs: {cuda: 99.0}, image:"))
    found = [one[1] for one in examined(capsys, "catalog.yaml") if one[0] == "bad"]
    has = "the driver 550.163.01 supports CUDA up to 12.4, and the kind a100 needs CUDA 99.0"
    assert found[0].startswith("No GPU matches the kind a100")
    assert has in examined(capsys, "catalog.yaml")[0][2]
    assert found[1] == "The template lab needs CUDA 99.0 and gets no GPU of the driver 550.163.01, which supports 12.4."
    (tmp_path / "catalog.yaml").write_text(text.replace(", cuda: 99.0", ", cuda: 12.4"))
    found = [one[1] for one in examined(capsys, "catalog.yaml") if one[0] == "bad"]
    assert found == ["The kind a100 says compute: 9.0, and its GPUs have 8.0."]


def test_a_driver_that_tells_no_compute_capability_is_no_fault(machine, capsys, monkeypatch):
    machine("gb300")
    asked = nvidia._run
    refused = nvidia.Unavailable("nvidia-smi failed with exit code 2: 'Field \"compute_cap\" is not a valid field'.")

    async def run(command, *arguments):
        if "compute_cap" in arguments[0]:
            raise refused
        return await asked(command, *arguments)

    monkeypatch.setattr(nvidia, "_run", run)
    assert main(["server", "init"]) == 0
    (kind,) = load_catalog("catalog.yaml").gpus.values()
    assert kind.compute == "10.3", "by the model's name"
