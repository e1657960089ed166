"""Keys are kept by person with what they made, and messages wait in the store until they are sent."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
COLUMNS = ("person", "about")


def upgrade() -> None:
    """Add them. Keys of before count for nobody, and go after a day."""
    for name in COLUMNS:
        op.add_column("answers", sa.Column(name, sa.String(64), nullable=False, server_default=""))
    op.create_index("ix_answers_person", "answers", ["person", "at"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("channel", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(128), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("not_before", sa.Float, nullable=False),
        sa.Column("over_at", sa.Float),
        sa.Column("result", sa.String(16), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_outbox_over_at", "outbox", ["over_at", "not_before"])
    op.create_index("ix_outbox_subject", "outbox", ["subject"])


def downgrade() -> None:
    """Forget them: messages that wait are not sent."""
    op.drop_table("outbox")
    op.drop_index("ix_answers_person", "answers")
    for name in reversed(COLUMNS):
        op.drop_column("answers", name)
