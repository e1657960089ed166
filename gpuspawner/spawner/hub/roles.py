"""What users, administrators and the service may do: our roles, merged into those that are configured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from traitlets.config.loader import Config

from gpuspawner.spawner.hub.service import SERVICE, configured, written_in

SERVICE_SCOPES = ["list:users", "read:users", "read:users:groups", "list:groups"]
SERVICE_SCOPES += ["read:servers", "servers", "delete:servers"]


def _scopes_for_mail(service_settings: Mapping[str, Any]) -> list[str]:
    """Return the right to mail addresses, only where messages need it: it shows all that the authenticator stored."""
    return ["admin:auth_state"] if "{email}" in str(service_settings.get("notify_users", "")) else []


def add_roles(c: Any, service_settings: Mapping[str, Any]) -> None:
    """Merge our roles into those configured; replace none."""
    service_scopes = [*SERVICE_SCOPES, *_scopes_for_mail(service_settings)]
    c.JupyterHub.custom_scopes = {
        **written_in(c.JupyterHub, "custom_scopes", {}),
        "custom:gpu:use": {"description": "Ask for GPU workspaces, and see and act on one's own."},
        "custom:gpu:admin": {
            "description": "See and act on the GPU workspaces of all.",
            "subscopes": ["custom:gpu:use"],
        },
    }
    roles = [dict(role) for role in written_in(c.JupyterHub, "load_roles", [])]
    user = next((role for role in roles if role["name"] == "user"), None)
    if user is None:
        user = {"name": "user"}
        roles.append(user)
    if "scopes" not in user:  # those that the hub gives where the role names none: ours would replace them
        user["scopes"] = ["self", *sorted(written_in(c.JupyterHub, "extra_user_scopes", set()))]
    own = ["custom:gpu:use", f"access:services!service={SERVICE}"]
    user["scopes"] = [*user.get("scopes", []), *(scope for scope in own if scope not in user.get("scopes", []))]
    sections = [section for section in c.values() if isinstance(section, Config)]  # of whichever authenticator
    managed = any(section.get("manage_roles") for section in sections)  # then the hub lets nobody else give roles
    admins = {name for section in sections for name in written_in(section, "admin_users", set()) if not managed}
    ours = [
        {"name": "gpuspawner-service", "scopes": service_scopes, "services": [SERVICE]},
        {
            "name": "gpu-admin",
            "description": "Administers GPU workspaces.",
            "scopes": ["custom:gpu:admin", f"access:services!service={SERVICE}"],
            "users": sorted(admins),
        },
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
    _name_missing_services(c, roles)
    _tell_who_administers(roles, managed=managed)


def _name_missing_services(c: Any, roles: list[dict[str, Any]]) -> None:
    """Say which roles are of services that are not configured: JupyterHub ends by that, unless its API made them."""
    there = {one.get("name") for one in configured(c)}
    for role in roles:
        for service in role.get("services", ()):
            if service not in there:
                print(  # noqa: T201 - the hub has no log yet
                    f"gpuspawner: c.JupyterHub.load_roles gives the role {role['name']!r} to the service {service!r}, "
                    "which is not in c.JupyterHub.services: the hub does not start. Take it out of that role.",
                    file=sys.stderr,
                )


def _tell_who_administers(roles: list[dict[str, Any]], *, managed: bool) -> None:
    if not any(role.get(kind) for role in roles if role["name"] == "gpu-admin" for kind in ("users", "groups")):
        print(  # noqa: T201 - the hub has no log yet
            "gpuspawner: the authenticator manages roles: it must give the role gpu-admin to whoever administers GPUs."
            if managed
            else "gpuspawner: nobody administers GPUs. Those in c.Authenticator.admin_users would; for others add to "
            'c.JupyterHub.load_roles, before configure(): {"name": "gpu-admin", "users": [...], "groups": [...]}.',
            file=sys.stderr,
        )
