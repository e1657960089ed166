"""A share of a time-sliced GPU meets no need for memory, unless the catalog says that its memory is enforced."""

import pytest

from gpuspawner.catalog import load_text, resolve
from gpuspawner.core.errors import CatalogError, RequestRefused
from gpuspawner.core.gpus.fleet import DeviceClaim, GpuKind
from gpuspawner.core.gpus.placement import accepted_kinds
from gpuspawner.spawner.web import form

GIB = 2**30
CATALOG = """\
version: 1
gpus:
  a100: {title: A100, match: A100, memory: 80GiB}
  half: {title: Half an A100, of: a100, shares: 2@}
  t4: {title: T4, match: T4, memory: 16GiB}
templates:
  lab: {title: Lab, gpus: {half: 1, t4: 1, a100: 1}, substitutes: {t4: [half]}}
  shares: {title: Shares, gpus: {half: 1}}
"""
SLICED, ENFORCED = (load_text(CATALOG.replace("@", more)) for more in ("", ", memory_enforced: true"))


def refusal(catalog, **options):
    with pytest.raises(RequestRefused) as caught:
        resolve(catalog, options, "alice")
    return str(caught.value)


def test_a_request_for_memory_gets_no_share_without_enforced_memory():
    asked = {"template": "lab", "gpu": "any", "gpu_memory": "40GiB"}
    assert resolve(SLICED, asked, "alice").gpu == "a100"
    assert resolve(ENFORCED, asked, "alice").gpu == "half"


def test_a_share_by_name_with_a_need_for_memory_is_refused_and_says_why():
    asked = {"template": "lab", "gpu": "half", "gpu_memory": "40GiB"}
    assert "others on the same GPU may use up its memory." in refusal(SLICED, **asked)
    assert resolve(ENFORCED, asked, "alice").gpu == "half"
    told = refusal(SLICED, template="shares", gpu_memory="10GiB")
    assert told.endswith("Leave it out: nothing enforces the memory of the GPUs of Shares.")


def test_a_share_without_enforced_memory_is_no_substitute():
    asked = {"template": "lab", "gpu": "t4", "gpu_memory": "16GiB", "substitutes": ["a100"]}
    request = resolve(SLICED, asked, "alice")
    assert [kind.name for kind in accepted_kinds(request, SLICED.gpus)] == ["t4", "a100"]
    with pytest.raises(RequestRefused):
        resolve(SLICED, {**asked, "substitutes": ["half"]}, "alice")
    assert resolve(ENFORCED, {**asked, "substitutes": ["half"]}, "alice").substitutes == ("half",)


def test_a_template_that_needs_memory_may_not_offer_a_too_small_share():
    needs = CATALOG.replace("gpus: {half: 1}}", "gpus: {half: 1}, needs: {memory: 20GiB}}")
    with pytest.raises(CatalogError, match=r"templates.shares.gpus.half: nothing enforces the memory"):
        load_text(needs.replace("@", ""))
    assert load_text(needs.replace("@", ", memory_enforced: true"))


def test_a_template_that_needs_isolated_memory_may_not_offer_a_share_of_which_others_take_the_memory():
    needs = CATALOG.replace("gpus: {half: 1}}", "gpus: {half: 1}, needs: {memory_isolated: true}}")
    words = r"templates.shares.gpus.half: nothing enforces the memory of the share `half` .*needs says memory_isolated"
    with pytest.raises(CatalogError, match=words):
        load_text(needs.replace("@", ""))
    assert load_text(needs.replace("@", ", memory_enforced: true"))


def test_the_form_says_that_it_is_not_enforced():
    def text(catalog):
        return form.FormView(
            catalog, user="alice", server="", ticket="t", service_prefix="/services/gpu/", chosen={}
        ).render()

    assert "40 GiB each, others on the same GPU may use up its memory" in text(SLICED)
    assert "may use up" not in text(ENFORCED)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (GpuKind("whole", "Whole", 80 * GIB), 80 * GIB),
        (GpuKind("mig", "MIG", 10 * GIB, match="NVIDIA A100 MIG 1g.10gb"), 10 * GIB),
        (GpuKind("half", "Half", 40 * GIB, of="whole", shares=2), 0),
        (GpuKind("half", "Half", 40 * GIB, replicas=2), 0),
        (GpuKind("mps", "MPS", 40 * GIB, replicas=2, memory_enforced=True), 40 * GIB),
        (GpuKind("part", "Part", 10 * GIB, claim=DeviceClaim("gpu.nvidia.com", capacity=(("memory", "10Gi"),))), 0),
    ],
    ids=["whole", "MIG", "share", "replica", "enforced", "capacity of a claim"],
)
def test_shares_with_their_own_memory(kind, own):
    assert kind.own_memory_bytes == own
