"""The end of a pod where the API server, or the pod's node, is away."""

import logging

import pytest
from aiohttp import ServerDisconnectedError
from api_answers import refused
from kubernetes_asyncio.client import ApiException

from gpuspawner.spawner.attempts import Attempt
from gpuspawner.spawner.kubernetes.spawner import KubePods
from gpuspawner.spawner.mixin import GPUSpawnerMixin


class Kube:
    """The part of KubeSpawner that a stop uses. It raises a given exception."""

    problem, asked = None, ()
    log, _log_name = logging.getLogger("test"), "alice"

    async def stop(self, now=False):
        assert not now, "a container killed unseen may still hold its GPU"
        if self.problem:
            raise self.problem

    async def _make_delete_pod_request(self, *arguments):
        self.asked = arguments
        if self.problem:
            raise self.problem
        return True


class Stop(KubePods, GPUSpawnerMixin, Kube):
    """A workspace of a lease."""

    def __init__(self, problem=None, lease="lease"):
        self.problem, self._gpu_attempt = problem, Attempt(lease)


async def test_a_pod_that_survives_its_stop_is_left_to_the_service():
    await Stop(TimeoutError("it did not disappear")).stop(now=True)


async def test_a_pod_without_a_lease_is_ended_by_no_other_lease():
    with pytest.raises(TimeoutError):
        await Stop(TimeoutError(), lease="").stop()


@pytest.mark.parametrize(
    "problem", [ConnectionRefusedError(), ServerDisconnectedError(), refused(503), refused(429)], ids=repr
)
async def test_an_unanswered_deletion_is_repeated(problem):
    assert await Stop(problem)._make_delete_pod_request("jupyter-alice", {}, 30, 3) is False
    stop = Stop()
    assert await stop._make_delete_pod_request("jupyter-alice", {}, 30, 3) is True
    assert stop.asked == ("jupyter-alice", {}, 30, 3)


async def test_a_refused_deletion_is_reported():
    with pytest.raises(ApiException):
        await Stop(refused(403))._make_delete_pod_request("jupyter-alice", {}, 30, 3)
