"""What must survive a restart: leases, readings, audit, the ledger and the epoch, in SQL.

Belongs here: tables, migrations and plain reads and writes, each in one transaction that checks the epoch.
Never here: decisions, waiting, or a second writer.
"""

from gpuspawner.service.store.outputs import OutputRow
from gpuspawner.service.store.rows import AuditLine, ReadingRow
from gpuspawner.service.store.store import Store

__all__ = ["AuditLine", "OutputRow", "ReadingRow", "Store"]
