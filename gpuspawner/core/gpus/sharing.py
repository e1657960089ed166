"""What people read of the memory of a GPU that several workspaces share."""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.units import show_bytes

USED_UP = "others on the same GPU may use up its memory"


def memory_words(kind: GpuKind) -> Iterator[str]:
    """Yield how much memory a GPU of a kind has, and whether that is its own."""
    if kind.own_memory_bytes or not kind.is_shared:
        yield f"{show_bytes(kind.memory_bytes)} each"
    else:
        yield f"{show_bytes(kind.memory_bytes)} each is not enforced"
        yield USED_UP
