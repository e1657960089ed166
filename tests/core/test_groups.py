"""GPUs that only count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import fleet, gpu, slots

from gpuspawner.core.gpus.fleet import Group
from gpuspawner.core.gpus.pools import GpuHolder, assign_counted_slots, move_marks_to_free_gpus

G, H = Group("node-1", "nvidia.com/gpu"), Group("node-2", "nvidia.com/gpu")


def of(group, *numbers):
    return slots(*(group.gpu(number) for number in numbers))


def counted(count, group=G, **marks):
    """GPUs of a group; ``foreign=2`` marks the last two so."""
    gpus = [replace(gpu(number), id=group.gpu(number), group=group) for number in range(count)]
    for name, number in marks.items():
        for index in range(count - number, count):
            gpus[index] = replace(gpus[index], **{name: name == "foreign"}, note=name)
    return gpus


@pytest.mark.parametrize(
    ("occupants", "reserved", "expected"),
    [
        pytest.param([GpuHolder(of(G, 3))], (), [of(G, 3)], id="who only says what it holds holds that"),
        pytest.param([GpuHolder(of(G, 3), {G: 1})], (), [of(G, 3)], id="given where it was planned"),
        pytest.param([GpuHolder(of(G, 3), {H: 1})], (), [of(H, 0)], id="given on another node"),
        pytest.param([GpuHolder(of(G, 3, 4), {G: 1})], (), [of(G, 3)], id="given fewer"),
        pytest.param([GpuHolder(of(G, 1), {G: 3})], (), [of(G, 1, 0, 2)], id="given more"),
        pytest.param([GpuHolder(of(G, 0), {})], (), [()], id="given none"),
        pytest.param([GpuHolder(of(G, 0), {H: 1}), GpuHolder(of(H, 0), {G: 1})], (), [of(H, 0), of(G, 0)],
                     id="swapped"),
        pytest.param([GpuHolder(of(G, 0), {H: 1}), GpuHolder(of(H, 0), {H: 1})], (), [of(H, 1), of(H, 0)],
                     id="who is where it was planned keeps its own"),
        pytest.param([GpuHolder(of(G, 0), {H: 1})], of(H, 0), [of(H, 1)], id="what is reserved is left"),
        pytest.param([GpuHolder((), {G: 1}), GpuHolder((), {G: 1})], (), [of(G, 0), of(G, 1)], id="who says nothing"),
    ],
)  # fmt: skip
def test_seats(occupants, reserved, expected):
    assert assign_counted_slots(occupants, reserved) == expected


occupant = st.builds(
    GpuHolder,
    st.lists(st.sampled_from([*of(G, 0, 1, 2, 3), *of(H, 0, 1)]), unique=True, max_size=3).map(tuple),
    st.none() | st.dictionaries(st.sampled_from([G, H]), st.integers(0, 3)),
)


@given(st.lists(occupant, max_size=5))
def test_everybody_has_as_many_as_was_given_and_taking_the_same_again_changes_nothing(occupants):
    found = assign_counted_slots(occupants)
    for who, own in zip(occupants, found, strict=True):
        if who.given is not None:
            assert {g: sum(s.group == g for s in own) for g in who.given} == dict(who.given)
    again = [replace(who, slots=own) for who, own in zip(occupants, found, strict=True)]
    assert assign_counted_slots(again) == found


def marks(seen):
    return [(x.healthy, x.foreign, x.note) for x in seen.gpus]


def test_a_mark_goes_from_a_gpu_that_is_held_to_one_that_is_free():
    seen = move_marks_to_free_gpus(fleet(*counted(4, foreign=1)), {G.gpu(3)})
    assert [x.foreign for x in seen.gpus] == [False, False, True, False]
    assert seen.gpus[2].note == "foreign"
    assert seen.gpus[3].note == ""


@pytest.mark.parametrize(
    ("seen", "held"),
    [
        pytest.param(fleet(*counted(2, foreign=1)), {G.gpu(0)}, id="nothing held is marked"),
        pytest.param(fleet(*counted(2, foreign=1)), {G.gpu(0), G.gpu(1)}, id="no foreign GPU is left"),
        pytest.param(fleet(*counted(2, healthy=2)), {G.gpu(0)}, id="all are unhealthy"),
        pytest.param(fleet(gpu(0, foreign=True), gpu(1)), {"a100-0"}, id="a GPU with a name of its own"),
    ],
)
def test_marks_stay_where_they_cannot_go_elsewhere(seen, held):
    assert move_marks_to_free_gpus(seen, held) == seen


@given(st.integers(0, 4), st.integers(0, 4), st.sets(st.integers(0, 7)))
def test_free_gpus_equal_the_numbers(foreign, sick, held):
    gpus = counted(8, foreign=foreign)
    gpus = [replace(x, healthy=False) if 8 - foreign - sick <= x.index < 8 - foreign else x for x in gpus]
    names = {G.gpu(number) for number in held}
    seen = move_marks_to_free_gpus(fleet(*gpus), names)
    free = sum(x.healthy and not x.foreign and x.id not in names for x in seen.gpus)
    assert free == max(0, 8 - foreign - sick - len(held))
    assert (sum(x.foreign for x in seen.gpus), sum(not x.healthy for x in seen.gpus)) == (foreign, sick)
