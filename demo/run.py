"""`make run`: installs what is missing, starts the demo hub on this machine alone, and ends all of it on Ctrl-C.

Run by any Python from 3.10 on with its standard library: the hub itself runs in the project's .venv.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from demo import data, ports, processes
from demo.data import DEMO, Settings
from demo.launcher import Asked, Ending, refuse_taken_port, take_lock, wait_until_answers
from tools.install import ROOT, ensure
from tools.nvidia import SimulatedDriver, find_files
from tools.progress import StepError, Steps, report_failure, say, tail

COMMAND = "make run"
END_WITHIN_SECONDS = 25
"""The hub gives its workspaces 5 to 10 s to end by themselves."""
KILL_AFTER_SECONDS = 3
A100_COUNT = 4
"""Of the demo's catalog. Carol takes two of them."""
COLLEAGUE_WITHIN_SECONDS = 30
"""Past this the demo goes on without her."""
GAVE_UP = re.compile("Cannot connect to (managed service gpu|gpu service managed)")
"""The hub's log line about a service that did not start within 30 s."""
GAVE_UP_WITHIN_LINES = 50
AGAIN = f"On a slow or busy machine its GPU service takes long the first time. Try again: {COMMAND}"
TRAINING = ("--training-every-seconds", "300", "--training-lasts-seconds", "90", "--notice-seconds", "60")
"""The metrics of the simulated training that the reference scheduler receives."""


def main() -> int:
    """Run the demo until its end is asked for; 0 then, 1 where it cannot start or the hub ends by itself."""
    ending = Ending()
    ending.listen()
    processes.adopt_orphans()
    try:
        settings = Settings.from_environment(os.environ)
        with take_lock(settings, COMMAND):
            refuse_taken_port(settings.port, COMMAND)
            steps = Steps()
            try:
                run_hub(steps, settings, ensure(steps, ["run"]))
            finally:
                ending.begun = True
                end_all(settings, ending)
    except Asked:
        return 0
    except StepError as error:
        report_failure(error)
    return 1


def run_hub(steps: Steps, settings: Settings, python: Path) -> None:
    """Start everything, say that it runs, and wait for the hub's end.

    Raises:
        StepError: the hub ended by itself.
    """
    driver = start_driver(steps, settings)
    environment = driver.environment() if driver else dict(os.environ)
    with steps.step("Data and homes"):
        passwords = data.prepare(settings)
        machine = data.describe_machine(settings, python, environment)
    history = settings.data / "gpuspawner"
    if settings.colleagues and machine.simulated and not (history / "gpuspawner.sqlite").exists():
        with steps.step("Some weeks of demo usage"):
            data.make_history(history, machine, python)
    hub_port, proxy_port, service_port, scheduler_port = ports.pick_free(4)
    if settings.external:
        machine = data.name_scheduler(settings, machine, f"http://{ports.HOST}:{scheduler_port}", python)
    env = {
        **environment,
        "VIRTUAL_ENV": str(python.parents[1]),
        "PATH": f"{python.parent}:{environment.get('PATH', os.defpath)}",
        "GPUSPAWNER_DEMO": json.dumps(
            {
                "data": str(settings.data),
                "secrets": str(settings.secrets),
                "catalog": machine.catalog,
                "port": settings.port,
                "hub_port": hub_port,
                "proxy_port": proxy_port,
                "service_port": service_port,
                "fast": settings.fast,
                "environment": driver.variables if driver else {},
            }
        ),
    }
    log_path = settings.logs / "hub.log"
    with suppress(FileNotFoundError):
        log_path.replace(log_path.with_suffix(".previous.log"))
    with log_path.open("a") as log:
        command: list[str | Path] = [python, "-m", "jupyterhub", "-f", DEMO / "jupyterhub_config.py"]
        hub = processes.start(
            driver.with_devices(command) if driver and driver.can_show_devices() else command,
            cwd=settings.data,
            env=env,
            log=log,
        )
        lives = partial(raise_if_ended, hub, log_path)
        if settings.external:
            with steps.step("Reference scheduler"):
                start_scheduler(settings, python, machine.scheduler, log)
        with steps.step("Hub and proxy"):
            wait_until_answers(f"http://{ports.HOST}:{hub_port}/hub/api/", lives, log_path)
        with steps.step("GPU service"):
            wait_until_answers(f"http://{ports.HOST}:{service_port}/services/gpu/api/v1/", lives, log_path)
            wait_until_answers(f"{settings.url}/hub/api/", lives, log_path)  # the proxy has its routes only now
        if settings.colleagues and machine.simulated:
            with steps.step("Demo colleagues"):
                processes.start([python, "-m", "demo.colleagues", settings.url], cwd=ROOT, env=env, log=log)
                wait_for_colleague(settings, lives)
    say(data.welcome(settings, passwords, machine))
    raise_if_ended(hub, log_path, wait=True)


def wait_for_colleague(settings: Settings, lives: Callable[[], None]) -> None:
    """Wait until carol has GPUs, so that bob meets a queue from the first moment on, but not for long."""
    token = json.loads(settings.secrets.read_text())["colleagues_token"]
    headers = {"Authorization": f"token {token}"}
    ask = urllib.request.Request(f"{settings.url}/services/gpu/api/v1/offers", headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + COLLEAGUE_WITHIN_SECONDS
    while time.monotonic() < deadline:
        lives()
        with suppress(OSError), opener.open(ask, timeout=2) as answer:
            free = {one["kind"]: one["free"] for one in json.load(answer)["offers"]}
            if free.get("a100") != A100_COUNT:
                return
        time.sleep(0.2)


def start_driver(steps: Steps, settings: Settings) -> SimulatedDriver | None:
    """Make NVIDIA's simulated driver, if it is asked for.

    Raises:
        StepError: the driver is not available, or it cannot simulate this machine.
    """
    if not settings.nvidia:
        return None
    with steps.step("NVIDIA's simulated driver"):
        return SimulatedDriver.on_machine(find_files(), settings.data / "nvidia", settings.nvidia)


def start_scheduler(settings: Settings, python: Path, url: str, log: IO[str]) -> None:
    """Start the reference scheduler, and wait until it answers. It ends with the demo.

    Raises:
        StepError: it did not start.
    """
    folder, port = settings.data / "scheduler", url.rpartition(":")[2]
    command: list[str | Path] = [python, "-m", "demo.scheduler", "--port", port, "--token-file", folder / "token"]
    command += ["--inventory", folder / "inventory.yaml", *TRAINING]
    started = processes.start(command, cwd=ROOT, env=dict(os.environ), log=log)
    path = Path(log.name)
    wait_until_answers(f"{url}/", partial(raise_if_ended, started, path, what="reference scheduler"), path)


def raise_if_ended(awaited: int, log: Path, *, wait: bool = False, what: str = "hub") -> None:
    """Read finished children, with ``wait`` until the awaited one, which is ``what``, is one of them.

    Raises:
        StepError: it ended.
    """
    while True:
        pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        if pid == awaited:
            code = os.waitstatus_to_exitcode(status)
            how = f"with code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
            again = f" {AGAIN}" if GAVE_UP.search(tail(log, GAVE_UP_WITHIN_LINES)) else ""
            raise StepError(f"The {what} ended {how}; its log says why.{again}", log)
        if pid == 0:
            return


def end_all(settings: Settings, ending: Ending) -> None:
    """End the hub first, which ends its service, workspaces and proxy; then whatever is left."""
    processes.reap()
    left = processes.descendants()
    if not left:
        return
    say(f"\nEnding the hub and all it started ({len(left)} processes). Ctrl-C again to hurry.")
    for pid in processes.children():
        processes.send(pid, signal.SIGTERM)
    gone = (
        processes.wait_for_none(END_WITHIN_SECONDS, ending.in_a_hurry)
        or processes.end_descendants(KILL_AFTER_SECONDS, signal.SIGTERM, ending.in_a_hurry)
        or processes.end_descendants(KILL_AFTER_SECONDS, signal.SIGKILL, lambda: False)
    )
    if gone:
        say(f"All ended. Users, homes and history stay in {data.shown(settings.data)}")
    else:
        say(f"Not ended: processes {processes.descendants()}. The kernel, or another user, holds them.")


if __name__ == "__main__":
    sys.exit(main())
