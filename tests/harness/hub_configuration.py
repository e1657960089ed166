"""The configuration of the tests' hub: its catalog, its settings, and short times of the service."""

CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
  half: {title: Half an A100, of: a100, shares: 2}
simulated: {a100: %(gpus)d}
templates:
  lab:
    title: Lab
    gpus: {a100: 1-8, half: 1}
    bounds: {cpu: 1-4, memory: 1GiB-8GiB, lifetime: 1s-24h}
    default: {gpu: a100, count: 1, cpu: 1, memory: 1GiB, lifetime: %(lifetime)s}
  cpu:
    title: No GPU
    bounds: {cpu: 1-4, memory: 1GiB-8GiB, lifetime: 1s-24h}
    default: {cpu: 1, memory: 1GiB, lifetime: %(lifetime)s}
policies:
  default:
    mode: enforce
    lifetime: 1s-24h
    idle: {below: 5%%, for: %(idle)s, sample: %(sample)s, grace: %(grace)s}
    keep: {times: 2, each: 1h}
    extend: {each: 1h, total: 3h, warn: [%(warn)s]}
quotas:
  each-user: {each: user, gpus: {hard: %(quota)d}}
"""

CONFIG = """
import sys
sys.path.insert(0, {repo!r})
from jupyterhub.spawner import SimpleLocalProcessSpawner


class TinySpawner(SimpleLocalProcessSpawner):
    cmd = [sys.executable, {tiny!r}]
    home_dir_template = {homes!r}

    async def _slow(self, step):
        import asyncio, os
        delay = {homes!r}.replace("{{username}}", self.user.name) + "." + step
        if os.path.exists(delay):
            await asyncio.sleep(float(open(delay).read()))

    async def start(self):
        await self._slow("before-start")
        url = await super().start()
        await self._slow("after-start")
        return url

    async def stop(self, now=False):
        await self._slow("before-stop")
        await super().stop(now=now)


import jupyterhub.services.service as services


class QuickServiceSpawner(services._ServiceSpawner):
    poll_interval = {service_poll}


services._ServiceSpawner = QuickServiceSpawner

if {fork_server!r}:
    sys.path.append({repo!r} + "/tests")
    from functools import partial
    from harness.fork_server import ForkedProcess
    services.Popen = partial(ForkedProcess, server={fork_server!r})


c = get_config()  # noqa
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.auth_token = "proxy-token"
c.JupyterHub.cleanup_proxy = False
{ends_with_hub}
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"admin"}}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.spawner_class = TinySpawner
c.JupyterHub.slow_spawn_timeout = {slow_spawn_timeout}
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": {slow_spawn_timeout}}}
c.Spawner.http_timeout = 20
c.Spawner.poll_interval = 2
c.Spawner.environment = {{"TINY_HUB_VERSION": __import__("jupyterhub").__version__}}
c.Spawner.consecutive_failure_limit = {failure_limit}
c.JupyterHub.services = [{{"name": "tests", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [{{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "tokens", "custom:gpu:admin", "access:services", "shutdown"]}}]
{extra}
"""

CONFIGURE = """
from gpuspawner.spawner import configure
configure(
    c, catalog={catalog!r}, data_dir="{folder}/gpu", port={service_port}, fast={fast!r}, service_settings={settings!r},
    **{given!r},
)
c.GPUSpawnerMixin.gpu_wait_in_hub_seconds = {wait}
"""

BEFORE_CONFIGURE = """
c.JupyterHub.custom_scopes = {{"custom:gpu:admin": {{"description": "what configure() will define"}}}}
"""

FAST = {
    "listen_seconds": 4.0,
    "reserved_seconds": 6.0,
    "heartbeat_seconds": 8.0,
    "tick_seconds": 0.3,
    "fleet_seconds": 1.0,
    "hub_seconds": 1.0,
    "orphan_seconds": 4.0,
    "stop_retry_seconds": 4.0,
    "back_off_seconds": [1.0, 2.0, 3.0],
}
