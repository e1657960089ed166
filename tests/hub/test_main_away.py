"""The service is away: a GPU waits, work without one does not."""

from harness import eventually


def test_work_without_a_gpu_starts_while_the_service_is_away_and_is_adopted(new_hub):
    hub = new_hub(service_poll=0.3)
    hub.add_user("alice", "bob")
    away = hub.folder / "away"
    away.touch()
    hub.plant(f"import os, time\nwhile os.path.exists({str(away)!r}): time.sleep(0.1)")
    hub.kill_service()
    assert hub.begin("alice", template="cpu").status_code == 202
    assert hub.begin("bob").status_code == 202
    eventually(lambda: (server := hub.server("alice")) and server["ready"], 60, "alice works without a GPU")
    assert not hub.server("bob")["ready"]
    away.unlink()
    lease = hub.until("alice", "running", 60)
    assert lease["adopted"]
    assert lease["gpus"] == []
    assert len(hub.until("bob", "running", 60)["gpus"]) == 1
    hub.stop("alice")  # it carries no lease's id, by which what is left is found and ended
    eventually(lambda: hub.server("alice") is None, 60, "alice's server has ended")
