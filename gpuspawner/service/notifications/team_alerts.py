"""The alerts about teams that were sent, kept in memory: budgets of money, idle GPUs and statements."""

from __future__ import annotations

from collections.abc import Sequence

from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.store.usage_sums import TeamAlert


class SentAlerts:
    """The sent alerts, oldest first. Raises Unavailable if a change can't be stored. Then nothing has changed."""

    def __init__(self, store: Store) -> None:
        """Start empty; :meth:`load` reads the store."""
        self._store = store
        self._alerts: list[TeamAlert] = []
        self.changes = 0
        """The number of changes since this service started."""

    async def load(self) -> None:
        """Read them from the store."""
        self._alerts = await self._store.read(self._store.team_alerts.all)

    @property
    def keys(self) -> set[tuple[str, str, str]]:
        """The keys of all sent alerts. Each is sent once."""
        return {one.key for one in self._alerts}

    def since(self, at: float) -> list[TeamAlert]:
        """Return the alerts that were sent since a time, the newest first."""
        found = []
        for one in reversed(self._alerts):
            if one.at < at:
                break
            found.append(one)
        return found

    async def add(self, alerts: Sequence[TeamAlert], outbox: Sequence[OutboxRow], audit: Sequence[AuditLine]) -> None:
        """Store alerts with their messages and audit entries."""
        await self._store.write(self._store.team_alerts.add, alerts, outbox, audit)
        self._alerts = [*self._alerts, *alerts]
        self.changes += 1
