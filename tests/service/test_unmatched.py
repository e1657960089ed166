"""Kinds of the catalog that no GPU matches."""

from dataclasses import replace

import page_world
import pytest
from service_world import a_catalog

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.core.gpus.fleet import Autoscale, DeviceClaim, Fleet, Gpu, GpuKind, Group
from gpuspawner.service.app import Options
from gpuspawner.service.engine.sampling.gpu_states import find_unmatched_kinds, find_unmeasured_kinds
from gpuspawner.service.process.service import Service
from gpuspawner.service.settings import Settings

A100 = GpuKind("a100", "A100", 80, match="*A100*")
HALF = GpuKind("half", "Half", 40, of="a100", shares=2)


def gpus(pool, model, count=2, note=""):
    return tuple(replace(gpu, model=model, note=note) for gpu in fake_gpus(pool, count))


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (gpus("a100", "NVIDIA A100"), ""),
        (gpus("", "NVIDIA H100 80GB"), "2 NVIDIA H100 80GB. To offer them, write, for example, match: '*NVIDIA*H100"),
        (gpus("h100", "NVIDIA H100"), "Every GPU that is seen (NVIDIA H100) has another kind"),
        ((), "No GPU is seen at all"),
        (gpus("", "T4", note="add a kind: its node is spot"), "To offer them, add a kind: its node is spot."),
        (gpus("", "nvidia.com/gpu", note="no label says so: add resource: nvidia.com/gpu"), "add resource: nvidia.com"),
    ],
)
def test_a_kind_without_a_gpu_is_told_with_what_was_seen_and_what_to_write(seen, told):
    sentences = find_unmatched_kinds([A100, HALF], Fleet(seen, complete=True))
    assert len(sentences) == bool(told)
    if told:
        assert sentences[0].startswith("No GPU matches the kind a100 (match: *A100*). ")
        assert told in sentences[0]


def test_nothing_is_told_before_all_is_seen_nor_of_nodes_that_are_started_when_needed():
    assert find_unmatched_kinds([A100], Fleet()) == ()
    coming = replace(A100, autoscale=Autoscale(8, 8, 300.0))
    assert find_unmatched_kinds([coming], Fleet((), complete=True)) == ()


def test_gpus_of_vendors_that_are_not_known_are_told():
    kinds = [A100, GpuKind("mi300", "MI300", 192, match="*MI300*"), GpuKind("max", "Max", 48)]
    resources = {"a100": "nvidia.com/gpu", "mi300": "amd.com/gpu", "max": "example.com/other"}
    fleet = Fleet(tuple(Gpu(name, name, "n", 0, name, 1, group=Group("n", r)) for name, r in resources.items()))
    (told,) = find_unmeasured_kinds(kinds, fleet)
    assert told.startswith("GPUs of the kind max: The vendor of example.com/other is not known")


def test_administrators_read_it_on_their_page_and_users_do_not(make_web_world):
    world = make_web_world()
    world.backend.gpus = ()
    world.observe()
    assert "No GPU matches the kind a100" in page_world.Browser(world, "admin").look("console/").text
    alice = page_world.Browser(world, "alice").home.text
    assert "No GPU matches" not in alice
    assert "0 of 0" not in alice


async def test_the_service_logs_it_once_at_its_first_complete_view(tmp_path, monkeypatch, caplog):
    for name in ("API_URL", "API_TOKEN", "CLIENT_ID", "BASE_URL", "SERVICE_PREFIX", "OAUTH_CALLBACK_URL"):
        monkeypatch.setenv(f"JUPYTERHUB_{name}", "http://127.0.0.1:9/hub/api" if name == "API_URL" else "x")
    url = "http://127.0.0.1:9"
    options = Options(f"sqlite:///{tmp_path / 'x.sqlite'}", b"s" * 32, "1" * 32, url, "t", url, "/gpu/", None)
    backend = FakeBackend(complete=False)
    service = Service(options, a_catalog(), backend, Settings())
    service.parts.store.open()
    for complete in (False, True, True):
        backend.complete = complete
        await service._observe_fleet()
        assert caplog.text.count("No GPU matches the kind a100 (match: *A100*)") == complete


def test_a_kind_that_no_device_serves_is_told_with_its_class_and_selectors():
    claim = DeviceClaim("gpu.nvidia.com", ("device.driver == 'gpu.nvidia.com'",))
    kind = GpuKind("h100", "H100", 80 * 2**30, resource=claim.counted_as("h100"), claim=claim)
    (sentence,) = find_unmatched_kinds([kind], Fleet(complete=True))
    assert sentence.startswith(
        "No GPU matches the kind h100 (no device of a ResourceSlice meets the class gpu.nvidia.com and "
        "device.driver == 'gpu.nvidia.com'). "
    )
