"""The settings of ``c.GPUService``, which are also the arguments of ``configure()``, and checks before the hub starts.

- Unknown names and wrong values are refused.
- One hub for each ``data_dir``: its process holds a lock as long as it lives.
- A hub with our spawner class whose configuration never called ``configure()`` is refused.
- The port of the service is free: the service of another hub must never be used as this hub's own.
- Other cullers are reported. They use HTTP traffic, kernels or terminals, never GPUs, and do not warn users: a
  training run in a closed browser is idle to them. The hub starts nevertheless: both may be used for some time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from traitlets import Bool, Dict, Float, HasTraits, Instance, Integer, TraitError, TraitType, Unicode, Union
from traitlets.config import Application, Configurable

from gpuspawner.backends.machine import find_listener, first_free_after, is_free
from gpuspawner.core.errors import did_you_mean
from gpuspawner.spawner.kubernetes.configuration import runs_in_chart

PORT = 9470


def _optional(kinds: Sequence[TraitType[Any, Any]], help_text: str) -> Union:
    return Union([*kinds], default_value=None, allow_none=True, help=help_text).tag(config=True)


def _text(help_text: str) -> Union:
    return _optional([Unicode()], help_text)


def _path(help_text: str) -> Union:
    return _optional([Unicode(), Instance(PurePath)], help_text)


class GPUService(Configurable):
    """The GPU service of this hub. Set these values above the line ``configure(c)``, which reads them."""

    catalog = _optional(
        [Dict(), Unicode(), Instance(PurePath)],
        "The path of the catalog, or its content as a dict. Changes of the file take effect within seconds.",
    )
    data_dir = Union(
        [Unicode("gpuspawner-data"), Instance(PurePath)],
        help="The folder of the service's database, its secret and the ID of this hub.",
    ).tag(config=True)
    address = _text(
        "The address on which the service listens. None: 127.0.0.1, or with pods the address of the hub.",
    )
    port = Integer(PORT, min=1, max=65535, help="The port on which the service listens, 1 to 65535.").tag(config=True)
    service_url = _text(
        "The address of a service that `gpuspawner server serve` started. None: the hub starts it.",
    )
    secret_file = _path(
        "The file of the secret, 64 hexadecimal digits, if `service_url` is set and no folder is shared.",
    )
    token_file = _path(
        "The file of the hub token of the service at `service_url`. None: it is made from the secret.",
    )
    fast = _optional(
        [Float(min=1, max=3600)],
        "A number by which every time of the catalog is divided, 1 to 3600. With 30, an hour takes two minutes.",
    )
    service_settings = _optional([Dict()], "Settings of the service, by their names in the reference of configure().")
    hub_id = _text(
        "The old ID of this hub for a new `data_dir`, from the log or the page *Admin*. None: a new ID.",
    )
    store = _text(
        "The service's database, for example `postgresql://USER@HOST/DATABASE`. None: a file in `data_dir`.",
    )
    store_password_file = _path("The file of the database's password. Only the user of the hub may read it.")
    replace_home = Bool(
        default_value=True,
        help="Whether people see their workspaces after signing in. False keeps the hub's own Home.",
    ).tag(config=True)


def warn(sentence: str) -> None:
    """Print a warning while the hub reads its configuration."""
    print(f"gpuspawner: {sentence}", file=sys.stderr)  # noqa: T201 - the hub has no log yet


def read_settings(c: Any, given: Mapping[str, Any]) -> GPUService:
    """Return the settings of ``c.GPUService``. ``given`` are the arguments of ``configure()``, which count first.

    Raises:
        SystemExit: A name is unknown, or a value has the wrong type. The message names the right one.
    """
    written = dict(c.GPUService)
    refuse_unknown("c.GPUService.{}", written, GPUService)
    refuse_unknown("configure({}=...)", given, GPUService)
    settings = GPUService()
    for name, value in {**written, **given}.items():
        where = f"configure({name}={value!r})" if name in given else f"c.GPUService.{name} = {value!r}"
        trait = GPUService.class_traits()[name]
        try:
            setattr(settings, name, value)
        except TraitError:
            raise SystemExit(f"gpuspawner: {where} is not {trait.info()}. {trait.help}") from None
    if not settings.catalog:
        raise SystemExit(
            'gpuspawner: configure(c) has no catalog. Write configure(c, catalog="catalog.yaml"), or set '
            "c.GPUService.catalog above it. The command `gpuspawner server init catalog.yaml` writes one."
        )
    return settings


def refuse_unknown(where: str, names: Mapping[str, Any], of: type[HasTraits]) -> None:
    """Refuse names that are no settings of a class.

    Raises:
        SystemExit: A name is unknown, with the closest known one.
    """
    known = of.class_trait_names(config=True)
    lines = [
        f"gpuspawner: {where.format(name)}: there is no such setting; {did_you_mean(name, sorted(known))}"
        for name in names
        if name not in known
    ]
    if lines:
        raise SystemExit("\n".join(lines))


def refuse_unknown_of_spawner(c: Any, spawner: type[HasTraits]) -> None:
    """Refuse unknown settings in the sections of our spawner classes, which traitlets itself would only ignore.

    Raises:
        SystemExit: A name is unknown, with the closest known one.
    """
    for owner in spawner.__mro__:
        if owner.__name__ in c and owner.__name__.startswith(("GPU", "LocalGPU")):
            refuse_unknown(f"c.{owner.__name__}.{{}}", c[owner.__name__], spawner)


def list_in_help() -> None:
    """Have ``jupyterhub --help-all`` list the settings of the service next to those of the spawners."""
    hub = sys.modules["jupyterhub.app"].JupyterHub
    listed = hub._classes_with_config_traits  # noqa: SLF001 - an entry point can only add spawners to the list

    def with_service(app: Any, classes: Any = None) -> Any:
        yield from listed(app, classes)
        yield GPUService

    hub._classes_with_config_traits = with_service  # noqa: SLF001 - as above


LOCK = "hub.lock"
NOT_LOCKABLE = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems without locks, for example of some network volumes."""

_held: dict[tuple[int, int], int] = {}
"""The locks of this process, by device and inode: a configuration may be read more than once."""


def hub_starts() -> bool:
    """Return whether this process is a hub that will serve, and not a command that only reads the configuration.

    Examples of such commands: ``jupyterhub token``, ``jupyterhub upgrade-db``, ``jupyterhub --show-config``.
    """
    app = Application.instance() if Application.initialized() else None
    if app is None or app.name != "jupyterhub":
        return False
    return not any(getattr(app, name, None) for name in ("subapp", "generate_certs", "show_config", "show_config_json"))


def lock_data_folder(data: Path, hub_url: str) -> None:
    """Lock ``data`` until this process ends. Child processes do not inherit the lock.

    ``hub_url`` is shown to a second hub.

    Raises:
        SystemExit: Another hub holds the lock, or the file cannot be written.
    """
    try:
        descriptor = os.open(data / LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # closed in child processes by Python
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) in _held:
            os.close(descriptor)
            return
        _lock(descriptor, data)
        own = {"pid": os.getpid(), "machine": socket.gethostname(), "since": time.time(), "folder": str(Path.cwd())}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(own | {"url": hub_url}).encode(), 0)
    except OSError as error:
        raise SystemExit(
            f"gpuspawner: {data / LOCK} cannot be written ({error.strerror}). Give data_dir to the hub's user."
        ) from None
    _held[found.st_dev, found.st_ino] = descriptor


def describe_lock_holder(data: Path) -> str:
    """Return a sentence about the hub that holds the lock of ``data``, or ""."""
    try:
        descriptor = os.open(data / LOCK, os.O_RDWR)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _describe_holder(descriptor)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return ""


def _lock(descriptor: int, data: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(
            f"gpuspawner: another hub uses data_dir {data}: {_describe_holder(descriptor)}. Two hubs would end each "
            "other's GPU service. End that one first, or give this one another data_dir."
        ) from None
    except OSError as error:
        if error.errno not in NOT_LOCKABLE:
            raise
        warn(
            f"the file system of data_dir {data} has no locks ({error.strerror}). Make sure that only one hub uses it."
        )


def _describe_holder(descriptor: int) -> str:
    """Return the hub that wrote the lock file."""
    try:
        told = json.loads(os.pread(descriptor, 4096, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["since"]))
        where = f"on {told['machine']}, started {since} in {told['folder']}"
        return f"process {told['pid']} {where}, which serves {told['url']}"
    except (ValueError, KeyError, TypeError):
        return "a hub that is starting"


REFUSAL = """\
gpuspawner: c.JupyterHub.spawner_class is {name}, and configure() was not called. Add these lines at the end of \
jupyterhub_config.py, and set no spawner class behind them:

    from gpuspawner.spawner import configure

    configure(c, catalog="catalog.yaml")

The command `gpuspawner server init catalog.yaml` writes the catalog."""


MISSING_PACKAGE = (
    "gpuspawner: c.JupyterHub.spawner_class is {name}. It is for Kubernetes, and the package {package} is not "
    "installed. On Kubernetes, run pip install '.[kubernetes]' in a checkout. On one machine, remove the line: "
    "configure() wraps the spawner class of the hub."
)


def refuse_without_package(name: str, error: ModuleNotFoundError) -> None:
    """Check that a spawner class that needs a missing package is not the one of a starting hub.

    Raises:
        SystemExit: It is. JupyterHub would show the traceback of the import.
    """
    if hub_starts():
        package = (error.name or "").partition(".")[0]
        raise SystemExit(MISSING_PACKAGE.format(name=name, package=package)) from None


_configured: list[type] = []
"""The spawner classes that ``configure()`` wrapped in this process: the hub merges its configuration only later."""


def note_configured(spawner: type) -> None:
    """Record that ``configure()`` was called and which class it made."""
    _configured.append(spawner)


def watch_hub(ours: type) -> None:
    """Make a starting hub refuse our spawner classes if ``configure()`` was not called, by any name of the class.

    JupyterHub creates a spawner for each start. Without this the hub runs, and each spawn page answers 500. The hub
    loads our entry point before it has an application to observe, so the check is in its setting itself.

    Args:
        ours: the base of all spawner classes that need ``configure()``.
    """
    if "jupyterhub.app" not in sys.modules:
        return  # no hub, or one that imports this module to configure it
    list_in_help()
    setting = sys.modules["jupyterhub.app"].JupyterHub.class_traits()["spawner_class"]
    validate = setting.validate

    def refuse(hub: Any, value: Any) -> Any:
        found = validate(hub, value)
        if not _configured and issubclass(found, ours) and hub_starts():
            raise SystemExit(REFUSAL.format(name=found.__name__))
        return found

    setting.validate = refuse


def refuse_taken_port(port: int, host: str, data: Path) -> None:
    """Check that this hub's service, which serves ``data``, will have its port.

    An older service that a killed hub left is accepted: it notices that its hub is gone, and ends.

    Raises:
        SystemExit: Another process listens there. The message names it and a free port.
    """
    if is_free(port, host):
        return
    holder = find_listener(port)
    if holder.data != data and not is_free(port, host):  # once more: it may have ended just now
        raise SystemExit(
            f"gpuspawner: port {port}, which this hub's GPU service needs, is taken by {holder.words}. End that one, "
            f"or give this hub another: configure(c, ..., port={first_free_after(port, host)})."
        )


CULLER = re.compile(r"idle[-_ ]?cull|cull[-_ ]?idle", re.IGNORECASE)
"""jupyterhub-idle-culler and its predecessor cull_idle_servers.py, by command or by the usual names of the service."""
SETTING = re.compile(
    r"""\b(cull_idle_timeout|cull_inactive_timeout|shutdown_no_activity_timeout)["']?\s*[:=]\s*["']?([^\s"',}]+)"""
)
"""Settings by which a workspace ends its own kernels, terminals or server. 0, the default, is off."""
SECTIONS = ("MappingKernelManager", "MultiKernelManager", "TerminalManager", "ServerApp", "NotebookApp", "LabApp")
CONFIG_FOLDERS = ("/etc/jupyter", "/usr/local/etc/jupyter")
CONFIG_FILES = ("jupyter*_config.py", "jupyter*_config.json", "jupyter*_config.d/*.json")

REMEDY = "Take it out: the catalog's policies stop what is idle."


def other_cullers(
    services: Iterable[Mapping[str, Any]],
    roles: Sequence[Mapping[str, Any]],
    sections: Mapping[str, Any],
    arguments: Mapping[str, Any],
    folders: Iterable[Path],
) -> Iterator[str]:
    """Yield a sentence for each culler: its place, its effect and the remedy.

    Args:
        services: ``c.JupyterHub.services``.
        roles: ``c.JupyterHub.load_roles``.
        sections: The whole configuration, by section.
        arguments: Arguments of single-user servers (``args``, ``cmd``), by the setting's place.
        folders: Configuration folders of single-user servers on this machine. Empty if they run elsewhere.
    """
    value = " (cull.enabled of the chart)" if runs_in_chart() else ""
    for service in services:
        if _culls(service):
            yield (
                f"c.JupyterHub.services has the culler {service.get('name')!r}{value}. It stops servers without "
                "HTTP traffic, also while their GPUs compute, and without a warning. "
                f"{REMEDY}{_roles_of(service, roles)}"
            )
    for where, line in _settings(sections, arguments, folders):
        found = SETTING.search(line)
        if found and found[2].strip("\"'") not in {"0", "0.0", "None", "null"}:
            yield (
                f"{where} sets {found[1]}={found[2]}: workspaces end their own kernels or servers, even while "
                f"a GPU computes, and without a warning. {REMEDY}"
            )


def _roles_of(service: Mapping[str, Any], roles: Sequence[Mapping[str, Any]]) -> str:
    """Return the roles to remove with a service: JupyterHub does not start with a role of a missing service."""
    named = [repr(role.get("name")) for role in roles if service.get("name") in role.get("services", ())]
    if not named:
        return ""
    return f" Take it out of c.JupyterHub.load_roles, too ({', '.join(named)}): the hub does not start otherwise."


def _culls(service: Mapping[str, Any]) -> bool:
    command = service.get("command") or []
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    return any(CULLER.search(word) for word in [str(service.get("name", "")), *words])


def _settings(
    sections: Mapping[str, Any], arguments: Mapping[str, Any], folders: Iterable[Path]
) -> Iterator[tuple[str, str]]:
    """Yield every line that may contain a culler's setting, with its place."""
    for name in SECTIONS:
        for key, value in (sections.get(name) or {}).items():
            yield f"c.{name}", f"{key}={value!r}"
    for where, words in arguments.items():
        for word in [words] if isinstance(words, str) else words or []:
            yield where, str(word)
    for folder in folders:
        for path in sorted(path for pattern in CONFIG_FILES for path in folder.glob(pattern)):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # the servers may not be able to read it either
            for line in text.splitlines():
                if not line.lstrip().startswith("#"):
                    yield str(path), line
