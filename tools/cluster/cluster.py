"""One cluster: etcd, API server, controller manager, scheduler, containerd and a kubelet, behind walls of its own.

Inside its namespaces `/run` and `/var/lib` are folders of the cluster's, so that every part uses its standard paths and
neither meets nor leaves anything of the machine's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.cluster import layers, settings
from tools.cluster.build import cache
from tools.cluster.clients import Kubectl
from tools.cluster.namespaces import Namespaces, create_cgroup, remove_cgroup, started_at
from tools.cluster.pki import Authority
from tools.progress import StepError

START_SECONDS = 120
"""Ten times what it takes on two idle cores: a busy machine is no failure."""
FIRST = ("containerd", "etcd", "kube-apiserver")
"""The other parts end by themselves where these do not answer yet, some after 15 s, as on a busy machine."""
ASKED_SECONDS = 0.3
"""Seconds between two looks. Each look runs kubectl, while parts of the cluster need the processor to start."""
GARBAGE_PERCENT = "300"
"""GOGC of the cluster's parts: the memory growth in percent that starts a collection (Go's default: 100). In a small
cluster collections are a tenth of the CPU time."""
WATCHES = Path("/proc/sys/fs/inotify/max_user_instances")
WATCHES_AT_LEAST = 8192
"""Linux allows 128 to each user. The kubelet and containerd of one cluster take some dozens. Each process of the
service's tests takes up to 400, one for each of aiohttp's resolvers. With none left, containerd starts without CRI."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Programs:
    """Where the cluster's programs lie: folders as `ensure_component` returns them, and the pause program."""

    etcd: Path
    containerd: Path
    kubernetes: Path
    pause: Path


@dataclass
class Cluster:
    """A cluster in ``folder``; its state file tells what runs, so that another process can end it."""

    folder: Path
    number: int = 0
    init: int = 0
    init_started: str = ""
    processes: dict[str, int] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Cluster | None:
        """Return the cluster whose state is in ``folder``, or None."""
        cluster = cls(folder)
        try:
            cluster._read_state()
        except FileNotFoundError:
            return None
        return cluster

    def save(self) -> None:
        """Write the state file, whole or not at all."""
        state = {name: value for name, value in vars(self).items() if name != "folder"}
        partial = self.folder / "state.json.partial"
        partial.write_text(json.dumps(state, indent=1))
        partial.rename(self.folder / "state.json")

    @property
    def runs(self) -> bool:
        """Whether its first process lives, and is no other of the same id."""
        return bool(self.init_started) and started_at(self.init) == self.init_started

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"

    @property
    def link(self) -> str:
        """The machine's end of the link to it, and its control group: named for the folder, so never another's."""
        return f"gpus-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}"

    @property
    def host_address(self) -> str:
        """Where pods find what listens on the machine."""
        return f"172.30.99.{4 * self.number + 1}"

    @property
    def address(self) -> str:
        """The node's, and the API server's."""
        return f"172.30.99.{4 * self.number + 2}"

    @property
    def namespaces(self) -> Namespaces:
        """Its walls."""
        return Namespaces(self.init)

    def start(self, programs: Programs) -> None:
        """Start all of it and wait until a pod can be made; what was started is ended if that fails.

        Raises:
            StepError: a part did not start, with its log.
        """
        try:
            allow_watching()
            self._make_walls(programs)
            authority = self._make_certificates()
            settings.write(self.folder, self.address, self.number, self.link)
            commands = settings.commands(self, authority, programs)
            self._write_tools(programs)
            for name in FIRST:
                self.start_process(name, commands.pop(name))
            self._import_pause(programs)
            self._wait_for_api_server()
            for name, command in commands.items():
                self.start_process(name, command)
            self.wait_until_ready()
        except BaseException as error:
            if isinstance(error, Exception):  # and not because its end was asked for
                logs = self.folder.with_name(f"{self.folder.name}-failed-logs")
                shutil.rmtree(logs, ignore_errors=True)
                shutil.copytree(self.folder / "logs", logs)
                if isinstance(error, StepError) and error.log:
                    error.log = logs / error.log.name
            self.stop()
            raise

    def stop(self) -> None:
        """End everything of it and remove its folder; twice is the same as once."""
        if self.runs:
            self.namespaces.kill()
        # The kernel takes the link away with the network namespace, a moment later.
        subprocess.run(["ip", "link", "delete", self.link], check=False, capture_output=True)
        remove_cgroup(self.link)
        # A third of the work of Python's own: images are tens of thousands of files.
        subprocess.run(["rm", "--recursive", "--one-file-system", self.folder], check=True)

    def start_process(self, name: str, command: list[str] | None = None) -> None:
        """Start a part again by the command of its first start, for example "kubelet" or "kube-apiserver"."""
        self._read_state()
        self.commands[name] = command or self.commands[name]
        folders = [str(Path(line[0]).parent) for line in self.commands.values()]
        env = {"PATH": ":".join([*dict.fromkeys(folders), PATH]), "GOGC": GARBAGE_PERCENT}
        self.processes[name] = self.namespaces.start(self.commands[name], self.log(name), env)
        self.save()

    def stop_process(self, name: str) -> None:
        """End a part as a crash would, and wait until it has: asked politely, an API server takes a minute."""
        self._read_state()
        pid = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._wait(lambda: not started_at(pid), f"{name} did not end", name)
        self.save()

    def wait_until_ready(self) -> None:
        """Wait until a pod can be made and would be run.

        Raises:
            StepError: that took too long, with the log of the part that is late.
        """
        self._wait_for_api_server()
        account = ("get", "serviceaccount", "default", "--output=name")
        self._wait(
            lambda: bool(self._says(*account)),
            "the controller manager made no service account",
            "kube-controller-manager",
        )
        ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        node = ("get", "nodes", f"--field-selector=metadata.name={settings.NODE}", f"--output={ready}")
        self._wait(lambda: self._says(*node) == "True", "the node is not ready", "kubelet")

    def log(self, name: str) -> Path:
        """The log of a part."""
        return self.folder / "logs" / f"{name}.log"

    def import_image(self, archive: Path) -> None:
        """Give the node the images of an archive (OCI or docker); pods name them with ``imagePullPolicy: Never``."""
        with archive.open("rb") as stream:
            self._ctr("images", "import", "--local", "-", stdin=stream)

    def has_image(self, name: str) -> bool:
        """Return whether the node has an image of this full name, for example "localhost/pause:1"."""
        return name in self._ctr("images", "list", "--quiet").split()

    def give_image(self, image: tuple[str, Path]) -> str:
        """Import an image, by its name and archive, where the node has it not yet; return the name."""
        name, archive = image
        if not self.has_image(name):
            self.import_image(archive)
        archive.unlink()
        return name

    @property
    def kubectl(self) -> Kubectl:
        """Its kubectl, as the administrator."""
        return Kubectl([self.folder / "kubectl"])

    def _read_state(self) -> None:
        """Learn what another process may have started or ended meanwhile."""
        vars(self).update(json.loads((self.folder / "state.json").read_text()))

    def _says(self, *arguments: str) -> str:
        """Return the output of kubectl, or nothing if it fails because the API server may be away."""
        with suppress(StepError):
            return self.kubectl(*arguments).strip()
        return ""

    def _ctr(self, *arguments: str, stdin: IO[bytes] | int = subprocess.DEVNULL) -> str:
        command = [str(self.folder / "ctr"), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, check=False, stdin=stdin, capture_output=True, text=True)
        if done.returncode:
            raise StepError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def _make_walls(self, programs: Programs) -> None:
        (self.folder / "logs").mkdir(parents=True)
        with (cache() / "addresses.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two that start at once would take the same
            taken = subprocess.run(["ip", "-oneline", "address"], check=True, capture_output=True, text=True).stdout
            while f" {self.host_address}/" in taken:
                self.number += 1
            self.save()
            pods = settings.pod_network(self.number)
            namespaces = Namespaces.create(programs.pause, self.link, self.host_address, self.address, pods)
        self.init, self.init_started = namespaces.init, started_at(namespaces.init)
        self.save()
        create_cgroup(self.link)
        namespaces.run(settings.WALLS, self.address, self.host_address, str(self.folder))

    def _make_certificates(self) -> Authority:
        authority = Authority(self.folder / "pki")
        server = f"https://{self.address}:443"
        here = (f"IP:{self.address}", "IP:127.0.0.1", "DNS:localhost")
        authority.issue("kube-apiserver", "/CN=kube-apiserver", (*here, "IP:10.96.0.1", "DNS:kubernetes.default.svc"))
        authority.issue("kubelet-server", f"/CN={settings.NODE}", here)
        authority.issue("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet")
        authority.issue("front-proxy-client", "/CN=front-proxy-client")
        authority.issue("admin", "/O=system:masters/CN=admin")
        authority.write_kubeconfig(self.kubeconfig, server, "admin")
        for name, subject in {
            "kubelet": f"/O=system:nodes/CN=system:node:{settings.NODE}",
            "kube-controller-manager": "/CN=system:kube-controller-manager",
            "kube-scheduler": "/CN=system:kube-scheduler",
        }.items():
            authority.issue(name, subject)
            authority.write_kubeconfig(self.folder / "pki" / f"{name}.kubeconfig", server, name)
        return authority

    def _write_tools(self, programs: Programs) -> None:
        """Write `kubectl` and `ctr` for this cluster: neither reads the caller's configuration nor writes in HOME."""
        enter = shlex.join(self.namespaces.enter())
        kubectl = [str(programs.kubernetes / "kubectl"), f"--kubeconfig={self.kubeconfig}"]
        kubectl += [f"--cache-dir={self.folder / 'kubectl-cache'}"]
        for name, command in {
            "kubectl": shlex.join(kubectl),
            "ctr": f"{enter} {shlex.quote(str(programs.containerd / 'ctr'))}",
        }.items():
            (self.folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (self.folder / name).chmod(0o755)

    def _wait_for_api_server(self) -> None:
        self._wait(lambda: self._says("get", "--raw=/readyz") == "ok", "the API server is not ready", "kube-apiserver")

    def _import_pause(self, programs: Programs) -> None:
        def answers() -> bool:
            with suppress(StepError):
                return bool(self._ctr("version"))
            return False

        self._wait(answers, "containerd does not answer", "containerd")
        archive = self.folder / "pause.tar"
        layer = layers.write_layer(self.folder / "pause.layer.tar", {"pause": programs.pause})
        layers.write_archive(archive, settings.PAUSE_IMAGE, [layer], {"Entrypoint": ["/pause"]})
        self.import_image(archive)

    def _wait(self, done: Callable[[], bool], otherwise: str, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise StepError(f"After {START_SECONDS} s {otherwise}.", self.log(name))
            time.sleep(ASKED_SECONDS)


def allow_watching() -> None:
    """Let this machine's users watch as many files as several clusters need; it is never made less."""
    if int(WATCHES.read_text(encoding="ascii")) < WATCHES_AT_LEAST:
        WATCHES.write_text(str(WATCHES_AT_LEAST), encoding="ascii")
