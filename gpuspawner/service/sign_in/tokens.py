"""Logins that wait until their user allows them, and the tokens that the command line gets by them.

Logins are kept in memory for five minutes, and each is used once. The command line shows a code and keeps a secret.
Somebody who reads the code over a shoulder can allow it with their own account, and gets nothing: the token goes to the
holder of the secret. The store has the hash of each token. Tokens expire after 30 days.

Anybody may begin a login. A limit by network address would not help: behind a proxy all people share one address, and
headers with another can be forged. So the limits are on signed-in users: how many codes each may try and allow.
"""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuspawner.core import events
from gpuspawner.core.leases.lease import Owner
from gpuspawner.service.engine.allocation.start_attempts import hash_token
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.personal import TokenRow
from gpuspawner.service.web.permissions import Role, roles_of

if TYPE_CHECKING:
    from gpuspawner.service.parts import Parts  # which keeps the logins

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


LOGIN_SECONDS = 300.0
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""Consonants, so that a code is not a word and not misread (RFC 8628, section 6.1)."""
CODE_LETTERS = 8
MOST_WAITING = 20_000
"""The limit of waiting logins. Above it, the oldest login that no signed-in user has opened is deleted. Arbitrary:
about 10 MB of memory. A flood must send thousands of requests a second to remove a login before its user types the
code."""
MOST_ALLOWED_EACH = 10
"""Logins that one person may allow in five minutes."""
MOST_TRIED_EACH = 10
"""Wrong codes of one person in five minutes. The limit prevents guessing."""


@dataclass(frozen=True)
class Login:
    """A login that waits. ``device`` is the name of its machine. ``admin`` asks for all roles of its user.

    ``owner``, ``user`` and ``scopes`` are known once it is allowed.

    ``at`` is its beginning, in seconds since the epoch. ``looked_at`` is whether a signed-in user has opened it by its
    code.
    """

    secret: str
    code: str
    device: str
    admin: bool
    at: float
    owner: Owner | None = None
    user: str = ""
    scopes: frozenset[str] = frozenset()
    denied: bool = False
    looked_at: bool = False


def code_of(text: str) -> str:
    """Return a code in its stored form, ``BCDF-GHJK``. Other characters than letters are ignored."""
    letters = "".join(letter for letter in text.upper() if letter.isascii() and letter.isalpha())[:CODE_LETTERS]
    return f"{letters[: CODE_LETTERS // 2]}-{letters[CODE_LETTERS // 2 :]}"


@dataclass
class Logins:
    """The logins that wait, the oldest first, and the tries of each user."""

    waiting: dict[str, Login] = field(default_factory=dict)
    _tried: list[tuple[float, Owner]] = field(default_factory=list)
    _allowed: list[tuple[float, Owner]] = field(default_factory=list)
    """The beginning and the user of each allowed login."""

    def begin(self, device: str, now: float, *, admin: bool) -> Login:
        """Return a new login."""
        self._forget(now)
        if len(self.waiting) >= MOST_WAITING:
            unseen = (name for name, one in self.waiting.items() if not one.looked_at)
            del self.waiting[next(unseen, next(iter(self.waiting)))]
        code = code_of("".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS)))
        login = Login(secrets.token_urlsafe(32), code, device, admin, now)
        self.waiting[login.secret] = login
        return login

    def find(self, code: str, who: Owner, now: float) -> Login | None:
        """Return the login with a code that waits to be allowed, None without one."""
        self._forget(now)
        if self.tries_left(who) <= 0:
            return None
        wanted = code_of(code)
        for one in self.waiting.values():
            if secrets.compare_digest(one.code, wanted) and one.owner is None and not one.denied:
                found = self.waiting[one.secret] = replace(one, looked_at=True)
                return found
        self._tried.append((now, who))
        return None

    def tries_left(self, who: Owner) -> int:
        """Return the number of wrong codes that a user may still type."""
        return MOST_TRIED_EACH - sum(1 for _, one in self._tried if one == who)

    def may_allow(self, who: Owner, now: float) -> bool:
        """Return whether a user may allow another login now."""
        self._forget(now)
        return sum(1 for _, one in self._allowed if one == who) < MOST_ALLOWED_EACH

    def decide(self, login: Login, owner: Owner | None, user: str = "", scopes: frozenset[str] = frozenset()) -> None:
        """Allow a login for its owner with further scopes, or deny it with None."""
        if owner is not None:
            self._allowed.append((login.at, owner))
        self.waiting[login.secret] = replace(
            login, owner=owner, user=user, scopes=scopes if login.admin else frozenset(), denied=owner is None
        )

    def of_secret(self, secret: str, now: float) -> Login | None:
        """Return the login with a secret, None without one or if its time is over."""
        self._forget(now)
        return self.waiting.get(secret)

    def take(self, login: Login) -> None:
        """Remove a login that is used."""
        self.waiting.pop(login.secret, None)

    def _forget(self, now: float) -> None:
        self.waiting = {name: one for name, one in self.waiting.items() if one.at + LOGIN_SECONDS > now}
        for kept in (self._tried, self._allowed):
            kept[:] = [(at, who) for at, who in kept if at + LOGIN_SECONDS > now]
