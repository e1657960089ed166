"""``bench/queue`` serves a small trace by each discipline, and tells how good its estimates were."""

import pytest
from disciplines import DISCIPLINES, OURS
from openb import Task, Trace
from served import serve
from sessions import workload

from gpuspawner.core.gpus.fragmentation import NodeState, ResourceRequest

T4 = frozenset({"T4"})
TRACE = Trace(
    (NodeState("T4", (1.0, 1.0), 32000, 65536),),
    tuple(
        Task(ResourceRequest(T4, 1.0 if n % 3 else 0.5, 1, 1, 1), created=1e7 + 100 * n, seconds=3000)
        for n in range(40)
    ),
)


@pytest.mark.parametrize("discipline", DISCIPLINES, ids=lambda one: one.name)
def test_no_held_gpu_is_granted_again(discipline):
    work = workload(TRACE, 1.5, 1, nodes=1)
    started = [x for x in serve(work, discipline) if x.started_at is not None]
    assert len(started) > 20
    for at in (x.started_at for x in started):
        assert sum(x.session.gpus for x in started if x.started_at <= at < x.started_at + x.ran_seconds) <= 2


def test_the_load_is_as_asked_and_what_was_told_is_compared_with_what_came():
    work = workload(TRACE, 1.5, 1, nodes=1)
    asked = sum(x.gpus * x.seconds for x in work.sessions)
    assert asked / (2 * work.sessions[-1].asked_at) == pytest.approx(1.5)
    assert any(x.told for x in serve(work, OURS))
