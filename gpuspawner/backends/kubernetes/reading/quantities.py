"""Quantities of the Kubernetes API, such as ``1500m`` and ``64Gi``, as whole numbers. Pure."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from gpuspawner.core.quotas.namespaces import CPU, LIMITS_CPU

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|(m|[kMGTPE]|[KMGTPE]i)?)")
_UNITS = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


def amount_of(resource: str, quantity: object) -> int | None:
    """Return a quantity as ``queue.limits`` counts, None where it is not understood. What counts as used rounds up."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        return None
    number = Fraction(match[1] if match[1][0] != "." else f"0{match[1]}")
    scale = Fraction(10) ** int(match[2]) if match[2] else _UNITS[match[3] or ""]
    return math.ceil(number * scale * (1000 if resource in {CPU, LIMITS_CPU} else 1))
