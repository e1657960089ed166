"""The main job with its store on PostgreSQL: a start, a warning, a stop, while the service is killed between."""

from databases import Database


def test_a_workspace_starts_is_warned_and_stopped_though_the_service_is_killed_between(new_hub):
    database = Database.postgresql()
    store = {"store": database.url, "store_password_file": str(database.password_file)}
    hub = new_hub(gpus=1, idle="2m", grace="10m", sample="20s", fast=20, service_poll=0.3, given=store)
    hub.add_user("ada")
    assert hub.begin("ada").status_code in {201, 202}
    lease = hub.until("ada", "running")
    hub.kill_service()
    warned = hub.until("ada", "reclaiming")
    hub.kill_service()
    ended = hub.until_ended("ada", "idle")
    assert warned["id"] == ended["id"] == lease["id"]
    said = [row[0] for row in database.run("SELECT action FROM audit ORDER BY number")]
    assert [said.count(one) for one in ("granted", "warned", "stop")] == [1, 1, 1], said
    assert database.run("SELECT number > 2 FROM meta WHERE name = 'epoch'") == [(True,)]
    assert not list((hub.folder / "gpu").glob("*.sqlite*"))
    assert (hub.folder / "gpu" / "store-address").read_text() == f"{database.url}\n"
    password = database.password_file.read_text()
    assert password not in hub.log.read_text()
    database.close()
