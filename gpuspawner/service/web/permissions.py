"""The table of roles and permissions. Routes, pages and tests follow it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Role(Enum):
    """The roles of a person. The value is the hub's scope, or the kind of token, that gives the role."""

    USER = "custom:gpu:use"
    ADMINISTRATOR = "custom:gpu:admin"
    SERVICE = "a service's token"
    WORKSPACE = "a workspace's own token"


class Permission(Enum):
    """The permission that an endpoint or a page requires. The value completes "Only administrators …"."""

    SEE_OWN = "see this"
    USE_OWN = "use this workspace"
    START = "start a workspace"
    SEE_GROUPS = "see the hub's groups"
    READ_INBOX = "read this inbox"
    HAVE_PRESETS = "have presets"
    HAVE_SCHEDULES = "have workspaces made ready"
    SEE_TOKENS = "see or end tokens"
    SEE_OTHERS_QUOTA = "see what others have left"
    SEE_ALL_USAGE = "see the workspaces of all"
    SEE_ALL_QUOTAS = "see everybody's quotas"
    MANAGE_QUOTAS = "grant and correct"
    PREEMPT = "make claims that end workspaces"
    ADMINISTER = "act on workspaces and on what is given, and read the audit"
    SEND_MESSAGES = "send messages"


ALLOWED: Mapping[Permission, frozenset[Role]] = {
    **dict.fromkeys(Permission, frozenset({Role.ADMINISTRATOR})),
    Permission.SEE_OWN: frozenset({Role.USER, Role.SERVICE, Role.WORKSPACE}),
    Permission.USE_OWN: frozenset({Role.USER, Role.SERVICE, Role.WORKSPACE}),
    Permission.START: frozenset({Role.USER}),
    Permission.READ_INBOX: frozenset({Role.USER, Role.SERVICE}),
    Permission.HAVE_PRESETS: frozenset({Role.USER}),
    Permission.HAVE_SCHEDULES: frozenset({Role.USER}),
    Permission.SEE_TOKENS: frozenset({Role.USER, Role.SERVICE}),
}
"""The roles that have each permission. One of them is enough."""
