import asyncio
import json

import pytest
from harness.waiting import until
from kubespawner.reflector import ResourceReflector
from traitlets.config import SingletonConfigurable

from gpuspawner.spawner.kubernetes import clusters as pod_watches
from gpuspawner.spawner.kubernetes.clusters import EventWatch, PodMemory
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner

POD = {"metadata": {"namespace": "hub", "name": "alice"}}


class Lists:
    """An API that answers a list with each of ``answers`` in turn, then with the last of them."""

    def __init__(self):
        self.answers, self.asked = [], 0

    async def list_namespaced_pod(self, **_):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    list_namespaced_event = list_namespaced_pod


class Answer:
    ok, status, reason = True, 200, "OK"

    async def read(self):
        return json.dumps({"items": [POD], "metadata": {"resourceVersion": "1"}})


class Refusal:
    ok, status, reason = False, 403, "Forbidden"

    async def json(self):
        return {"message": "not yet"}


@pytest.fixture
def api(monkeypatch):
    api = Lists()
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _: api)
    monkeypatch.setattr(pod_watches, "RETRY_SECONDS", (0.001,))
    return api


@pytest.fixture
async def memory(api):
    return PodMemory(namespace="hub")


@pytest.fixture
def followed(monkeypatch):
    """How often KubeSpawner's own following was begun; it gives up at once, and waits for ever the third time."""
    begun = []

    async def gives_up(self):
        begun.append(self.kind)
        if len(begun) == 2:
            raise KeyError("nobody foresaw it")
        if len(begun) == 3:
            await asyncio.Event().wait()
        if self.on_failure:
            self.on_failure()

    monkeypatch.setattr(ResourceReflector, "_watch_and_update", gives_up)
    return begun


class Lagging(Lists):
    """Of several API servers the one that answers a list that need not be new: it does not know the pod yet."""

    async def list_namespaced_pod(self, resource_version=None, **_):
        self.asked += 1
        self.answers = [Answer() if resource_version is None else Empty()]
        return await super().list_namespaced_pod()


class Empty(Answer):
    async def read(self):
        return json.dumps({"items": [], "metadata": {"resourceVersion": "1"}})


class Breaks:
    """A watch whose connection breaks at once."""

    def stream(self, *_, **__):
        raise ConnectionResetError("the API server is upgraded")

    def stop(self):
        """As a watch has it."""

    async def close(self):
        """As a watch has it."""


async def test_promise_1_a_list_that_lags_behind_what_was_seen_takes_no_pod_for_gone(monkeypatch):
    api = Lagging()
    monkeypatch.setattr("kubespawner.reflector.shared_client", lambda _: api)
    monkeypatch.setattr("kubespawner.reflector.watch.Watch", Breaks)
    memory = PodMemory(namespace="hub")
    await memory.start()
    await until(lambda: api.asked > 5)
    assert (memory.resources, memory.gone) == ({"hub/alice": POD}, {})
    await memory.stop()


class Watched(GPUSpawner):
    """With no more of a hub than a watch needs."""

    namespace, enable_user_namespaces, parent = "hub", False, None

    def __init__(self):
        SingletonConfigurable.__init__(self)


@pytest.fixture(autouse=True)
def no_watch_yet(monkeypatch):
    monkeypatch.setattr(Watched, "reflectors", {})


async def test_promise_2_a_slow_stop_opens_no_new_watch_that_would_show_no_pod_at_first(api, followed):
    api.answers = [Answer()]
    spawner = Watched()
    await spawner._start_watching_pods()
    first = spawner.pod_reflector
    api.answers = [ConnectionRefusedError("refused")]
    await asyncio.wait_for(spawner._start_watching_pods(replace=True), 5)
    assert spawner.pod_reflector is first
    assert first.resources == {"hub/alice": POD}
    await first.stop()


@pytest.mark.parametrize("kind", [PodMemory, EventWatch])
async def test_promise_2_a_first_list_that_fails_is_asked_for_until_it_comes(api, followed, kind):
    api.answers = [ConnectionRefusedError("refused"), TimeoutError(), Refusal(), ConnectionRefusedError("refused")]
    watch = kind(namespace="hub")
    starting = asyncio.create_task(watch.start())
    await until(lambda: api.asked > 5)
    assert not watch.first_load_future.done(), "what is not known is not empty"
    assert watch.trouble == "refused"
    api.answers = [Answer()]
    await starting
    assert (watch.trouble, watch.resources) == ("", {"hub/alice": POD})
    await watch.stop()


async def test_promise_2_a_watch_that_gives_up_begins_again_and_ends_no_hub(api, followed):
    api.answers = [Answer()]
    ended = []
    watch = PodMemory(namespace="hub", on_failure=lambda: ended.append("the hub"))
    await watch.start()
    await until(lambda: len(followed) == 3)
    assert ended == []
    await watch.stop()


async def test_promise_2_a_start_that_is_cancelled_leaves_the_first_list_to_the_others(api, followed):
    first, second = Watched(), Watched()
    api.answers = [ConnectionRefusedError("refused")]
    starts = [asyncio.create_task(one._start_watching_pods()) for one in (first, second)]
    await until(lambda: api.asked > 2)
    starts[0].cancel()
    await until(starts[0].done)
    seen = api.asked
    await until(lambda: api.asked > seen)
    assert not starts[1].done()
    api.answers = [Answer()]
    watch = await starts[1]
    assert isinstance(watch, PodMemory)
    assert watch.pods == {"hub/alice": POD}
    await watch.stop()


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
    monkeypatch.setattr(pod_watches, "MAX_REMEMBERED", 2)
    for name in ("a", "b", "a", "c"):
        memory.note_gone(name, {})
    assert list(memory.gone) == ["a", "c"]


CHANGES = {
    "added or modified": lambda memory: memory.resources.__setitem__("hub/alice", {}),
    "deleted": lambda memory: memory.resources.pop("hub/alice", None),
    "listed again": lambda memory: setattr(memory, "resources", {}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_of_a_pod_wakes_all_who_wait_for_that_pod(memory, change):
    memory.resources = {"hub/alice": {"phase": "Pending"}, "hub/bob": {}}
    waiting = [memory.next_change("hub/alice"), memory.next_change("hub/alice")]
    memory.resources["hub/bob"] = {"phase": "Running"}
    assert not any(one.is_set() for one in waiting)
    change(memory)
    assert all(one.is_set() for one in waiting)
    assert not memory.next_change("hub/alice").is_set(), "only a later change wakes again"
