"""The data that the demo keeps between runs, and its messages: settings, passwords, homes, the welcome."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from demo.ports import HOST
from tools.install import ROOT
from tools.progress import StepError, bold

DEMO = Path(__file__).resolve().parent
PEOPLE = {"alice": "team vision", "bob": "team speech", "admin": "administrator"}
"""People who sign in. Each has a separate password."""
COLLEAGUES = ("carol-demo", "dave-demo")
FAST_FACTOR = 30.0
"""The factor of FAST=1: half an hour in a policy becomes a minute."""
PORTS = range(1024, 65536)
LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # none that are read as one another: 32, so 5 bits each
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}
"""JupyterLab's settings for a demo that contacts no outside server."""
SIMULATED_DRIVER = "simulated driver"
"""The name of NVIDIA's simulated GPUs on every page. GPUs of our own simulation are called *simulated*."""
QUEUE_BEHIND_CAROL = (
    "As bob (a private window), ask for 4 A100: you get a queue position, and the workspace starts by itself."
)
QUEUE_BEHIND_ALICE = (
    "As bob (a private window), ask for all GPUs of alice's kind while she has one: you get a queue position."
)
AS_ADMIN = "As admin, open Admin: every workspace, the queue, and who stopped what, and why."


@dataclass(frozen=True)
class Settings:
    """Settings of ``make run``. ``fast`` divides the policy's times; None keeps them as written."""

    port: int
    data: Path
    fast: float | None
    colleagues: bool
    external: bool = False
    """Whether the reference scheduler owns the queue."""
    nvidia: str = ""
    """The machine that NVIDIA's simulated driver simulates; "" for this machine's own GPUs, or our simulated ones."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read PORT, DATA, FAST, DEMO, SCHEDULER and NVIDIA.

        Raises:
            StepError: a value cannot be used; names it and what would be right.
        """
        port = environment.get("PORT") or "8000"
        if not (port.isascii() and port.isdigit() and int(port) in PORTS):
            raise StepError(f"PORT={port} is no port: give a number from {PORTS[0]} to {PORTS[-1]}, like PORT=8001.")
        switches = {}
        for name, default in (("FAST", "0"), ("DEMO", "1")):
            value = environment.get(name) or default
            if value not in ("0", "1"):
                raise StepError(f"{name}={value} is not known: give {name}=1 or {name}=0.")
            switches[name] = value == "1"
        scheduler = environment.get("SCHEDULER") or "own"
        if scheduler not in ("own", "http"):
            raise StepError(f"SCHEDULER={scheduler} is not known: give SCHEDULER=http, or none for the hub's queue.")
        nvidia = environment.get("NVIDIA") or "none"
        nvidia = "" if nvidia == "none" else nvidia
        if nvidia and not (nvidia.isascii() and nvidia.isalnum()):
            raise StepError(f"NVIDIA={nvidia} is not known: give the name of a simulated machine, like NVIDIA=a100.")
        data = ROOT / (environment.get("DATA") or (f".run/nvidia-{nvidia}" if nvidia else ".run"))
        fast = FAST_FACTOR if switches["FAST"] else None
        return cls(int(port), data, fast, switches["DEMO"], scheduler == "http", nvidia)

    @property
    def url(self) -> str:
        """The hub's address, without a slash at its end."""
        return f"http://{HOST}:{self.port}"

    @property
    def secrets(self) -> Path:
        """The file of the passwords."""
        return self.data / "secrets.json"

    @property
    def logs(self) -> Path:
        """Where the hub's log lies."""
        return self.data / "logs"


def prepare(settings: Settings) -> dict[str, str]:
    """Make the data directory, the homes and the passwords, where they are not there yet; return the passwords."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    settings.data.chmod(0o700)
    for user in (*PEOPLE, *COLLEAGUES):
        home = settings.data / "homes" / user
        lab_settings = home / ".jupyter/lab/user-settings/@jupyterlab/apputils-extension"
        lab_settings.mkdir(parents=True, exist_ok=True)
        (lab_settings / "notification.jupyterlab-settings").write_text(json.dumps(NO_NEWS))
        if not (home / "demo.ipynb").exists():
            shutil.copy(DEMO / "demo.ipynb", home)
    return ensure_passwords(settings)


def ensure_passwords(settings: Settings) -> dict[str, str]:
    """Return everybody's password, made at the first call."""
    if not settings.secrets.exists():
        # Kept as they are, for they are shown at every start: readable by this machine's user alone, as the homes are.
        made = {"passwords": {user: new_password() for user in PEOPLE}, "colleagues_token": secrets.token_hex(32)}
        with os.fdopen(os.open(settings.secrets, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(made, stream)
    found: dict[str, str] = json.loads(settings.secrets.read_text())["passwords"]
    return found


def new_password() -> str:
    """Return a password of 40 random bits that is easily typed."""
    text = "".join(secrets.choice(LETTERS) for _ in range(8))
    return f"{text[:4]}-{text[4:]}"


@dataclass(frozen=True)
class Machine:
    """This machine's GPUs: a sentence on them, whether they are simulated, and the catalog that offers them."""

    catalog: str
    gpus: str
    simulated: bool
    scheduler: str = ""
    """Where the reference scheduler shows its queue; "" where the queue is gpuspawner's own."""


def describe_machine(settings: Settings, python: Path, environment: Mapping[str, str]) -> Machine:
    """Find this machine's GPUs, and the catalog for them.

    Raises:
        StepError: the demo's catalog cannot be read.
    """
    command: list[str | Path] = [python, "-m", "demo.machine", settings.data]
    command += [SIMULATED_DRIVER] if settings.nvidia else []
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment)
    if found.returncode:
        raise StepError(f"The demo's catalog cannot be used: {found.stderr.strip()}")
    return Machine(**json.loads(found.stdout))


def make_history(folder: Path, machine: Machine, python: Path) -> None:
    """Have some weeks of usage written where the service will keep its own.

    Raises:
        StepError: it could not be.
    """
    command: list[str | Path] = [python, "-m", "demo.history", folder, machine.catalog]
    made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if made.returncode:
        raise StepError(f"The demo's usage cannot be written: {made.stderr.strip()}. DEMO=0 make run leaves it out.")


def name_scheduler(settings: Settings, machine: Machine, url: str, python: Path) -> Machine:
    """Have a catalog written that names the reference scheduler, and what that is started with; return the machine.

    Raises:
        StepError: they could not be written.
    """
    folder = settings.data / "scheduler"
    command: list[str | Path] = [python, "-m", "demo.external", folder, machine.catalog, url, settings.url]
    made = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if made.returncode:
        raise StepError(f"The reference scheduler's files cannot be written: {made.stderr.strip()}")
    return replace(machine, catalog=str(folder / "catalog.yaml"), scheduler=url)


def shown(path: Path) -> str:
    """Return ``path`` as a person in the project's folder would type it."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


_ON_DEMO_GPUS = ("As alice, press Start. JupyterLab opens on demo.ipynb: run its cells, and watch the GPU work.",)
_ON_DRIVER = (
    "As alice, press Start. In a terminal of JupyterLab: nvidia-smi, then nvml-mock-ctl util --gpu all 64.",
    "nvml-mock-ctl fail --gpu all --mode lost: nothing is stopped. nvml-mock-ctl reset --gpu all: they are back.",
)


def welcome(settings: Settings, passwords: Mapping[str, str], machine: Machine) -> str:
    """Return the message of `make run` after everything has started."""
    if settings.nvidia:
        colleagues = "none: they work on GPUs of our own simulation"
    elif not machine.simulated:
        colleagues = "none: the GPUs are real, and all yours"
    elif settings.colleagues:
        colleagues = "carol-demo (busy on 2 A100) and dave-demo (idle on 1 H100), scripted; DEMO=0 omits them"
    else:
        colleagues = "none (DEMO=0)"
    folder = shown(settings.data)
    outside = {"Scheduler": f"{machine.scheduler}/ owns the queue (demo/scheduler); training comes now and then"}
    history = {
        "History": "three weeks of demo usage: what would your policy have made of it?\n"
        f"{'':13}.venv/bin/gpuspawner server simulate demo/catalog.yaml --data {folder}/gpuspawner --html report.html"
    }
    return block(
        settings,
        passwords,
        title="gpuspawner runs on this machine alone",
        rows={"GPUs": machine.gpus, "Times": pace(settings, "make run"), "Colleagues": colleagues}
        | (outside if machine.scheduler else {}),
        tries=(
            *(_ON_DRIVER if settings.nvidia else _ON_DEMO_GPUS),
            let_it_rest(settings),
            QUEUE_BEHIND_CAROL if settings.colleagues and machine.simulated else QUEUE_BEHIND_ALICE,
            AS_ADMIN,
        ),
        more=(history if settings.colleagues and machine.simulated else {})
        | {"Data": f"{folder} (kept for the next run)      Log  {folder}/logs/hub.log"},
    )


def pace(settings: Settings, command: str) -> str:
    """Say how fast the policies' times run."""
    if settings.fast:
        return f"FAST: every policy time runs {settings.fast:g} times faster, and the pages say so"
    return f"as in the catalog; {command} FAST=1 makes half an hour a minute"


def let_it_rest(settings: Settings) -> str:
    """Describe the treatment of an idle workspace under the demo's catalogs."""
    idle, grace = ("1 minute", "30 seconds") if settings.fast else ("30 minutes", "15 minutes")
    return f"Let it rest: after {idle} idle it warns for {grace}. Press Keep, or let it end and read why."


def block(
    settings: Settings,
    passwords: Mapping[str, str],
    *,
    title: str,
    rows: Mapping[str, str],
    tries: Sequence[str],
    more: Mapping[str, str],
) -> str:
    """Return the demo's final message: the address and the people, ``rows``, what to try, ``more``."""
    people = "\n".join(
        f"  {'Sign in' if number == 0 else '':11}{bold(f'{user:6}')} {passwords[user]}   {role}"
        for number, (user, role) in enumerate(PEOPLE.items())
    )
    listed = "\n".join(f"  {number}  {text}" for number, text in enumerate(tries, 1))
    return f"""
  {bold(title)}

  Open       {bold(settings.url)}
{people}
{_rows(rows)}

  Things to try
{listed}

  By command .venv/bin/gpuspawner login --url {settings.url}/services/gpu
             It shows a code to allow in the browser. Then: list, start, queue, quota

{_rows(more)}
  Ctrl-C     ends everything that this started
"""


def _rows(rows: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:10} {text}" for name, text in rows.items())
