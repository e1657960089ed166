"""Adopting a hub that runs with JupyterHub's default, by which a restart ends its servers: the documented way."""

from harness.hub import eventually

from gpuspawner.adoption.doctor.hub_checks import running_hubs


def ends_servers(hub):
    """Return ``ends_servers`` of this hub as init and doctor read it."""
    return next(one.ends_servers for one in running_hubs() if one.pid == hub.hub.pid)


def test_a_hub_that_is_stopped_by_its_api_leaves_its_servers_and_the_next_one_has_them(new_hub):
    hub = new_hub(configured=False)
    assert ends_servers(hub) is True
    hub.add_user("alice")
    hub.begin("alice")
    server = hub.api("GET", "/users/alice").json()["servers"][""]
    assert hub.api("POST", "/shutdown", {"servers": False}).status_code == 202
    hub.hub.wait(30)
    hub.configured = True
    hub.start_hub()
    assert ends_servers(hub) is False
    found = hub.api("GET", "/users/alice").json()["servers"][""]
    assert (found["ready"], found["started"]) == (True, server["started"]), "it was not started again"
    hub.stop("alice")  # nobody else ends it now
    eventually(lambda: hub.server("alice") is None)
