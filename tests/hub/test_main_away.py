"""The service is away: a GPU waits, work without one does not."""

import os
import signal

from harness.hub import eventually

SETTINGS = {"service_poll": 0.3, "settings": {"reserved_seconds": 3}}


def test_work_without_a_gpu_starts_while_the_service_is_away_and_is_adopted(shared_hub):
    hub = shared_hub(**SETTINGS)
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


def test_work_that_started_while_the_service_was_frozen_runs_as_asked_and_did_not_fail(shared_hub):
    hub = shared_hub(**SETTINGS)
    hub.add_user("carol")
    (service,) = hub.service_pids()
    os.kill(service, signal.SIGSTOP)
    try:
        assert hub.begin("carol", template="cpu", lifetime="2h").status_code in {201, 202}
        eventually(lambda: (server := hub.server("carol")) and server["ready"], 60, "carol works without a GPU")
    finally:
        os.kill(service, signal.SIGCONT)
    lease = hub.until("carol", "running")
    assert lease["request"]["lifetime_seconds"] == 7200
    assert lease["ends_at"] is not None
    carols = [one["id"] for one in hub.workspaces(ended=10) if one["user"] == "carol"]
    assert carols == [lease["id"]], "no end is told"
