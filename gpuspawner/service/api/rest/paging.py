"""Long lists in parts: where a part ends, the cursor says by what it was ordered, so that nothing is seen twice."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.rest.models import PageQuery

T = TypeVar("T")
Order = tuple[int, float, str]
"""By what a list is ordered, ascending: its part, a number, and an id for those of the same."""


def page(rows: Sequence[T], query: PageQuery, order: Callable[[T], Order]) -> tuple[list[T], str | None]:
    """Return the part of a list that is asked for, and the cursor of the next; None where it was the last.

    ``rows`` are in ascending ``order``.
    """
    after = after_of(query)
    rest = [row for row in rows if after is None or order(row) > after]
    shown = rest[: query.limit]
    return shown, cursor_of(order(shown[-1])) if len(rest) > len(shown) else None


def cursor_of(order: Order) -> str:
    """Return the cursor behind a row."""
    return base64.urlsafe_b64encode(json.dumps(order).encode()).decode().rstrip("=")


def after_of(query: PageQuery) -> Order | None:
    """Return behind which order to go on; None for the beginning. Raises RequestRefused for what is no cursor."""
    if not query.cursor:
        return None
    try:
        found: Any = json.loads(base64.urlsafe_b64decode(query.cursor + "=" * (-len(query.cursor) % 4)))
        part, number, name = found
        after = int(part), float(number), str(name)
    except (ValueError, TypeError, OverflowError, RecursionError):
        after = 0, 0.0, "\0"
    if not after[2].isprintable():  # no id that a store could hold
        right = "`next` of the part before"
        raise RequestRefused("cursor", quoted(query.cursor), right, "Begin without a cursor.")
    return after
