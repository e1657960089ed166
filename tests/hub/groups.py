"""Groups of a real hub, and what one user asks of our API."""

from contextlib import contextmanager

import requests
from harness.hub import RealHub, eventually

MAY_CHANGE_GROUPS = 'c.JupyterHub.load_roles[0]["scopes"].append("admin:groups")'


@contextmanager
def ruled_hub(folder, catalog, *groups, clock=None, **options):
    """A hub with a catalog of rules and these groups, and maybe a clock that the test moves: ``hub.clock``."""
    hub = RealHub(folder, extra=MAY_CHANGE_GROUPS, planted=clock.planted if clock else "", **options)
    hub.clock = clock
    hub.catalog.write_text(catalog)
    try:
        hub.start()
        make_groups(hub, *groups)
        yield hub
    finally:
        hub.close()


def end_all(hub):
    """End every workspace, and wait until all have."""
    for lease in hub.workspaces():
        hub.end(lease["id"])
    eventually(lambda: not hub.workspaces(), what="all have ended")


def make_groups(hub, *groups):
    for group in groups:
        assert hub.api("POST", f"/groups/{group}").status_code == 201


def join(hub, user, *groups):
    hub.add_user(user)
    for group in groups:
        assert hub.api("POST", f"/groups/{group}/users", {"users": [user]}).status_code == 200


def leave(hub, user, group):
    assert hub.api("DELETE", f"/groups/{group}/users", {"users": [user]}).status_code == 200


def token_of(hub, user):
    body = {"scopes": ["custom:gpu:use", "access:services!service=gpu"]}
    return hub.api("POST", f"/users/{user}/tokens", body).json()["token"]


def gpu(hub, token, path, body=None):
    """Return the answer of our API to a user."""
    address = f"{hub.url}/services/gpu/api/v1{path}"
    headers = {"Authorization": f"token {token}"}
    return requests.request("GET" if body is None else "POST", address, headers=headers, json=body, timeout=30)
