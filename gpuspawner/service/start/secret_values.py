"""Secrets of users: variables of their workspaces. No page shows their values again.

The store has them encrypted with a key that is derived from the service's secret. Only a workspace of the same user
gets the values, by its own token, when it starts. They are in no option, log, page or audit entry.
"""

from __future__ import annotations

import asyncio

from pydantic import SkipValidation
from tornado.web import HTTPError

from gpuspawner.catalog.requests.start_options import NO_TEXT, RESERVED_NAMES, RESERVED_WHOLE, VARIABLE_NAME
from gpuspawner.core import events
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.rest.models import Answer, Body
from gpuspawner.service.store.personal import StoredSecret
from gpuspawner.service.store.sealing import seal, unseal
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

MAX_SECRETS, MAX_BYTES = 30, 8192
"""Secrets of one user, and bytes of a value. Arbitrary: a private key has half of that."""

router = Router()


class SecretInput(Body):
    """A secret to save. It replaces an earlier one of the same name."""

    name: SkipValidation[str] = ""
    """The name of the variable, for example ``HF_TOKEN``."""
    value: SkipValidation[str] = ""
    """The value. No answer has it."""


class Secret(Answer):
    """A secret without its value."""

    name: str
    changed_at: float
    readable: bool
    """Whether the service can decrypt it. If not, workspaces start without it, and its user must save it again."""


class SecretList(Answer):
    """The user's own secrets by name, and their largest number."""

    secrets: list[Secret]
    most: int


class SecretCounts(Answer):
    """The numbers of stored secrets of all users."""

    secrets: int
    unreadable: int
    """The number of secrets that were encrypted with another key."""
    users_affected: int
    """The number of users who have an unreadable secret."""


class SecretName(Answer):
    """The name of a secret."""

    name: str


class SecretValues(Answer):
    """The secrets of a workspace's user, for the workspace itself."""

    values: dict[str, str]
    unreadable: list[str]
    """The names of secrets that were encrypted with another key. Their user must save them again."""


def _check(name: object, value: object) -> tuple[str, str]:
    """Return a name and a value that may be saved. No message quotes a value."""
    if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
        remedy = "Write it as the program expects it, for example HF_TOKEN."
        raise RequestRefused("name", quoted(name), "letters, digits and underscores, up to 100", remedy)
    if name.upper().startswith(RESERVED_NAMES) or name.upper() in RESERVED_WHOLE:
        raise RequestRefused("name", quoted(name), "names that the workspace does not use", "Choose another name.")
    if not isinstance(value, str) or not value or NO_TEXT.search(value) or len(value.encode()) > MAX_BYTES:
        remedy = "Put a longer one into a file of your home."
        raise RequestRefused("value", "nothing, or more than that", f"1 to {MAX_BYTES:,} bytes of text", remedy)
    return name, value


@router.get("/api/v1/secrets", Permission.HAVE_SECRETS)
async def list_secrets(actor: Actor) -> SecretList:
    """Return the names of your secrets, and when each was last changed. No answer has a value."""
    state, owner = actor.state, actor.person.owner
    rows = await state.store.read(state.store.secrets.of, owner)
    found = [
        Secret(name=one.name, changed_at=one.changed_at, readable=unseal(state.secret, owner, one) is not None)
        for one in rows
    ]
    return SecretList(secrets=found, most=MAX_SECRETS)


@router.get("/api/v1/admin/secrets", Permission.SEE_FLEET)
async def count_secrets(actor: Actor) -> SecretCounts:
    """Return how many secrets of users are stored, and how many of them cannot be decrypted. No answer has a value."""
    state = actor.state
    rows = await state.store.read(state.store.secrets.of_hub, state.hub_id)
    affected = await asyncio.to_thread(
        lambda: [owner for owner, one in rows if unseal(state.secret, owner, one) is None]
    )
    return SecretCounts(secrets=len(rows), unreadable=len(affected), users_affected=len({*affected}))


# It takes no idempotency key, because a digest of the value would be stored. A repeated request changes nothing.
@router.post("/api/v1/secrets", Permission.HAVE_SECRETS, status=201, idempotent=False)
async def save_secret(actor: Actor, *, body: SecretInput) -> Secret:
    """Save a secret for the next start of each of your workspaces. It replaces a secret of the same name."""
    state, owner = actor.state, actor.person.owner
    name, value = _check(body.name, body.value)
    one = StoredSecret(name, seal(state.secret, owner, name, value), actor.now)
    line = actor.audit_entry(events.SecretSaved(name), actor.person.name)
    if not await state.store.write(state.store.secrets.save, owner, one, MAX_SECRETS, line):
        raise RequestRefused("secrets", str(MAX_SECRETS + 1), f"up to {MAX_SECRETS}", "Delete one first.", 403)
    return Secret(name=name, changed_at=actor.now, readable=True)


@router.delete("/api/v1/secrets/{name}", Permission.HAVE_SECRETS)
async def delete_secret(actor: Actor, name: str) -> SecretName:
    """Delete a secret. Running workspaces keep it until they stop."""
    deleted, store = SecretName(name=name), actor.state.store
    actor.store_answer(deleted)
    line = actor.audit_entry(events.SecretDeleted(name[:100]), actor.person.name)
    if not await store.write(store.secrets.delete, actor.person.owner, name, line):
        raise HTTPError(404, reason=f"You have no secret with the name {name[:100]}.")
    return deleted


@router.post("/api/v1/workspaces/{workspace}/secrets", Permission.REPORT, idempotent=False)
async def hand_over_secrets(actor: Actor, workspace: str) -> SecretValues:
    """Return the secrets of its user to a workspace. Only the workspace's own token may ask."""
    state, lease = actor.state, await actor.find_lease(workspace, Permission.REPORT)
    rows = await state.store.read(state.store.secrets.of, lease.key.owner)
    opened = {one.name: unseal(state.secret, lease.key.owner, one) for one in rows}
    return SecretValues(
        values={name: value for name, value in opened.items() if value is not None},
        unreadable=[name for name, value in opened.items() if value is None],
    )
