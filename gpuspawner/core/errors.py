"""The errors that gpuspawner raises on purpose, and the remedy for an unknown name.

GpuspawnerError
 ├── CatalogError      the catalog cannot be used; holds every Problem found
 ├── RequestRefused    a request cannot be granted; says what was asked, the limit and the next step
 │    └── TooLarge     the request is too long (HTTP 413)
 ├── Conflict          the present state does not allow the action (HTTP 409)
 │    └── Gone         the workspace has ended (HTTP 410)
 ├── Unavailable       the store, the hub or the service does not answer (HTTP 503)
 ├── Superseded        a newer service owns the store: this process must end
 └── NoPort            the service cannot listen on its address: this process must end
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LARGE_BITS = 256

SHOWN_CHARACTERS = 60
"""The most characters of a refused value that a message quotes. Arbitrary."""


class GpuspawnerError(Exception):
    """Base of all errors that gpuspawner raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One problem of a catalog: where it is, what is wrong, and what would be right."""

    file: str
    line: int | None
    entry: str
    wrong: str
    right: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.entry}: {self.wrong}. {self.right}"


class CatalogError(GpuspawnerError):
    """The catalog cannot be used. ``problems`` has at least one problem."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([*map(str, problems), f"{count} in the catalog"]))


_SENTENCE_END = re.compile(r"(?<=[.!?]) (?!Allowed: )(?=[A-Z“'\"])")
"""The end of a sentence, but not the one before a limit, which stays with the refused request."""


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text that people read."""
    return _SENTENCE_END.split(text.strip())


def quoted(value: object) -> str:
    """Return a refused value for a message: one line of at most SHOWN_CHARACTERS. It never raises.

    None is shown as ``none``.
    """
    if value is None:
        return MISSING
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
    "template": "Template",
    "gpu": "GPU",
    "count": "GPUs",
    "gpu_memory": "Memory of each GPU",
    "cpu": "CPU cores",
    "memory": "Memory",
    "lifetime": "Run time",
    "server": "Name",
    "team": "Team",
    "substitutes": "If it comes sooner",
    "repository": "Repository",
    "own_image": "Own image",
    "tools": "Tools",
    "variables": "Variables",
    "script": "Start-up script",
    "gpu_hours": "GPU hours",
    "what": "Amount",
    "amount": "Amount",
    "why": "Reason",
    "since": "Begin",
    "until": "End",
    "kind": "GPU kind",
    "node": "Node",
    "user": "User",
    "at": "Time",
    "title": "Name",
    "name": "Name",
}
"""The labels of request fields in forms and in refusals."""
MISSING = "none"
"""The refused value of a field that was not given (see :func:`quoted`)."""


def label_of(field: str) -> str:
    """Return the label of a request field, or its name if it has no label."""
    return LABELS.get(field, field)


class RequestRefused(GpuspawnerError):
    """A request that cannot be granted.

    Args:
        field: the refused part of the request, for example ``count``.
        asked: the refused value, quoted for display (see :func:`quoted`).
        limit: the allowed values in words: ``1 to 4``.
        remedy: the next step, a sentence.
        status: the HTTP status: 400 for a bad value, 403 for a limit of this user.
    """

    def __init__(self, field: str, asked: str, limit: str, remedy: str, status: int = 400) -> None:
        self.field, self.asked, self.limit, self.remedy, self.status = field, asked, limit, remedy, status
        given = "Nothing was given" if asked in {MISSING, quoted("")} else f"You asked for {asked}"
        self.details = f"{given}. Allowed: {limit}. {remedy}"
        """The message without the field's label."""
        super().__init__(f"{label_of(field)}: {self.details}")


LARGEST_REQUEST_BYTES = 65536
"""Arbitrary: a hundred times what the longest request needs."""


class TooLarge(RequestRefused):
    """A request of more than LARGEST_REQUEST_BYTES."""

    def __init__(self) -> None:
        bound = f"{LARGEST_REQUEST_BYTES:,} bytes"
        super().__init__("request", f"more than {bound}", f"at most {bound}", "Shorten its longest value.", status=413)


class Conflict(GpuspawnerError):
    """The present state does not allow the action. The message says the state and the next step."""


class Gone(Conflict):
    """The lease has ended, or a newer start attempt has taken it over."""


class Unavailable(GpuspawnerError):
    """A part does not answer. The message names it and says what happens next."""

    def __init__(self, message: str = "", part: str = "") -> None:
        """Keep the message. ``part`` is set if the whole part is away (:class:`gpuspawner.core.outages.Outage`).

        Such an outage is logged when it begins and ends, not by each step that waits for it.
        """
        super().__init__(message)
        self.part = part


class NoPort(GpuspawnerError):
    """The service cannot listen on its address. The message names the present user of the port and the next step."""


class Superseded(GpuspawnerError):
    """Another service process has opened the store since. This one must end without writing."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the closest known name, or all known names."""
    names = list(known)
    if close := closest_name(name, names):
        return f"did you mean `{close}`?"
    return f"known: {', '.join(names[:20])}" if names else "no name is defined. Define one, or remove this"


def closest_name(name: str, known: Sequence[str], most: int = 100) -> str:
    """Return the known name that is most like ``name``, or "". Only the first ``most`` names are compared."""
    import difflib  # noqa: PLC0415 - each command of the command line imports this module

    return "".join(difflib.get_close_matches(name[:100], known[:most], n=1))  # bounded, because it is slow
