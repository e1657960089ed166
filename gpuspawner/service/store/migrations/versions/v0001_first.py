"""The first tables.

They are written out, not taken from tables.py: a migration must keep its meaning when the tables change.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:  # noqa: PLR0915 - one statement for each table and index
    """Create all tables."""
    op.create_table(
        "meta",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
    )
    op.create_table(
        "kinds_seen",
        sa.Column("kind", sa.String(255), primary_key=True),
        sa.Column("largest", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("server", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("disputed_at", sa.Float),
        sa.Column("reason", sa.String(32), nullable=False, server_default=""),
    )
    op.create_index("ix_leases_disputed_at", "leases", ["disputed_at"])
    op.create_index("ix_leases_user", "leases", ["user", "ended_at"])
    op.create_index("ix_leases_reason", "leases", ["reason", "ended_at"])
    op.create_index("ix_leases_team", "leases", ["team", "ended_at"])
    op.create_index("ix_leases_owner", "leases", ["hub", "user_created", "ended_at"])
    op.create_index("ix_leases_ended_at", "leases", ["ended_at"])
    op.create_index(
        "uq_leases_live_key",
        "leases",
        ["hub", "user_created", "server"],
        unique=True,
        sqlite_where=sa.text("phase <> 'ended'"),
        postgresql_where=sa.text("phase <> 'ended'"),
    )
    op.create_table(
        "readings",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("lease", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("gpu", sa.String(128), nullable=False),
        sa.Column("utilization_percent", sa.Float),
        sa.Column("memory_used_bytes", sa.BigInteger),
        sa.Column("memory_total_bytes", sa.BigInteger),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("because", sa.String(255), nullable=False),
        sa.Column("kept", sa.Boolean, nullable=False),
        sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("holders", sa.Integer),
        sa.Column("holders_cpu_cores", sa.Float),
        sa.Column("cpu_cores", sa.Float),
        sa.Column("soft", sa.JSON(none_as_null=True)),
        sa.Column("buffer_percent", sa.Float),
        sa.Column("persistence", sa.Boolean),
        sa.Column("encoder_percent", sa.Float),
        sa.Column("decoder_percent", sa.Float),
        sa.Column("possible_holders", sa.Integer, nullable=False, server_default="0"),
        sa.Column("possible_cpu_cores", sa.Float),
        sa.Column("ended_cpu_cores", sa.Float),
        sa.Column("host_memory_bytes", sa.BigInteger),
        sa.Column("seen_seconds", sa.Float, nullable=False, server_default="0"),
        sa.Column("sources", sa.JSON(none_as_null=True)),
    )
    op.create_index("ix_readings_lease", "readings", ["lease", "at"])
    op.create_index("ix_readings_at", "readings", ["at"])
    op.create_table(
        "outputs",
        sa.Column("lease", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("shared", sa.Boolean, nullable=False),
    )
    op.create_index("ix_outputs_at", "outputs", ["at"])
    op.create_table(
        "ledger",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("lease", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(255), nullable=False),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("milliseconds", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.String(64), nullable=False),
        sa.Column("price_per_hour", sa.String(64), nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
    )
    op.create_index("ix_ledger_end_ms", "ledger", ["end_ms"])
    op.create_index("ix_ledger_day", "ledger", ["day"])
    op.create_index("ix_ledger_owner", "ledger", ["hub", "user_created", "day"])
    op.create_table(
        "usage_sums",
        sa.Column("by", sa.String(16), primary_key=True),
        sa.Column("span", sa.String(10), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        *(
            sa.Column(name, sa.Float, nullable=False)
            for name in ("active", "idle", "not_measured", "reclaimed", "reclaims", "charged", "credited", "cost")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "quota_grants",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("team", sa.String(255), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(255), nullable=False),
        sa.Column("amount", sa.String(64), nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("taken_back_at", sa.Float),
        sa.Column("taken_back_by", sa.String(255), nullable=False, server_default=""),
        sa.Column("taken_back_why", sa.Text, nullable=False, server_default=""),
        sa.Column("move", sa.String(64), nullable=False, server_default=""),
    )
    op.create_index("ix_quota_grants_until", "quota_grants", ["until"])
    op.create_table(
        "preemptions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("uq_preemptions_key", "preemptions", ["by", "key"], unique=True)
    op.create_index("ix_preemptions_live", "preemptions", ["live"])
    op.create_table(
        "presets",
        sa.Column("hub", sa.String(64), primary_key=True),
        sa.Column("user_created", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("saved_at", sa.Float, nullable=False),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_schedules_owner", "schedules", ["hub", "user_created"])
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("lease", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("fields", sa.JSON, nullable=False),
        sa.Column("via", sa.String(64), nullable=False, server_default=""),
        sa.Column("target", sa.String(255), nullable=False, server_default=""),
    )
    op.create_index("ix_audit_lease", "audit", ["lease"])
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_actor", "audit", ["actor", "number"])
    op.create_index("ix_audit_action", "audit", ["action", "number"])
    op.create_index("ix_audit_user", "audit", ["user", "number"])
    op.create_table(
        "restrictions",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("until", sa.Float),
        sa.Column("lifted_at", sa.Float),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_restrictions_since", "restrictions", ["since"])
    op.create_table(
        "idempotency_keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("person", sa.String(64), nullable=False),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("about", sa.String(64), nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
    )
    op.create_index("ix_idempotency_keys_at", "idempotency_keys", ["at"])
    op.create_index("ix_idempotency_keys_person", "idempotency_keys", ["person", "at"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("channel", sa.String(300), nullable=False),
        sa.Column("subject", sa.String(128), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("not_before", sa.Float, nullable=False),
        sa.Column("over_at", sa.Float),
        sa.Column("result", sa.String(16), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_outbox_over_at", "outbox", ["over_at", "not_before"])
    op.create_index("ix_outbox_subject", "outbox", ["subject"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("device", sa.String(255), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("admin_until", sa.Float),
        sa.Column("scopes", sa.Text, nullable=False),
    )
    op.create_index("uq_tokens_hash", "tokens", ["hash"], unique=True)
    op.create_index("ix_tokens_owner", "tokens", ["hub", "user_created"])
    op.create_index("ix_tokens_until", "tokens", ["until"])
    op.create_table(
        "estimates",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("lease", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("is_first", sa.Boolean, nullable=False),
        sa.Column("point_seconds", sa.Float, nullable=False),
        sa.Column("chance", sa.Float, nullable=False),
        sa.Column("low_seconds", sa.Float, nullable=False),
        sa.Column("high_seconds", sa.Float),
        sa.Column("from_seconds", sa.Float, nullable=False),
        sa.Column("to_seconds", sa.Float),
        sa.Column("is_shown", sa.Boolean, nullable=False),
        sa.Column("actual_seconds", sa.Float),
    )
    op.create_index("ix_estimates_at", "estimates", ["at"])
    op.create_index("ix_estimates_lease", "estimates", ["lease"])
    op.create_table(
        "idle_traces",
        sa.Column("lease", sa.String(64), primary_key=True),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("idle", sa.JSON, nullable=False),
    )
    op.create_index("ix_idle_traces_at", "idle_traces", ["at"])
    op.create_index("ix_idle_traces_owner", "idle_traces", ["hub", "user_created"])
    op.create_table(
        "inbox_read",
        sa.Column("hub", sa.String(64), primary_key=True),
        sa.Column("user_created", sa.String(64), primary_key=True),
        sa.Column("notice", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "announcements",
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
    op.create_index("ix_announcements_made_at", "announcements", ["made_at"])
    op.create_table(
        "counters",
        sa.Column("series", sa.String(1024), primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "team_sums",
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("team", sa.String(255), primary_key=True),
        sa.Column("user_created", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(255), primary_key=True),
        sa.Column("price", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(255), nullable=False),
        *(
            sa.Column(name, sa.Float, nullable=False)
            for name in ("active", "idle", "not_measured", "reclaimed", "reclaims", "charged", "credited", "cost")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "statements",
        sa.Column("month", sa.String(7), primary_key=True),
        sa.Column("team", sa.String(255), primary_key=True),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_table(
        "team_alerts",
        sa.Column("team", sa.String(255), primary_key=True),
        sa.Column("kind", sa.String(255), primary_key=True),
        sa.Column("period", sa.String(10), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("page", sa.Text, nullable=False),
    )
    op.create_table(
        "quota_requests",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("hub", sa.String(64), nullable=False),
        sa.Column("user_created", sa.String(64), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_index("ix_quota_requests_made_at", "quota_requests", ["made_at"])
    op.create_index("ix_quota_requests_owner", "quota_requests", ["hub", "user_created"])
    op.create_table(
        "secrets",
        sa.Column("hub", sa.String(64), primary_key=True),
        sa.Column("user_created", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    op.create_table(
        "catalog_versions",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("author", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("changes", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("entry", sa.String(320), nullable=False),
    )
    op.create_table(
        "preferences",
        sa.Column("hub", sa.String(64), primary_key=True),
        sa.Column("user_created", sa.String(64), primary_key=True),
        sa.Column("start_mail", sa.Boolean, nullable=False),
    )
