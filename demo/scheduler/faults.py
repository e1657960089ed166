"""Faults on demand: what networks and schedulers do on a bad day, for the next requests of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS: Mapping[str, str] = {
    "slow": "waits `seconds` before it does anything",
    "late": "does it, and answers `seconds` later",
    "error": "answers 500, and does nothing",
    "error_after": "does it, and answers 500",
    "cut": "cuts the connection, and does nothing",
    "cut_after": "does it, and cuts the connection: the answer is lost",
    "twice": "does it twice, as where a proxy sends a request again; changes are told twice",
}
BEFORE = ("slow", "error", "cut")


@dataclass
class Fault:
    """One kind of fault, for the next ``count`` requests whose method and path contain ``only``."""

    kind: str
    count: int = 1
    seconds: float = 1.0
    only: str = ""


class Faults:
    """Those to come, in order."""

    def __init__(self) -> None:
        self.coming: list[Fault] = []

    def take(self, request: str) -> Fault | None:
        """Return the fault of a request, "PUT /v1/...", and count it; None for none."""
        for fault in self.coming:
            if fault.only in request:
                fault.count -= 1
                if fault.count <= 0:
                    self.coming.remove(fault)
                return fault
        return None
