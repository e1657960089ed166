"""The tables. A change here needs a migration in migrations/versions."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
)

kinds_seen = sa.Table(
    "kinds_seen",
    metadata,
    sa.Column("kind", sa.String(255), primary_key=True),
    sa.Column("largest", sa.Integer, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
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
    sa.Index("ix_leases_disputed_at", "disputed_at"),
    sa.Index("ix_leases_user", "user", "ended_at"),
    sa.Index("ix_leases_reason", "reason", "ended_at"),
    sa.Index("ix_leases_team", "team", "ended_at"),
    sa.Index("ix_leases_owner", "hub", "user_created", "ended_at"),
    sa.Index("ix_leases_ended_at", "ended_at"),
    # The database itself refuses a second live lease of a key.
    sa.Index(
        "uq_leases_live_key",
        "hub",
        "user_created",
        "server",
        unique=True,
        sqlite_where=sa.text("phase <> 'ended'"),
        postgresql_where=sa.text("phase <> 'ended'"),
    ),
)

readings = sa.Table(
    "readings",
    metadata,
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
    sa.Index("ix_readings_lease", "lease", "at"),
    sa.Index("ix_readings_at", "at"),
)

outputs = sa.Table(
    "outputs",
    metadata,
    sa.Column("lease", sa.String(64), primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("shared", sa.Boolean, nullable=False),
    sa.Index("ix_outputs_at", "at"),
)

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("hub", sa.String(64), nullable=False),
    sa.Column("user_created", sa.String(64), nullable=False),
    sa.Column("user", sa.String(255), nullable=False),
    sa.Column("team", sa.String(255), nullable=False),
    sa.Column("lease", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(255), nullable=False),
    sa.Column("what", sa.String(16), nullable=False),
    # The date in the catalog's time zone. No line spans two days.
    sa.Column("day", sa.String(10), nullable=False),
    sa.Column("start_ms", sa.BigInteger, nullable=False),
    sa.Column("end_ms", sa.BigInteger, nullable=False),
    sa.Column("milliseconds", sa.BigInteger, nullable=False),
    sa.Column("gpus", sa.String(64), nullable=False),
    sa.Column("price_per_hour", sa.String(64), nullable=False),
    sa.Column("by", sa.String(255), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Index("ix_ledger_end_ms", "end_ms"),
    sa.Index("ix_ledger_day", "day"),
    sa.Index("ix_ledger_owner", "hub", "user_created", "day"),
)

usage_sums = sa.Table(
    "usage_sums",
    metadata,
    # The grouping (see ``usage_sums.BY``), the day or month, and the key.
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

quota_grants = sa.Table(
    "quota_grants",
    metadata,
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
    # Both sides of a move between members have the same.
    sa.Column("move", sa.String(64), nullable=False, server_default=""),
    sa.Index("ix_quota_grants_until", "until"),
)

preemptions = sa.Table(
    "preemptions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("by", sa.String(255), nullable=False),
    sa.Column("key", sa.String(255), nullable=False),
    sa.Column("live", sa.Boolean, nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Index("uq_preemptions_key", "by", "key", unique=True),
    sa.Index("ix_preemptions_live", "live"),
)

presets = sa.Table(
    "presets",
    metadata,
    sa.Column("hub", sa.String(64), primary_key=True),
    sa.Column("user_created", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("options", sa.JSON, nullable=False),
    sa.Column("saved_at", sa.Float, nullable=False),
)

schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("hub", sa.String(64), nullable=False),
    sa.Column("user_created", sa.String(64), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Index("ix_schedules_owner", "hub", "user_created"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("lease", sa.String(64), nullable=False),
    sa.Column("user", sa.String(255), nullable=False),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("fields", sa.JSON, nullable=False),
    # The page or program through which a person acted: "its page", "the API".
    sa.Column("via", sa.String(64), nullable=False, server_default=""),
    # A node, a GPU or a kind, if it is not a workspace.
    sa.Column("target", sa.String(255), nullable=False, server_default=""),
    sa.Index("ix_audit_lease", "lease"),
    sa.Index("ix_audit_at", "at"),
    # Searched from the newest entry on, by one of these.
    sa.Index("ix_audit_actor", "actor", "number"),
    sa.Index("ix_audit_action", "action", "number"),
    sa.Index("ix_audit_user", "user", "number"),
)

restrictions = sa.Table(
    "restrictions",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("until", sa.Float),
    sa.Column("lifted_at", sa.Float),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Index("ix_restrictions_since", "since"),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    # Digests of person and key, of the person, and of the request.
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("person", sa.String(64), nullable=False),
    sa.Column("request", sa.String(64), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    # The id of the object that the request made.
    sa.Column("about", sa.String(64), nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Index("ix_idempotency_keys_at", "at"),
    sa.Index("ix_idempotency_keys_person", "person", "at"),
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    # Messages to one person are sent in this order.
    sa.Column("at", sa.Float, nullable=False),
    # "user", "admins" with the number of the target in the settings, or "team" with the name of the team.
    sa.Column("channel", sa.String(300), nullable=False),
    # The workspace and the kind of message. A newer message replaces a waiting one.
    sa.Column("subject", sa.String(128), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("not_before", sa.Float, nullable=False),
    # When the message was sent or given up, and the result.
    sa.Column("over_at", sa.Float),
    sa.Column("result", sa.String(16), nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Index("ix_outbox_over_at", "over_at", "not_before"),
    sa.Index("ix_outbox_subject", "subject"),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    # The token itself is stored nowhere.
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("hub", sa.String(64), nullable=False),
    sa.Column("user_created", sa.String(64), nullable=False),
    sa.Column("user", sa.String(255), nullable=False),
    sa.Column("device", sa.String(255), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("until", sa.Float, nullable=False),
    # Until then it has the scopes of its user for roles.
    sa.Column("admin_until", sa.Float),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Index("uq_tokens_hash", "hash", unique=True),
    sa.Index("ix_tokens_owner", "hub", "user_created"),
    sa.Index("ix_tokens_until", "until"),
)

estimates = sa.Table(
    "estimates",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("lease", sa.String(64), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("is_first", sa.Boolean, nullable=False),
    sa.Column("point_seconds", sa.Float, nullable=False),
    sa.Column("chance", sa.Float, nullable=False),
    sa.Column("low_seconds", sa.Float, nullable=False),
    # Null is infinite.
    sa.Column("high_seconds", sa.Float),
    sa.Column("from_seconds", sa.Float, nullable=False),
    sa.Column("to_seconds", sa.Float),
    sa.Column("is_shown", sa.Boolean, nullable=False),
    # Null until the request starts.
    sa.Column("actual_seconds", sa.Float),
    sa.Index("ix_estimates_at", "at"),
    sa.Index("ix_estimates_lease", "lease"),
)

idle_traces = sa.Table(
    "idle_traces",
    metadata,
    sa.Column("lease", sa.String(64), primary_key=True),
    sa.Column("hub", sa.String(64), nullable=False),
    sa.Column("user_created", sa.String(64), nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("idle", sa.JSON, nullable=False),
    sa.Index("ix_idle_traces_at", "at"),
    sa.Index("ix_idle_traces_owner", "hub", "user_created"),
)

inbox_read = sa.Table(
    "inbox_read",
    metadata,
    sa.Column("hub", sa.String(64), primary_key=True),
    sa.Column("user_created", sa.String(64), primary_key=True),
    # "" means all notices until then.
    sa.Column("notice", sa.String(64), primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
)

announcements = sa.Table(
    "announcements",
    metadata,
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
    sa.Index("ix_announcements_made_at", "made_at"),
)

counters = sa.Table(
    "counters",
    metadata,
    sa.Column("series", sa.String(1024), primary_key=True),
    sa.Column("value", sa.Float, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)

team_sums = sa.Table(
    "team_sums",
    metadata,
    # Usage by month, team, user, kind of GPU and price, for statements.
    sa.Column("month", sa.String(7), primary_key=True),
    sa.Column("team", sa.String(255), primary_key=True),
    sa.Column("user_created", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(255), primary_key=True),
    # For a GPU hour, as a fraction; "" without one.
    sa.Column("price", sa.String(64), primary_key=True),
    sa.Column("user", sa.String(255), nullable=False),
    *(
        sa.Column(name, sa.Float, nullable=False)
        for name in ("active", "idle", "not_measured", "reclaimed", "reclaims", "charged", "credited", "cost")
    ),
    sqlite_with_rowid=False,
)

statements = sa.Table(
    "statements",
    metadata,
    # Of closed months. "" is the team of usage without a team.
    sa.Column("month", sa.String(7), primary_key=True),
    sa.Column("team", sa.String(255), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),
)

team_alerts = sa.Table(
    "team_alerts",
    metadata,
    # Alerts about a team in a period that were sent to leads and administrators, so that each is sent once.
    # The team "" means all teams.
    sa.Column("team", sa.String(255), primary_key=True),
    sa.Column("kind", sa.String(255), primary_key=True),
    # The first day of the period.
    sa.Column("period", sa.String(10), primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    # The notice in inboxes, "" without one.
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("page", sa.Text, nullable=False),
)

quota_requests = sa.Table(
    "quota_requests",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("hub", sa.String(64), nullable=False),
    sa.Column("user_created", sa.String(64), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("until", sa.Float, nullable=False),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Index("ix_quota_requests_made_at", "made_at"),
    sa.Index("ix_quota_requests_owner", "hub", "user_created"),
)

secrets = sa.Table(
    "secrets",
    metadata,
    sa.Column("hub", sa.String(64), primary_key=True),
    sa.Column("user_created", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(100), primary_key=True),
    # Encrypted with a key that is not stored here.
    sa.Column("sealed", sa.Text, nullable=False),
    sa.Column("changed_at", sa.Float, nullable=False),
)

catalog_versions = sa.Table(
    "catalog_versions",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Float, nullable=False),
    # "" if the file was changed outside of the console.
    sa.Column("author", sa.String(255), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("changes", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    # "" for the file, or the section and name of an entry that is a custom resource. Its text is "" once it is deleted.
    sa.Column("entry", sa.String(320), nullable=False),
)

preferences = sa.Table(
    "preferences",
    metadata,
    sa.Column("hub", sa.String(64), primary_key=True),
    sa.Column("user_created", sa.String(64), primary_key=True),
    sa.Column("start_mail", sa.Boolean, nullable=False),
)
