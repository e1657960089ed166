"""Tokens of the command line. Their user allows them, and the store has their hash. They expire after 30 days."""

from __future__ import annotations

import secrets
import uuid

from gpuspawner.core import events
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.engine.allocation.start_attempts import hash_token
from gpuspawner.service.parts import Parts
from gpuspawner.service.sign_in.device_login import Login
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.personal import TokenRow
from gpuspawner.service.web.permissions import Role, roles_of

TOKEN_PREFIX = "gpucli-"  # noqa: S105 - the prefix of a token, and no token
TOKEN_SECONDS = 30 * 86400.0
ALLOWED = "the page Command line"
"""The origin of a new token in the audit log. Its user pressed Allow there."""
ADMIN_SECONDS = 12 * 3600.0
"""How long a token has the roles of its user. The hub tells a service its users, but not their scopes. So a user who
lost the right keeps it for at most a working day."""


async def make_token(parts: Parts, login: Login, owner: Owner) -> tuple[str, TokenRow]:
    """Return a new token of an allowed login, and its stored row."""
    token, now = TOKEN_PREFIX + secrets.token_urlsafe(32), parts.clock.now()
    admin_until, scopes = now + ADMIN_SECONDS if login.admin else None, " ".join(sorted(login.scopes))
    row = TokenRow(
        uuid.uuid4().hex, hash_token(token), *owner, login.user, login.device, now, now + TOKEN_SECONDS, admin_until,
        scopes,
    )  # fmt: skip
    roles = ", ".join(role.value for role in Role if role in roles_of(login.scopes) - {Role.USER})
    line = AuditLine(now, "", login.user, login.user, events.SignedIn(login.device, roles), ALLOWED, row.id)
    await parts.store.write(parts.store.tokens.add, row, line)
    return token, row


async def holder_of_token(parts: Parts, token: str) -> TokenRow | None:
    """Return the row of a token, with the present name of its user. None if it expired, is revoked, or has no user.

    Raises:
        Unavailable: the hub does not answer, or the store.
    """
    row = await parts.store.read(parts.store.tokens.find_by_hash, hash_token(token))
    if row is None or row.until <= parts.clock.now():
        return None
    name = await parts.known.name_of(row.user, row.user_created)
    if name is None:
        await parts.store.write(parts.store.tokens.delete_user, row.owner)
        return None
    return row if name == row.user else TokenRow(**{**vars(row), "user": name})


async def revoke(parts: Parts, owner: Owner, user: str, name: str, where: str) -> bool:
    """Revoke a token of a user by its id. Return whether it existed."""
    line = AuditLine(parts.clock.now(), "", user, user, events.SignedOut(), where, name[:40])
    return await parts.store.write(parts.store.tokens.revoke, owner, name, line)
