"""Logins that wait for their user to press Allow: in memory alone, for five minutes, each used once.

The command line shows a code and keeps a secret. Whoever reads the code over a shoulder can allow it with their own
account, and gets nothing: only who has the secret gets the token.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field, replace

from gpuspawner.core.leases.lease import Owner

LOGIN_SECONDS = 300.0
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""Consonants: no code is a word, and none is read as another (RFC 8628, 6.1)."""
CODE_LETTERS = 8
MOST_WAITING = 1000
"""Beyond that the oldest gives way that nobody signed in has looked at. Arbitrary: more than a hub's people begin in
five minutes."""
MOST_BEGUN_EACH = 10
"""From one address in five minutes. A stranger may tell any address where no proxy in front writes its own: so a flood
of them takes the place of nobody whose page with the code is open."""
MOST_TRIED_EACH = 10
"""Wrong codes of one person in five minutes: nobody finds another's by trying."""


@dataclass(frozen=True)
class Login:
    """One that waits. ``device`` is what its machine calls itself; ``owner`` and ``user`` are known once it is allowed.

    ``at`` is when it began, in seconds since the epoch; ``looked_at``: somebody signed in has opened it by its code.
    """

    secret: str
    code: str
    device: str
    admin: bool
    address: str
    at: float
    owner: Owner | None = None
    user: str = ""
    denied: bool = False
    looked_at: bool = False


def code_of(text: str) -> str:
    """Return a code as it is kept, whatever people wrote between its letters: ``BCDF-GHJK``."""
    letters = "".join(letter for letter in text.upper() if letter.isascii() and letter.isalpha())[:CODE_LETTERS]
    return f"{letters[: CODE_LETTERS // 2]}-{letters[CODE_LETTERS // 2 :]}"


@dataclass
class Logins:
    """Those that wait, the oldest first, and who tried how often."""

    waiting: dict[str, Login] = field(default_factory=dict)
    _tried: list[tuple[float, Owner]] = field(default_factory=list)

    def begin(self, device: str, address: str, now: float, *, admin: bool) -> Login | None:
        """Return a new one; None where too many began from this address."""
        self._forget(now)
        if Counter(one.address for one in self.waiting.values())[address] >= MOST_BEGUN_EACH:
            return None
        if len(self.waiting) >= MOST_WAITING:
            unseen = (name for name, one in self.waiting.items() if not one.looked_at)
            del self.waiting[next(unseen, next(iter(self.waiting)))]
        code = code_of("".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS)))
        login = Login(secrets.token_urlsafe(32), code, device, admin, address, now)
        self.waiting[login.secret] = login
        return login

    def find(self, code: str, who: Owner, now: float) -> Login | None:
        """Return the one with a code that waits to be allowed, for who looks; None where there is none."""
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
        """Return how many more wrong codes one may write now."""
        return MOST_TRIED_EACH - sum(1 for _, one in self._tried if one == who)

    def decide(self, login: Login, owner: Owner | None, user: str = "") -> None:
        """Note whose it is; None for nobody's: it was denied."""
        self.waiting[login.secret] = replace(login, owner=owner, user=user, denied=owner is None)

    def of_secret(self, secret: str, now: float) -> Login | None:
        """Return the one of who keeps this secret; None where there is none, or its time is over."""
        self._forget(now)
        return self.waiting.get(secret)

    def take(self, login: Login) -> None:
        """Forget one that was answered for good: it is used once."""
        self.waiting.pop(login.secret, None)

    def _forget(self, now: float) -> None:
        self.waiting = {name: one for name, one in self.waiting.items() if one.at + LOGIN_SECONDS > now}
        self._tried = [(at, who) for at, who in self._tried if at + LOGIN_SECONDS > now]
