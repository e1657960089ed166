"""Encryption of users' secrets with a key that is derived from the service's secret, and a change of that key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.store import tables
from gpuspawner.service.store.personal import StoredSecret
from gpuspawner.service.store.rows import owned_by

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from gpuspawner.service.store.database.dialects import Database


def _cipher(secret: bytes) -> Fernet:
    from cryptography.fernet import Fernet  # noqa: PLC0415 - most starts of the service need no cipher

    key = hmac.new(secret, b"secrets of users", hashlib.sha256).digest()
    return Fernet(base64.urlsafe_b64encode(key))


def seal(secret: bytes, owner: Owner, name: str, value: str) -> str:
    """Return a value encrypted for one user and one name."""
    text = json.dumps([owner.hub, owner.user_created, name, value])
    return _cipher(secret).encrypt(text.encode()).decode()


def unseal(secret: bytes, owner: Owner, one: StoredSecret) -> str | None:
    """Return the value of a stored secret, None if it was encrypted with another key or for another user or name."""
    from cryptography.fernet import InvalidToken  # noqa: PLC0415 - as above

    try:
        *about, value = json.loads(_cipher(secret).decrypt(one.sealed.encode()))
    except InvalidToken:
        return None
    return str(value) if about == [owner.hub, owner.user_created, one.name] else None


class Reencryption(NamedTuple):
    """The numbers of secrets: newly encrypted, encrypted with the new key already, and of neither key."""

    changed: int
    unchanged: int
    unreadable: int


def reencrypt(database: Database, old: bytes, new: bytes) -> Reencryption:
    """Encrypt all secrets of users with the key of a new secret: all of them, or none. The service may run meanwhile.

    Args:
        database: the store.
        old: the secret of hub and service until now.
        new: the secret of hub and service from now on.

    Raises:
        Unavailable: the store does not answer, or it has no secrets.
    """
    t, changed, unchanged, unreadable = tables.secrets, 0, 0, 0
    try:
        with database.engine.connect().execution_options(writes=True) as connection, connection.begin():
            for row in connection.execute(sa.select(t)).mappings().all():
                owner = Owner(row["hub"], row["user_created"])
                one = StoredSecret(row["name"], str(row["sealed"]), row["changed_at"])  # damaged rows may have bytes
                if unseal(new, owner, one) is not None:
                    unchanged += 1
                elif (value := unseal(old, owner, one)) is None:
                    unreadable += 1
                else:
                    where = owned_by(t, owner) & (t.c.name == one.name)
                    connection.execute(t.update().where(where).values(sealed=seal(new, owner, one.name, value)))
                    changed += 1
    except sa.exc.DBAPIError as error:
        words = database.trouble(error) or str(error.orig)
        raise Unavailable(f"The store cannot be changed ({words}). Nothing was changed.") from error
    finally:
        database.engine.dispose()
    return Reencryption(changed, unchanged, unreadable)
