"""Requests of users for extra quota."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import TypeAdapter

from gpuspawner.core.errors import Conflict
from gpuspawner.core.quotas.quota_requests import QuotaRequest, RequestOutcome
from gpuspawner.core.rules import QuotaGrant
from gpuspawner.service.store import tables
from gpuspawner.service.store.audit_log import AuditLine, write_audit
from gpuspawner.service.store.documents import StoredDocuments
from gpuspawner.service.store.ledger import row_of_grant
from gpuspawner.service.store.outbox import OutboxRow, write_outbox
from gpuspawner.service.store.personal import OwnedRows

MOST_READ = 10_000
"""The most requests that are kept in memory. Arbitrary: far more than people answer in the time they are kept."""


class QuotaRequests(StoredDocuments[QuotaRequest], OwnedRows):
    """Reads and writes requests for extra quota."""

    table = tables.quota_requests
    adapter = TypeAdapter(QuotaRequest)

    def latest(self) -> list[QuotaRequest]:
        """Return the requests that were made last, newest first."""
        return self._latest(self.table.c.made_at.desc(), MOST_READ)

    def change(
        self,
        one: QuotaRequest,
        audit: Iterable[AuditLine],
        outbox: Iterable[OutboxRow] = (),
        grant: QuotaGrant | None = None,
    ) -> None:
        """Write a new or closed request, with the extra quota that it gives, audit entries and messages.

        Raises:
            Conflict: it was closed meanwhile.
        """
        before = self.get(one.id)
        with self._transaction(writes=True) as connection:
            if before is not None and before.outcome is not RequestOutcome.OPEN:
                raise Conflict(closed_words(before))
            self.write(connection, [one])
            if grant is not None:
                connection.execute(tables.quota_grants.insert(), row_of_grant(grant))
            write_audit(connection, audit)
            write_outbox(connection, outbox)

    def delete_over(self, before: float) -> None:
        """Delete requests that were made and ended before."""
        self._delete(self.table, (self.table.c.made_at < before) & (self.table.c.until < before))


def closed_words(one: QuotaRequest) -> str:
    """Return in a sentence that a request is closed already."""
    by = f" by {one.answered_by}" if one.answered_by else ""
    return f"This request is {one.outcome.value} already{by}."
