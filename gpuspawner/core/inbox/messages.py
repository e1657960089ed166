"""What an administrator says to people for a time: to one, to several, to a group, or to all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpuspawner.core.administration import Marks, Notice
from gpuspawner.core.errors import quoted
from gpuspawner.core.units import BadValue

LONGEST_CHARACTERS = 500
"""A message is read at a glance, above whatever its reader came for."""
LONGEST_NAME = 255
NAMED = 3
"""Of several whom a message is to, so many are named, and the others are counted. Arbitrary: what a line holds."""
RIGHT_TO = "write all, user:NAME or group:NAME"


class Whom(str, Enum):
    """To whom a message is."""

    ALL = "all"
    USER = "user"
    USERS = "users"
    """Several, chosen one by one: in the console alone."""
    GROUP = "group"


@dataclass(frozen=True)
class Message:
    """A message. Times in seconds since the epoch.

    ``recipients`` are when they were created whom it reaches, those who were in the group when it was sent; it is empty
    where it is to all. ``name`` is the user's or the group's; of several users, how people read who they are.
    """

    id: str
    whom: Whom
    name: str
    recipients: frozenset[str]
    text: str
    by: str
    made_at: float
    until: float
    withdrawn_at: float | None = None
    withdrawn_by: str = ""

    @property
    def to(self) -> str:
        """To whom, as it is written."""
        return self.whom.value if self.whom is Whom.ALL else f"{self.whom.value}:{self.name}"

    @property
    def to_words(self) -> str:
        """To whom, as people read it."""
        named = {Whom.ALL: "everybody", Whom.GROUP: f"the group {self.name}"}
        return named.get(self.whom, self.name)

    def is_for(self, user_created: str) -> bool:
        """Whether it is to a user."""
        return self.whom is Whom.ALL or user_created in self.recipients

    def is_shown(self, now: float) -> bool:
        """Whether pages show it."""
        return self.withdrawn_at is None and now < self.until

    def state(self, now: float) -> str:
        """Return ``shown``, ``over`` or ``withdrawn``."""
        return "withdrawn" if self.withdrawn_at is not None else "shown" if now < self.until else "over"

    def notice(self, marks: Marks) -> Notice:
        """Return it as its reader's inbox has it."""
        name = f"m{self.id}"
        read = marks.has(name, self.made_at)
        return Notice(name, self.made_at, "message", f"Message from {self.by}", self.text, not read, by=self.by)


def several(names: Sequence[str]) -> str:
    """Return how people read who several users are: ``alice, bob, carol and 4 more``."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(name[: LONGEST_NAME // (NAMED + 1)] for name in names[:NAMED])}{more}"


def parse_to(value: object) -> tuple[Whom, str]:
    """Read to whom a message is.

    Raises:
        BadValue: it is nobody, or not written so.
    """
    if isinstance(value, str) and value == Whom.ALL.value:
        return Whom.ALL, ""
    if isinstance(value, str):
        kind, _, name = value.partition(":")
        if kind in {Whom.USER.value, Whom.GROUP.value} and 0 < len(name) <= LONGEST_NAME:
            return Whom(kind), name
    raise BadValue(f"{quoted(value)} is nobody", RIGHT_TO)


def parse_text(value: object) -> str:
    """Read a message's text: plain, on one or several lines.

    Raises:
        BadValue: it is empty, too long, or holds what moves a terminal's cursor or turns its direction.
    """
    right = f"write 1 to {LONGEST_CHARACTERS} characters of plain text"
    if not isinstance(value, str) or not value.strip():
        raise BadValue("a message without a text says nothing", right)
    text = "\n".join(line.strip() for line in value.strip().splitlines())
    if len(text) > LONGEST_CHARACTERS:
        raise BadValue(f"a text of {len(text)} characters is too long", right)
    if not all(one.isprintable() or one == "\n" for one in text):
        raise BadValue(f"{quoted(value)} holds characters that cannot be shown", right)
    return text
