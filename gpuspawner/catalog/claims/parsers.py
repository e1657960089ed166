"""How a claim's values are read: CEL expressions, quantities, and what is a driver's own."""

from __future__ import annotations

import json
import re

from gpuspawner.core.errors import quoted
from gpuspawner.core.units import BadValue

LONGEST_SELECTOR = 10 * 1024
"""Characters of one expression, and how many there may be: Kubernetes' own limits, as those below."""
MOST_SELECTORS = 32
LONGEST_PARAMETERS = 10 * 1024
_QUANTITY = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:[KMGTPE]i|[kMGTPE])?")
_CAPACITY = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")


def parse_selectors(value: object) -> list[str]:
    """Read CEL expressions over ``device``."""
    right = (
        "write a list of expressions, as [\"device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H')\"]"
    )
    if not isinstance(value, list) or not value or len(value) > MOST_SELECTORS:
        raise BadValue(f"{quoted(value)} is no list of 1 to {MOST_SELECTORS} expressions", right)
    for one in value:
        if not isinstance(one, str) or not one.strip() or len(one) > LONGEST_SELECTOR:
            raise BadValue(f"{quoted(one)} is no expression", right)
        _check_syntax(one)
    return [one.strip() for one in value]


def _check_syntax(expression: str) -> None:
    try:
        from celpy import Environment  # noqa: PLC0415 - an extra, and slow
        from celpy.celparser import CELParseError  # noqa: PLC0415
    except ImportError:
        raise BadValue("selectors need a part that is not here", "pip install '.[kubernetes]' in a checkout") from None
    try:
        Environment().compile(expression)
    except CELParseError:
        right = "write it as in a ResourceClaim, in double quotes, and text within it in single ones"
        raise BadValue(f"{quoted(expression)} is no CEL expression", right) from None


def parse_capacity_name(value: object) -> str:
    """Read what a driver calls something that a device has some of."""
    if not isinstance(value, str) or not _CAPACITY.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no name of a capacity", "write it as ResourceSlices do, for example memory")
    return value


def parse_capacity(value: object) -> str:
    """Read a quantity of Kubernetes."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _QUANTITY.fullmatch(text):
        raise BadValue(f"{quoted(value)} is no quantity", "write it as Kubernetes does, for example 10Gi")
    return text


def parse_parameters(value: object) -> dict[str, object]:
    """Read an object of a driver's own."""
    right = "write what the driver's documentation shows, with apiVersion and kind"
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("apiVersion", "kind")):
        raise BadValue(f"{quoted(value)} has no apiVersion and kind", right)
    try:
        size = len(json.dumps(value))
    except (TypeError, ValueError):
        raise BadValue(f"{quoted(value)} cannot be written as JSON", right) from None
    if size > LONGEST_PARAMETERS:
        raise BadValue("these parameters are too long", f"write at most {LONGEST_PARAMETERS} characters")
    return value
