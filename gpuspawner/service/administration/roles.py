"""The roles: what each may do, by which scope of the hub, and who has used it. Page and API show the same."""

from __future__ import annotations

from typing import NamedTuple

from gpuspawner.service.administration.models import RoleEntry, RoleList, RolePerson
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.admin_page import AdminPage
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.lists import Table, parse_list_state
from gpuspawner.service.web.permissions import ALLOWED, SCOPES, Permission, Reach, Role

router = Router()

NO_LIST = Table("roles", ())
REACH_WORDS = {Reach.OWN: "Own", Reach.TEAM: "Team", Reach.ALL: "All"}


class PermissionRow(NamedTuple):
    """What is permitted, and how far each role of SCOPES reaches, "" for a role that may not.

    The words do not name other users, because the page says whose things each role reaches.
    """

    words: str
    reaches: tuple[str, ...]


@router.get("/api/v1/admin/roles", Permission.SEE_FLEET)
async def list_roles(actor: Actor) -> RoleList:
    """Return the roles, what each may do, and who has used them since the service started."""
    used = sorted(actor.state.roles_used.values(), key=lambda one: one.name)
    roles = [
        RoleEntry(
            role=role.value,
            scope=scope,
            may={one.act: REACH_WORDS[reaches[role]].lower() for one, reaches in ALLOWED.items() if role in reaches},
            people=[RolePerson(name=one.name, scopes=sorted(one.scopes)) for one in used if role in one.roles],
        )
        for role, scope in SCOPES.items()
    ]
    return RoleList(roles=roles)


class RolesPage(AdminPage):
    """GET: the table of roles and permissions, and the people who have used a role."""

    tab = "roles"

    async def get(self) -> None:
        """Answer the page."""
        parse_list_state(NO_LIST, self.arguments_of_address())
        rows = [
            PermissionRow(
                f"{one.act[:1].upper()}{one.act[1:]}",
                tuple(REACH_WORDS[reaches[role]] if role in reaches else "" for role in SCOPES),
            )
            for one, reaches in ALLOWED.items()
            if any(role in SCOPES for role in reaches)
        ]
        found = await list_roles.act(self.actor("the console"))
        self.show("admin_roles.html", rows=rows, roles=found.roles, more=[x for x in found.roles if x.scope != USE])


USE = SCOPES[Role.USER]
