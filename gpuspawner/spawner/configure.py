"""``configure(c, catalog=...)``: adds gpuspawner to a JupyterHub configuration, as its last line."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from jupyterhub import __version__ as hub_version
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner, Spawner
from traitlets.utils.importstring import import_item

from gpuspawner.backends.machine import SERVICE as SERVICE_COMMAND
from gpuspawner.backends.machine import data_folder
from gpuspawner.catalog import Catalog, load_catalog, scaled
from gpuspawner.catalog.load import refused
from gpuspawner.catalog.requests.profile_options import write_menus
from gpuspawner.catalog.watched_file import IN_FORCE, Prepared
from gpuspawner.core.errors import CatalogError
from gpuspawner.spawner.hub import service
from gpuspawner.spawner.hub.catalog import CatalogFollower, follow_catalog, raise_problems
from gpuspawner.spawner.hub.service import SERVICE, ServiceCredentials, add_roles, configured_value
from gpuspawner.spawner.hub.settings import (
    CONFIG_FOLDERS,
    PORT,
    hub_starts,
    lock_data_folder,
    note_configured,
    other_cullers,
    read_settings,
    refuse_taken_port,
    refuse_unknown,
    refuse_unknown_of_spawner,
    warn,
)
from gpuspawner.spawner.kubernetes.configuration import read_setting, service_address, service_environment
from gpuspawner.spawner.kubernetes.conflicts import find_conflicts, find_weaknesses, read_menus
from gpuspawner.spawner.mixin import GPUSpawnerMixin, LocalGPUSpawner
from gpuspawner.spawner.web import handlers, pages

NO_MENUS = (
    "template {name} names a profile whose options people choose, and a service with a folder of its own does not know "
    "these. Have the hub start the service, or take the options out"
)
ON_THIS_MACHINE = {"LocalProcessSpawner", "SystemdSpawner"}
"""Spawners whose servers read the configuration files of the hub's machine."""
ELSEWHERE = {"batchspawner.batchspawner.BatchSpawnerBase", "dockerspawner.swarmspawner.SwarmSpawner"}
"""Spawners whose servers run on machines that the GPU service does not see."""
SHORT_NAMES = {"simple": SimpleLocalProcessSpawner, "localprocess": LocalProcessSpawner}


def configure(c: Any, **given: Any) -> None:
    """Wrap the configured spawner class and add the service, its roles and its pages.

    Args:
        c: The configuration object of ``jupyterhub_config.py``.
        **given: Settings of :class:`GPUService`. They count before those of ``c.GPUService``.

    Raises:
        SystemExit: The catalog or the configuration cannot be used. The message names the fault and the remedy.
    """
    own = read_settings(c, given)
    catalog, data_dir, fast = own.catalog, Path(own.data_dir), own.fast
    wrapped = _wrap_class(c.JupyterHub.get("spawner_class"))
    _read_section(c, wrapped)
    loaded = _load_for_start(c, wrapped, catalog, fast, data_dir / IN_FORCE)
    of_store = {"store": own.store, "store_password_file": own.store_password_file}
    port = None if own.port == PORT else own.port
    of_started = {"address": own.address, "port": port, "service_settings": own.service_settings}
    elsewhere = {"secret_file": own.secret_file, "token_file": own.token_file}
    service.refuse_mixed_arguments(service_url=own.service_url, **of_started, **of_store, **elsewhere)
    _refuse(c, wrapped, catalog, loaded, started=own.service_url is None)
    data, prefix = _prepare_data_folder(c, data_dir), f"{_base_url(c)}/services/{SERVICE}/"
    credentials = service.read_credentials(c, data, own.service_url, own.secret_file, own.token_file, own.hub_id)
    url = credentials.url or _address(c, wrapped, own.address, own.port, data)
    prepare = partial(_prepare_catalog, c, wrapped, data if credentials.shared else None, fast, catalog)
    follower = follow_catalog(catalog, prepare, data)
    wrapped = _with_setup(wrapped, follower, url + prefix.rstrip("/"), _browser_prefix(c, prefix), credentials, data)
    note_configured(wrapped)
    if own.service_url is None:
        variables = _service_variables(c, wrapped, own.service_settings, of_store)
        if not isinstance(catalog, Mapping):
            variables["GPUSPAWNER_CATALOG"] = str(Path(catalog).absolute())
        service.add_started_service(c, url, credentials.token, _command(data, follower.handed, fast), variables)
    else:
        service.add_separate_service(c, credentials)
        _report_domain(c)
    add_roles(c, own.service_settings or {})
    _set_up_hub(c, wrapped, loaded, prefix, url + prefix.rstrip("/"), credentials, replace_home=own.replace_home)


def _read_section(c: Any, wrapped: Any) -> None:
    """Apply ``c.GPUSpawner`` whatever the name of the wrapped class. Refuse names that are no settings of it."""
    if not _is_pods(wrapped) and "GPUSpawner" in c:
        refuse_unknown("c.GPUSpawner.{}", c.GPUSpawner, wrapped)
        c[wrapped.__name__].merge(c.GPUSpawner)
    refuse_unknown_of_spawner(c, wrapped)


def _report_domain(c: Any) -> None:
    """Print the options that tell a separate service its domain."""
    if origin := handlers.service_origin(c, SERVICE):
        told = f"start the GPU service with --public-url={c.JupyterHub.subdomain_host} --own-public-url={origin}"
        warn(f"c.JupyterHub.subdomain_host: {told}")


def _browser_prefix(c: Any, prefix: str) -> str:
    """Return the service's prefix as browsers request it, with its domain if it has one."""
    return f"{handlers.service_origin(c, SERVICE)}{prefix}"


def _prepare_data_folder(c: Any, data_dir: Path) -> Path:
    """Return the data folder. A hub that starts locks it, so that no other hub uses it."""
    data = data_folder(data_dir)
    if hub_starts():
        lock_data_folder(data, _hub_url(c))
    return data


def _command(data: Path, catalog: Path, fast: float | None) -> list[str]:
    command = [sys.executable, *SERVICE_COMMAND, str(data), "--catalog", str(catalog)]
    return command if fast is None else [*command, "--fast", str(fast)]


def _refuse(c: Any, wrapped: type, source: str | Path | Mapping[str, Any], loaded: Catalog, *, started: bool) -> None:
    """Raise SystemExit if the hub cannot start. ``started``: the hub starts the service."""
    _refuse_conflicts(c, wrapped, loaded, started=started)
    if problems := refused(source, loaded, makes_pods=_is_pods(wrapped)):
        raise SystemExit("\n".join(f"gpuspawner: {problem}" for problem in problems))


def _set_up_hub(
    c: Any,
    wrapped: type,
    loaded: Catalog,
    prefix: str,
    url: str,
    credentials: ServiceCredentials,
    *,
    replace_home: bool,
) -> None:
    """Configure the hub's spawner, limits and pages, record who stops servers, and report other cullers."""
    c.JupyterHub.spawner_class = wrapped
    _report_cullers(c, wrapped)
    _set_limits(c, wrapped)
    _keep_servers(c)
    c.JupyterHub.template_paths = [*configured_value(c.JupyterHub, "template_paths", []), *pages.template_paths()]
    seen = _browser_prefix(c, prefix)
    variables = pages.page_variables(loaded, seen, url, credentials.secret_file)
    c.JupyterHub.template_vars = {**configured_value(c.JupyterHub, "template_vars", {}), **variables}
    c.JupyterHub.extra_handlers = [
        *configured_value(c.JupyterHub, "extra_handlers", []),
        *handlers.extra_handlers(credentials.secret_file, seen),
        *handlers.domain_handlers(SERVICE, handlers.service_origin(c, SERVICE)),
    ]
    handlers.route_first(credentials.secret_file, url, seen, replace_home=replace_home)
    if replace_home and not c.JupyterHub.get("default_url"):
        c.JupyterHub.default_url = f"{_base_url(c)}/hub/home"
    tornado = configured_value(c.JupyterHub, "tornado_settings", {})
    told = service.log_function(credentials.hub_id, url, credentials.secret_file, tornado.get("log_function"))
    c.JupyterHub.tornado_settings = {**tornado, "log_function": told}


def _load_for_start(
    c: Any, wrapped: type, catalog: str | Path | Mapping[str, Any], fast: float | None, last_good: Path
) -> Catalog:
    """Return the catalog for this start. If the file is wrong at a restart, it is the last good catalog.

    Raises:
        SystemExit: The catalog cannot be used and no good one is known. Names all faults.
    """
    try:
        loaded = load_catalog(catalog)
        if not isinstance(catalog, Mapping) and last_good.exists():
            _refuse_catalog(c, wrapped, catalog, loaded)
        return _scale(loaded, fast)
    except CatalogError as error:
        with suppress(CatalogError):
            if not isinstance(catalog, Mapping) and last_good.exists():
                kept = load_catalog(last_good)
                _refuse_catalog(c, wrapped, last_good, kept)
                return _scale(kept, fast)
        raise SystemExit(f"gpuspawner: the hub does not start with this catalog:\n{error}") from None


def _scale(catalog: Catalog, fast: float | None) -> Catalog:
    return catalog if fast is None else scaled(catalog, fast)


def _refuse_catalog(c: Any, wrapped: type, source: str | Path | Mapping[str, Any], catalog: Catalog) -> None:
    """Raise CatalogError if a hub with this configuration must not start with a catalog."""
    if problems := refused(source, catalog, makes_pods=_is_pods(wrapped)):
        raise CatalogError(problems)
    if _is_pods(wrapped):
        raise_problems(str(source), find_conflicts(c, wrapped, catalog))


def _prepare_catalog(
    c: Any,
    wrapped: type,
    data: Path | None,
    fast: float | None,
    source: str | Path | Mapping[str, Any],
    loaded: Catalog,
) -> Prepared:
    """Return a catalog as this hub uses it, with the choices of profiles, which the service receives too.

    ``data`` is the folder that hub and service share, or None.

    Raises:
        CatalogError: A hub with this configuration must not start with it.
    """
    catalog = _scale(loaded, fast)
    _refuse_catalog(c, wrapped, source, catalog)
    if not _is_pods(wrapped):
        return catalog, ()
    catalog = replace(catalog, menus=read_menus(c, wrapped, catalog))
    if data is not None:
        write_menus(data, catalog.menus)
    elif catalog.menus:
        raise_problems(str(source), [NO_MENUS.format(name=next(iter(catalog.menus)))])
    return catalog, ()


def _address(c: Any, wrapped: type, address: str | None, port: int, data: Path) -> str:
    """Return the listening address of a service that the hub starts."""
    host = (address or (service_address(c) if _is_pods(wrapped) else "127.0.0.1")).strip("[]")
    if hub_starts():
        refuse_taken_port(port, host, data)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _with_setup(
    wrapped: Any, follower: CatalogFollower, url: str, prefix: str, credentials: ServiceCredentials, data: Path
) -> Any:
    """Return the class that also knows the catalog, the address of its service and the shared secret."""
    setup = {
        "gpu_read_catalog": staticmethod(follower.current),
        "gpu_take_added": staticmethod(follower.take_added),
        "gpu_service_url": url,
        "gpu_service_prefix": prefix,
        "gpu_hub_id": credentials.hub_id,
        "gpu_boot_id": uuid.uuid4().hex,
        "gpu_secret_file": str(credentials.secret_file),
        "gpu_data_dir": str(data),
    }
    return type(wrapped.__name__, (wrapped,), {**setup, "__doc__": wrapped.__doc__, "__module__": wrapped.__module__})


def _service_variables(
    c: Any, wrapped: type, service_settings: Mapping[str, Any] | None, options: Mapping[str, object]
) -> dict[str, str]:
    """Return the environment of a service that the hub starts. ``options`` are the given options of its command."""
    environment = {"GPUSPAWNER_HUB_PID": str(os.getpid())}
    environment |= {f"GPUSPAWNER_SERVE_{k.upper()}": str(value) for k, value in options.items() if value is not None}
    if _is_pods(wrapped):
        environment |= service_environment(c, wrapped)
    if service_settings:
        environment["GPUSPAWNER_SETTINGS"] = service.as_json(service_settings)
    return environment


def _report_cullers(c: Any, spawner: type) -> None:
    """Report other configured cullers. The hub starts nevertheless."""
    services = service.configured(c)
    here = any(base.__name__ in ON_THIS_MACHINE for base in spawner.__mro__)
    folders = [Path(sys.prefix) / "etc" / "jupyter", *map(Path, CONFIG_FOLDERS)] if here else []
    arguments = dict(read_setting(c, spawner, name, []) for name in ("args", "cmd"))
    roles = configured_value(c.JupyterHub, "load_roles", [])
    for sentence in other_cullers(services, roles, c, arguments, folders):
        warn(sentence)


def _base_url(c: Any) -> str:
    """Return the common path prefix of the hub's addresses, without a slash at the end."""
    path = str(c.JupyterHub.get("base_url", "")) or urlparse(str(c.JupyterHub.get("bind_url", ""))).path
    return f"/{path.strip('/')}".rstrip("/")


def _hub_url(c: Any) -> str:
    """Return the address of the hub for browsers, as far as the configuration contains it."""
    address = f"http://{c.JupyterHub.get('ip', '') or '*'}:{c.JupyterHub.get('port', 8000)}{_base_url(c)}/"
    return str(c.JupyterHub.get("public_url", "") or c.JupyterHub.get("bind_url", "") or address)


def _wrap_class(configured: Any) -> type[Spawner]:
    """Return the mixin over the configured class, which keeps its own traits and settings."""
    base = configured or LocalProcessSpawner
    if isinstance(base, str):
        base = SHORT_NAMES.get(base) or _import_class(base)
    if issubclass(base, GPUSpawnerMixin):
        return base  # type: ignore[no-any-return]
    if base is LocalProcessSpawner:
        return LocalGPUSpawner
    mixins: tuple[Any, ...] = (GPUSpawnerMixin,)
    if _is_pods(base):
        from gpuspawner.spawner.kubernetes.spawner import GPUSpawner, KubePods  # noqa: PLC0415 - needs an extra of the package

        if base in GPUSpawner.__bases__:
            return GPUSpawner
        mixins = (KubePods, GPUSpawnerMixin)
    return type(f"GPU{base.__name__}", (*mixins, base), {"__doc__": f"{base.__name__} with GPU leases."})


def _is_pods(spawner: type) -> bool:
    return "kubespawner.spawner.KubeSpawner" in _names_of_bases(spawner)


def _names_of_bases(spawner: type) -> set[str]:
    return {f"{base.__module__}.{base.__name__}" for base in spawner.__mro__}


def _import_class(name: str) -> Any:
    for entry in entry_points(group="jupyterhub.spawners"):
        if entry.name.lower() == name.lower():
            return entry.load()
    try:
        return import_item(name)
    except ImportError as error:
        raise SystemExit(
            f"gpuspawner: c.JupyterHub.spawner_class = {name!r} cannot be imported ({error}). "
            "Install its package, or set another class before configure()."
        ) from None


def _refuse_conflicts(c: Any, spawner: type, catalog: Catalog, *, started: bool) -> None:
    _refuse_other_ways_to_the_service(c, started=started)
    if ELSEWHERE & _names_of_bases(spawner):
        raise SystemExit(
            f"gpuspawner: c.JupyterHub.spawner_class is {spawner.__name__.removeprefix('GPU')}, which starts servers "
            "on other machines. The GPU service does not see their GPUs. Set a class of "
            "docs/how-to/administrators/spawners.md before configure(), for example DockerSpawner or KubeSpawner."
        )
    if c.JupyterHub.get("active_server_limit", 0):
        raise SystemExit(
            "gpuspawner: c.JupyterHub.active_server_limit counts people who only wait in the queue as active. "
            "Remove it; limit GPUs per user by a quota in the catalog."
        )
    for setting in ("options_form", "options_from_form"):
        where, form = read_setting(c, spawner, setting, None)
        if form is not None and not _is_pods(spawner):
            raise SystemExit(
                f"gpuspawner: {where} would replace gpuspawner's form. Remove it: users' choices are "
                "configured in the catalog's templates."
            )
    if _is_pods(spawner):
        found = [f"gpuspawner: {conflict}" for conflict in find_conflicts(c, spawner, catalog)]
        if found:
            raise SystemExit("\n".join(found))
        for sentence in find_weaknesses(c, spawner, catalog):
            warn(sentence)


def _refuse_other_ways_to_the_service(c: Any, *, started: bool) -> None:
    """Refuse settings that leave the service without an address, a name or its own hub."""
    if c.JupyterHub.get("internal_ssl", False):
        raise SystemExit(
            "gpuspawner: c.JupyterHub.internal_ssl is not supported: the GPU service could not call the hub. Remove "
            "it; within a cluster, network policies or a service mesh keep others out."
        )
    for one in service.configured(c):
        # A chart may write an entry with only a token, for a service that it knows.
        ours = "gpuspawner.cli" in (one.get("command") or []) or (not started and not one.get("command"))
        if one.get("name") == SERVICE and not ours:
            raise SystemExit(
                f"gpuspawner: c.JupyterHub.services has another service of the name {SERVICE}, which gpuspawner's own "
                "has. Give that one another name."
            )


def _set_limits(c: Any, spawner: type) -> None:
    c.JupyterHub.concurrent_spawn_limit = 0  # waiters would fill it; the service limits concurrent starts instead
    c.JupyterHub.init_spawners_timeout = 1  # nothing at the hub's boot needs the service
    if int(hub_version.split(".")[0]) < 6:  # noqa: PLR2004 - before 6.0 each refusal counts as a failure
        for owner in spawner.__mro__:  # the nearest class that has one counts
            name = owner.__name__
            if name == "Spawner" or (name in c and "consecutive_failure_limit" in c[name]):
                c[name].consecutive_failure_limit = 0
        print("gpuspawner: JupyterHub 5.x counts refusals as failures: consecutive_failure_limit is set to 0.")  # noqa: T201


def _keep_servers(c: Any) -> None:
    """Keep workspaces running while the hub restarts. JupyterHub's own default would end them."""
    if "cleanup_servers" not in c.JupyterHub:
        c.JupyterHub.cleanup_servers = False
        print(  # noqa: T201 - the hub has no log yet
            "gpuspawner: c.JupyterHub.cleanup_servers is set to False: workspaces keep running when the hub ends. "
            "To end them with the hub, set it to True before configure()."
        )
