"""Checks for the acts that still read their values by themselves. They go as the inputs become models."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.units import BadValue


def refused_as(field: str, parse: Any, value: object, *arguments: Any) -> Any:
    """Return the parsed value. Raises RequestRefused with the name of the field for a wrong one."""
    try:
        return parse(value, *arguments)
    except BadValue as error:
        right = error.right.removeprefix("write ")
        raise RequestRefused(field, quoted(value), right, f"{error.wrong[:1].upper()}{error.wrong[1:]}.") from error
