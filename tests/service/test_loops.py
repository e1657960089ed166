"""The loops of the service: each goes round, and is known by a name of its own, so that one that hangs is seen."""

import asyncio

from service_world import a_catalog

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.service.app import Options
from gpuspawner.service.loops import cancel_all
from gpuspawner.service.process.service import Service
from gpuspawner.service.settings import Settings


async def test_every_loop_goes_round_and_has_a_name_of_its_own(tmp_path, monkeypatch):
    for name in ("API_URL", "API_TOKEN", "CLIENT_ID", "BASE_URL", "SERVICE_PREFIX", "OAUTH_CALLBACK_URL"):
        monkeypatch.setenv(f"JUPYTERHUB_{name}", "http://127.0.0.1:9/hub/api" if name == "API_URL" else "x")
    url = "http://127.0.0.1:9"
    options = Options(f"sqlite:///{tmp_path / 'x.sqlite'}", b"s" * 32, "1" * 32, url, "t", url, "/gpu/", None)
    service = Service(options, a_catalog(), FakeBackend(), Settings())
    service.parts.store.open()
    tasks = [asyncio.create_task(one) for one in service._loops()]
    await asyncio.sleep(0)
    ended = [task for task in tasks if task.done()]
    await cancel_all(tasks)
    service.parts.store.close()
    assert ended == []
    named = service._loops_of.names
    assert len(named) == len(set(named)), named
    assert {"Notices.look", "Dcgm.look", "store_counters"} <= set(named)
