"""The start of a pod against an API server that does what a test says: what no real one does on demand."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
from aiohttp import ServerDisconnectedError
from api_answers import refused
from harness.waiting import until
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration
from kubespawner.objects import make_pod

from gpuspawner.backends.kubernetes.pods import DISRUPTION_SENTENCES, HUB_LABEL
from gpuspawner.core.errors import Gone, Unavailable
from gpuspawner.core.leases.request import Request
from gpuspawner.spawner.attempts import Attempt
from gpuspawner.spawner.kubernetes import spawner as kube_spawner
from gpuspawner.spawner.kubernetes import starting as kube_start
from gpuspawner.spawner.kubernetes.clusters import PodMemory
from gpuspawner.spawner.kubernetes.manifests import START_MARK
from gpuspawner.spawner.kubernetes.pod_ends import NO_RIGHT
from gpuspawner.spawner.kubernetes.spawner import KubePods
from gpuspawner.spawner.mixin import GPUSpawnerMixin
from gpuspawner.spawner.waiting import StartEnded, Steps


class Events:
    def __init__(self):
        self.resources = {}


def pod_watch():
    """The real watch of pods, which no API server feeds."""
    with mock.patch("kubespawner.reflector.shared_client"):
        watch = PodMemory(namespace="hub")
    watch.resources = {}
    return watch


class Kube:
    """The part of KubeSpawner that a start uses.

    ``answers`` are the API server's answers to attempts to make the pod.
    """

    namespace, pod_name, _log_name, http_timeout = "hub", "jupyter-alice", "alice", 30

    def __init__(self, client):
        self.answers, self.reads, self.problems, self.made = [], [], [], []
        self.deleted = self.claims = self.namespaces = 0
        self.api, self.api_client = self, client
        self.pod_reflector, self.event_reflector = pod_watch(), Events()

    async def create_namespaced_pod(self, _namespace, pod):
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        self.made.append(pod)

    async def read_namespaced_pod(self, _name, _namespace):
        answer = self.reads.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def is_pod_running(self, pod):
        return pod["status"]["phase"] == "Running"

    def _get_pod_url(self, _gpu_pod):
        return "http://10.0.0.1:8888"

    async def start(self):
        await self._make_create_pod_request(manifest(self._gpu_attempt.pod.mark), 3)
        while not self.is_pod_running(self._gpu_own_pod() or {"status": {"phase": ""}}):
            await asyncio.sleep(0.01)
        return "http://10.0.0.1:8888"

    async def _make_create_pvc_request(self, _pvc, _timeout):
        self._answer()
        self.claims += 1
        return True

    async def _ensure_namespace(self):
        self._answer()
        self.namespaces += 1

    def _answer(self):
        if self.problems:
            raise self.problems.pop(0)

    async def stop(self, now=False):
        assert not now, "a container killed unseen may still hold its GPU"
        self.deleted += 1
        self.pod_reflector.pods.clear()


REQUEST = Request("alice", "lab", "default", "a100", 1, 2.0, 2**33, 3600)


class Start(KubePods, GPUSpawnerMixin, Kube):
    """A start whose grant has come."""

    def __init__(self, client):
        Kube.__init__(self, client)
        self._gpu_steps = Steps()
        self.gpu_read_catalog = lambda: SimpleNamespace(clusters={}, templates={}, scheduler=None)
        now, self.granted = time.monotonic(), 0
        self._gpu_attempt = Attempt(request=REQUEST, heard_at=now, waits_until=now + 60, own_timeout_seconds=10)

    async def _gpu_wait_for_grant(self):
        self.granted += 1
        self._gpu_attempt = replace(self._gpu_attempt, heard_at=time.monotonic())

    async def _gpu_answers(self, _url):
        return True

    def shows(self, phase, version="1", reason="", deleted="", **status):
        """Let the watch bring the pod of this start."""
        metadata = {"uid": "u", "resourceVersion": version, "annotations": {START_MARK: self._gpu_attempt.pod.mark}}
        self.pod_reflector.pods["hub/jupyter-alice"] = {
            "metadata": {**metadata, "deletionTimestamp": deleted} if deleted else metadata,
            "spec": {"nodeName": "node-7"},
            "status": {"phase": phase, "reason": reason, **status},
        }

    @property
    def told(self):
        return [step["message"] for step in self._gpu_steps.shown]


def manifest(mark="", **settings):
    marks = {START_MARK: mark} if mark else {}
    return make_pod(name="jupyter-alice", cmd=None, port=8888, image="lab", env={}, annotations=marks, **settings)


@pytest.fixture
async def start(monkeypatch):
    for module in (kube_start, kube_spawner):  # the latter has it by its own name
        monkeypatch.setattr(module, "ASK_SECONDS", 0.01)
    async with ApiClient(Configuration()) as client:
        yield Start(client)


async def test_a_start_that_waits_is_woken_by_each_change_of_its_pod(start, monkeypatch):
    monkeypatch.setattr(kube_start, "EVENTS_SECONDS", 3600.0)
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    start.shows("Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    await seen(start, "Placed on node-7.")
    start.shows("Running", "2", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert await asyncio.wait_for(task, 10) == "http://10.0.0.1:8888"


async def seen(start, words):
    await until(lambda: any(words in step for step in start.told))


async def created(start):
    """Return the address of a start whose pod runs as soon as it is made."""
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made or task.done())
    if start.made:
        start.shows("Running", conditions=[{"type": "PodScheduled", "status": "True"}])
    return await asyncio.wait_for(task, 10)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            refused(429, reason="Too Many Requests"),
            "does not take the pod now (429 Too Many Requests)",
        ),
        (
            refused(403, 'pods "jupyter-alice" is forbidden: status unknown for quota: gpus', reason="Forbidden"),
            "does not take the pod now (403 Forbidden); asking it again.",
        ),
        (refused(503, reason="Service Unavailable"), "does not take the pod now (503 Service Unavailable)"),
        (TimeoutError(), "The cluster does not answer (time-out); asking it again."),
        (ServerDisconnectedError(), "The cluster does not answer (Server disconnected); asking it again."),
        (ConnectionRefusedError("refused"), "The cluster does not answer (refused); asking it again."),
    ],
)
async def test_a_temporary_failure_is_tried_again_and_reported(start, answer, told):
    start.answers = [answer, answer]
    assert await created(start) == "http://10.0.0.1:8888"
    assert any(told in step for step in start.told)
    assert len(start.made) == 1


async def test_a_permanent_refusal_ends_the_start_at_once(start):
    start.answers = [refused(422, 'Pod "x" is invalid: spec: Required value')]
    with pytest.raises(Exception, match="The cluster refuses this workspace: spec: Required value"):
        await created(start)
    assert start.made == []


async def test_a_pod_whose_creation_was_not_answered_is_recognized(start):
    start.answers = [TimeoutError(), refused(409)]
    start.reads = [None]
    read = start.read_namespaced_pod

    async def own(*arguments):
        await read(*arguments)
        start.made.append("by the request that was not answered")
        return manifest(start._gpu_attempt.pod.mark)

    start.read_namespaced_pod = own
    assert await created(start) == "http://10.0.0.1:8888"
    assert start.deleted == 0


async def test_a_leftover_pod_is_ended_with_its_grace_and_waited_for(start):
    start.answers = [refused(409), refused(409)]
    start.reads = [manifest("an earlier start"), refused(404)]
    assert await created(start) == "http://10.0.0.1:8888"
    assert start.deleted == 1
    assert "Your previous workspace's pod is still ending; this start waits for it." in start.told
    assert not start._gpu_attempt.is_stopped_by_hub, "its end must not look like one that the hub asked for"


async def test_promise_3_a_pod_of_another_hub_is_not_ended_and_the_start_says_what_to_do(start):
    start.gpu_hub_id = "ours"
    start.answers, start.reads = [refused(409)], [manifest("a start of theirs", labels={HUB_LABEL: "another"})]
    with pytest.raises(StartEnded, match=r"Another hub has a pod jupyter-alice .* c.KubeSpawner.pod_name_template"):
        await created(start)
    assert start.deleted == 0


AWAY = [refused(503), refused(429), ServerDisconnectedError(), ConnectionRefusedError("refused"), TimeoutError()]


@pytest.mark.parametrize("problem", AWAY, ids=repr)
async def test_a_leftover_pod_is_read_again_while_the_cluster_does_not_answer(start, problem):
    start.answers, start.reads = [refused(409)], [problem, refused(404)]
    assert await created(start) == "http://10.0.0.1:8888"
    assert any("The cluster does not answer (" in step for step in start.told)


@pytest.mark.parametrize("problem", AWAY, ids=repr)
async def test_claim_and_namespace_are_requested_again_while_the_cluster_does_not_answer(start, problem):
    start.problems = [problem]
    assert await start._make_create_pvc_request(SimpleNamespace(metadata=SimpleNamespace(name="claim-alice")), 3)
    assert start._gpu_attempt.pod.claim == "claim-alice"
    start.problems = [problem]
    await start._ensure_namespace()
    assert (start.claims, start.namespaces) == (1, 1)
    start.problems = [refused(403, "no rights")]
    with pytest.raises(ApiException):
        await start._ensure_namespace()


async def test_an_outage_of_the_cluster_during_a_start_is_reported_without_a_traceback(start, monkeypatch):
    async def breaks(self):
        raise ServerDisconnectedError

    monkeypatch.setattr(Kube, "start", breaks)
    with pytest.raises(StartEnded, match=r"The cluster does not answer \(Server disconnected\)\. Start it again\."):
        await start._gpu_create()


async def test_no_pod_is_made_while_the_service_does_not_answer(start):
    start._gpu_attempt = Attempt("lease", request=REQUEST, heard_at=time.monotonic() - 60).with_new_pod("m")
    task = asyncio.create_task(start._make_create_pod_request(manifest("m"), 3))
    await asyncio.sleep(0.1)
    assert start.made == []
    start._gpu_attempt = replace(start._gpu_attempt, heard_at=time.monotonic())
    assert await asyncio.wait_for(task, 5)
    assert len(start.made) == 1


async def test_a_start_that_its_hub_cancels_ends_at_once(start):
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 1


async def thrown_out_once(start):
    """Let the node throw out the first pod of a start, and run the second."""
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    start.shows("Failed", reason="OutOfnvidia.com/gpu", message="Node didn't have enough resource: nvidia.com/gpu.")
    await until(lambda: len(start.made) == 2)
    start.shows("Running", "2", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert await asyncio.wait_for(task, 10) == "http://10.0.0.1:8888"


async def test_promise_6_a_pod_that_can_never_have_room_is_deleted_and_its_start_queues_again(start):
    await thrown_out_once(start)
    assert start.deleted == 1
    assert any("You keep your place in the queue." in step for step in start.told)


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: none."}


@pytest.mark.parametrize("looks", ["going", "gone"])
async def test_promise_6_a_pod_without_room_that_the_service_deletes_sends_its_start_back(start, looks):
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    start.shows("Pending", conditions=[UNSCHEDULABLE])
    await seen(start, "No node fits now")
    if looks == "going":  # for some milliseconds, and then it is gone
        start.shows("Pending", "2", deleted="2026-11-23T02:00:00Z", conditions=[UNSCHEDULABLE])
        await seen(start, "You keep your place in the queue.")
    else:
        start.pod_reflector.pods.clear()
    await until(lambda: len(start.made) == 2)
    start.shows("Running", "3", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert await asyncio.wait_for(task, 10) == "http://10.0.0.1:8888"
    assert any("You keep your place in the queue." in step for step in start.told)


@pytest.mark.parametrize("looks", ["going", "gone"])
async def test_promise_6_a_pod_that_the_cluster_ends_before_it_runs_goes_back_and_says_why(start, leased, looks):
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    start.shows("Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    await seen(start, "Placed on node-7.")
    drained = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    start.shows("Pending", "2", deleted="2026-11-23T02:00:00Z", conditions=[drained])
    if looks == "gone":
        start.pod_reflector.gone["hub/jupyter-alice"] = start.pod_reflector.pods.pop("hub/jupyter-alice")
    await until(lambda: len(start.made) == 2)
    start.shows("Running", "3", conditions=[{"type": "PodScheduled", "status": "True"}])
    assert await asyncio.wait_for(task, 10) == "http://10.0.0.1:8888"
    ((_, _, why, node),) = leased.asked
    assert node == "node-7"
    assert why.startswith(DISRUPTION_SENTENCES["EvictionByEvictionAPI"])


async def test_a_start_whose_time_to_wait_is_over_parks(start):
    start._gpu_attempt = replace(start._gpu_attempt, waits_until=time.monotonic())
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    start.shows("Failed", reason="OutOfnvidia.com/gpu", message="")
    with pytest.raises(Exception, match="You keep your place in the queue; it starts by itself"):
        await asyncio.wait_for(task, 10)
    assert start._gpu_attempt.outcome == "parked"


FULL = (
    'pods "jupyter-alice" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, '
    "used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu={}"
)
FULL_WORDS = (
    "The cluster's quota gpus leaves no room: 1 nvidia.com/gpu asked, 2 nvidia.com/gpu of 2 nvidia.com/gpu in use."
)


class Service:
    """The service's client for a start without room. ``answers`` are the answers to its requests to be moved back."""

    def __init__(self, start):
        self.start, self.answers, self.asked = start, [], []

    async def requeue(self, lease, attempt, why, node):
        assert not self.start.pod_reflector.pods, "nothing is left of it where it was to run"
        self.asked.append((lease, attempt, why, node))
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def heartbeat(self, *_):
        return {}


@pytest.fixture
def leased(start, monkeypatch):
    service = Service(start)
    start._gpu_attempt, start.pending = replace(start._gpu_attempt, lease="lease", number=3), "spawn"
    monkeypatch.setattr(start, "_gpu_client", lambda: service)
    yield service
    if start._gpu_heartbeat_task is not None:
        start._gpu_heartbeat_task.cancel()


@pytest.mark.parametrize("answers", [[], [Unavailable("The GPU service does not answer."), Gone("moved")]])
async def test_promise_6_a_full_quota_sends_a_start_back_to_its_place_and_ends_nothing(start, leased, answers):
    asked = max(1, len(answers))
    start.answers, leased.answers = [refused(403, FULL.format(2))], answers
    assert await created(start) == "http://10.0.0.1:8888"
    assert leased.asked == [("lease", 3, FULL_WORDS, "")] * asked
    assert start.granted == 1, "it waits for its turn before it tries again"
    assert f"{FULL_WORDS} You keep your place in the queue." in start.told


async def test_promise_6_a_pod_without_room_on_its_node_sends_its_start_back_and_names_the_node(start, leased):
    await thrown_out_once(start)
    why = "Its node had no room after all: Node didn't have enough resource: nvidia.com/gpu."
    assert leased.asked == [("lease", 3, why, "node-7")]
    assert start.granted == 1, "it waits for its turn before it tries again"


async def test_a_full_quota_at_the_end_of_the_time_to_wait_parks_the_start_at_its_place(start, leased):
    start.answers = [refused(403, FULL.format(2))]
    start._gpu_attempt = replace(start._gpu_attempt, waits_until=time.monotonic())
    with pytest.raises(Exception, match="You keep your place in the queue; it starts by itself"):
        await created(start)
    assert (start._gpu_attempt.outcome, len(leased.asked)) == ("parked", 1), "the service holds no GPU for it meanwhile"


async def test_more_than_a_quota_ever_lets_through_ends_the_start_with_both_quantities(start, leased):
    start.answers = [refused(403, FULL.format(0))]
    with pytest.raises(Exception, match=r"1 nvidia\.com/gpu asked, 2 nvidia\.com/gpu of 0 nvidia\.com/gpu in use"):
        await created(start)
    assert leased.asked == []


async def test_without_a_lease_there_is_no_place_to_go_back_to(start):
    start.answers = [refused(403, FULL.format(2))]
    with pytest.raises(Exception, match="Ask for less, or start when a colleague"):
        await created(start)


@pytest.mark.parametrize(
    ("status", "ready"), [("200 OK", True), ("404 No", True), ("503 Not yet", False), ("", False), (None, False)]
)
async def test_a_server_is_up_once_it_answers_and_not_when_it_only_listens(start, status, ready):
    async def serve(reader, writer):
        if await reader.read(1) and status:
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    start.server, start.internal_ssl = SimpleNamespace(base_url="/user/alice/"), False
    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    if status is None:
        server.close()
    assert await KubePods._gpu_answers(start, f"http://127.0.0.1:{port}") is ready
    server.close()


async def test_a_server_that_never_answers_ends_its_start_http_timeout_after_its_pod_is_ready(start, monkeypatch):
    async def no_answer(self, _url):
        return False

    monkeypatch.setattr(Start, "_gpu_answers", no_answer)
    start.http_timeout, began = 0.5, time.monotonic()
    start._gpu_attempt = replace(start._gpu_attempt, own_timeout_seconds=60)
    words = r"server did not answer at 10\.0\.0\.1:8888 within 0.5 s \(c\.Spawner\.http_timeout\)"
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    server = {"name": "notebook", "ready": True, "state": {"running": {}}}
    start.shows("Running", conditions=[{"type": "PodScheduled", "status": "True"}], containerStatuses=[server])
    with pytest.raises(StartEnded, match=words) as ended:
        await asyncio.wait_for(task, 10)
    assert ended.value.status_code == 504
    assert 0.5 <= time.monotonic() - began < 5
    await seen(start, "Its pod is ready. Waiting for its server to answer, 0.5 s at most.")


async def test_an_address_whose_name_does_not_resolve_is_left_to_the_hub(start, monkeypatch):
    start.server, start.internal_ssl, url = SimpleNamespace(base_url="/user/alice/"), False, "http://a.invalid:8888"
    monkeypatch.setattr(Start, "_gpu_answers", KubePods._gpu_answers)
    monkeypatch.setattr(Kube, "_get_pod_url", lambda _self, _pod: url)
    began = time.monotonic()
    assert await created(start) == url
    assert time.monotonic() - began < 5


async def test_a_pod_deleted_during_its_start_is_reported_at_once(start):
    task = asyncio.create_task(start._gpu_create())
    await until(lambda: start.made)
    start.shows("Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    await until(lambda: "Placed on node-7." in start.told)
    start.pod_reflector.pods.clear()
    with pytest.raises(Exception, match="This start was ended from outside"):
        await asyncio.wait_for(task, 10)


SAID = "KeyError: 'x'\nserve --token s3cr3t-of-alice"
LOGS = {
    "read": ("line 1\nthe key is k3y-0f-th3-h0use\n", "line 1\nthe key is ***"),
    "no right": (refused(403, "pods/log is forbidden"), f"KeyError: 'x'\nserve --token ***\n{NO_RIGHT}"),
    "away": (ServerDisconnectedError(), "KeyError: 'x'\nserve --token ***"),
    "late": (TimeoutError(), "KeyError: 'x'\nserve --token ***"),
    "gone": (refused(404), "KeyError: 'x'\nserve --token ***"),
}


@pytest.mark.parametrize("answer", LOGS)
async def test_the_last_lines_of_a_pod_come_from_the_cluster_or_the_kubelet(start, answer):
    given, shown = LOGS[answer]
    asked = []

    async def read_namespaced_pod_log(*arguments, **options):
        asked.append((arguments, options))
        if isinstance(given, BaseException):
            raise given
        return given

    start.read_namespaced_pod_log = read_namespaced_pod_log
    await start._gpu_server.save_output()
    assert start._gpu_attempt.output == "", "no pod was seen"
    last = {"terminated": {"exitCode": 1, "message": SAID}}
    server = {"name": "notebook", "restartCount": 2, "state": {"waiting": {}}, "lastState": last}
    environment = [{"name": "HOUSE_KEY", "value": "k3y-0f-th3-h0use"}, {"name": "FROM_A_SECRET", "valueFrom": {}}]
    pod = {
        "metadata": {"uid": "u"},
        "spec": {"containers": [{"name": "notebook", "env": environment}]},
        "status": {"containerStatuses": [server]},
    }
    start._gpu_attempt = start._gpu_attempt.with_pod(last_seen=pod)
    await start._gpu_server.save_output()
    assert start._gpu_attempt.output == shown
    assert asked[0][0] == ("jupyter-alice", "hub")
    assert (asked[0][1]["container"], asked[0][1]["tail_lines"], asked[0][1]["previous"]) == ("notebook", 50, False)
