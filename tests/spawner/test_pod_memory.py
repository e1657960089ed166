import pytest

from gpuspawner.spawner import pod_memory
from gpuspawner.spawner.pod_memory import PodMemory


@pytest.fixture
async def memory(monkeypatch):
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _: None)
    return PodMemory(namespace="hub")


async def test_a_pod_that_the_watch_takes_out_is_remembered_as_it_looked_last(memory):
    memory.resources = {"hub/alice": {"looks": "well"}}
    memory.resources["hub/alice"] = {"looks": "preempted"}
    memory.resources.pop("hub/alice", None)
    memory.resources.pop("hub/nobody", None)
    assert memory.pods == {}
    assert memory.gone == {"hub/alice": {"looks": "preempted"}}


async def test_a_pod_that_a_new_list_lacks_is_remembered(memory):
    memory.resources = {"hub/alice": {"uid": 1}, "hub/bob": {"uid": 2}}
    memory.resources = {"hub/bob": {"uid": 2}}
    assert (memory.pods, memory.gone) == ({"hub/bob": {"uid": 2}}, {"hub/alice": {"uid": 1}})


async def test_the_memory_is_bounded_and_forgets_the_oldest(memory, monkeypatch):
    monkeypatch.setattr(pod_memory, "MOST", 2)
    for name in ("a", "b", "a", "c"):
        memory.note_gone(name, {})
    assert list(memory.gone) == ["a", "c"]
