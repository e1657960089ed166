"""What a grant adds, and what a correction charges, as people write it: ``4 GPUs``, ``+20 h``, ``64GiB``."""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

from gpuspawner.core.errors import quoted
from gpuspawner.core.rules import QuotaGrant, Used, What
from gpuspawner.core.units import LONGEST, BadValue, OutOfRange, parse_bytes, show_bytes

_UNITS: dict[str, What | Used] = {
    **dict.fromkeys(("gpu", "gpus"), What.GPUS),
    **dict.fromkeys(("workspace", "workspaces"), What.WORKSPACES),
    **dict.fromkeys(("cpu", "cpus", "core", "cores"), What.CPU),
    **dict.fromkeys(("h", "hour", "hours", "gpu h", "gpu hour", "gpu hours", "gpuh"), Used.GPU_HOURS),
    **dict.fromkeys(("cost", "money"), Used.COST),
}
_AMOUNT = re.compile(r"([+-]?) ?([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(.+)")
RIGHT = "write a number and what it is of, such as 4 GPUs, +20 GPU h, 2 h100, 3 workspaces, 16 CPU, 64GiB or 100 cost"


class Amount(NamedTuple):
    """So much of something. ``kind`` names the kind of GPU where ``what`` is KIND."""

    what: What | Used
    kind: str
    number: Fraction


def parse_grant(value: object, kinds: Collection[str]) -> Amount:
    """Read what a grant adds.

    Raises:
        BadValue: anything else, or nothing more than 0.
    """
    text = _text(value).removeprefix("+").strip()
    try:
        size = parse_bytes(text) if not text.isdigit() else 0
    except BadValue:
        size = 0
    if size:
        return Amount(What.MEMORY, "", Fraction(size))
    found = _read(value, kinds)
    if found.number <= 0:
        raise OutOfRange(f"{quoted(value)} adds nothing", RIGHT)
    return found


def parse_correction(value: object) -> Amount:
    """Read what a correction charges, in GPU hours or money; with a minus, gives back.

    Raises:
        BadValue: anything else, or nothing.
    """
    found = _read(value, ())
    if not isinstance(found.what, Used) or not found.number:
        raise BadValue(
            f"{quoted(value)} is no use", "write GPU hours or cost, such as -3 GPU h, +2.5 GPU h or -10 cost"
        )
    return found


def _read(value: object, kinds: Collection[str]) -> Amount:
    parts = _AMOUNT.fullmatch(_text(value))
    if parts is None:
        raise BadValue(f"{quoted(value)} is no amount", RIGHT)
    sign, number, unit = parts.groups()
    much = Fraction(number) * (-1 if sign == "-" else 1)
    if (what := _UNITS.get(" ".join(unit.lower().split()))) is not None:
        return Amount(what, "", much)
    if unit.strip() in kinds:
        return Amount(What.KIND, unit.strip(), much)
    known = f"; the catalog's kinds are {', '.join(kinds)}" if kinds else ""
    raise BadValue(f"{quoted(unit)} can't be counted", f"{RIGHT}{known}")


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise BadValue(f"{quoted(value)} is no amount", RIGHT)
    return value.strip()


def amount_text(amount: Amount) -> str:
    """Return an amount as people read it: ``4 GPUs``, ``2 h100``, ``20 GPU h``."""
    what, kind, number = amount
    if what is What.MEMORY:
        return show_bytes(int(number))
    text = f"{float(number):.3f}".rstrip("0").rstrip(".")
    one = number == 1
    names = {
        What.GPUS: "GPU" if one else "GPUs",
        What.KIND: kind,
        What.WORKSPACES: "workspace" if one else "workspaces",
        What.CPU: "CPU core" if one else "CPU cores",
        Used.GPU_HOURS: "GPU h",
        Used.COST: "of cost",
    }
    return f"{text} {names[what]}"


def grant_text(grant: QuotaGrant) -> str:
    """Return the amount of a grant as people read it."""
    return amount_text(Amount(grant.what, grant.kind, grant.amount))
