"""People, their roles, and the table of what each role may do. Endpoints, pages, buttons and tests follow it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property

from gpuspawner.catalog import teams_of
from gpuspawner.core.leases.lease import NOBODY, Lease, Owner
from gpuspawner.core.rules import Rules


class Role(Enum):
    """The roles of a person. A person may have several of them, and they add up."""

    USER = "user"
    LEAD = "team lead"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"
    SERVICE = "service of the hub"
    WORKSPACE = "workspace"


SCOPES: Mapping[Role, str] = {
    Role.USER: "custom:gpu:use",
    Role.LEAD: "custom:gpu:lead",
    Role.AUDITOR: "custom:gpu:audit",
    Role.OPERATOR: "custom:gpu:operate",
    Role.ADMINISTRATOR: "custom:gpu:admin",
}
"""The hub's scope that gives a role. A service of the hub and a workspace have their role by their token."""
LEAD_OF_GROUP = f"{SCOPES[Role.LEAD]}!group="
"""The beginning of the scope of one group's lead: ``custom:gpu:lead!group=vision``. They lead the team of that name."""


class Reach(IntEnum):
    """The owners of the things that a permission covers."""

    OWN = 1
    TEAM = 2
    ALL = 3


class Permission(Enum):
    """The permissions that endpoints and pages require. The value completes "Only … may …"."""

    USE = "use GPUs here"
    START = "start workspaces"
    HAVE_PRESETS = "save presets"
    HAVE_SCHEDULES = "schedule workspaces"
    HAVE_SECRETS = "have secrets"
    READ_INBOX = "read messages in an inbox"
    SEE_TOKENS = "see or revoke tokens of the command line"
    SEE_WORKSPACES = "see other users' workspaces"
    SEE_USAGE = "see other users' usage"
    SEE_QUOTAS = "see other users' quotas"
    KEEP = "keep or extend other users' workspaces"
    MOVE = "move other users' workspaces or change their requests"
    END = "stop or restart a workspace without giving a reason"
    ANSWER_FOR_OWN = "report, share or confirm something about a workspace"
    OPEN_SSH = "open a workspace by SSH"
    REPORT = "report the state of a workspace from inside"
    MANAGE_WORKSPACES = "stop, move or extend other users' workspaces with a reason"
    ORDER_QUEUE = "change the order of the queue"
    SEE_GRANTS = "see extra quota"
    GRANT = "give extra quota, move it between members or take it back"
    ASK_FOR_QUOTA = "ask for extra quota"
    SEE_REQUESTS = "see requests for extra quota"
    ANSWER_REQUESTS = "answer requests for extra quota"
    CORRECT = "correct charges"
    SEE_FLEET = "see all GPUs, people and groups"
    SEE_RESTRICTIONS = "see restrictions"
    RESTRICT = "drain nodes, quarantine GPUs or pause starts"
    RESERVE = "reserve GPUs or exempt workspaces from idle stops"
    SEE_ANNOUNCEMENTS = "see all announcements"
    ANNOUNCE = "send announcements"
    SEE_CLAIMS = "see requests with priority"
    CLAIM = "make requests with priority, which end workspaces"
    SEE_AUDIT = "read the audit log"
    SEE_STORED = "see what is stored of a user"
    FORGET = "delete what is stored of a user"
    ANSWER_REPORTS = "answer reports of wrong stops"
    SEE_CATALOG = "see the catalog and its versions"
    EDIT_CATALOG = "change the catalog"

    @property
    def act(self) -> str:
        """The act without its users, for a table that says for each role whose things it reaches."""
        return self.value.replace(" other users'", "")


_OWN = {Role.USER: Reach.OWN}
_OWN_OR_PROGRAM = {**_OWN, Role.SERVICE: Reach.OWN, Role.WORKSPACE: Reach.OWN}
_READERS = {Role.AUDITOR: Reach.ALL, Role.OPERATOR: Reach.ALL, Role.ADMINISTRATOR: Reach.ALL}
_MANAGERS = {Role.LEAD: Reach.TEAM, Role.OPERATOR: Reach.ALL, Role.ADMINISTRATOR: Reach.ALL}
_OPERATORS = {Role.OPERATOR: Reach.ALL, Role.ADMINISTRATOR: Reach.ALL}
_ADMINISTRATORS = {Role.ADMINISTRATOR: Reach.ALL}

ALLOWED: Mapping[Permission, Mapping[Role, Reach]] = {
    Permission.USE: _OWN_OR_PROGRAM,
    Permission.START: {**_OWN, **_OPERATORS},
    Permission.HAVE_PRESETS: _OWN,
    Permission.HAVE_SCHEDULES: _OWN,
    Permission.HAVE_SECRETS: _OWN,
    Permission.READ_INBOX: {**_OWN, Role.SERVICE: Reach.OWN},
    Permission.SEE_TOKENS: {**_OWN, Role.SERVICE: Reach.OWN},
    Permission.SEE_WORKSPACES: {**_OWN_OR_PROGRAM, **_READERS, Role.LEAD: Reach.TEAM},
    Permission.SEE_USAGE: {**_OWN_OR_PROGRAM, **_READERS, Role.LEAD: Reach.TEAM},
    Permission.SEE_QUOTAS: {**_OWN_OR_PROGRAM, **_READERS, Role.LEAD: Reach.TEAM},
    Permission.KEEP: {**_OWN, Role.WORKSPACE: Reach.OWN, **_MANAGERS},
    Permission.MOVE: {**_OWN, **_MANAGERS},
    Permission.END: _OWN,
    Permission.ANSWER_FOR_OWN: _OWN,
    Permission.OPEN_SSH: _OWN,
    Permission.REPORT: {Role.WORKSPACE: Reach.OWN},
    Permission.MANAGE_WORKSPACES: _MANAGERS,
    Permission.ORDER_QUEUE: _OPERATORS,
    Permission.SEE_GRANTS: {**_READERS, Role.LEAD: Reach.TEAM},
    Permission.GRANT: {**_ADMINISTRATORS, Role.LEAD: Reach.TEAM},
    Permission.ASK_FOR_QUOTA: _OWN,
    Permission.SEE_REQUESTS: {**_OWN, **_ADMINISTRATORS, Role.LEAD: Reach.TEAM},
    Permission.ANSWER_REQUESTS: {**_ADMINISTRATORS, Role.LEAD: Reach.TEAM},
    Permission.CORRECT: _ADMINISTRATORS,
    Permission.SEE_FLEET: _READERS,
    Permission.SEE_RESTRICTIONS: _READERS,
    Permission.RESTRICT: _OPERATORS,
    Permission.RESERVE: _ADMINISTRATORS,
    Permission.SEE_ANNOUNCEMENTS: _READERS,
    Permission.ANNOUNCE: _OPERATORS,
    Permission.SEE_CLAIMS: _READERS,
    Permission.CLAIM: _ADMINISTRATORS,
    Permission.SEE_AUDIT: _READERS,
    Permission.SEE_STORED: {**_OWN, **_ADMINISTRATORS},
    Permission.FORGET: _ADMINISTRATORS,
    Permission.ANSWER_REPORTS: _ADMINISTRATORS,
    Permission.SEE_CATALOG: {Role.AUDITOR: Reach.ALL, Role.ADMINISTRATOR: Reach.ALL},
    Permission.EDIT_CATALOG: _ADMINISTRATORS,
}
"""How far each role may go with each permission. A role that is missing may not do it."""
ACTS: Mapping[str, Permission] = {
    **dict.fromkeys(("stop", "move", "extend"), Permission.MANAGE_WORKSPACES),
    "reorder": Permission.ORDER_QUEUE,
    **dict.fromkeys(("drain", "quarantine", "pause", "lift"), Permission.RESTRICT),
    **dict.fromkeys(("reserve", "exempt"), Permission.RESERVE),
    **dict.fromkeys(("message", "announce"), Permission.ANNOUNCE),
    **dict.fromkeys(("grant", "move-hours", "take-back"), Permission.GRANT),
    **dict.fromkeys(("approve", "change-request", "decline"), Permission.ANSWER_REQUESTS),
    "correct": Permission.CORRECT,
    "give-up": Permission.CLAIM,
    "forget": Permission.FORGET,
    "answer": Permission.ANSWER_REPORTS,
}
"""The permissions of the acts that have a button on a page, by their names in addresses."""


def roles_of(scopes: Iterable[str]) -> frozenset[Role]:
    """Return the roles that scopes of the hub give."""
    names = {SCOPES[Role.LEAD] if scope.startswith(LEAD_OF_GROUP) else scope for scope in scopes}
    return frozenset(role for role, scope in SCOPES.items() if scope in names)


def refusal_words(permission: Permission, reach: Reach = Reach.OWN) -> str:
    """Return in a sentence which roles may do it, with their scopes."""
    roles = [role for role, far in ALLOWED[permission].items() if far >= reach]
    names = _listed([f"{role.value}s" for role in Role if role in roles], "and")
    scopes = _listed([SCOPES[role] for role in Role if role in roles and role in SCOPES], "or")
    return f"Only {names} may {permission.value}{f' (scope {scopes})' if scopes else ''}."


def _listed(words: Sequence[str], join: str) -> str:
    return f" {join} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


@dataclass(frozen=True)
class Person:
    """The sender of a request, once authenticated.

    Workspaces belong to ``owner``, not to ``name``. A name may have belonged to another user, and a service may have
    the same name. ``scopes`` are the hub's scopes that give roles. ``lease`` is set for a workspace's own token, which
    may act on this lease only. ``token`` is the id of a token of the command line.
    """

    name: str
    owner: Owner = NOBODY
    scopes: frozenset[str] = frozenset()
    lease: str | None = None
    token: str = ""

    @cached_property
    def roles(self) -> frozenset[Role]:
        """The roles of the person. Every user of the hub has the role of users."""
        if self.lease is not None:
            return frozenset({Role.WORKSPACE})
        given = roles_of(self.scopes) - {Role.USER}
        return given | {Role.SERVICE if self.owner == NOBODY else Role.USER}

    def reach(self, permission: Permission) -> Reach | None:
        """Return whose things the person reaches with a permission, None without it."""
        allowed = ALLOWED[permission]
        return max((allowed[role] for role in self.roles if role in allowed), default=None)

    def sees_more(self, permission: Permission) -> bool:
        """Return whether a permission reaches more than the person's own things."""
        return (self.reach(permission) or Reach.OWN) > Reach.OWN

    def teams_led(self, rules: Rules) -> list[str]:
        """Return the names of the teams that the person leads."""
        groups = {scope.removeprefix(LEAD_OF_GROUP) for scope in self.scopes if scope.startswith(LEAD_OF_GROUP)}
        return list(teams_of(rules, None if SCOPES[Role.LEAD] in self.scopes else groups))

    def teams_answered(self, rules: Rules) -> frozenset[str] | None:
        """Return the teams whose requests for extra quota the person answers, None for all requests."""
        reach = self.reach(Permission.ANSWER_REQUESTS)
        if reach is Reach.ALL:
            return None
        return frozenset(self.teams_led(rules) if reach is Reach.TEAM else ())

    def covers(self, permission: Permission, lease: Lease, rules: Rules) -> bool:
        """Return whether a permission of the person reaches a workspace."""
        reach = self.reach(permission)
        if reach is None or self.lease not in {None, lease.id}:
            return False
        if reach is Reach.TEAM:
            return self.owns(lease) or lease.request.team in self.teams_led(rules)
        return reach is Reach.ALL or self.owns(lease)

    def owns(self, lease: Lease) -> bool:
        """Return whether a workspace is this person's own."""
        return lease.key.user_created == self.owner.user_created and lease.key.hub == self.owner.hub
