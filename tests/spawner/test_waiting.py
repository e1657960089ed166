"""What a start makes of the service's answers while it waits, and what its end leaves behind."""

import asyncio
import logging
import time
from types import SimpleNamespace

import pytest

from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.spawner import mixin
from gpuspawner.spawner.mixin import GPUSpawnerMixin
from gpuspawner.spawner.refusals import StartEnded, ended

ENDING = Conflict("Your previous workspace is still ending; this start waits for it.")
AWAY = Unavailable("The GPU service does not answer.")
QUEUE = {"place": 1, "sentence": "You are first in the queue."}


def lease(phase, queue=None):
    return {"lease": {"id": "l1", "phase": phase, "words": "Yours", "page": "/p", "queue": queue}, "attempt": 1}


class Service:
    """The service as the spawner's client meets it: a call gives or raises what a test says, the last for ever."""

    def __init__(self):
        self.says, self.released, self.forgotten = {}, [], []

    def _say(self, call):
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
    """What of a spawner class the mixin stands before."""

    async def start(self):
        raise self.problem

    def run_post_stop_hook(self):
        return self.hook()


class Start(GPUSpawnerMixin, Server):
    """One start, without a hub."""

    wait_in_hub_seconds, start_timeout, user_options, _log_name, name = 0.1, 60, {}, "alice", ""
    handler = None
    log = logging.getLogger("test")
    user = SimpleNamespace(name="alice")
    problem = hook = None

    def __init__(self, service):
        self._gpu_steps, self._gpu_stepped, self.service = [], asyncio.Event(), service

    def _client(self):
        return self.service

    def _key(self):
        return {"server": ""}

    def _asks_for_gpu(self):
        return True


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(mixin, "RETRY_SECONDS", 0.01)
    start = Start(Service())
    start.hook = lambda: None
    return start


@pytest.mark.parametrize(
    ("says", "status", "told"),
    [
        ([ENDING], 409, "Your previous workspace is still ending. Press Start again in some minutes."),
        ([AWAY], 503, "The GPU service does not answer. Nothing is lost: press Start again in some minutes."),
    ],
)
async def test_a_start_that_got_no_place_in_time_says_what_it_waited_for(start, says, status, told):
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
async def test_a_place_that_can_not_be_parked_ends_the_start_in_words(start, says, told):
    waiting = lease("queued", QUEUE)
    start.service.says = {"acquire": [waiting], "wait": [waiting], "park": [says]}
    with pytest.raises(StartEnded) as error:
        await start.start()
    assert (error.value.status_code, error.value.jupyterhub_message) == (409, told)


async def test_why_a_start_failed_is_stored_in_the_words_that_its_user_read(start):
    start._gpu_lease, start._gpu_attempt, start._gpu_heard_at = "l1", 1, time.monotonic()
    start.problem = ended("The image lab:2 does not exist.", reason="cannot-start", status=409)
    start.service.says = {"acquire": [lease("reserved")], "acknowledge": [{**lease("starting"), "patch": {}}]}
    with pytest.raises(StartEnded):
        await start.start()
    await start.run_post_stop_hook()
    (release,) = start.service.released
    assert (release.outcome, release.message) == ("failed", "The image lab:2 does not exist.")


async def cancelled(start):
    task = asyncio.create_task(start.start())
    await asyncio.sleep(0.03)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await start.run_post_stop_hook()


async def test_a_start_that_is_cancelled_before_it_was_answered_takes_back_what_it_may_have_asked(start):
    start.service.says = {"acquire": [AWAY]}
    await cancelled(start)
    assert (start.service.released, start.service.forgotten) == ([], [{"server": ""}])


async def test_a_start_that_is_cancelled_at_its_place_gives_it_back(start):
    waiting = lease("queued", QUEUE)
    start.service.says = {"acquire": [waiting], "wait": [waiting]}
    await cancelled(start)
    assert [release.outcome for release in start.service.released] == ["cancelled"]
    assert start.service.forgotten == []


async def test_a_start_that_the_service_refuses_takes_nothing_back(start):
    start.service.says = {"acquire": [RequestRefused("count", "9", "1 to 2", "Ask for 2.")]}
    with pytest.raises(StartEnded):
        await start.start()
    await start.run_post_stop_hook()
    assert (start.service.released, start.service.forgotten) == ([], []), "an older place of this server may wait"


async def test_an_own_hook_that_fails_keeps_no_gpu(start):
    async def breaks():
        raise KeyError("nobody foresaw it")

    start._gpu_lease, start._gpu_attempt, start._gpu_outcome, start.hook = "l1", 1, "started", breaks
    with pytest.raises(KeyError):
        await start.run_post_stop_hook()
    assert [release.outcome for release in start.service.released] == ["died"]
