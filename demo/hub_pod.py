"""The hub's pod: made, watched, and reached from this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from demo import data, manifests, ports, processes
from demo.data import Settings
from demo.launcher import wait_until_answers
from demo.place import Place
from tools.install import ROOT
from tools.progress import StepError, Steps, say

RUNS_WITHIN_SECONDS = 600
"""Another cluster may have to pull the image."""
READY_WITHIN_SECONDS = 120
HOPELESS = ("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
LOOK_SECONDS = 0.3
ANSWERS_WITHIN_SECONDS = 10
COUNTED_WITHIN_SECONDS = 60.0
"""Kubernetes counts a restart some time after the container ends. The pod is watched this long after a helper ends."""


class Hub:
    """Hub, proxy and service of one run, with what follows the pod's log and forwards this machine's port to it."""

    def __init__(self, place: Place, settings: Settings, log: IO[str]) -> None:
        self.place = place
        self.settings = settings
        self.log = log
        self.pod = ("pod/hub", f"--namespace={place.namespace}")
        self.helpers: dict[str, list[str]] = {}
        self.running: dict[str, int] = {}
        self.restarts: int | None = None
        """Restart count of the hub, None until it has started. An end before that is a failure."""
        self.looks_until = 0.0
        self.is_away = False
        """Whether the API server does not answer. The hub goes on meanwhile, and so do the workspaces."""

    @property
    def log_path(self) -> Path:
        """Where the pod's log lies."""
        return Path(self.log.name)

    def start(self, steps: Steps) -> None:
        """Make all of it and wait until the service answers.

        Raises:
            StepError: a part does not; says why, as far as the cluster tells.
        """
        with steps.step("Rights, homes and the hub's pod"):
            data.ensure_passwords(self.settings)
            self._make_homes()
            objects = manifests.objects(self.place, self.settings)
            listed = {"apiVersion": "v1", "kind": "List", "items": objects}
            self.place.kubectl("apply", "--filename=-", given=json.dumps(listed))
            self._wait(self._runs, RUNS_WITHIN_SECONDS)
            self._keep("log", [*self.place.kubectl.command, "logs", "--follow", *self.pod])
        with steps.step("Hub and proxy"):
            self._wait(self._is_ready, READY_WITHIN_SECONDS)
            self._keep("forwarder", self._forwarder())
        with steps.step("GPU service"):
            url = f"{self.settings.url}/services/gpu/api/v1/"
            wait_until_answers(url, self.raise_if_ended, self.log_path)
        self.restarts = 0

    def raise_if_ended(self) -> None:
        """Look after the helpers, whose end may be the hub's. A hub that was killed is started again by Kubernetes.

        Raises:
            StepError: the hub ended, and does not start again.
        """
        finished = processes.reap()
        self.running = {name: pid for name, pid in self.running.items() if pid not in finished}
        missing = self.helpers.keys() - self.running.keys()
        if missing:
            self.looks_until = time.monotonic() + COUNTED_WITHIN_SECONDS
        if time.monotonic() < self.looks_until and self._runs_again():
            for name in missing:
                self._keep(name, self.helpers[name])

    def close(self) -> None:
        """End the helpers."""
        for pid in self.running.values():
            processes.send(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _make_homes(self) -> None:
        if homes := self.place.homes:
            for user in data.PEOPLE:
                (homes / user).mkdir(parents=True)
                os.chown(homes / user, 1000, 100)  # jovyan's

    def _forwarder(self) -> list[str]:
        """Return the command by which this machine's port is the proxy's."""
        port = self.settings.port
        if self.place.own:
            address = self._seen()["status"]["podIP"]
            return [sys.executable, "-m", "demo.forward", str(port), address, str(manifests.PORT)]
        forward = ["port-forward", f"--address={ports.HOST}", *self.pod, f"{port}:{manifests.PORT}"]
        return [*self.place.kubectl.command, *forward]

    def _keep(self, name: str, command: list[str]) -> None:
        """Start a helper, again if it ended."""
        self.helpers[name] = command
        self.running[name] = processes.start(command, cwd=ROOT, env=os.environ, log=self.log)

    def _ask(self) -> str:
        options = ("--output=json", "--ignore-not-found", f"--request-timeout={ANSWERS_WITHIN_SECONDS}s")
        return self.place.kubectl("get", *self.pod, *options)

    def _seen(self) -> dict[str, Any]:
        return self._parsed(self._ask())

    def _parsed(self, answer: str) -> dict[str, Any]:
        if not answer:
            raise StepError("The hub's pod is gone.", self.log_path)
        found: dict[str, Any] = json.loads(answer)
        return found

    def _seen_if_answered(self) -> dict[str, Any]:
        """Return the pod, or {} while the API server does not answer. Say when that begins and when it ends."""
        try:
            answer = self._ask()
        except StepError as error:
            if self.restarts is None:
                raise
            self.looks_until = time.monotonic() + COUNTED_WITHIN_SECONDS
            if not self.is_away:
                say(f"The API server does not answer. Hub and workspaces go on.\n{error}")
            self.is_away = True
            return {}
        if self.is_away:
            say("The API server answers again.")
        self.is_away = False
        return self._parsed(answer)

    def _wait(self, look: Callable[[dict[str, Any]], str], seconds: float) -> None:
        """Wait until ``look`` at the pod finds nothing more to wait for."""
        deadline = time.monotonic() + seconds
        while missing := look(self._seen()):
            self.raise_if_ended()
            if time.monotonic() > deadline:
                raise StepError(f"After {seconds:.0f} s {missing}.", self.log_path)
            time.sleep(LOOK_SECONDS)

    def _runs(self, pod: dict[str, Any]) -> str:
        state = _state(pod)
        if "running" in state or "terminated" in state or _ended_before(pod):
            return ""
        waiting = state.get("waiting", {})
        if waiting.get("reason") in HOPELESS:
            raise StepError(f"The hub's pod cannot start: {waiting.get('message') or waiting['reason']}")
        told = [condition["message"] for condition in pod["status"].get("conditions", []) if condition.get("message")]
        return f"the hub's pod does not run: {'; '.join(told) or waiting.get('reason', 'no reason is told')}"

    def _is_ready(self, pod: dict[str, Any]) -> str:
        ready = any(found.get("ready") for found in pod["status"].get("containerStatuses", []))
        return "" if ready else "hub and proxy do not answer"

    def _runs_again(self) -> bool:
        """Tell whether the hub runs, and once for each time that it was started again."""
        if not (pod := self._seen_if_answered()):
            return False
        before, starting = _ended_before(pod), self.restarts is None
        ended = _state(pod).get("terminated") or (before if starting else None)
        if ended and (starting or ended["exitCode"] == 0):
            raise StepError(f"The hub ended with code {ended['exitCode']}; its log says why.", self.log_path)
        count = _container(pod).get("restartCount", 0)
        if self.restarts is not None and count > self.restarts:
            self.restarts = count
            code = before.get("exitCode", "unknown")  # how it ended is kept as long as its dead container is
            say(f"The hub ended with code {code}. Kubernetes starts it again; workspaces go on.")
        return "running" in _state(pod)


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    return dict((pod["status"].get("containerStatuses") or [{}])[0])


def _state(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the pod's container as Kubernetes tells it: waiting, running or terminated."""
    return dict(_container(pod).get("state", {}))


def _ended_before(pod: dict[str, Any]) -> dict[str, Any]:
    """Return how the container ended before it was started again; empty where it was not."""
    return dict(_container(pod).get("lastState", {}).get("terminated", {}))
