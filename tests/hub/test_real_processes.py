"""Behaviour that forked processes hide: the hub of each version and its service start as on a real machine."""

from pathlib import Path

from harness.waiting import eventually


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_real_hub_starts_its_service_which_ends_after_the_hub_is_killed(new_hub, python):
    hub = new_hub(python=python, real=True, gpus=1)
    (service,) = hub.service_pids()
    assert parent_of(service) == hub.hub.pid
    hub.add_user("anna")
    hub.begin("anna")
    assert hub.until("anna", "running")["gpus"]
    hub.kill_hub()
    eventually(lambda: not hub.service_pids(), 30, "the service ends")
