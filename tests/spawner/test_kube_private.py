"""Assumptions about KubeSpawner's private methods hold for the installed version: a changed one fails here."""

import asyncio
from types import SimpleNamespace

import pytest
from kubernetes_asyncio.client import ApiException
from kubespawner import KubeSpawner
from kubespawner import spawner as kubespawner

from gpuspawner.spawner.kubernetes.clusters import WATCHES
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner, KubePods

NAME, SECONDS = "jupyter-alice", 3
POD = {"metadata": {"uid": "uid", "name": NAME}, "status": {"phase": "Running"}}


class Api:
    """An API server that answers each request with what a test says: nothing is success."""

    def __init__(self):
        self.answers, self.asked = {}, []

    def __getattr__(self, call):
        async def answer(*_args, **_named):
            self.asked.append(call)
            told = self.answers.get(call)
            if isinstance(told, BaseException):
                raise told

        return answer


class Watched:
    """A watch as KubeSpawner makes one."""

    def __init__(self, **named):
        self.named, self.resources = named, {}
        self.pods, self.events = self.resources, []
        self.first_load_future = asyncio.get_running_loop().create_future()

    async def start(self):
        self.first_load_future.set_result(None)

    async def stop(self):
        pass


class Upstream(KubeSpawner):
    """KubeSpawner with its public parts short, and its private requests noted. Each request is refused once."""

    def __init__(self, api, **settings):
        super().__init__(_mock=True, **settings)
        self.api, self.calls = api, []

    async def load_user_options(self):
        pass

    async def get_pod_manifest(self):
        return SimpleNamespace(metadata=SimpleNamespace(name=NAME))

    def get_pvc_manifest(self):
        return SimpleNamespace(metadata=SimpleNamespace(name="home"))

    def is_pod_running(self, _gpu_pod):
        return True

    def _get_pod_url(self, _gpu_pod):
        return "url"

    def note(self, method, *arguments):
        self.calls.append((method, *arguments))
        return sum(call[0] == method for call in self.calls) > 1

    async def _start_reflector(self, kind, reflector_class, *args, **named):
        assert args == (), "the rest is given by name"
        self.note("_start_reflector", kind, named["replace"])
        return await super()._start_reflector(kind, {"pods": Watched, "events": Watched}[kind], **named)

    async def _ensure_namespace(self):
        self.note("_ensure_namespace")

    async def _make_create_pvc_request(self, pvc, request_timeout):
        return self.note("_make_create_pvc_request", pvc.metadata.name, request_timeout)

    async def _make_create_pod_request(self, pod, request_timeout):
        made = self.note("_make_create_pod_request", pod.metadata.name, request_timeout)
        if made:
            self.pod_reflector.pods[f"{self.namespace}/{self.pod_name}"] = POD
        return made

    async def _make_delete_pod_request(self, name, options, grace_seconds, request_timeout):
        ended = self.note("_make_delete_pod_request", name, options.grace_period_seconds, grace_seconds)
        assert request_timeout == self.k8s_api_request_timeout
        if ended:
            self.pod_reflector.pods.clear()
        return ended


@pytest.fixture
def upstream(monkeypatch):
    monkeypatch.setattr(kubespawner, "load_config", lambda **_: None)
    monkeypatch.setattr(kubespawner, "shared_client", lambda *_: None)
    monkeypatch.setattr(KubeSpawner, "reflectors", {})

    def make(**settings):
        return Upstream(Api(), pod_name_template=NAME, k8s_api_request_timeout=SECONDS, **settings)

    return make


def private_methods(owner):
    """Its own private methods, but for the defaults of traits, which traitlets gives a public name."""
    names = (name for name, value in vars(owner).items() if callable(value))
    return {name for name in names if name.startswith("_") and not name.endswith(("__", "_default"))}


def test_every_overridden_private_method_is_in_one_file():
    own = {owner for owner in GPUSpawner.__mro__ if owner.__module__.startswith("gpuspawner.")}
    overridden = {owner: private_methods(owner) & private_methods(KubeSpawner) for owner in own}
    assert {owner: names for owner, names in overridden.items() if names} == {
        KubePods: {"_start_reflector", "_get_reflector_key", "_get_pod_url", "_make_create_pod_request", *REQUESTS}
    }


async def test_start_and_stop_repeat_each_overridden_request_until_it_succeeds(upstream):
    spawner = upstream(enable_user_namespaces=True, storage_pvc_ensure=True, delete_grace_period=7)
    assert await spawner.start() == "url"
    await spawner.stop()
    pvc, pod = ("_make_create_pvc_request", "home", SECONDS), ("_make_create_pod_request", NAME, SECONDS)
    delete = ("_make_delete_pod_request", NAME, 7, 7)
    begun = sorted(call[1:] for call in spawner.calls[1:3])
    assert (spawner.calls[0], begun) == (("_ensure_namespace",), [("events", False), ("pods", False)])
    assert spawner.calls[3:] == [pvc, pvc, pod, pod, ("_start_reflector", "pods", False), delete, delete]


async def test_a_watch_has_the_given_class_and_is_shared(upstream):
    spawner = upstream()
    first = await KubeSpawner._start_reflector(spawner, "pods", Watched, replace=False, labels={})
    assert isinstance(first, Watched)
    assert first is spawner.pod_reflector
    assert await KubeSpawner._start_reflector(upstream(), "pods", Watched, replace=False, labels={}) is first
    assert set(WATCHES) == {"pods", "events"}, "the names by which KubeSpawner asks for them, as a start shows"


REQUESTS = {
    "_ensure_namespace": ("create_namespace", ()),
    "_make_create_pvc_request": (
        "create_namespaced_persistent_volume_claim",
        (SimpleNamespace(metadata=SimpleNamespace(name="home")), SECONDS),
    ),
    "_make_delete_pod_request": ("delete_namespaced_pod", (NAME, None, 7, SECONDS)),
}


@pytest.mark.parametrize("method", REQUESTS)
@pytest.mark.parametrize("error", [OSError("away"), ApiException(status=500), ApiException(status=429)], ids=str)
async def test_errors_of_the_api_server_are_passed_on(upstream, method, error):
    """So that ours may ask again, or say why not."""
    spawner, (call, arguments) = upstream(), REQUESTS[method]
    spawner.api.answers[call] = error
    with pytest.raises(type(error)):
        await getattr(KubeSpawner, method)(spawner, *arguments)
    assert spawner.api.asked == [call]


@pytest.mark.parametrize(
    ("method", "status", "said"),
    [
        ("_ensure_namespace", None, None),
        ("_ensure_namespace", 409, None),
        ("_make_create_pvc_request", None, True),
        ("_make_create_pvc_request", 409, True),
        ("_make_delete_pod_request", None, True),
        ("_make_delete_pod_request", 404, True),
    ],
)
async def test_an_existing_object_counts_as_made(upstream, method, status, said):
    spawner, (call, arguments) = upstream(), REQUESTS[method]
    spawner.api.answers[call] = status and ApiException(status=status)
    assert await getattr(KubeSpawner, method)(spawner, *arguments) is said
