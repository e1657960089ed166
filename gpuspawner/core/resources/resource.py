"""A request as the cluster has it: the custom resource DevGPUVMRequest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENDED, REFUSED = "Ended", "Refused"
WAITS = "Pending"
"""Nothing is asked for yet."""
SCHEDULED = "Scheduled"
"""The phase of one that is to be ready at a time, and is not asked for yet."""
READY_AT = "ready_at"
LIFETIME = "LifetimeExtended"
"""The condition that tells what came of a lifetime that was edited."""


@dataclass(frozen=True)
class Resource:
    """One of them. ``held`` is whether it is kept until its workspace has ended, ``of_lease`` what its label names.

    ``section`` is where in the catalog it is an entry; "" for a request.
    """

    name: str
    uid: str
    version: str
    created: str
    generation: int = 1
    deleting: bool = False
    held: bool = False
    of_lease: str = ""
    section: str = ""
    finalizers: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, str]:
        """Whose workspace it is, and its name."""
        return str(self.spec.get("user", "")), str(self.spec.get("server", ""))

    @property
    def own_lease(self) -> str:
        """The id of the lease that it asks for: its own uid, so that no crash between two steps asks twice."""
        return self.uid.replace("-", "")

    @property
    def told_lease(self) -> str:
        """The id of the lease that its status names."""
        return str(self.status.get("lease", ""))

    @property
    def phase(self) -> str:
        """What its status says."""
        return str(self.status.get("phase", ""))

    @property
    def options(self) -> dict[str, Any]:
        """The options of the start that it asks for."""
        return {key: value for key, value in self.spec.items() if key not in {"user", "server", READY_AT}}

    @property
    def ready_at(self) -> Mapping[str, Any]:
        """On which days and when it is to be ready; {} where it is asked for at once."""
        return self.spec.get(READY_AT) or {}

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever asked for by it, as its status says."""
        return self.phase in {"", WAITS, REFUSED}

    @property
    def is_judged(self) -> bool:
        """Whether its status is about what is written now."""
        return self.status.get("observedGeneration") == self.generation

    def condition(self, name: str) -> Mapping[str, Any]:
        """Return a condition of its status; {} where there is none."""
        return next((one for one in self.status.get("conditions") or () if one.get("type") == name), {})
