"""What people have read of their inbox, and messages of administrators."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0013"


def upgrade() -> None:
    """Make the tables. Whoever is known begins with an inbox that is read: nobody finds a month of old notices."""
    op.create_table(
        "inbox_read",
        sa.Column("hub", sa.String(64), primary_key=True),
        sa.Column("user_created", sa.String(64), primary_key=True),
        sa.Column("notice", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("whom", sa.String(16), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("recipients", sa.JSON, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("withdrawn_at", sa.Float),
        sa.Column("withdrawn_by", sa.String(255), nullable=False, server_default=""),
    )
    op.create_index("ix_messages_made_at", "messages", ["made_at"])
    known = "INSERT INTO inbox_read SELECT DISTINCT hub, user_created, '', CAST(:now AS FLOAT) FROM leases"
    op.get_bind().execute(sa.text(known), {"now": time.time()})


def downgrade() -> None:
    """Forget them."""
    op.drop_table("messages")
    op.drop_table("inbox_read")
