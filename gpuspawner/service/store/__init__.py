"""The stored state, which survives a restart: leases, readings, audit, the ledger and the epoch.

Belongs here: tables, migrations and plain reads and writes, each in one transaction that checks the epoch.
Never here: decisions, waiting, or a second writer.
"""

from gpuspawner.service.store.audit_log import AuditLine
from gpuspawner.service.store.readings import OutputRow, ReadingRow
from gpuspawner.service.store.store import Store

__all__ = ["AuditLine", "OutputRow", "ReadingRow", "Store"]
