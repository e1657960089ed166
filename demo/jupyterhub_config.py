"""The demo's hub: people with passwords, local processes as workspaces, and gpuspawner last."""

import json
import os
import shlex
import sys
from pathlib import Path

from gpuspawner.spawner import configure

demo = json.loads(os.environ["GPUSPAWNER_DEMO"])  # written by demo/run.py
data = Path(demo["data"])

load_subconfig("people_config.py", path=str(Path(__file__).parent))

# Listens on this machine only, on free ports. The hub's database and cookie secret are in its working directory.
c.JupyterHub.bind_url = f"http://127.0.0.1:{demo['port']}"
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{demo['hub_port']}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{demo['proxy_port']}"
# A hub that still starts handles no SIGTERM: it ends at once, and would leave its proxy behind.
with_hub = str(Path(__file__).parent / "processes.py")
c.ConfigurableHTTPProxy.command = [sys.executable, with_hub, "configurable-http-proxy"]
c.JupyterHub.cleanup_servers = True  # Ctrl-C ends everything that the demo started
c.JupyterHub.upgrade_db = True  # a later version finds the data of an earlier one

c.JupyterHub.spawner_class = "simple"
c.JupyterHub.allow_named_servers = True
c.SimpleLocalProcessSpawner.home_dir_template = str(data / "homes" / "{username}")
c.Spawner.default_url = "/lab/tree/demo.ipynb"
c.Spawner.environment = demo["environment"]  # by which a workspace's monitor finds NVIDIA's simulated driver
# By itself JupyterLab's terminal is a login shell, and Debian's /etc/profile takes the workspace's PATH from it.
shell = shlex.quote(os.environ.get("SHELL") or "sh")
c.Spawner.args = [f"--ServerApp.terminado_settings=shell_command={shell}"]
if os.geteuid() == 0:
    c.Spawner.args += ["--allow-root"]

# The scripted colleagues (demo/colleagues.py) may start and use those two's servers, and see what is free.
token = json.loads(Path(demo["secrets"]).read_text())["colleagues_token"]
c.JupyterHub.services = [{"name": "demo-colleagues", "api_token": token}]
c.JupyterHub.load_roles = [
    {
        "name": "demo-colleagues",
        "services": ["demo-colleagues"],
        "scopes": [
            "custom:gpu:use",
            "access:services!service=gpu",
            *(
                f"{scope}!user={user}"
                for user in ("carol-demo", "dave-demo")
                for scope in ("servers", "access:servers")
            ),
        ],
    }
]

configure(
    c,
    catalog=demo["catalog"],
    data_dir=data / "gpuspawner",
    port=demo["service_port"],
    fast=demo["fast"],
)
