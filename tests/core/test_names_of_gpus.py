"""Names of GPUs, and the fields that they are made of."""

import pytest

from gpuspawner.core.gpus.fleet import (
    Group,
    Slot,
    catalog_kind_name,
    coming_node_group,
    group_of_gpu,
    kind_in_cluster,
    nodes_of_cluster,
    qualified_node_name,
)


@pytest.mark.parametrize("group", [Group("node-1", "nvidia.com/gpu"), Group("a.b-c", "amd.com/gpu"), Group("n", "gpu")])
def test_a_name_gives_back_the_fields_that_it_was_made_of(group):
    slot = Slot(group.gpu(12))
    assert (slot.gpu, slot.group, slot.is_coming) == (f"{group.node}/{group.resource}/12", group, False)
    assert group.coming_kind == ""


@pytest.mark.parametrize("name", ["GPU-8d0c4c52-6c4b-4a43-9d36-0c8f6f6f0001", "sim-0", "half/way", ""])
def test_a_gpu_with_a_name_of_its_own_has_no_group(name):
    assert (group_of_gpu(name), Slot(name).is_coming) == (None, False)


def test_a_node_that_is_coming_is_known_by_its_name_and_names_its_kind():
    group = coming_node_group("a100-half", 3, "nvidia.com/gpu")
    assert (Slot(group.gpu(0)).is_coming, group_of_gpu(group.gpu(0)).coming_kind) == (True, "a100-half")


def test_nodes_and_kinds_of_several_clusters_are_told_apart_by_their_names():
    assert (qualified_node_name("", "one"), qualified_node_name("east", "one")) == ("one", "east:one")
    assert nodes_of_cluster("east", ["one", "east:one", "west:two"]) == {"one"}
    assert nodes_of_cluster("", ["one", "east:one"]) == {"one"}
    assert (kind_in_cluster("east", "a100"), catalog_kind_name("a100@east"), catalog_kind_name("a100")) == (
        "a100@east",
        "a100",
        "a100",
    )
