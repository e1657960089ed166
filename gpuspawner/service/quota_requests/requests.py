"""The requests for extra quota, kept in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import median

from gpuspawner.core.quotas.quota_requests import QuotaRequest
from gpuspawner.core.rules import QuotaGrant
from gpuspawner.service.clock import Clock
from gpuspawner.service.rules.accounting import Accounting
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.outbox import OutboxRow

FEW_ANSWERS = 3
"""From this number of answers on, the usual time to an answer is known. Arbitrary."""


class QuotaRequests:
    """The requests for extra quota. Raises Unavailable if a change can't be stored. Then nothing has changed."""

    def __init__(self, store: Store, accounting: Accounting, clock: Clock) -> None:
        """Start empty; :meth:`load` reads the store."""
        self._store, self._accounting, self._clock = store, accounting, clock
        self._requests: dict[str, QuotaRequest] = {}
        self.sending = asyncio.Lock()
        """Held from the check of a new request until it is stored, so that bounds hold for requests of one moment."""
        self.changes = 0
        """The number of changes since this service started."""

    async def load(self) -> None:
        """Read them from the store."""
        found = await self._store.read(self._store.quota_requests.latest)
        self._requests = {one.id: one for one in reversed(found)}

    def all(self) -> list[QuotaRequest]:
        """Return all requests, the newest first."""
        return list(self._requests.values())[::-1]

    def get(self, request_id: str) -> QuotaRequest | None:
        """Return a request by its id, None without one."""
        return self._requests.get(request_id)

    def usual_answer_seconds(self) -> float | None:
        """Return the median time to an answer of a person, None after few answers."""
        waits = [one.answered_at - one.made_at for one in self.all() if one.answered_at is not None and one.is_answered]
        return median(waits) if len(waits) >= FEW_ANSWERS else None

    async def change(
        self,
        one: QuotaRequest,
        audit: Sequence[AuditLine],
        outbox: Sequence[OutboxRow] = (),
        grant: QuotaGrant | None = None,
    ) -> None:
        """Store a new or closed request and the extra quota that it gives. Raises Conflict if it is closed already."""
        await self._store.write(self._store.quota_requests.change, one, audit, outbox, grant)
        self._requests[one.id] = one
        self.changes += 1
        if grant is not None:
            self._accounting.count_grants([grant])
