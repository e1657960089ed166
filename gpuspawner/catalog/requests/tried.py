"""All that is wrong with what is asked, at once; and what the rest was understood to mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuspawner.core.errors import Conflict, RequestRefused, label_of
from gpuspawner.core.leases.request import Request
from gpuspawner.core.units import show_bytes, show_cpu, show_duration

MOST_REFUSALS = 20
"""Arbitrary: more than a form has fields, so that a flood of unknown ones takes no time."""


class AllRefused(RequestRefused):
    """All that is wrong with what is asked, at once: it says the first, ``refused`` has each.

    ``meant`` is what the rest of the sizes and times were understood to mean, by option.
    """

    def __init__(self, refused: Sequence[RequestRefused], meant: Mapping[str, str]) -> None:
        """Keep both; ``refused`` has at least one."""
        self.refused, self.meant = tuple(refused), meant
        first = refused[0]
        super().__init__(first.field, first.asked, first.limit, first.remedy, first.status)


def all_at_once(resolved: Callable[[Mapping[str, Any]], Request], options: Mapping[str, Any]) -> Request:
    """Return the request that ``resolved`` makes of options. Raises AllRefused where it can't."""
    try:
        return resolved(options)
    except RequestRefused:
        left, refused = tried(resolved, options)
        raise AllRefused(refused, understood(resolved(left), left) if left else {}) from None


def all_words(error: Conflict | RequestRefused) -> str:
    """Return all that an error says is wrong, where there are no fields that it could stand beside."""
    return " ".join(map(str, error.refused)) if isinstance(error, AllRefused) else str(error)


def tried(
    resolved: Callable[[Mapping[str, Any]], Request], options: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[RequestRefused]]:
    """Return of options those that may be asked together, and a refusal for each other one.

    Where what is wrong is none of the options, nothing may be asked. ``resolved`` makes a request of options, or raises
    RequestRefused.
    """
    left, refused = dict(options or {}), list[RequestRefused]()
    while len(refused) < MOST_REFUSALS:
        try:
            resolved(left)
        except RequestRefused as error:
            refused.append(error)
            if left.pop(error.field.strip("'"), None) is None:
                return {}, refused
        else:
            return left, refused
    return {}, refused


def understood(request: Request, options: Mapping[str, Any]) -> dict[str, str]:
    """Return how each of the sizes and times in ``options``, which mean ``request``, was understood, for people."""
    meant = {
        "cpu": show_cpu(request.cpu_cores),
        "memory": show_bytes(request.memory_bytes),
        "gpu_memory": show_bytes(request.needs_memory_bytes),
        "lifetime": show_duration(request.lifetime_seconds),
    }
    return {key: words for key, words in meant.items() if options.get(key) not in (None, "")}


def what_is_wrong(refused: Sequence[RequestRefused]) -> str:
    """Return in a sentence what is wrong: what one refusal says, else the labels of all fields that say it."""
    if len(refused) == 1:
        return str(refused[0])
    *labels, last = dict.fromkeys(label_of(one.field) for one in refused)
    return f"Not possible as it is: see {', '.join(labels)}{' and ' if labels else ''}{last}."
