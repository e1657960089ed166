"""The columns of use as pages call them; allocated time is active, idle or not measured, and nothing else."""

from alembic import op

revision = "0024"
down_revision = "0023"

NAMES = {
    "held": "charged",
    "given_back": "credited",
    "busy": "active",
    "unknown": "not_measured",
    "saved": "reclaimed",
    "idle_stops": "reclaims",
}


def upgrade() -> None:
    """Rename them. What was charged and not sampled was not measured."""
    for before, after in NAMES.items():
        op.execute(f"ALTER TABLE use_sums RENAME COLUMN {before} TO {after}")
    rest = "charged + credited - active - idle"
    op.execute(f"UPDATE use_sums SET not_measured = {rest} WHERE {rest} > not_measured")  # noqa: S608 - our own names


def downgrade() -> None:
    """Call them as before."""
    for before, after in NAMES.items():
        op.execute(f"ALTER TABLE use_sums RENAME COLUMN {after} TO {before}")
