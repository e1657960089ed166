"""The effect of the service's answers on a waiting start, and the state after its end."""

import asyncio
import logging
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from harness.waiting import until

from gpuspawner.catalog import PodQueues
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.core.leases.request import Request
from gpuspawner.spawner import waiting
from gpuspawner.spawner.attempts import Attempt
from gpuspawner.spawner.mixin import GPUSpawnerMixin
from gpuspawner.spawner.waiting import StartEnded, Steps

ENDING = Conflict("Your previous workspace is still ending; this start waits for it.")
AWAY = Unavailable("The GPU service does not answer.")
ASKED = asdict(Request("alice", "lab", "default", None, 0, 1.0, 2**30, 3600))
QUEUE = {"place": 1, "sentence": "You are first in the queue."}


def lease(phase, queue=None):
    return {"lease": {"id": "l1", "phase": phase, "words": "Yours", "page": "/p", "queue": queue}, "attempt": 1}


class Service:
    """The service as the spawner's client meets it: a call gives or raises what a test says, the last for ever."""

    def __init__(self):
        self.says, self.calls, self.released, self.forgotten = {}, [], [], []

    def _say(self, call):
        self.calls.append(call)
        answers = self.says[call]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def acquire(self, _ask):
        return self._say("acquire")

    async def wait(self, *_):
        await asyncio.sleep(0.01)
        return self._say("wait")

    async def acknowledge(self, *_):
        return self._say("acknowledge")

    async def park(self, *_):
        return self._say("park")

    async def release(self, release):
        self.released.append(release)

    async def forget(self, key):
        self.forgotten.append(key)


class Server:
    """The part of a spawner class that the mixin uses."""

    async def start(self):
        raise self.problem

    async def stop(self, now=False):
        pass

    def run_pre_spawn_hook(self):
        return self.hook()

    def run_post_stop_hook(self):
        return self.hook()


class Start(GPUSpawnerMixin, Server):
    """One start, without a hub."""

    gpu_wait_in_hub_seconds, start_timeout, user_options, _log_name, name = 0.1, 60, {}, "alice", ""
    http_timeout, gpu_secret_file = 30, "not-there/secret"
    handler = None
    log = logging.getLogger("test")
    user = SimpleNamespace(name="alice")
    gpu_catalog, problem, hook = SimpleNamespace(gpus={}, scheduler=None), None, None

    def __init__(self, service):
        self._gpu_steps, self.service = Steps(), service

    def _gpu_client(self):
        return self.service

    def _gpu_key(self):
        return {"server": ""}

    def _gpu_asks_for_gpu(self):
        return True

    def _gpu_current_request(self):
        return SimpleNamespace(gpu=None)


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(waiting, "RETRY_SECONDS", 0.01)
    start = Start(Service())
    start.hook = lambda: None
    return start


@pytest.mark.parametrize(
    ("says", "status", "told"),
    [
        ([ENDING], 409, "Your previous workspace is still ending. Press Start again in some minutes."),
        ([AWAY], 503, "The GPU service does not answer. Nothing was started: press Start again in some minutes."),
        ([Unavailable("Full disk.")], 503, "Full disk. Nothing was started: press Start again in some minutes."),
    ],
)
async def test_a_start_without_a_grant_in_time_names_what_it_waited_for(start, says, status, told):
    start.service.says = {"acquire": says}
    with pytest.raises(StartEnded) as error:
        await start.start()
    assert (error.value.status_code, error.value.jupyterhub_message) == (status, told)
    await start.run_post_stop_hook()
    assert (start.service.released, start.service.forgotten) == ([], []), "a place that it may have stays"


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (Gone("An administrator ended it."), "An administrator ended it."),
        (Conflict("It is granted."), "You are first in the queue. It starts by itself."),
        (RequestRefused("gpu", "x", "y", "Ask for y."), "You are first in the queue. It starts by itself."),
        (AWAY, "You are first in the queue. It starts by itself."),
    ],
    ids=["gone", "conflict", "refused", "away"],
)
async def test_a_place_that_cannot_be_parked_ends_the_start_with_a_message(start, says, told):
    waiting = lease("queued", QUEUE)
    start.service.says = {"acquire": [waiting], "wait": [waiting], "park": [says]}
    with pytest.raises(StartEnded) as error:
        await start.start()
    assert (error.value.status_code, error.value.jupyterhub_message) == (409, told)


async def test_a_start_whose_grant_can_not_be_taken_leaves_the_hub_at_its_time_and_keeps_its_place(start):
    start.gpu_wait_in_hub_seconds = 0.1
    reserved, away = lease("reserved"), Unavailable("The Kubernetes API server does not answer.")
    start.service.says = {"acquire": [reserved], "wait": [reserved], "acknowledge": [away], "park": [reserved]}
    with pytest.raises(StartEnded) as error:
        await asyncio.wait_for(start.start(), 5)
    told = "The Kubernetes API server does not answer. Your place in the queue stays. It starts by itself."
    assert (error.value.status_code, error.value.jupyterhub_message) == (409, told)
    await start.run_post_stop_hook()
    assert (start.service.released, start.service.forgotten) == ([], []), "its place stays"


async def test_a_grant_at_the_last_moment_is_taken(start):
    start.gpu_wait_in_hub_seconds = 0
    granted = {**lease("starting"), "patch": {}, "request": ASKED}
    reserved, queued = lease("reserved"), lease("queued", QUEUE)
    start.service.says = {"acquire": [queued], "park": [reserved], "wait": [reserved], "acknowledge": [granted]}
    await start._gpu_wait_for_grant()
    assert start._gpu_attempt.request == Request.from_json(ASKED)


async def test_the_message_of_a_failed_start_is_stored_as_its_user_read_it(start):
    start.problem = StartEnded("The image lab:2 does not exist.", reason="cannot-start", status=409)
    start.service.says = {
        "acquire": [lease("reserved")],
        "acknowledge": [{**lease("starting"), "patch": {}, "request": ASKED}],
    }
    with pytest.raises(StartEnded):
        await start.start()
    await start.run_post_stop_hook()
    (release,) = start.service.released
    assert (release.outcome, release.message) == ("failed", "The image lab:2 does not exist.")


async def test_the_words_of_the_class_below_go_into_the_log_and_not_to_the_user(start, caplog):
    start.problem = OSError("('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))")
    start.service.says = {
        "acquire": [lease("reserved")],
        "acknowledge": [{**lease("starting"), "patch": {}, "request": ASKED}],
    }
    with pytest.raises(StartEnded) as error:
        await start.start()
    told = error.value.jupyterhub_message
    assert "and that failed. Start it again in some minutes." in told
    assert "Connection aborted" not in told
    assert "Connection aborted" in caplog.text
    await start.run_post_stop_hook()
    assert start.service.released[0].message == told


async def test_a_new_start_knows_nothing_of_the_one_before(start):
    start.service.says = {
        "acquire": [lease("reserved")],
        "acknowledge": [{**lease("starting"), "patch": {"x": 1}, "request": ASKED}],
    }
    await start.run_pre_spawn_hook()
    prolonged = start.start_timeout
    await asyncio.gather(start.start(), return_exceptions=True)
    await start.stop()
    start._gpu_step(5, "Left over.")
    for _ in range(2):  # the hub may give up between the hook and start(), too
        await start.run_pre_spawn_hook()
        assert start._gpu_attempt == Attempt(own_timeout_seconds=60)
        assert (start._gpu_heartbeat_task, start._gpu_steps.shown) == (None, [])
        assert start.start_timeout == prolonged > 60


async def test_a_start_with_a_gpu_may_take_longer_by_the_time_in_the_pod_queue(start, monkeypatch):
    await start.run_pre_spawn_hook()
    usual, usual_of_pod = start.start_timeout, start._gpu_start_seconds()
    start.gpu_catalog = SimpleNamespace(gpus={}, scheduler=PodQueues("volcano", wait_seconds=1800.0))
    await start.run_pre_spawn_hook()
    assert (start.start_timeout, start._gpu_start_seconds()) == (usual, usual_of_pod)
    monkeypatch.setattr(start, "_gpu_current_request", lambda: SimpleNamespace(gpu="a100"))
    await start.run_pre_spawn_hook()
    assert (start.start_timeout, start._gpu_start_seconds()) == (usual + 1800, usual_of_pod + 1800)


async def cancelled(start):
    start.gpu_wait_in_hub_seconds = 60.0
    task = asyncio.create_task(start.start())
    await until(lambda: len(start.service.calls) > 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await start.run_post_stop_hook()


async def test_a_start_cancelled_before_an_answer_withdraws_its_request(start):
    start.service.says = {"acquire": [AWAY]}
    await cancelled(start)
    assert (start.service.released, start.service.forgotten) == ([], [{"server": ""}])


async def test_a_start_cancelled_in_the_queue_withdraws_its_place(start):
    waiting = lease("queued", QUEUE)
    start.service.says = {"acquire": [waiting], "wait": [waiting]}
    await cancelled(start)
    assert [release.outcome for release in start.service.released] == ["cancelled"]
    assert start.service.forgotten == []


async def test_a_refused_start_withdraws_nothing(start):
    start.service.says = {"acquire": [RequestRefused("count", "9", "1 to 2", "Ask for 2.")]}
    with pytest.raises(StartEnded):
        await start.start()
    await start.run_post_stop_hook()
    assert (start.service.released, start.service.forgotten) == ([], []), "an older place of this server may wait"


async def test_an_own_hook_that_fails_keeps_no_gpu(start):
    async def breaks():
        raise KeyError("nobody foresaw it")

    start._gpu_attempt, start.hook = Attempt("l1", 1).started(), breaks
    with pytest.raises(KeyError):
        await start.run_post_stop_hook()
    assert [release.outcome for release in start.service.released] == ["died"]


def listen(start):
    """Follow a start as the progress page does, from now on to its end."""

    async def heard():
        return [(step["progress"], step["message"]) async for step in start.progress()]

    return asyncio.ensure_future(heard())


@pytest.mark.parametrize("problem", [None, StartEnded("No.", reason="x", status=409)], ids=["comes up", "fails"])
async def test_progress_ends_with_the_start_and_its_bar_never_steps_back(start, problem):
    granted = {**lease("starting"), "patch": {}, "request": ASKED}
    start.service.says = {
        "acquire": [AWAY, ENDING, lease("queued", QUEUE)],
        "wait": [lease("reserved")],
        "acknowledge": [granted],
    }

    async def requeued():
        for percent, message in ((55, "No room."), (30, "You keep your place.")):
            start._gpu_step(percent, message)
        if problem is not None:
            raise problem
        return "url"

    start._gpu_create = requeued
    early = listen(start)
    await asyncio.gather(start.start(), return_exceptions=True)
    heard = await asyncio.wait_for(early, 5)
    assert [message for _, message in heard][-2:] == ["No room.", "You keep your place."]
    percents = [percent for percent, _ in heard]
    assert percents == sorted(percents)
    assert await asyncio.wait_for(listen(start), 5) == heard, "a late listener gets all steps, and no more"


async def test_following_after_a_stop_shows_the_next_start_and_not_the_last(start):
    start.service.says = {"acquire": [ENDING]}
    await asyncio.gather(start.start(), return_exceptions=True)
    await start.run_post_stop_hook()
    next_one = listen(start)
    start._gpu_step(5, "Anew.")
    start._gpu_steps.end()
    assert await asyncio.wait_for(next_one, 5) == [(5, "Anew.")]
