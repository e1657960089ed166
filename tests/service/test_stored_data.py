"""What is stored of a person: seen, exported, and forgotten with all sums kept."""

import json
from dataclasses import replace

import pytest
from page_world import NOW, Browser, api
from test_statements import asked, begin, end, later, sample, statement, world  # noqa: F401 - the fixture

from gpuspawner.cli.main import main
from gpuspawner.core.events import PersonExported, PersonForgotten, UsageCorrected
from gpuspawner.core.leases.lease import Dispute, Owner, Phase
from gpuspawner.service.metrics.api import store_counters
from gpuspawner.service.sign_in.tokens import Login, make_token
from gpuspawner.service.store import OutputRow, tables
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.store.retention import StoredPerson
from gpuspawner.service.stored_data.api import _SECTIONS, pseudonym_of

NOT_PERSONAL = {
    "meta", "kinds_seen", "preemptions", "restrictions", "idempotency_keys", "outbox", "announcements",
    "catalog_versions", "statements", "team_alerts",
}  # fmt: skip
"""Tables without rows of one person. Statements, messages and announcements are changed row by row."""
ALICE = Owner("hub-1", "alice born")


@pytest.fixture
def lived(world):  # noqa: F811 - the fixture
    """A world in which alice and bob used GPUs in a month that is closed, and alice has something in each table."""
    store = world.parts.store
    world.groups = {"alice": {"vision"}}
    for user, gpu, name in (("alice", 0, "first"), ("bob", 1, "second")):
        begin(world, name, user, (gpu,))
        world.clock.at += 3600
        sample(world, name)
        end(world, name)
    gone = world.call(world.parts.registry.find, "first")
    dispute = Dispute(NOW, "I was working on my thesis", NOW - 60, NOW)
    world.call(world.parts.registry.save, replace(gone, dispute=dispute, options={"environment": "NAME=Alice"}))
    correction = {"user": "alice", "team": "vision", "amount": "+1 GPU h", "why": "storage"}
    assert api(world, "admin", "usage/corrections", "POST", correction).status_code == 201
    grant = {"what": "4 GPUs", "user": "alice", "until": "1d", "why": "a paper"}
    assert api(world, "admin", "quota-grants", "POST", grant).status_code == 201
    preset = {"name": "mine", "options": {"template": "pytorch"}}
    assert api(world, "alice", "presets", "POST", preset).status_code == 201
    ready = {"template": "pytorch", "gpu": "a100", "count": 1, "at": "8:00", "on": "weekdays"}
    assert api(world, "alice", "ready", "POST", ready).status_code in {200, 201}
    assert api(world, "alice", "inbox/read", "POST", {"all": True}).status_code == 200
    assert api(world, "admin", "quota-grants", "POST", {**grant, "team": "vision"}).status_code == 201
    more = {"what": "10 cost", "team": "vision", "whole_team": True, "until": "3d", "why": "my paper"}
    assert api(world, "alice", "quota-requests", "POST", more).status_code == 201
    claim = {"kind": "a100", "count": 1, "user": "alice"}
    assert api(world, "admin", "preemptions", "POST", claim).status_code == 201
    reserve = {"what": "reserve", "kind": "a100", "count": 1, "user": "alice", "until": "1d", "reason": "a paper"}
    assert api(world, "admin", "admin/restrictions", "POST", reserve).status_code == 201
    store.outputs.save(OutputRow("first", NOW, "Traceback of alice", shared=False))
    world.call(
        make_token, world.parts, Login("secret", "BCDF-GHJK", "laptop", admin=False, at=NOW, user="alice"), ALICE
    )
    store.outbox.add([OutboxRow("m1", NOW, "user", "", {"user": "alice", "kind": "x", "title": "t", "text": "t"})])
    later(world, 2, 3)
    world.call(store_counters, world.parts)  # as every ten seconds
    return world


def run(world, monkeypatch, capsys, *arguments, name="admin", code=0):  # noqa: F811
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token(name))
    assert main([*arguments, "--url", world.home]) == code
    return "".join(capsys.readouterr())


def everything(world):  # noqa: F811
    """Return every row of the store as text, but for the audit of what is tested."""
    with world.parts.store._transaction() as connection:
        return {
            table.name: [str(tuple(row)) for row in connection.execute(table.select())]
            for table in tables.metadata.sorted_tables
        }


def forget(world, status=201, **more):  # noqa: F811
    return api(world, "admin", "stored/forget", "POST", {"user": "alice", "why": "left", **more}, status=status).json()


def test_each_table_with_personal_data_has_a_section(lived):
    named = {table.name for table in tables.metadata.sorted_tables} - NOT_PERSONAL
    assert named <= {*_SECTIONS}


def test_the_export_has_every_entry_and_no_secret(lived, monkeypatch, capsys):
    found = api(lived, "alice", "stored").json()
    rows = {one["name"]: one["rows"] for one in found["sections"]}
    expected = {
        "leases", "readings", "outputs", "audit", "ledger", "usage_sums", "team_sums", "quota_grants", "presets",
        "schedules", "tokens", "quota_requests", "inbox_read",
    }  # fmt: skip
    assert expected <= rows.keys()
    assert [row["id"] for row in rows["leases"]] == ["first"]
    assert len(rows["ledger"]) == 2, "the use and the correction"
    assert "hash" not in rows["tokens"][0]
    assert "token_hash" not in rows["leases"][0]["document"]
    assert "bob" not in json.dumps(found)
    printed = json.loads(run(lived, monkeypatch, capsys, "export-me", name="alice"))
    assert printed["sections"] == found["sections"]
    assert json.loads(run(lived, monkeypatch, capsys, "admin", "export", "alice"))["sections"] == found["sections"]
    line = lived.parts.store.audit_log.latest()[0]
    assert (line.user, line.actor) == ("alice", "admin")
    assert isinstance(line.event, PersonExported)


def test_the_page_says_what_is_stored_and_for_how_long_and_gives_the_file(lived):
    browser = Browser(lived, "alice")
    assert 'href="/services/gpu/stored"' in browser.look("").text
    page = browser.look("stored").text
    assert "What is stored about you" in page
    assert "400 d after the end" in page
    assert browser.get(f"{lived.home}stored.json").json()["user"] == "alice"


def test_only_administrators_see_or_forget_others(lived):
    for who in ("bob", "lena", "otto", "vera"):
        assert api(lived, who, "stored?user=alice").status_code == 403
        assert api(lived, who, "stored/forget", "POST", {"user": "alice", "why": "x"}).status_code == 403
    lived.created["nobody"] = None
    assert "a user with stored data" in api(lived, "admin", "stored?user=nobody").text


@pytest.mark.parametrize("how", ["pseudonymise", "delete"])
def test_a_forgotten_person_is_nowhere_and_all_sums_are_as_they_were(lived, how):
    before, closed = everything(lived), statement(lived)
    usage = api(lived, "admin", "usage?by=team&all=1&since=2027-01-01").json()
    preview = forget(lived, 200, how=how, dry_run=True)
    assert everything(lived) == before, "a dry run changes nothing"
    done = forget(lived, how=how)
    assert done == {**preview, "dry_run": False}
    lived.call(store_counters, lived.parts)
    assert 'user="alice"' not in asked(lived, "metrics/people").text
    after = everything(lived)
    after["idempotency_keys"] = []
    for table, rows in after.items():
        assert [row for row in rows if "alice" in row.lower()] == [], table
    assert api(lived, "admin", "usage?by=team&all=1&since=2027-01-01").json()["rows"] == usage["rows"]
    shown = statement(lived)
    assert shown["total"] == closed["total"]
    assert {line["member"] for line in shown["lines"]} == {"bob", done["pseudonym"]}
    becomes = {one["title"]: one["becomes"] for one in done["sides"]}
    assert becomes["Charges"] == "kept under the pseudonym"
    assert becomes["Presets"] == becomes["Schedules"] == becomes["Logged-in machines"] == "deleted"
    assert (becomes["Workspaces"] == "deleted") is (how == "delete")
    assert len(after["leases"]) == (1 if how == "delete" else 2)
    assert [row for row in after["ledger"] if "bob" in row] == [row for row in before["ledger"] if "bob" in row]
    entry = lived.parts.store.audit_log.latest()[0]
    assert (entry.event, entry.user) == (PersonForgotten(how, done["pseudonym"], "left"), "")
    corrected = [x.event for x in lived.parts.store.audit_log.latest() if isinstance(x.event, UsageCorrected)]
    assert [one.user for one in corrected] == ([done["pseudonym"]])


def test_an_interrupted_act_is_finished_by_sending_it_again(lived):
    rows, pseudonym = lived.parts.store.person_rows, pseudonym_of(lived.parts, ALICE)
    rows.forget_workspaces(StoredPerson(ALICE, "alice", 0.0), pseudonym, deletes=False)
    assert forget(lived)["pseudonym"] == pseudonym
    after = everything(lived)
    assert [row for rows in after.values() for row in rows if "alice" in row.lower()] == []


def test_the_acts_of_an_administrator_are_kept_under_the_pseudonym(lived):
    more = {"what": "10 cost", "team": "vision", "whole_team": True, "until": "3d", "why": "my paper"}
    request = api(lived, "alice", "quota-requests", "POST", more).json()["id"]
    assert api(lived, "admin", f"quota-requests/{request}/decline", "POST", {"why": "no"}).status_code == 200
    claim = {"kind": "a100", "count": 1, "user": "alice"}
    assert api(lived, "admin", "preemptions", "POST", claim).status_code == 201
    begin(lived, "stopped", "bob")
    stop = {"ids": ["stopped"], "reason": "a repair", "now": True}
    assert api(lived, "admin", "admin/workspaces/stop", "POST", stop).status_code == 200
    lived.save(replace(lived.lease("stopped"), phase=Phase.ENDED, ended_at=lived.clock.at))
    assert "stopped by admin" in lived.lease("stopped").message
    done = forget(lived, user="admin")
    assert "stopped by former-" in lived.lease("stopped").message
    rows = everything(lived)
    for table in ("ledger", "quota_grants", "statements", "restrictions", "quota_requests", "preemptions", "leases"):
        assert any(done["pseudonym"] in row for row in rows[table]), table
        assert [row for row in rows[table] if "'admin'" in row] == [], table


def test_a_user_with_a_live_workspace_or_no_data_cannot_be_forgotten(lived):
    begin(lived, "again", "alice")
    assert "Stop them first" in forget(lived, 409)["error"]["message"]
    end(lived, "again")
    forget(lived)
    lived.created["alice"] = None
    assert "a user with stored data" in forget(lived, 400)["error"]["message"]


def test_of_two_users_of_one_name_the_wanted_one_is_forgotten(lived):
    lived.created["alice"] = "2027-02-03T00:00:00.000000Z"  # a new user of the name
    assert "The hub still has this user." in forget(lived, 200, dry_run=True)["note"]
    of_name = {one["title"] for one in forget(lived, 200, dry_run=True)["sides"]}
    assert of_name == {"Metrics", "Messages"}, "what is stored of the earlier user by their creation is not theirs"
    lived.created["alice"] = None
    assert forget(lived, 200, dry_run=True)["sides"] != []
    message = forget(lived, 400, dry_run=True, created="never")["error"]["message"]
    assert "Several users had this name." in message


def test_the_command_and_the_form_show_what_goes_before_it_goes(lived, monkeypatch, capsys):
    out = run(lived, monkeypatch, capsys, "admin", "forget", "alice", "--reason", "left", "--dry-run")
    assert "Nothing was done yet." in out
    assert "  Presets: 1 entry, deleted." in out
    browser = Browser(lived, "admin")
    typed = {"user": "alice", "how": "delete", "why": "left"}
    assert "Presets: 1 entry, deleted" in browser.submit("console/act/forget", **typed, step="look").text
    browser.submit("console/act/forget", **typed, step="do")
    assert "alice" not in str(everything(lived)["leases"])
