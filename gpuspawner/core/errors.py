"""The errors gpuspawner raises on purpose.

GpuspawnerError
 ├── CatalogError      what the administrator wrote cannot be used; holds every Problem found
 ├── RequestRefused    what a user asked for cannot be given; says what was asked, the bound and the remedy
 │    └── TooLarge     it is longer than anything that can be asked (HTTP 413)
 ├── Conflict          the thing asked to act on is not in a state that allows it (HTTP 409)
 │    └── Gone         it has ended meanwhile (HTTP 410)
 ├── Unavailable       a part that must answer does not: the store, the hub, the service (HTTP 503)
 ├── Superseded        a newer service owns the store: this process must end
 └── NoPort            the service cannot listen where its hub looks for it: this process must end
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

LARGE_BITS = 256

SHOWN_CHARACTERS = 60
"""How much of a refused value a message quotes. Arbitrary: enough to recognise it, too little to flood a page."""


class GpuspawnerError(Exception):
    """Base of every error that gpuspawner raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a catalog: where, what, and what would be right."""

    file: str
    line: int | None
    entry: str
    wrong: str
    right: str

    def __str__(self) -> str:
        """Return the problem as one line, in the form compilers use: ``file:line: entry: wrong; right``."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.entry}: {self.wrong}. {self.right}"


class CatalogError(GpuspawnerError):
    """The catalog cannot be used. ``problems`` holds all that is wrong with it, at least one."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        """Keep every problem; the message is one line for each and a count."""
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([*map(str, problems), f"{count} in the catalog"]))


def quoted(value: object) -> str:
    """Return a refused value as a message may show it: one line, at most SHOWN_CHARACTERS, never raising.

    What is not there is ``none``, as in ``kind: none asked``.
    """
    if value is None:
        return "none"
    text = f"{value[: 4 * SHOWN_CHARACTERS]!r}" if isinstance(value, str) else _bounded_repr(value)
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable if len(printable) <= SHOWN_CHARACTERS else printable[: SHOWN_CHARACTERS - 1] + "…"


def _bounded_repr(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > LARGE_BITS:
        return "a very large number"  # repr() of a huge int is quadratic, and refused by Python past 4,300 digits
    try:
        return reprlib.repr(value)[: 4 * SHOWN_CHARACTERS]
    except Exception:  # noqa: BLE001 - a huge number inside a list, or a value whose own repr() fails
        return f"a {type(value).__name__} that cannot be shown"


LABELS = {
    "template": "Workspace",
    "gpu": "GPU",
    "count": "GPUs",
    "gpu_memory": "Memory of each GPU",
    "cpu": "CPU cores",
    "memory": "Memory",
    "lifetime": "Lifetime",
    "server": "Name",
    "team": "Team",
    "substitutes": "If it comes sooner",
    "repository": "Repository",
    "own_image": "Own image",
    "tools": "Tools",
    "gpu_hours": "GPU hours",
}
"""What the form calls the parts of a request, and every refusal with it."""


def label_of(field: str) -> str:
    """Return what people read for a part of a request: the form's label, else its own name."""
    return LABELS.get(field, field)


class RequestRefused(GpuspawnerError):
    """A request that cannot be granted, ever or as long as a limit stands.

    Args:
        field: which part of the request, as the user names it: ``count``, ``memory``, ...
        asked: the refused value, quoted for display (see :func:`quoted`).
        limit: what would be allowed, in words: ``1 to 4``.
        remedy: the next step, a sentence.
        status: the HTTP status: 400 for a bad value, 403 for a limit of this user.
    """

    def __init__(self, field: str, asked: str, limit: str, remedy: str, status: int = 400) -> None:
        """Keep the four parts; the message is all of them in a sentence."""
        self.field, self.asked, self.limit, self.remedy, self.status = field, asked, limit, remedy, status
        self.details = f"{asked} asked; allowed: {limit}. {remedy}"
        """What stands beside the field itself."""
        super().__init__(f"{label_of(field)}: {self.details}")


LARGEST_REQUEST_BYTES = 65536
"""Arbitrary: a hundred times what the longest request needs."""


class TooLarge(RequestRefused):
    """A request of more than LARGEST_REQUEST_BYTES."""

    def __init__(self) -> None:
        """Say the same wherever it is met."""
        bound = f"{LARGEST_REQUEST_BYTES:,} bytes"
        super().__init__("request", f"more than {bound}", f"at most {bound}", "Shorten its longest value.", status=413)


class Conflict(GpuspawnerError):
    """The thing asked for is not possible in the present state. The message says which state, and what to do."""


class Gone(Conflict):
    """The lease has ended, or a newer start took it over: who speaks for the older one must stop."""


class Unavailable(GpuspawnerError):
    """A part that must answer does not. The message names the part and says what happens next."""

    def __init__(self, message: str = "", part: str = "") -> None:
        """Keep the message. ``part`` is set where the whole part is away: see :class:`gpuspawner.core.outages.Outage`.

        Such an outage is logged when it begins and when it ends, and not by each step that waits for it.
        """
        super().__init__(message)
        self.part = part


class NoPort(GpuspawnerError):
    """The service cannot listen where its hub looks for it. The message names the holder and the remedy."""


class Superseded(GpuspawnerError):
    """Another service process opened the store later: this one must end without writing."""
