"""Templates, policies and quotas that are custom resources, over a fake cluster: in force, told, and kept."""

import json
import os
import time
from dataclasses import replace

import pytest
import yaml
from service_world import POLICY

from gpuspawner.backends.custom_resources.base import Resource
from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.custom_resources.entries import Entries
from gpuspawner.service.rules.catalog_reload import reload_of

FILE = {
    "version": 1,
    "gpus": {"a100": {"title": "A100 80 GB", "match": "*A100*", "memory": "80GiB"}},
    "templates": {"pytorch": {"gpus": {"a100": "1-8"}, "default": {"lifetime": "8h"}}},
    "policies": {"default": POLICY},
}
BIG = {"gpus": {"a100": "2"}, "default": {"lifetime": "8h"}}


class Cluster:
    """The seam's fake: entries by name."""

    def __init__(self):
        self.there, self.told, self.is_going, self.trouble = {}, 0, False, ""

    def apply(self, name, spec, section="templates"):
        before = self.there.get(name) or Resource(name, f"uid-{name}", "1", name, generation=0, section=section)
        self.there[name] = replace(before, spec=spec, generation=before.generation + 1)

    def status(self, name):
        return self.there[name].status

    async def entries(self):
        if self.trouble:
            raise Unavailable(self.trouble)
        return tuple(self.there.values())

    async def going(self, *, entries):
        assert entries
        return self.is_going

    async def tell(self, resource, status):
        self.told += 1
        self.there[resource.name] = replace(self.there[resource.name], status=json.loads(json.dumps(status)))


class Service:
    """A world whose catalog is a file and what a cluster adds to it."""

    def __init__(self, world, path):
        self.world, self.path, self.cluster = world, path, Cluster()
        self.write(FILE)
        self.world.catalog = CatalogFile(path)
        self.world.boot()
        self._follow()

    def _follow(self):
        parts = self.world.parts
        entries = Entries(parts.in_force, self.cluster, parts.clock, parts.store)
        self.reload = reload_of(replace(parts, entries=entries))

    def write(self, catalog):
        self.path.write_text(yaml.safe_dump(catalog, sort_keys=False))
        at = time.time() - 60
        os.utime(self.path, (at, at))

    async def restart(self):
        """Restart the service. It reads the cluster's entries before it judges any request, as Service.run does."""
        self.world.catalog = file = CatalogFile(self.path)
        parts = replace(self.world.parts, in_force=file)
        parts.allocator.in_force = file
        entries = Entries(file, self.cluster, parts.clock, parts.store)
        await reload_of(replace(parts, entries=entries)).first()
        self.world.boot()
        self._follow()

    @property
    def templates(self):
        return list(self.world.parts.catalog.templates)


@pytest.fixture
def service(make_world, tmp_path):
    return Service(make_world(), tmp_path / "catalog.yaml")


async def test_an_applied_entry_is_in_force_and_its_status_is_written_once(service):
    service.cluster.apply("big", BIG)
    service.cluster.apply("night", {"mode": "warn"}, "policies")
    assert await service.reload.look()
    assert service.templates == ["pytorch", "big"]
    status = service.cluster.status("big")
    assert (status["phase"], status["observedGeneration"], status["inForce"]) == ("InForce", 1, BIG)
    assert [(one["type"], one["status"]) for one in status["conditions"]] == [("InForce", "True")]
    lease = await service.world.start("ada", template="big", count=2)
    assert service.world.phase(lease) is not Phase.ENDED
    service.world.clock.advance(100.0)
    assert not await service.reload.look()
    assert service.cluster.told == 2


async def test_a_valid_entry_is_passed_on_and_an_invalid_one_keeps_the_old_version(service):
    service.cluster.apply("big", BIG)
    service.cluster.apply("bad", {"gpus": {"a10": 1}})
    await service.reload.look()
    service.cluster.apply("big", {"gpus": {"a10": 1}})
    await service.reload.look()
    (used,) = service.world.parts.in_force.used
    assert (used.section, used.name, used.spec) == ("templates", "big", BIG)


async def test_an_invalid_entry_names_its_error_and_the_old_one_stays_over_a_restart(service):
    service.cluster.apply("big", BIG)
    await service.reload.look()
    waits = await service.world.start("ada", template="big", count=2)
    service.cluster.apply("big", {"gpus": {"a10": 1}})
    await service.reload.look()
    for _ in range(2):
        status = service.cluster.status("big")
        said = "The one before stays in force. spec.gpus.a10: no GPU kind is called `a10`."
        assert status["message"].startswith(said)
        assert (status["phase"], status["observedGeneration"], status["inForce"]) == ("Refused", 2, BIG)
        assert list(service.world.parts.catalog.templates["big"].gpus) == ["a100"]
        assert service.world.phase(waits) is not Phase.ENDED, service.world.now_of(waits).message
        await service.restart()
        await service.reload.look()
    service.cluster.apply("big", BIG)
    await service.reload.look()
    assert service.cluster.status("big")["phase"] == "InForce"


async def test_an_always_invalid_entry_and_a_name_of_the_file_are_refused_alone(service):
    service.cluster.apply("pytorch", BIG)
    service.cluster.apply("bad", {"gpus": {"a10": 1}})
    service.cluster.apply("big", BIG)
    await service.reload.look()
    assert service.templates == ["pytorch", "big"]
    assert "the catalog's file has one of this name, which stays" in service.cluster.status("pytorch")["message"]
    assert "inForce" not in service.cluster.status("bad")
    assert service.cluster.status("bad")["conditions"][0]["status"] == "False"


async def test_a_deleted_entry_ends_waiting_requests_unless_all_entries_vanish(service, caplog):
    service.cluster.apply("big", BIG)
    await service.reload.look()
    await service.world.up("eve", count=2)
    waits = await service.world.start("ada", template="big", count=2)
    there, service.cluster.there = service.cluster.there, {}
    service.cluster.is_going = True
    assert not await service.reload.look()
    service.cluster.trouble = "DevGPUVMTemplates are not seen."
    for _ in range(2):
        assert not await service.reload.look()
    assert service.world.phase(waits) is Phase.QUEUED
    assert [one.getMessage() for one in caplog.records if "not seen" in one.getMessage()] == [
        "DevGPUVMTemplates are not seen. The catalog stays as it is."
    ]
    service.cluster.trouble, service.cluster.is_going, service.cluster.there = "", False, there
    assert not await service.reload.look()
    service.cluster.there = {}
    assert await service.reload.look()
    assert service.templates == ["pytorch"]
    assert service.world.phase(waits) is Phase.ENDED


async def test_a_starting_service_waits_for_the_entries_of_the_cluster(service, monkeypatch):
    service.cluster.apply("big", BIG)
    await service.reload.look()
    waits = await service.world.start("ada", template="big", count=2)
    service.cluster.trouble = "The cluster does not answer."

    async def later(seconds):
        service.cluster.trouble = ""

    monkeypatch.setattr("gpuspawner.service.custom_resources.entries.asyncio.sleep", later)
    await service.restart()
    assert service.templates == ["pytorch", "big"]
    assert service.world.phase(waits) is not Phase.ENDED


async def test_a_status_has_8_kib_at_most(service):
    wrong = {f"wrong-{number}": "x" * 30 for number in range(90)}
    service.cluster.apply("big", {"description": "ö" * 1300, **BIG})
    await service.reload.look()
    service.cluster.apply("big", wrong)
    await service.reload.look()
    status = service.cluster.status("big")
    assert status["phase"] == "Refused"
    assert len(json.dumps(status).encode()) < 8192
