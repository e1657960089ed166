"""JupyterHub with GPU workspaces on one machine, to copy. Run it with: jupyterhub -f jupyterhub_config.py.

Workspaces are processes of this machine's users, one trust domain: for one team whose members trust each other.
"""

from pathlib import Path

from gpuspawner.spawner import configure

here = Path(__file__).parent

# Your hub as it is: who signs in, and how a server starts. This is PAM and local processes, JupyterHub's own defaults.
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"admin"}
c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.Spawner.default_url = "/lab"

# Last: it wraps the spawner class that is set above, and starts the GPU service with the hub.
configure(c, catalog=here / "catalog.yaml", data_dir=here / "gpuspawner-data")
