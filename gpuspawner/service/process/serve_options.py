"""The options of the service, from its command, the hub that starts it, and files. They are checked here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import yaml

from gpuspawner.backends.machine import make_identity
from gpuspawner.core.authentication import derive_hub_id, derive_hub_token
from gpuspawner.service.app import Options
from gpuspawner.service.process.backend_choice import BACKEND, CLUSTER
from gpuspawner.service.store.database.backup import DATABASE
from gpuspawner.service.store.database.dialects import database_of

SERVICE = "services/gpu"
OAUTH_CLIENT = "service-gpu"
"""JupyterHub's name of the OAuth client of a service called gpu."""
ACCESS_SCOPES = frozenset({"access:services", "access:services!service=gpu"})
"""Scopes of JupyterHub of which a visitor needs one."""
SHORTEST_TOKEN = 32
"""The shortest token of Prometheus. Arbitrary: as long as a hub's token."""
LAST_PORT = 65535
CATALOG_SOURCE = "GPUSPAWNER_CATALOG"
"""The variable in which a hub names the catalog's file. The service reads a copy that the hub has checked."""
ADDRESSES = {"http": "http://127.0.0.1:8081/hub/api", "https": "https://hub.example.org"}
"""An example of an address for each scheme."""


class StartError(Exception):
    """The service cannot start. The message has the fault and the remedy."""


@dataclass(frozen=True)
class ServeOptions:
    """The options of ``gpuspawner server serve`` as written."""

    catalog: str
    data: str
    store: str | None = None
    store_password_file: str | None = None
    fast: float | None = None
    log_format: str | None = None
    hub: str | None = None
    secret_file: str | None = None
    token_file: str | None = None
    hub_id: str | None = None
    service_url: str = "http://127.0.0.1:9470"
    listen: str | None = None
    base_url: str = "/"
    public_url: str | None = None
    metrics_token_file: str | None = None
    own_public_url: str | None = None
    settings: str | None = None
    backend: str | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class Start:
    """Options of the service, its settings as written, and the variables that name its backend.

    ``by_hub``: the hub started it and checks the catalog's file for it. ``catalog_source`` is the file that
    administrators write, None if the catalog is not a file.
    """

    options: Options
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    by_hub: bool = False
    catalog_source: Path | None = None


def read_hub_start(options: ServeOptions, environment: Mapping[str, str]) -> Start:
    """Return the start by a hub, from its variables. Raises StartError."""
    names = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVICE_PREFIX")
    if missing := [name for name in names if name not in environment]:
        raise StartError(f"{', '.join(missing)} not set. JupyterHub sets them when it starts the service.")
    data, secret = Path(options.data), Path(options.data) / "secret"
    try:
        known = bytes.fromhex(_read(secret)), secret.stat().st_mtime, _read(data / "hub-id")
    except (OSError, ValueError) as error:
        words = f"--data: {data} is not the folder that configure() made for the hub ({error})."
        raise StartError(words) from error
    hub_pid, store = environment.get("GPUSPAWNER_HUB_PID"), store_of(options)
    read = Options(
        store_url=store.url,
        store_password_file=store.password_file,
        secret=known[0],
        hub_id=known[2],
        hub_api_url=environment["JUPYTERHUB_API_URL"],
        hub_api_token=environment["JUPYTERHUB_API_TOKEN"],
        service_url=environment["JUPYTERHUB_SERVICE_URL"],
        prefix=environment["JUPYTERHUB_SERVICE_PREFIX"],
        hub_pid=int(hub_pid) if hub_pid else None,
        data=data,
        public_url=environment.get("JUPYTERHUB_PUBLIC_URL", ""),
        secret_made_at=known[1],
    )
    source = environment.get(CATALOG_SOURCE)
    file = Path(source) if source else None
    return Start(read, _settings_in(environment), environment, by_hub=True, catalog_source=file)


def read_own_start(options: ServeOptions, environment: Mapping[str, str]) -> Start:
    """Return the start of a process of its own, from options and files. Raises StartError."""
    if not options.hub:
        raise StartError(
            "--hub is missing: the hub's API, such as http://127.0.0.1:8081/hub/api. Or let JupyterHub start the "
            "service: put configure(c, catalog=...) into its configuration, without service_url."
        )
    for option, url in (("--hub", options.hub), ("--service-url", options.service_url)):
        check_address(option, url)
    data, store = Path(options.data).absolute(), store_of(options)
    secret, made_at, hub_id = _identity(options, data)
    token = _read_file("--token-file", options.token_file) if options.token_file else derive_hub_token(secret)
    base = f"/{options.base_url.strip('/')}/".replace("//", "/")
    prefix = f"{base}{SERVICE}/"
    hub_origin, origin = _origins(options)
    read = Options(
        store_url=store.url,
        store_password_file=store.password_file,
        secret=secret,
        hub_id=hub_id,
        hub_api_url=options.hub.rstrip("/"),
        hub_api_token=token,
        service_url=options.service_url.rstrip("/"),
        prefix=prefix,
        hub_pid=None,
        data=data,
        public_url=_public_url(options, prefix, origin),
        secret_made_at=made_at,
        stands_by=True,
        metrics_token=_metrics_token(options.metrics_token_file),
        listen="http://{}:{}".format(*read_listen(options.listen or urlparse(options.service_url).netloc)),
        hub_auth={
            "api_url": options.hub.rstrip("/"),
            "api_token": token,
            "base_url": prefix,
            "hub_prefix": f"{base}hub/",
            "oauth_client_id": OAUTH_CLIENT,
            "access_scopes": set(ACCESS_SCOPES),
            **({"hub_host": hub_origin, "oauth_redirect_uri": f"{origin}{prefix}oauth_callback"} if origin else {}),
        },
    )
    backend = {BACKEND: options.backend} if options.backend else {}
    if options.backend == "kubernetes" and not options.cluster and CLUSTER not in environment:
        words = "write a YAML file with namespace:, the one in which workspaces are made, and name it."
        raise StartError(f"--cluster is missing: {words}")
    if options.cluster:
        backend[CLUSTER] = json.dumps(read_mapping("--cluster", options.cluster))
    settings = read_mapping("--settings", options.settings) if options.settings else _settings_in(environment)
    return Start(read, settings, {**environment, **backend}, catalog_source=Path(options.catalog).absolute())


def _origins(options: ServeOptions) -> tuple[str, str]:
    """Return scheme and host of the hub and of the service if it has a domain of its own, else two empty texts.

    Raises:
        StartError: an address is wrong.
    """
    if not options.own_public_url:
        return "", ""
    if not options.public_url:
        raise StartError("--own-public-url needs --public-url: where people open the hub, https://hub.example.org.")
    for option, url in (("--public-url", options.public_url), ("--own-public-url", options.own_public_url)):
        check_address(option, url, ("http", "https"))
    hub, own = urlparse(options.public_url), urlparse(options.own_public_url)
    if own.path.strip("/") or own.hostname == hub.hostname:
        raise StartError(
            f"--own-public-url {options.own_public_url} is not a domain of the service alone. Write it without a path, "
            "like https://gpu--service.hub.example.org; or leave it out, if the hub has no subdomain_host."
        )
    return f"{hub.scheme}://{hub.netloc}", f"{own.scheme}://{own.netloc}"


def _public_url(options: ServeOptions, prefix: str, origin: str) -> str:
    """Return the address of the service's pages for people, "" if it is not known."""
    if origin:
        return f"{origin}{prefix.rstrip('/')}"
    return f"{options.public_url.rstrip('/')}/{SERVICE}" if options.public_url else ""


def _metrics_token(path: str | None) -> str:
    """Return the token of Prometheus, or "" without a file. Raises StartError if it is too easy to guess."""
    token = _read_file("--metrics-token-file", path) if path else ""
    if path and len(token) < SHORTEST_TOKEN:
        raise StartError(f"--metrics-token-file: {path} has less than {SHORTEST_TOKEN} letters. Write a random token.")
    return token


def _identity(options: ServeOptions, data: Path) -> tuple[bytes, float, str]:
    """Return the secret, when it was made, and the hub ID: from files, or from the folder shared with the hub."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--data: {data} cannot be made ({error.strerror}). Name another folder.") from error
    if options.secret_file:
        secret = secret_in(options.secret_file)
        # The age of the secret decides what may be rebuilt. A mounted file is only as old as its mount.
        return secret, 0.0, options.hub_id or derive_hub_id(secret)
    try:
        text, hub_id = make_identity(data, options.hub_id)  # hub or service makes them, whichever starts first
    except SystemExit as error:
        raise StartError(str(error).removeprefix("gpuspawner: ")) from None
    return bytes.fromhex(text), (data / "secret").stat().st_mtime, hub_id


def secret_in(path: str | Path) -> bytes:
    """Return the secret of ``--secret-file``. Raises StartError."""
    text = _read_file("--secret-file", path)
    if not re.fullmatch("[0-9a-f]{64,}", text):
        raise StartError(f"--secret-file: {path} holds no secret of 64 hexadecimal digits, as openssl rand -hex 32.")
    return bytes.fromhex(text)


def read_listen(text: str) -> tuple[str, int]:
    """Return address and port of ``--listen``. Raises StartError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 1 <= int(port) <= LAST_PORT:
        raise StartError(f"--listen {text} is not an address with a port. Write it like 0.0.0.0:9470.")
    return host or "0.0.0.0", int(port)  # noqa: S104 - the meaning of ":9470"


def check_address(option: str, url: str, schemes: tuple[str, ...] = ("http",)) -> None:
    """Refuse an option that is not an address of one of these schemes. Raises StartError."""
    if "@" in url:
        raise StartError(f"{option}: the address has a name or a password. Remove it: --token-file names a file.")
    try:
        parts = urlparse(url)
        good = parts.scheme in schemes and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # the port is not a number
        good = False
    if not good:
        scheme = schemes[-1]
        raise StartError(f"{option} {url} is not an {scheme} address. Write it like {ADDRESSES[scheme]}.")


def _read_file(option: str, path: str | Path) -> str:
    try:
        return _read(Path(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise StartError(f"{option}: {path} cannot be read: {why}. Name a file that exists.") from error


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def read_mapping(option: str, path: str) -> dict[str, Any]:
    """Return the names and values of a YAML file. Raises StartError."""
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        return dict(found)
    except OSError as error:
        raise StartError(f"{option}: {path} cannot be read: {error.strerror}. Name a file that exists.") from error
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise StartError(f"{option}: {path} is not YAML of names and values ({error}).") from error


def _settings_in(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the service_settings that configure() passes on."""
    try:
        return dict(json.loads(environment.get("GPUSPAWNER_SETTINGS", "{}")))
    except (ValueError, TypeError) as error:
        raise StartError("GPUSPAWNER_SETTINGS is not a JSON object: configure() writes it.") from error


class StoreAddress(NamedTuple):
    """The address of the store, and the file with its password."""

    url: str
    password_file: Path | None


def store_of(options: ServeOptions) -> StoreAddress:
    """Return the address of the store. Without an option it is a file in the folder. Raises StartError."""
    password_file = Path(options.store_password_file) if options.store_password_file else None
    if not options.store:
        if password_file is not None:
            raise StartError("--store-password-file is for PostgreSQL: add --store postgresql://USER@HOST/DATABASE.")
        return StoreAddress(f"sqlite:///{Path(options.data).absolute() / DATABASE}", None)
    try:
        database_of(options.store, password_file)
    except ValueError as error:
        raise StartError(f"--store: {error}") from None
    return StoreAddress(options.store, password_file)
