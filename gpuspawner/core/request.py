"""What a user asked for: DevGPUVMRequest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Request:
    """A validated request. ``gpu`` is a kind of the catalog or None; ``count`` is 0 exactly when it is None."""

    user: str
    template: str
    policy: str
    gpu: str | None
    count: int
    cpu_cores: float
    memory_bytes: int
    lifetime_seconds: int

    @property
    def digest(self) -> str:
        """A stable fingerprint: equal digests mean that the same thing was asked by the same user."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def keeps_place_of(self, earlier: Request) -> bool:
        """Whether changing ``earlier`` into this keeps its place in the queue: same kind, and no more GPUs."""
        return self.gpu == earlier.gpu and self.count <= earlier.count
