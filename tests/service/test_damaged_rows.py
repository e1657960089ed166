"""A damaged row of any table hides only itself: pages and API answer, and the log names the row."""

import sqlite3
from dataclasses import replace
from fractions import Fraction

from page_world import CATALOG, NOW, Browser, api, readings, reclaimed, reclaimed_audit, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.leases.lease import Key, Owner
from gpuspawner.core.queue.calibration import EstimateOutcome
from gpuspawner.core.rules import Rate
from gpuspawner.service.app import load
from gpuspawner.service.sign_in.tokens import Login, make_token
from gpuspawner.service.store import OutputRow, tables
from gpuspawner.service.store.usage_sums import Statements, TeamAlert

QUOTAS = {"each-user": {"each": "user", "gpu_hours": {"per": "week", "hard": 400}}}
DAMAGE = ["x", b"\xff", "\ud800", 1e300]
"""What a column may hold: a text, bytes, a text of which a byte is damaged, a number out of range."""
STORED = {
    "workspaces/gone/dispute": ("alice", {"sentence": "It worked."}),
    "quota-grants": ("admin", {"what": "4 GPUs", "user": "alice", "until": "1d", "why": "x"}),
    "usage/corrections": ("admin", {"user": "alice", "amount": "+3 GPU h", "why": "x"}),
    "messages": ("admin", {"to": "all", "text": "Hello", "until": "2h"}),
    "presets": ("alice", {"name": "mine", "options": {"template": "pytorch"}}),
    "ready": ("alice", {"template": "pytorch", "gpu": "a100", "count": 1, "at": "8:00", "on": "weekdays"}),
    "inbox/read": ("alice", {"all": True}),
    "secrets": ("alice", {"name": "HF_TOKEN", "value": "hf_x"}),
    "quota-requests": ("alice", {"what": "20 GPU h", "until": "1d", "why": "a paper"}),
}
USAGE = ("console/usage", "api admin usage?all=1&by=user", "api alice usage", "api alice quota", "console/people/alice")
SHOWN = {
    "announcements": ("", "inbox", "console/restrictions", "api admin messages?past=1"),
    "audit": ("workspaces/gone", "console/audit", "inbox", "api alice workspaces/gone/audit", "api admin admin/audit"),
    "counters": ("console",),
    "estimates": ("", "console/queue", "console/usage", "metrics", "stored"),
    "idle_traces": ("", "console/queue", "stored"),
    "inbox_read": ("inbox",),
    "leases": ("", "console/workspaces?state=ended", "inbox", "api admin workspaces?all=1&ended=9"),
    "ledger": USAGE,
    "outputs": ("workspaces/gone", "api alice workspaces/gone/output"),
    "preferences": ("inbox", "stored"),
    "presets": ("", "api alice presets"),
    "quota_grants": ("quota", "console/quotas", "api admin quota-grants"),
    "quota_requests": ("quota/request", "console/requests", "inbox", "api alice quota-requests"),
    "readings": ("workspaces/runs", "workspaces/gone", "api alice workspaces/runs/readings"),
    "schedules": ("", "api alice ready"),
    "secrets": ("secrets", "stored", "api alice secrets", "api alice stored"),
    "statements": ("console/statements?month=2026-12", "api admin statements?month=2026-12"),
    "team_alerts": ("console/statements?month=2027-01",),
    "team_sums": ("console/statements?month=2027-01", "api admin statements?month=2027-01", "stored"),
    "tokens": ("tokens", "api alice tokens"),
    "usage_sums": USAGE,
}
"""The pages that show the rows of a table. A live lease, restriction or claim that can't be read lets nothing open."""


def stored(world):
    """Store something in each table."""
    rate = Rate(Fraction(1), Fraction(2))
    runs, gone = running("runs", rate=rate), replace(reclaimed(), key=Key("hub-1", "alice born", "g"))
    world.save(gone, audit=reclaimed_audit(), readings=readings(gone, [3, 2, None]))
    world.save(replace(reclaimed(), id="bobs", key=Key("hub-1", "bob born", ""), user="bob"))
    world.save(runs, readings=readings(runs, [10, 20, 0, None]))
    world.save(waiting("waits"))
    world.call(world.parts.store.write, world.parts.store.outputs.save, OutputRow("gone", NOW, "The last line."))
    for path, (who, body) in STORED.items():
        assert api(world, who, path, "POST", body).status_code // 100 == 2, path
    login = Login("secret", "BCDF-GHJK", "a laptop", admin=False, at=NOW, user="alice")
    world.call(make_token, world.parts, login, Owner("hub-1", "alice born"))
    world.parts.store.team_alerts.add([TeamAlert("", "money month 50", "2027-01-01", NOW)], (), ())
    world.call(world.parts.registry.save, others=[lambda one: Statements.add(one, "2026-12", {"": {"number": "x"}})])
    world.call(world.parts.store.counters.save, {("x", (("user", "alice"),)): 1.0}, NOW)
    estimate = EstimateOutcome(600.0, 0.9, 300.0, 900.0, 300.0, 900.0, is_shown=True, actual_seconds=500.0)
    world.parts.store.estimates.add({"waits": estimate}, NOW - 900, {"waits"})
    world.parts.store.idle_traces.save([(runs, [0.0, 60.0])], NOW)
    world.parts.store.preferences.set_start_mail(Owner("hub-1", "alice born"), wanted=False)


def damaged(raw, column):
    """Damage a value of a column in each way, and repair it again."""
    table, name = column.table.name, f'"{column.name}"'
    (value,) = raw.execute(f"SELECT {name} FROM {table} WHERE {name} IS NOT NULL ORDER BY 1 LIMIT 1").fetchone() or (
        None,
    )
    for wrong in DAMAGE:
        by = "?" if wrong != "\ud800" else "CAST(? AS TEXT)"
        stored = b"a\xffb" if wrong == "\ud800" else wrong
        try:
            raw.execute(f"UPDATE {table} SET {name} = {by} WHERE {name} IS ?", (stored, value))
        except sqlite3.IntegrityError:  # a key that SQLite itself keeps whole
            continue
        yield wrong
        raw.execute(f"UPDATE {table} SET {name} = ? WHERE {name} IS {by}", (value, stored))


def test_a_damaged_row_of_any_table_hides_only_itself(make_web_world, tmp_path):
    world = make_web_world(load_catalog({**CATALOG, "quotas": QUOTAS}))
    world.observe()
    stored(world)
    browsers = {name: Browser(world, name) for name in ("admin", "alice")}

    def status(page):
        if page.startswith("api "):
            _, who, path = page.split(" ")
            return api(world, who, path).status_code
        return browsers["admin" if page.startswith("console") else "alice"].get(world.home + page).status_code

    raw = sqlite3.connect(tmp_path / "service.sqlite", isolation_level=None, timeout=20)
    failing = []
    for name, pages in SHOWN.items():
        for column in tables.meta.metadata.tables[name].c:
            for wrong in damaged(raw, column):
                world.call(load, world.parts)
                world.call(world.parts.allocator.estimate_records.make_report)
                failing += [(name, column.name, wrong, page) for page in pages if status(page) >= 500]
    assert failing == []
    assert world.parts.store.damaged.found
