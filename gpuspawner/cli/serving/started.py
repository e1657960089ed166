"""How the service was started: by its hub, which tells it all by variables, or by whoever wrote options."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import yaml

from gpuspawner.cli.serving.backend import BACKEND, CLUSTER
from gpuspawner.core.proof import hub_id_of, hub_token
from gpuspawner.service.app import Options
from gpuspawner.service.store.backup import DATABASE
from gpuspawner.service.store.databases import database_of

SERVICE = "services/gpu"
CLIENT = "service-gpu"
SHORTEST_TOKEN = 32
"""Letters of a token of Prometheus. Arbitrary: as many as of a hub's token."""
ACCESS = frozenset({"access:services", "access:services!service=gpu"})
"""As JupyterHub names the client of a service of this name, and the scopes of which one lets people in."""


LIKE = {"http": "http://127.0.0.1:8081/hub/api", "https": "https://hub.example.org"}


class StartError(Exception):
    """It cannot be started so; the message says what is wrong, and how to mend it."""


@dataclass(frozen=True)
class Started:
    """Options of the service, its settings as written, and the variables that name its backend.

    ``by_hub``: the hub started it, and judges the catalog's file for it.
    """

    options: Options
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    by_hub: bool = False


def read_secret(path: Path) -> bytes:
    """Return the secret that spawner and service share, from its file. Raises OSError and ValueError."""
    return bytes.fromhex(path.read_text().strip())


def started_by_hub(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Started:
    """Return what the hub that starts the service told it. Raises StartError."""
    names = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVICE_PREFIX")
    if missing := [name for name in names if name not in environment]:
        raise StartError(f"{', '.join(missing)} not set. JupyterHub sets them where it starts the service by itself.")
    data, secret = Path(arguments.data), Path(arguments.data) / "secret"
    try:
        known = read_secret(secret), secret.stat().st_mtime, _read(data / "hub-id")
    except (OSError, ValueError) as error:
        words = f"--data: {data} is not the folder that configure() made for the hub ({error})."
        raise StartError(words) from error
    hub_pid, store = environment.get("GPUSPAWNER_HUB_PID"), store_of(arguments)
    options = Options(
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
    return Started(options, _settings(environment), environment, by_hub=True)


def started_by_hand(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Started:
    """Return what options and files tell a service that no hub starts. Raises StartError."""
    if not arguments.hub:
        raise StartError(
            "--hub is missing: the hub's API, such as http://127.0.0.1:8081/hub/api. Or have JupyterHub start the "
            "service by itself: put configure(c, catalog=...) into its configuration, without service_url."
        )
    for option, url in (("--hub", arguments.hub), ("--service-url", arguments.service_url)):
        check_address(option, url)
    data, store = Path(arguments.data).absolute(), store_of(arguments)
    secret, made_at, hub_id = _identity(arguments, data)
    token = _file("--token-file", arguments.token_file) if arguments.token_file else hub_token(secret)
    base = f"/{arguments.base_url.strip('/')}/".replace("//", "/")
    prefix = f"{base}{SERVICE}/"
    hub_origin, origin = _origins(arguments)
    options = Options(
        store_url=store.url,
        store_password_file=store.password_file,
        secret=secret,
        hub_id=hub_id,
        hub_api_url=arguments.hub.rstrip("/"),
        hub_api_token=token,
        service_url=arguments.service_url.rstrip("/"),
        prefix=prefix,
        hub_pid=None,
        data=data,
        public_url=_public_url(arguments, prefix, origin),
        secret_made_at=made_at,
        stands_by=True,
        metrics_token=_metrics_token(arguments.metrics_token_file),
        listen="http://{}:{}".format(*listen_at(arguments.listen or urlparse(arguments.service_url).netloc)),
        hub_auth={
            "api_url": arguments.hub.rstrip("/"),
            "api_token": token,
            "base_url": prefix,
            "hub_prefix": f"{base}hub/",
            "oauth_client_id": CLIENT,
            "access_scopes": set(ACCESS),
            **({"hub_host": hub_origin, "oauth_redirect_uri": f"{origin}{prefix}oauth_callback"} if origin else {}),
        },
    )
    backend = {BACKEND: arguments.backend} if arguments.backend else {}
    if arguments.backend == "kubernetes" and not arguments.cluster and CLUSTER not in environment:
        words = "write a YAML file with namespace:, the one in which workspaces are made, and name it."
        raise StartError(f"--cluster is missing: {words}")
    if arguments.cluster:
        backend[CLUSTER] = json.dumps(mapping_in("--cluster", arguments.cluster))
    settings = mapping_in("--settings", arguments.settings) if arguments.settings else _settings(environment)
    return Started(options, settings, {**environment, **backend})


def _origins(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return scheme and host of the hub and of the service, where that has a domain of its own; else two empty texts.

    Raises StartError.
    """
    if not arguments.own_public_url:
        return "", ""
    if not arguments.public_url:
        raise StartError("--own-public-url needs --public-url: where people open the hub, https://hub.example.org.")
    for option, url in (("--public-url", arguments.public_url), ("--own-public-url", arguments.own_public_url)):
        check_address(option, url, ("http", "https"))
    hub, own = urlparse(arguments.public_url), urlparse(arguments.own_public_url)
    if own.path.strip("/") or own.hostname == hub.hostname:
        raise StartError(
            f"--own-public-url {arguments.own_public_url} is no domain of the service alone. Write it without a path, "
            "like https://gpu--service.hub.example.org; or leave it out, if the hub has no subdomain_host."
        )
    return f"{hub.scheme}://{hub.netloc}", f"{own.scheme}://{own.netloc}"


def _public_url(arguments: argparse.Namespace, prefix: str, origin: str) -> str:
    """Return where people open the service's pages; "" where that is not known."""
    if origin:
        return f"{origin}{prefix.rstrip('/')}"
    return f"{arguments.public_url.rstrip('/')}/{SERVICE}" if arguments.public_url else ""


def _identity(arguments: argparse.Namespace, data: Path) -> tuple[bytes, float, str]:
    """Return the secret, when it was made, and the hub id: of files, or of the folder that hub and service share."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"--data: {data} cannot be made ({error.strerror}). Name another.") from error
    if arguments.secret_file:
        secret = secret_in(arguments.secret_file)
        # How old the secret is says what may be rebuilt by it; a file that is mounted is as old as its mount.
        return secret, 0.0, arguments.hub_id or hub_id_of(secret)
    from gpuspawner.spawner.hub.data_folder import made_identity  # noqa: PLC0415 - what it imports is large

    try:
        text, hub_id = made_identity(data, arguments.hub_id)  # by whoever is there first, hub or service
    except SystemExit as error:
        raise StartError(str(error).removeprefix("gpuspawner: ")) from None
    return bytes.fromhex(text), (data / "secret").stat().st_mtime, hub_id


def secret_in(path: str | Path) -> bytes:
    """Return the secret that ``--secret-file`` names. Raises StartError."""
    text = _file("--secret-file", path)
    if not re.fullmatch("[0-9a-f]{64,}", text):
        raise StartError(f"--secret-file: {path} holds no secret of 64 hexadecimal digits, as openssl rand -hex 32.")
    return bytes.fromhex(text)


def listen_at(text: str) -> tuple[str, int]:
    """Return address and port of ``--listen``. Raises StartError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 1 <= int(port) <= 65535:  # noqa: PLR2004 - the last port
        raise StartError(f"--listen {text} is no address and port. Write it like 0.0.0.0:9470.")
    return host or "0.0.0.0", int(port)  # noqa: S104 - what ":9470" means


def check_address(option: str, url: str, schemes: tuple[str, ...] = ("http",)) -> None:
    """See that an option names an address of one of these schemes. Raises StartError."""
    if "@" in url:
        raise StartError(f"{option}: a name or password stands in the address. Take it out: --token-file names a file.")
    try:
        parts = urlparse(url)
        good = parts.scheme in schemes and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is none
        good = False
    if not good:
        raise StartError(f"{option} {url} is no {schemes[-1]} address. Write it like {LIKE[schemes[-1]]}.")


def _metrics_token(path: str | None) -> str:
    """Return the token of Prometheus; "" where no file is named. Raises StartError where one is too easily guessed."""
    token = _file("--metrics-token-file", path) if path else ""
    if path and len(token) < SHORTEST_TOKEN:
        raise StartError(f"--metrics-token-file: {path} has less than {SHORTEST_TOKEN} letters. Write a random token.")
    return token


def _file(option: str, path: str | Path) -> str:
    try:
        return _read(Path(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no plain text"
        raise StartError(f"{option}: {path} cannot be read: {why}. Name a file that is there.") from error


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def mapping_in(option: str, path: str) -> dict[str, Any]:
    """Return the names and values of a YAML file. Raises StartError."""
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        return dict(found)
    except OSError as error:
        raise StartError(f"{option}: {path} cannot be read: {error.strerror}. Name a file that is there.") from error
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise StartError(f"{option}: {path} is no YAML of names and values ({error}).") from error


def _settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what configure() passes on of service_settings."""
    try:
        return dict(json.loads(environment.get("GPUSPAWNER_SETTINGS", "{}")))
    except (ValueError, TypeError) as error:
        raise StartError("GPUSPAWNER_SETTINGS is no JSON object: configure() writes it.") from error


@dataclass(frozen=True)
class StoreAddress:
    """Where the store is, and the file with its password."""

    url: str
    password_file: Path | None


def store_of(arguments: argparse.Namespace) -> StoreAddress:
    """Return where options say that the store is: in the folder, where they say nothing. Raises StartError."""
    password_file = Path(arguments.store_password_file) if arguments.store_password_file else None
    if not arguments.store:
        if password_file is not None:
            raise StartError("--store-password-file is for PostgreSQL: give --store postgresql://USER@HOST/DATABASE.")
        return StoreAddress(f"sqlite:///{Path(arguments.data).absolute() / DATABASE}", None)
    try:
        database_of(arguments.store, password_file)
    except ValueError as error:
        raise StartError(f"--store: {error}") from None
    return StoreAddress(arguments.store, password_file)
