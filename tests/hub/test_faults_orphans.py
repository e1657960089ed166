"""A process lives although the hub forgot it: its GPU counts as used until the engine has ended it."""

import sqlite3

from harness.hub import eventually

QUICK = {"slow_spawn_timeout": 0.3}
ACCEPTED = {201, 202}


def run(hub, *users):
    hub.add_user(*users)
    for user in users:
        assert hub.begin(user).status_code in ACCEPTED
    return [hub.until(user, "running") for user in users]


def restart_with_a_hub_that_forgot(hub):
    """As after a restored backup: the hub's database knows no running server."""
    hub.kill_hub()
    database = sqlite3.connect(hub.folder / "hub.sqlite")
    with database:
        database.execute("UPDATE spawners SET server_id = NULL, state = '{}', started = NULL")
    database.close()
    hub.start_hub()


def test_process_that_the_hub_forgot_counts_as_use_and_is_ended_after_two_sightings(new_hub):
    hub = new_hub(gpus=1, settings={"orphan_seconds": 4}, **QUICK)
    (anna,) = run(hub, "anna")
    restart_with_a_hub_that_forgot(hub)
    assert hub.server("anna") is None
    hub.add_user("ben")
    eventually(lambda: hub.begin("ben").status_code in ACCEPTED)
    ben = hub.until("ben", "queued")
    assert hub.server_pids(anna["id"]), "one sighting ends nothing"
    end = hub.until_ended("anna", "orphaned")
    assert (end["id"], end["end"]["by"]) == (anna["id"], "gpuspawner")
    assert end["end"]["at"] - ben["asked_at"] > 2, "two sightings, and not one"
    assert not hub.server_pids(anna["id"])
    assert hub.until("ben", "running")["granted_at"] >= end["end"]["at"]
    assert len(hub.audit(anna["id"], "stop")) == 1


def test_start_before_a_forgotten_process_is_ended_ends_it_first(new_hub):
    hub = new_hub(gpus=1, settings={"orphan_seconds": 300}, **QUICK)
    (anna,) = run(hub, "anna")
    (old,) = hub.server_pids()
    restart_with_a_hub_that_forgot(hub)
    eventually(lambda: hub.begin("anna").status_code in ACCEPTED)
    again = eventually(lambda: (lease := hub.lease("anna"))["id"] != anna["id"] and lease)
    again = hub.until("anna", "running")
    end = hub.until_ended("anna", "orphaned")
    assert end["id"] == anna["id"]
    assert again["granted_at"] >= end["end"]["at"]
    (new,) = hub.server_pids()
    assert new != old
    assert hub.server_pids(again["id"]) == [new]
