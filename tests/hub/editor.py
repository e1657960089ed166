"""The template `editor` of a test's hub is a real Jupyter server, which its own pages and tools need."""

USE = ["custom:gpu:use", "access:services!service=gpu"]
"""The scopes of a token by which people use GPUs."""
SERVER = """
def real_server(spawner):
    if spawner.user_options.get("template") == "editor":
        spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
        spawner.args = ["--allow-root"]


c.Spawner.pre_spawn_hook = real_server
c.Spawner.http_timeout = 120
c.Spawner.environment.update({environment!r})
"""
