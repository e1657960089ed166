"""Users with passwords, and their teams. Both demos load this file into their hub's configuration."""

import json
import os
import secrets
from pathlib import Path

from jupyterhub.auth import Authenticator

demo = json.loads(os.environ["GPUSPAWNER_DEMO"])  # written by demo/run.py or demo/run_cluster.py
passwords = json.loads(Path(demo["secrets"]).read_text())["passwords"]


class DemoAuthenticator(Authenticator):
    """A password for each demo person, from a file that only the hub's user can read."""

    async def authenticate(self, _handler: object, credentials: dict[str, str]) -> str | None:
        """Return the name if its password is right. Colleagues have no password, so their accounts cannot sign in."""
        password = passwords.get(credentials["username"])
        given = credentials["password"].encode()
        if password and secrets.compare_digest(password.encode(), given):
            return credentials["username"]
        return None


c.JupyterHub.authenticator_class = DemoAuthenticator
c.Authenticator.allowed_users = {"alice", "bob", "carol-demo", "dave-demo"}
c.Authenticator.admin_users = {"admin"}
c.JupyterHub.load_groups = {
    "vision": {"users": ["alice", "carol-demo"]},
    "speech": {"users": ["bob", "dave-demo"]},
}
