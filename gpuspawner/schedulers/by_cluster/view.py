"""What the scheduler of one cluster of several has below it, in the place of a queue of ours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpuspawner.core.gpus.fleet import Fleet, GpuKind
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.schedulers.base import Answer, Capabilities, PassingOn, Preview


class SharedView(PassingOn):
    """The GPUs of all clusters, as ``mine`` sees them: it looks at them itself, and grants what takes none."""

    @property
    def capabilities(self) -> Capabilities:
        """What ours can."""
        return self._mine.capabilities

    @property
    def unseen(self) -> tuple[str, ...]:
        """Say nothing: ours says it once for all."""
        return ()

    async def observe(self, now: float) -> Fleet:  # noqa: ARG002 - the seam's
        """Return the GPUs as ours saw them last."""
        return self.fleet

    async def sync(self, seen: Snapshot) -> Answer:
        """Grant nothing."""
        return Answer(seen.now, tuple, dict, dict)

    async def offers(self, seen: Snapshot, claim: Claim) -> Preview:
        """Return what ours would give."""
        return await self._mine.offers(seen, claim)

    async def extend(self, lease: Lease, until: float) -> None:
        """Allow it."""

    def listen(self, told: Callable[[], None]) -> None:
        """Tell nothing."""

    def patch(self, lease: Lease, off: Collection[str] = (), instead: Sequence[GpuKind] = ()) -> dict[str, Any]:
        """Return what makes its cluster give a workspace its GPUs."""
        return self._mine.patch(lease, off, instead)
