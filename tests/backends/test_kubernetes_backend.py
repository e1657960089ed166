"""Probe, end and patch of the Kubernetes backend, against an API server of our own."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from cluster_objects import A100, MIG_MIXED, SHARED, a_node, a_workspace
from harness.waiting import until
from kube_api import ends_with, exit_status
from kube_backends import make_backend

from gpuspawner.backends.base import Backend, PodName, ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.core.errors import Unavailable

A, B = "a" * 32, "b" * 32
UNREACHABLE = "node.kubernetes.io/unreachable"
UUIDS = tuple(f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in range(2))


async def test_a_probe_runs_the_script_in_the_workspaces_own_container(api, a_backend):
    backend: Backend = await a_backend(a_workspace("jupyter-alice", A))
    given = {}

    async def act(socket, script):
        given["script"] = script.decode()
        await ends_with(0, b"out", b"complaints")(socket, script)

    api.execs["jupyter-alice"] = act
    assert await backend.probe(A, 1, ("gpu-1/nvidia.com/gpu/0",), 5.0) == ProbeResult(
        "out", counted=True, pod=PodName("jhub", "jupyter-alice")
    )
    (query,) = [query for verb, _, query in api.asked if verb == "exec"]
    assert (query["container"], query["command"]) == ("notebook", "/bin/sh")
    assert "GPUSPAWNER_PROBE_GPUS=''\n" in given["script"], "a pod sees its own GPUs alone, under their own names"
    assert "GPUSPAWNER_PROBE_READINGS=3\n" in given["script"]
    assert given["script"].rstrip().endswith("exit 0"), "stdin is never closed: the script ends the shell itself"


async def test_the_probe_sends_a_script_that_ends_by_itself(api, a_backend):
    backend = await a_backend(a_workspace("jupyter-alice", A))

    async def real_shell(socket, script):
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh", "-s", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        shell.stdin.write(script)
        output = await shell.stdout.read()  # stdin stays open, as an exec's does
        await ends_with(await shell.wait(), output)(socket, script)
        shell.stdin.close()

    api.execs["jupyter-alice"] = real_shell
    result = await backend.probe(A, 1, (), 20.0)
    assert (result.problem, result.text.splitlines()[-1]) == ("", "gpuspawner-probe 1 end")


async def test_an_abandoned_probe_ends_with_all_its_processes(api, a_backend, tmp_path):
    backend = await a_backend(a_workspace("jupyter-alice", A))
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nsleep 300\n")
    tool.chmod(0o755)
    ended = asyncio.get_running_loop().create_future()

    async def left_alone(_socket, script):
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh", "-s", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, start_new_session=True,
        )  # fmt: skip
        shell.stdin.write(script)
        ended.set_result(await shell.wait())
        shell.stdin.close()

    api.execs["jupyter-alice"] = left_alone
    assert "did not end within 6 s" in (await backend.probe(A, 1, ("x",), 6.0)).problem
    assert await asyncio.wait_for(ended, 20) == -9
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat").read_text().split()[2] if Path(f"/proc/{pid}").exists() else "gone"
    assert state in {"gone", "Z"}


def sends(*messages):
    async def act(socket, _script):
        for channel, data in messages:
            await socket.send_bytes(bytes([channel]) + data)

    return act


def prints_without_end(socket, _script):
    async def act():
        while not socket.closed:
            await socket.send_bytes(b"\x01" + b"x" * 65536)

    return act()


def hangs(_socket, _script):
    return asyncio.sleep(60)


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        pytest.param(ends_with(3, b"half", b"no such file\n"), "exit code 3: 'no such file'", id="fails"),
        pytest.param(ends_with(137), "exit code 137", id="killed"),
        pytest.param(hangs, "did not end within 0.3 s", id="hangs"),
        pytest.param(prints_without_end, "printed more than 1048576 bytes", id="floods"),
        pytest.param(sends((1, b"out")), "ended before the command did", id="cut off"),
        pytest.param(sends((3, b"{")), "not understood", id="an end that is not JSON"),
        pytest.param(sends((3, json.dumps({"status": "Failure", "message": "container not found"}).encode())),
                     "container not found", id="no such container"),
        pytest.param(sends((3, json.dumps({**exit_status(1), "details": {"causes": [{"reason": "ExitCode",
                     "message": "x"}]}}).encode())), "not understood", id="a code that is no number"),
        pytest.param(None, "refused the probe: HTTP 404", id="no such pod"),
    ],
)  # fmt: skip
async def test_a_failed_probe_is_a_result_with_a_problem(api, a_backend, act, problem):
    backend = await a_backend(a_workspace("jupyter-alice", A))
    api.execs["jupyter-alice"] = act
    result = await backend.probe(A, 1, (), 0.3 if act is hangs else 10.0)
    assert problem in result.problem
    assert result.text == ""


async def test_a_probe_without_api_server_or_right_is_a_result_too(api, a_backend):
    backend = await a_backend(a_workspace("jupyter-alice", A))
    api.refused.add(("exec", "/api/v1/namespaces/jhub/pods/jupyter-alice/exec"))
    problem = (await backend.probe(A, 1, (), 5.0)).problem
    assert "HTTP 403" in problem
    assert "workspaces.podNamePrefix" in problem
    await api.stop()
    assert "does not answer" in (await backend.probe(A, 1, (), 5.0)).problem


async def test_a_failed_probe_on_an_unreachable_node_names_the_node_first(api, a_backend):
    api.put(a_node("gpu-1", ready=False))
    backend = await a_backend(a_workspace("jupyter-alice", A))
    api.execs["jupyter-alice"] = hangs
    assert (await backend.probe(A, 1, (), 0.3)).problem.startswith("its node gpu-1 is not ready: the probe did not end")
    api.execs["jupyter-alice"] = ends_with(0, probe_text(dict.fromkeys(UUIDS[:1], 0)).encode())
    assert (await backend.probe(A, 1, ("x",), 5.0)).problem == "", "what can be read all the same is read"


@pytest.mark.parametrize(
    ("tolerations", "said"),
    [
        pytest.param([(UNREACHABLE, 300), ("node.kubernetes.io/not-ready", 60)], "stays so for 5 min,", id="default"),
        pytest.param([("", None), (UNREACHABLE, 90)], "stays so for 1 min 30 s, the", id="the shortest"),
        pytest.param([(UNREACHABLE, None)], "is not ready: ", id="for ever"),
    ],
)
async def test_a_lost_node_reports_when_the_cluster_ends_its_pods(api, a_backend, tolerations, said):
    api.put(a_node("gpu-1", ready=False))
    pod = a_workspace("jupyter-alice", A)
    pod["spec"]["tolerations"] = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key, seconds in tolerations
    ]
    backend = await a_backend(pod)
    api.execs["jupyter-alice"] = hangs
    assert said in (await backend.probe(A, 1, (), 0.3)).problem


async def test_before_the_first_look_no_pod_is_missed(api, tmp_path):
    api.refused.add(("get", "/api/v1/pods"))
    backend = make_backend(api.kubeconfig(tmp_path))
    assert (await backend.probe(A, 1, (), 5.0)).problem == "the cluster has not been observed yet"
    await backend.close()


async def test_only_the_attempt_that_is_asked_for_is_probed(a_backend):
    backend = await a_backend(a_workspace("one", A, 1), a_workspace("two", A, 2, node=""), a_workspace("three", B))
    for lease, attempt in ((A, 2), (A, 3), ("c" * 32, 1)):
        assert "no running pod" in (await backend.probe(lease, attempt, (), 5.0)).problem


async def test_probes_are_bounded_on_a_node_and_one_at_a_time_in_a_pod(api, a_backend):
    names = [f"pod-{number}" for number in range(6)]
    backend = await a_backend(
        *(a_workspace(name, f"{number:032}") for number, name in enumerate(names)), probes_per_node=2
    )
    now, most = 0, 0

    async def act(socket, script):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1
        await ends_with(0)(socket, script)

    api.execs = dict.fromkeys(names, act)
    leases = [f"{number:032}" for number in range(6)]
    results = await asyncio.gather(*(backend.probe(lease, 1, (), 5.0) for lease in [*leases, leases[0]]))
    assert [result.problem for result in results] == [""] * 6 + ["the last probe has not ended yet"]
    assert most == 2


async def test_probes_that_hang_leave_connections_for_the_rest(api, a_backend):
    names = [f"pod-{number}" for number in range(40)]
    backend = await a_backend(
        *(a_workspace(name, f"{number:032}") for number, name in enumerate(names)),
        probes_at_once=20, probes_per_node=40,
    )  # fmt: skip
    api.execs = dict.fromkeys(names, hangs)
    leases = [f"{number:032}" for number in range(40)]
    await asyncio.gather(*(backend.probe(lease, 1, (), 0.3) for lease in leases[:20]))
    before = len(api.asked)
    probes = [asyncio.create_task(backend.probe(lease, 1, (), 60.0)) for lease in leases]
    await until(lambda: [verb for verb, *_ in api.asked[before:]].count("exec") >= 40)
    await asyncio.wait_for(backend.end(leases[0]), 60)
    for probe in probes:
        probe.cancel()
    await asyncio.gather(*probes, return_exceptions=True)


async def test_the_prober_forgets_pods_that_are_gone(api, a_backend):
    pod = a_workspace("jupyter-alice", A)
    backend = await a_backend(pod)
    await backend.probe(A, 1, (), 5.0)
    assert backend._prober._failed == {pod["metadata"]["uid"]}, "it could not be probed"
    api.remove(pod)

    async def is_gone():
        return not await backend.workspaces()

    await until(is_gone)
    assert backend._prober._failed == set()


@pytest.mark.parametrize(
    ("labels", "gpus", "shared"),
    [
        pytest.param(A100, {"nvidia.com/gpu": 1}, False, id="whole"),
        pytest.param(SHARED, {"nvidia.com/gpu": 1}, True, id="replica"),
        pytest.param(MIG_MIXED, {"nvidia.com/mig-1g.10gb": 1}, True, id="slice"),
        pytest.param(MIG_MIXED, {"nvidia.com/gpu": 1}, False, id="whole beside slices"),
        pytest.param({}, {"nvidia.com/gpu": 1}, False, id="whole, no label"),
        pytest.param({}, {"nvidia.com/mig-1g.10gb": 1}, True, id="slice, no label"),
        pytest.param({}, {"nvidia.com/gpu.shared": 1}, True, id="shared, no label"),
    ],
)
async def test_a_probe_tells_whether_other_pods_compute_on_the_same_device(api, a_backend, labels, gpus, shared):
    api.put(a_node("gpu-1", labels, {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 7}))
    backend = await a_backend(a_workspace("jupyter-alice", A, gpus=gpus))
    api.execs["jupyter-alice"] = ends_with(0, probe_text(dict.fromkeys(UUIDS[:1], 0)).encode())
    assert (await backend.probe(A, 1, ("x",), 5.0)).shared is shared


async def test_end_deletes_the_pods_of_these_attempts_and_no_other(api, a_backend):
    pods = [
        a_workspace("one", A, 1),
        a_workspace("two", A, 2),
        a_workspace("three", B),
        a_workspace("four", A, hub="other"),
    ]
    backend = await a_backend(*pods)
    assert await backend.end(A, frozenset({1}))
    left = {pod["metadata"]["name"] for pod in api.objects["/api/v1/pods"].values()}
    assert left == {"two", "three", "four"}
    assert await backend.end(A)
    assert await backend.end(A), "what is gone is ended"
    left = {pod["metadata"]["name"] for pod in api.objects["/api/v1/pods"].values()}
    assert left == {"three", "four"}


async def test_end_deletes_by_uid_with_the_policys_grace(api, a_backend):
    pod = a_workspace("one", A)
    backend = await a_backend(pod, grace_seconds=7)
    assert await backend.end(A)
    (options,) = [options for verb, _, options in api.asked if verb == "deleted"]
    assert options == {"preconditions": {"uid": pod["metadata"]["uid"]}, "gracePeriodSeconds": 7}


async def test_a_pod_that_is_not_deleted_has_not_ended(api, a_backend):
    backend = await a_backend(a_workspace("one", A), gone_seconds=0.5)
    api.grace_seconds = None
    assert not await backend.end(A)
    assert [verb for verb, _, _ in api.asked].count("deleted") == 1, "it is asked once, then waited for"


async def test_end_sees_a_pod_that_the_view_does_not_know_yet(api, a_backend):
    backend = await a_backend()
    await api.followed()
    api.watchers.clear()
    api.put(a_workspace("one", A))
    assert await backend.workspaces() == ()
    assert await backend.end(A)
    assert not api.objects["/api/v1/pods"]


async def test_end_without_answer_or_right_is_no_end(api, a_backend):
    backend = await a_backend(a_workspace("one", A))
    api.refused.add(("delete", "/api/v1/namespaces/jhub/pods/one"))
    with pytest.raises(Unavailable, match="does not delete the pod one"):
        await backend.end(A)
    api.refused.add(("get", "/api/v1/namespaces/jhub/pods"))
    with pytest.raises(Unavailable, match="does not list the pods"):
        await backend.end(A)
    await api.stop()
    with pytest.raises(Unavailable, match="does not answer"):
        await backend.end(A)
