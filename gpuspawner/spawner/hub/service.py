"""The service in the hub's configuration: its token, its roles and its process. Reports of stopped servers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyterhub import orm
from jupyterhub.apihandlers.users import UserServerAPIHandler
from jupyterhub.log import log_request
from jupyterhub.utils import isoformat
from traitlets.config.loader import Config, LazyConfigValue

from gpuspawner.backends.machine import check_secret, make_identity
from gpuspawner.core.authentication import derive_hub_id, derive_hub_token
from gpuspawner.core.errors import GpuspawnerError, quoted
from gpuspawner.core.text_fields import LOG_FORMATS, is_service_address
from gpuspawner.spawner.client import LeaseClient
from gpuspawner.spawner.hub.settings import warn


def configured_value(section: Any, name: str, default: Any) -> Any:
    """Return a configured value, including additions, for example by ``c.JupyterHub.services.append``."""
    value = section.get(name, default)
    return value.get_value(default) if isinstance(value, LazyConfigValue) else value


SERVICE = "gpu"
SHORTEST_TOKEN = 8
"""The minimum length in JupyterHub."""


@dataclass(frozen=True)
class ServiceCredentials:
    """The credentials of hub and service. ``shared``: they share the hub's data folder.

    ``url`` is the address of a service that the hub does not start. ``token`` is the service's token of the hub.
    """

    secret_file: Path
    hub_id: str
    shared: bool = True
    url: str = ""
    token: str = ""


def read_credentials(
    c: Any,
    data: Path,
    url: str | None,
    secret_file: str | Path | None,
    token_file: str | Path | None,
    hub_id: str | None,
) -> ServiceCredentials:
    """Return the credentials of the service. Without ``url`` the hub starts the service itself.

    Raises:
        SystemExit: An argument cannot be used.
    """
    given = next((one.get("api_token") for one in configured(c) if one.get("name") == SERVICE), None)
    if url is None:
        text, hub_id = make_identity(data, hub_id)
        return ServiceCredentials(data / "secret", hub_id, token=given or derive_hub_token(bytes.fromhex(text)))
    url = _check_address(url)
    if secret_file is None:
        path, shared = data / "secret", True
        text, hub_id = make_identity(data, hub_id)
    else:
        path, shared = Path(secret_file).absolute(), False
        text = _read_file("secret_file", path)
        check_secret(path, text)
        hub_id = hub_id or derive_hub_id(bytes.fromhex(text))
    token = _read_file("token_file", Path(token_file)) if token_file else given or derive_hub_token(bytes.fromhex(text))
    if len(token) < SHORTEST_TOKEN:
        raise SystemExit(
            f"gpuspawner: configure(token_file=...): the token in {token_file} is too short. Write {SHORTEST_TOKEN} "
            "characters or more, as openssl rand -hex 32; or leave token_file out."
        )
    return ServiceCredentials(path, hub_id, shared, url, token)


def refuse_mixed_arguments(*, service_url: str | None, **others: object) -> None:
    """Refuse arguments of configure() that belong to the other kind of service."""
    given = [name for name, value in others.items() if value is not None]
    only_elsewhere = [name for name in given if name in {"secret_file", "token_file"}]
    if service_url is None and only_elsewhere:
        raise SystemExit(
            f"gpuspawner: configure({only_elsewhere[0]}=...) is for a service that is a process of its own. Give its "
            "address too, service_url=...; or leave it out: the hub makes what the service that it starts needs."
        )
    only_here = [name for name in given if name not in {"secret_file", "token_file"}]
    if service_url is not None and only_here:
        raise SystemExit(
            f"gpuspawner: configure(service_url=..., {only_here[0]}=...): the hub does not start this service. Take "
            f"{only_here[0]} out, and give it to gpuspawner server serve: see gpuspawner server serve --help."
        )


def add_started_service(c: Any, url: str, token: str, command: list[str], environment: Mapping[str, str]) -> None:
    """Let the hub start the service. Its token is derived from the secret, so ``server doctor`` can use it too."""
    # A managed service inherits only env_keep: a hub that finds gpuspawner by PYTHONPATH must pass it on.
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    _add(c, {"url": url, "api_token": token, "command": command, "environment": {**path, **environment}})


def add_separate_service(c: Any, credentials: ServiceCredentials) -> None:
    """Let the hub send users to the service and accept its token."""
    _add(c, {"url": credentials.url, "api_token": credentials.token})


def _add(c: Any, how: Mapping[str, Any]) -> None:
    more = {"oauth_no_confirm": True, "oauth_client_allowed_scopes": sorted(CUSTOM_SCOPES)}
    others = [one for one in configured(c) if one.get("name") != SERVICE]
    c.JupyterHub.services = [*others, {"name": SERVICE, **how, **more}]


def configured(c: Any) -> list[dict[str, Any]]:
    """Return the configured services."""
    return list(configured_value(c.JupyterHub, "services", []))


def as_json(settings: Mapping[str, Any]) -> str:
    """Return the settings as JSON for the service, which validates them. Raises SystemExit."""
    try:
        values = dict(settings)
        text = json.dumps(values)
    except (ValueError, TypeError):
        raise SystemExit(
            "gpuspawner: configure(service_settings=...) takes a dict of numbers and texts, by the names of "
            "service.settings.Settings."
        ) from None
    if (form := values.get("log_format", LOG_FORMATS[0])) not in LOG_FORMATS:
        raise SystemExit(
            f"gpuspawner: configure(service_settings=...): log_format {quoted(form)} is not right; write "
            f"{' or '.join(LOG_FORMATS)}."
        )
    return text


def _check_address(url: str) -> str:
    if not is_service_address(url):
        raise SystemExit(
            f"gpuspawner: configure(service_url={url!r}) is no address of a service. Write it with its port, "
            "without a path, like http://gpuspawner:9470."
        )
    return url.rstrip("/")


def _read_file(argument: str, path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise SystemExit(f"gpuspawner: configure({argument}=...): {path} cannot be read ({error}).") from None


CUSTOM_SCOPES: Mapping[str, Mapping[str, Any]] = {
    "custom:gpu:use": {"description": "Ask for GPU workspaces, and see and act on one's own."},
    "custom:gpu:lead": {"description": "See and manage the GPU workspaces and members' quotas of teams."},
    "custom:gpu:audit": {"description": "See the GPU workspaces, usage and audit log of all, and change nothing."},
    "custom:gpu:operate": {"description": "See and manage the GPU workspaces of all, and drain nodes, without quotas."},
    "custom:gpu:admin": {
        "description": "See and act on the GPU workspaces of all.",
        "subscopes": ["custom:gpu:use", "custom:gpu:lead", "custom:gpu:audit", "custom:gpu:operate"],
    },
}
"""The scopes of the roles. ``custom:gpu:lead!group=vision`` makes a lead of one team only."""
SERVICE_SCOPES = ["list:users", "read:users", "read:users:groups", "list:groups"]
SERVICE_SCOPES += ["read:servers", "servers", "delete:servers"]


def _scopes_for_mail(service_settings: Mapping[str, Any]) -> list[str]:
    """Return the right to read mail addresses if messages need it: it shows all data of the authenticator."""
    return ["admin:auth_state"] if "{email}" in str(service_settings.get("notify_users", "")) else []


def add_roles(c: Any, service_settings: Mapping[str, Any]) -> None:
    """Merge our roles into the configured roles. Replace none."""
    service_scopes = [*SERVICE_SCOPES, *_scopes_for_mail(service_settings)]
    c.JupyterHub.custom_scopes = {
        **configured_value(c.JupyterHub, "custom_scopes", {}),
        **{name: dict(scope) for name, scope in CUSTOM_SCOPES.items()},
    }
    roles = [dict(role) for role in configured_value(c.JupyterHub, "load_roles", [])]
    user = next((role for role in roles if role["name"] == "user"), None)
    if user is None:
        user = {"name": "user"}
        roles.append(user)
    if "scopes" not in user:  # keep the hub's default scopes, which ours would replace
        user["scopes"] = ["self", *sorted(configured_value(c.JupyterHub, "extra_user_scopes", set()))]
    own = ["custom:gpu:use", f"access:services!service={SERVICE}"]
    user["scopes"] = [*user.get("scopes", []), *(scope for scope in own if scope not in user.get("scopes", []))]
    sections = [section for section in c.values() if isinstance(section, Config)]  # of any authenticator
    managed = any(section.get("manage_roles") for section in sections)  # then only the authenticator grants roles
    admins = {name for section in sections for name in configured_value(section, "admin_users", set()) if not managed}
    access = f"access:services!service={SERVICE}"
    ours: list[dict[str, Any]] = [
        {"name": "gpuspawner-service", "scopes": service_scopes, "services": [SERVICE]},
        {
            "name": "gpu-admin",
            "description": "Administers GPU workspaces.",
            "scopes": ["custom:gpu:admin", access],
            "users": sorted(admins),
        },
        *(
            {"name": name, "description": f"GPU workspaces: {words}.", "scopes": [scope, access]}
            for name, words, scope in (
                ("gpu-operator", "drains nodes and manages workspaces", "custom:gpu:operate"),
                ("gpu-auditor", "sees everything and changes nothing", "custom:gpu:audit"),
            )
        ),
    ]
    for role in ours:
        named = next((r for r in roles if r["name"] == role["name"]), None)
        if named is None:
            roles.append(role)
        else:
            for field in ("scopes", "services", "users"):
                named[field] = [
                    *named.get(field, []),
                    *(x for x in role.get(field, []) if x not in named.get(field, [])),
                ]
    c.JupyterHub.load_roles = roles
    _report_missing_services(c, roles)
    _report_missing_administrator(roles, managed=managed)


def _report_missing_services(c: Any, roles: list[dict[str, Any]]) -> None:
    """Report roles of services that are not configured: JupyterHub ends, unless its API made the services."""
    there = {one.get("name") for one in configured(c)}
    for role in roles:
        for service in role.get("services", ()):
            if service not in there:
                warn(
                    f"c.JupyterHub.load_roles gives the role {role['name']!r} to the service {service!r}, which is not "
                    "in c.JupyterHub.services: the hub does not start. Take it out of that role."
                )


def _report_missing_administrator(roles: list[dict[str, Any]], *, managed: bool) -> None:
    if not any(role.get(kind) for role in roles if role["name"] == "gpu-admin" for kind in ("users", "groups")):
        warn(
            "the authenticator manages roles. It must give the role gpu-admin to the administrators."
            if managed
            else "GPUs have no administrator. Users in c.Authenticator.admin_users are; for others add to "
            'c.JupyterHub.load_roles, before configure(): {"name": "gpu-admin", "users": [...], "groups": [...]}.'
        )


log = logging.getLogger("gpuspawner.stoppers")

STOPPING = frozenset({202, 204})
_reports: set[asyncio.Task[None]] = set()  # the loop keeps only weak references to tasks


def log_function(hub_id: str, url: str, secret_file: Path, own: Callable[[Any], Any] | None) -> Callable[[Any], None]:
    """Return the ``log_function`` for the hub's ``tornado_settings``, called at the end of each request.

    Args:
        hub_id: The id of this hub.
        url: The service, with its prefix.
        secret_file: The file with the shared secret.
        own: The administrator's own function, called first. None: the hub's.
    """
    inner = own or log_request

    def logged(handler: Any) -> None:
        inner(handler)
        try:
            found = _find_stop(handler)
            if found is not None:
                stopper = {"hub": hub_id, **found}
                client = LeaseClient(url, bytes.fromhex(secret_file.read_text(encoding="ascii").strip()))
                task = asyncio.get_running_loop().create_task(_report_stopper(client, stopper))
                _reports.add(task)
                task.add_done_callback(_reports.discard)
        except Exception:
            log.exception("The user who stopped a server was not reported")  # the request is already answered

    return logged


def _find_stop(handler: Any) -> dict[str, str] | None:
    """Return the server that a request stopped and the user who sent it, or None."""
    if handler.request.method != "DELETE" or not isinstance(handler, UserServerAPIHandler):
        return None
    actor, (user_name, *server) = handler.current_user, handler.path_args
    user = handler.find_user(user_name)
    if handler.get_status() not in STOPPING or user is None or actor is None:
        return None
    by = f"the service {actor.name}" if isinstance(actor, orm.Service) else actor.name
    return {"user_created": isoformat(user.orm_user.created), "server": server[0] if server else "", "by": by}


async def _report_stopper(client: LeaseClient, stopper: dict[str, str]) -> None:
    try:
        await client.name_stopper(stopper)
    except GpuspawnerError as error:
        log.warning("The user who stopped a server was not reported: %s", error)  # its page says so
