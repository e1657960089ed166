"""The cluster itself is real and whole, and ends without a trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kube_hub import eventually
from kubernetes import client
from nodes import ROOT

from tools.cluster.__main__ import main
from tools.cluster.build import cache
from tools.cluster.cluster import Cluster
from tools.cluster.namespaces import CGROUPS, started_at

pytestmark = pytest.mark.slow

SLOW = """
import sys
from pathlib import Path
from tools.cluster import __main__, settings

name, seconds = sys.argv.pop(1), sys.argv.pop(1)

def slow(*arguments):
    daemon = commands(*arguments)[name]
    script = f'sleep {seconds}; PATH=$PATH:{Path(daemon[0]).parent} exec "$@"'
    return {**commands(*arguments), name: ["/bin/sh", "-c", script, "sh", *daemon]}

commands, settings.commands = settings.commands, slow
sys.exit(__main__.main())
"""
"""`make cluster` with a part that starts the given seconds late."""


THREAD = """
import ctypes, platform, sys, threading

threading.Thread(target=sys.stdin.read).start()
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
"""A process whose first thread ends (by the kernel's `exit`), and whose other one stays until its input ends."""


def make(action, folder, **env):
    return subprocess.run(
        [sys.executable, "-m", "tools.cluster", action, "--folder", folder],
        check=False, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **env},
    )  # fmt: skip


def traces():
    """Return the traces that a cluster could leave on the machine, except processes, one line each."""
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    folders = (Path("/run/containerd"), Path("/var/lib/kubelet"), Path("/var/lib/cni"), Path("/etc/cni"))
    return {
        *Path("/proc/self/mountinfo").read_text().splitlines(),
        *routes.splitlines(),
        *map(str, Path("/sys/class/net").iterdir()),
        *(str(path) for path in CGROUPS.glob("*/*") if path.is_dir()),
        *(str(path) for path in folders if path.exists()),
    }


def processes(cluster):
    """Each process of a cluster, its pods' too, and when it was started."""
    pods = [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if f"/{cluster.link}/" in path.read_text()
    ]
    return {pid: started_at(pid) for pid in (*cluster.namespaces.processes(), *pods)}


def test_the_restricted_standard_is_enforced_where_it_is_asked_for(cluster):
    restricted = cluster.namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})
    with restricted as name, pytest.raises(client.ApiException, match="violates PodSecurity"):
        cluster.start_pod(name, "root", ["sleep", "600"], wait=False)


def test_a_process_has_ended_once_its_last_thread_has():
    with subprocess.Popen([sys.executable, "-c", THREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        stat = Path(f"/proc/{process.pid}/stat")
        eventually(lambda: ") Z " in stat.read_text(), 60, "its first thread has ended")
        assert started_at(process.pid), "the other one holds its ports"
        process.stdin.close()
        eventually(lambda: not started_at(process.pid), 60, "it has ended")


def test_it_refuses_to_start_twice_and_leaves_nothing(one_machine, tmp_path):
    before = traces()
    folder = tmp_path / "cluster"
    secret = tmp_path / "kubeconfig"
    secret.write_text("not to be read")
    home = {"HOME": str(tmp_path / "home"), "GPUSPAWNER_CACHE": str(cache())}
    started = make("start", folder, KUBECONFIG=str(secret), **home)
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        assert str(folder / "kubeconfig") in started.stdout
        second = Cluster.load(folder)
        assert second.address != one_machine.own.address
        second.kubectl("run", "pod", "--image=localhost/pause:1", "--image-pull-policy=Never")
        second.kubectl("wait", "--for=condition=Ready", "pod/pod", "--timeout=90s")
        assert any(second.link in line for line in traces() - before)
        running = processes(second)
        assert len(running) > len(second.processes) + 1  # plus the container's shim and the process in the pod
        again = make("start", folder)
        assert again.returncode == 1
        assert "runs already" in again.stderr
    finally:
        stopped = make("stop", folder)
    assert stopped.returncode == 0, stopped.stderr
    assert secret.read_text() == "not to be read"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kubeconfig"]
    # Another cluster may run on this machine. It has its own links and groups.
    assert not {line for line in traces() - before if "gpus-" not in line or second.link in line}
    assert not {pid for pid, started in running.items() if started_at(pid) == started}
    assert make("stop", folder).returncode == 0


@pytest.mark.parametrize(("part", "seconds"), [("containerd", "5"), ("kube-apiserver", "20")])
def test_a_part_that_is_slow_on_a_full_machine_is_waited_for(one_machine, tmp_path, part, seconds):
    folder = tmp_path / "cluster"
    command = [sys.executable, "-c", SLOW, part, seconds, "start", "--folder", folder]
    started = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        assert Cluster.load(folder).address != one_machine.own.address
    finally:
        assert make("stop", folder).returncode == 0


def test_a_user_other_than_root_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["cluster", "start", "--folder", str(tmp_path / "cluster")])
    assert main() == 1
    assert capsys.readouterr().err.strip() == "A cluster needs root, for namespaces and containers: run it by sudo."
    assert not list(tmp_path.iterdir())
