"""Administrator commands over a real service: they print the API's answers and exit with the right code."""

import csv
import io
import json
from dataclasses import replace

import pytest
from page_world import GPUS, NOW, command_fixture, running, waiting

from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.units import show_time

NODE = GPUS[0].node


@pytest.fixture
def world(make_web_world, monkeypatch):
    made = make_web_world()
    made.observe()
    made.save(running("runs", "alice", gpus=(0,)))
    made.save(running("other", "bob", gpus=(1,), server="train"))
    monkeypatch.setattr("time.time", lambda: NOW)
    return made


run = command_fixture("run")


def until(one):
    return show_time(one.until, NOW)


def test_a_node_is_drained_after_a_dry_run_listed_and_lifted(world, run):
    code, out, _ = run("admin", "drain", NODE, "--until", "2h", "--reason", "dust", "--dry-run")
    assert (code, out.splitlines()[0].endswith("Nothing was done yet."), "can move" in out) == (0, True, True)
    assert world.call(world.parts.restrictions.in_force) == ()
    assert run("admin", "drain", NODE, "--until", "2h", "--reason", "dust")[0] == 0
    (one,) = world.call(world.parts.restrictions.in_force)
    assert (one.target, one.until) == (NODE, NOW + 7200)
    assert one.id[:8] in run("admin", "drain", "--list")[1]
    assert json.loads(run("admin", "pause", "--list", "--json")[1])["restrictions"] == []
    code, _, err = run("admin", "drain", "other", "--lift", "--reason", "done")
    assert (code, "There is no drain on 'other'." in err) == (2, True)
    assert run("admin", "drain", NODE, "--lift", "--reason", "done")[1] == f"Ended the drain of {NODE}.\n"
    assert world.call(world.parts.restrictions.in_force) == ()


def test_an_administrator_stops_and_extends_a_workspace_by_its_user_and_server(world, run):
    code, out, _ = run("extend", "alice/-", "--until", "3d", "--reason", "a deadline", "--json")
    assert (code, [one["id"] for one in json.loads(out)["affected"]]) == (0, ["runs"])
    code, out, _ = run("stop", "bob/train", "--reason", "noise", "--json")
    assert (code, [one["id"] for one in json.loads(out)["affected"]]) == (0, ["other"])
    code, _, err = run("stop", "bob/train", name="alice")
    assert (code, "No workspace has the name 'bob/train'" in err) == (2, True)


def test_workspaces_are_named_by_id_or_by_user_and_server_and_moved_together(world, run):
    code, out, _ = run("admin", "move", "runs", "bob/train", "--reason", "noise", "--json")
    assert (code, [x["id"] for x in json.loads(out)["affected"]]) == (0, ["runs", "other"])
    assert world.lease("other").notice.where == "the command line, as administrator"
    code, _, err = run("admin", "move", "bob/none", "--reason", "noise")
    assert (code, "No workspace is called 'bob/none'" in err) == (2, True)


def test_a_user_without_the_right_is_told_the_alternatives(world, run):
    code, _, err = run("stop", "runs", "--reason", "done", name="alice")
    assert (code, "sign in with gpuspawner login --admin." in err) == (2, True)
    assert run("stop", "runs", name="alice")[0] == 0


def test_stop_and_extend_with_a_reason_act_as_administrator(world, run):
    assert "ends" in run("stop", "train", "--reason", "maintenance")[1]
    assert world.lease("other").notice.why == "maintenance"
    assert run("extend", "-", "--until", "3d", "--reason", "a paper")[0] == 0
    assert world.lease("runs").deadline_at == NOW + 3 * 86400
    code, _, err = run("stop", "runs", "--now", name="alice")
    assert (code, "--now is for administrators and needs a reason" in err) == (1, True)
    assert run("stop", "-", "--reason", "mine", name="alice")[0] == 2


class Typed(io.StringIO):
    """A terminal at which this is typed."""

    def isatty(self):
        return True


def test_another_persons_workspace_is_stopped_with_a_reason_and_by_default_with_notice(world, run):
    code, _, err = run("stop", "train")
    assert (code, "bob: train (other) is not yours. Give a reason, which" in err) == (1, True)
    assert (world.lease("other").phase, world.lease("other").notice) == (Phase.RUNNING, None)
    assert run("stop", "train", "--reason", "the node is replaced")[0] == 0
    assert (world.lease("other").phase, world.lease("other").notice.at) == (Phase.RUNNING, NOW + 300)
    assert run("stop", "train", "--reason", "it burns", "--now")[0] == 0
    assert world.lease("other").phase is not Phase.RUNNING
    assert run("stop", "runs", name="alice")[0] == 0, "your own you stop as ever"


def test_a_terminal_is_asked_for_the_reason_and_whether_to_do_it(world, run, monkeypatch):
    monkeypatch.setattr("sys.stdin", Typed("noise\nno\n"))
    code, _, err = run("stop", "train", "--now")
    assert (code, err.splitlines()[-1]) == (2, "Continue? [y/N] Nothing was done.")
    assert "bob: train (other): It ends now. Running kernels are lost; files stay." in err
    assert world.lease("other").phase is Phase.RUNNING
    monkeypatch.setattr("sys.stdin", Typed("noise\ny\n"))
    assert run("stop", "train")[0] == 0
    assert world.lease("other").notice.why == "noise"
    monkeypatch.setattr("sys.stdin", Typed(""))
    assert run("stop", "-")[0] == 1
    assert run("admin", "move", "runs", "--reason", "noise", "--yes")[0] == 0


def test_a_terminal_confirms_a_reservation_first(world, run, monkeypatch):
    asked = ["admin", "reserve", "a100", "1", "--user", "alice", "--from", "1h", "--until", "2h", "--reason", "demo"]
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    code, _, err = run(*asked)
    told = "Alice has 1 A100 80 GB in use until then or longer. It counts. So no other GPU is reserved."
    assert (code, told in err) == (2, True)
    assert world.call(world.parts.restrictions.live) == ()
    monkeypatch.setattr("sys.stdin", Typed("y\n"))
    assert run(*asked)[0] == 0
    (one,) = world.call(world.parts.restrictions.live)
    assert (one.begins_at, one.until, world.call(world.parts.restrictions.in_force)) == (NOW + 3600, NOW + 7200, ())
    assert "  to come  " in run("admin", "reserve", "--list")[1]


def test_a_workspace_that_does_not_run_is_not_extended(world, run):
    world.save(replace(waiting("waits", "alice"), key=Key("hub-1", "alice born", "w")))
    for words in (("extend", "w"), ("extend", "alice/w", "--until", "3d", "--reason", "x")):
        code, _, err = run(*words, name="alice" if len(words) == 2 else "admin")
        assert (code, "does not run, or has no end. There is nothing to extend." in err) == (2, True), err


def test_a_workspace_that_ends_before_a_reservation_does_not_count_for_it(world, run):
    asked = ["admin", "reserve", "a100", "1", "--user", "alice", "--until", "4d", "--reason", "demo", "--dry-run"]
    assert "Alice has 1 A100 80 GB in use. It counts." in run(*asked)[1]
    planned = run(*asked, "--from", "3d")[1]
    assert "is reserved for alice from" in planned
    assert "in use" not in planned


def test_items_that_fail_are_listed_and_the_others_are_done(world, run):
    world.save(waiting("waits", "carol"))
    code, out, _ = run("admin", "move", "runs", "waits", "--reason", "noise")
    assert (code, out.splitlines()[0]) == (2, "1 workspace is moved. 1 can't be.")
    assert "No. It does not run: there is nothing to move." in out
    assert world.lease("runs").notice.moves
    assert run("admin", "move", "other", "waits", "--reason", "noise", "--dry-run")[0] == 0


def test_pause_reserve_and_exempt_make_restrictions(world, run):
    assert run("admin", "pause", "a100", "--reason", "repair")[0] == 0
    assert run("admin", "reserve", "a100", "2", "--user", "bob", "--until", "2h", "--reason", "demo")[0] == 0
    assert run("admin", "exempt", "--user", "alice", "--until", "2h", "--reason", "demo")[0] == 0
    assert run("admin", "exempt", "bob/train", "--until", "2h", "--reason", "demo")[0] == 0
    live = world.call(world.parts.restrictions.in_force)
    assert [(x.measure.value, x.target, x.count, x.whom) for x in live] == [
        ("pause", "a100", 0, ""),
        ("reserve", "a100", 2, "bob"),
        ("exempt", "", 0, "alice"),
        ("exempt", "other", 0, "bob / train"),
    ]
    code, _, err = run("admin", "reserve", "a100", "99", "--user", "bob", "--until", "2h", "--reason", "demo")
    assert (code, "1 to 4" in err) == (2, True)


def test_a_reservation_is_lifted_by_its_listed_name_if_that_is_unambiguous(world, run):
    for_bob = ["--user", "bob", "--until", "2h", "--reason", "demo"]
    assert run("admin", "reserve", "a100", "1", *for_bob)[0] == 0
    assert run("admin", "reserve", "a100", "2", "--user", "alice", "--until", "2h", "--reason", "demo")[0] == 0
    assert run("admin", "exempt", "bob/train", "runs", "--until", "2h", "--reason", "demo")[0] == 0
    live = {one.whom: one for one in world.call(world.parts.restrictions.in_force)}
    code, _, err = run("admin", "reserve", "--lift", "a100", "--reason", "done")
    head, *choices, zone = err.splitlines()
    assert zone.startswith("Times are in UTC")
    assert (code, head) == (
        2,
        "There are 2 called 'a100', or with an ID that begins so. Nothing was done. Write one of these IDs:",
    )
    assert sorted(line.split()[0] for line in choices) == sorted(live[name].id[:8] for name in ("alice", "bob"))
    assert any(line.endswith(f"are reserved for alice until {until(live['alice'])}") for line in choices)
    assert run("admin", "reserve", "--lift", "carol", "--reason", "done")[0] == 2
    assert run("admin", "reserve", "--lift", "bob", "--reason", "done")[1].startswith(
        "Ended the reservation of 1 A100 80 GB for bob."
    )
    assert run("admin", "reserve", "--lift", "a100", "--reason", "done")[0] == 0
    assert run("admin", "exempt", "--lift", "bob/train", "--reason", "done")[0] == 0
    assert run("admin", "exempt", "--lift", "alice/-", "--reason", "done")[0] == 0
    assert world.call(world.parts.restrictions.in_force) == ()


def test_the_audit_is_a_table_csv_and_json_of_the_same_lines(world, run):
    run("admin", "quarantine", GPUS[3].id, "--reason", "=ECC")
    told = json.loads(run("admin", "audit", "--by", "people", "--json")[1])["audit"]
    assert [(x["actor"], x["where"], x["action"]) for x in told] == [
        ("admin", "the command line, as administrator", "quarantined")
    ]
    assert "Put a GPU in quarantine" in run("admin", "audit", "--by", "people")[1]
    table = list(csv.DictReader(io.StringIO(run("admin", "audit", "--by", "people", "--csv")[1])))
    assert [x["target"] for x in table] == [GPUS[3].id]
    run("admin", "drain", "nowhere", "--reason", "x")
    assert "  Refused  " in run("admin", "audit", "--what", "refused")[1]
    assert run("admin", "audit", "--who", "nobody")[1] == "The audit has no such entry.\n"
    assert run("admin", "audit", "--limit", "0")[0] == 1
    assert run("admin", "audit", name="alice")[0] == 2


def test_a_gpu_is_named_as_the_console_does_and_lifted_by_that_name(run):
    place = f"{GPUS[3].node}/{GPUS[3].index}"
    assert run("admin", "quarantine", place, "--reason", "it fell off the bus")[0] == 0
    assert f"No new workspace gets the GPU {place}" in run("admin", "quarantine", "--list")[1]
    assert run("admin", "quarantine", place, "--lift", "--reason", "replaced")[0] == 0
    assert run("admin", "quarantine", "--list")[1] == "There are no restrictions of this kind.\n"


def test_a_terminal_shows_the_conflicts_of_a_reservation_first(world, run, monkeypatch):
    times = ("--from", "1h", "--until", "3h", "--reason", "demo")
    assert run("admin", "reserve", "a100", "3", "--user", "bob", *times)[0] == 0
    monkeypatch.setattr("sys.stdin", Typed("n\n"))
    code, _, err = run("admin", "reserve", "a100", "2", "--user", "alice", *times)
    assert (code, "1 conflict:" in err, "3 A100 80 GB are reserved for bob." in err) == (2, True, True)
    assert "These fit instead:\n  1 A100 80 GB from " in err
    assert len(world.call(world.parts.restrictions.live)) == 1
    weekly = ("--group", "nobody", "--every", "Thu 09:00-11:00", "--until", "20d", "--reason", "demo")
    code, _, err = run("admin", "reserve", "a100", "2", *weekly, "--yes")
    assert (code, "groups of the hub with members" in err) == (2, True)
    code, out, _ = run("admin", "drain", "node-1", "--every", "Thu 09:00", "--reason", "demo", "--dry-run")
    assert (code, out) == (2, "")


def test_planned_reservations_are_listed_for_administrators_and_for_users(world, run):
    assert (
        run("admin", "reserve", "a100", "1", "--user", "bob", "--from", "1h", "--until", "3h", "--reason", "demo")[0]
        == 0
    )
    code, out, _ = run("admin", "reservations")
    assert (code, out.split()[:8]) == (0, ["ID", "FROM", "UNTIL", "FOR", "GPUS", "REPEATS", "REASON", "BY"])
    assert " bob " in out
    code, out, _ = run("calendar", "--days", "2")
    assert (code, "NODE" in out) == (0, False)
    assert (
        run("calendar", "--from", "2027-03-01")[1]
        == "Nothing is reserved, and no maintenance is planned, in these days.\n"
    )
    assert run("calendar", "--from", "never")[0] == 2
