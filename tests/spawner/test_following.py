"""The hub judges by what its service says that custom resources add to the catalog, and keeps it over a restart."""

from dataclasses import asdict

import pytest
import yaml

from gpuspawner.catalog.resources.merging import Added
from gpuspawner.core.errors import Unavailable
from gpuspawner.spawner.hub.catalog import follow_catalog

FILE = {
    "version": 1,
    "gpus": {"a100": {"title": "A100 80 GB", "match": "*A100*", "memory": "80GiB"}},
    "templates": {"lab": {"gpus": {"a100": "1-8"}}},
}
BIG = Added("u-1", "templates", "big", {"extends": "lab", "policy": "night"}, "2026-11-26T08:00:00Z")
NIGHT = Added("u-2", "policies", "night", {"idle": {"for": "15m"}}, "2026-11-26T08:00:01Z")


class Service:
    """The answers of the hub's client. None: no answer."""

    def __init__(self, *added, version="1"):
        self.added_now, self.version, self.asked = added, version, []

    async def added(self, known):
        self.asked.append(known)
        if self.version is None:
            raise Unavailable("away")
        told = None if known == self.version else [asdict(one) for one in self.added_now]
        return {"version": self.version, "added": told}


@pytest.fixture(params=["file", "mapping"])
def hub(request, tmp_path):
    """Return a function that starts a hub by the catalog, in one folder."""
    (tmp_path / "catalog.yaml").write_text(yaml.safe_dump(FILE))
    catalog = FILE if request.param == "mapping" else tmp_path / "catalog.yaml"
    (tmp_path / "gpu").mkdir()
    return lambda: follow_catalog(catalog, lambda catalog: (catalog, ()), tmp_path / "gpu")


async def test_an_added_entry_is_read_once_and_kept_over_a_restart_and_an_absent_service(hub):
    first, service = hub(), Service(BIG, NIGHT)
    assert list(first.current().templates) == ["lab"]
    await first.take_added(service)
    assert list(first.current().templates) == ["lab", "big"]
    assert first.current().templates["big"].policy == "night"
    await first.take_added(service)
    assert service.asked == ["", "1"]
    again = hub()
    assert list(again.current().templates) == ["lab", "big"]
    service.version = None
    await again.take_added(service)
    assert list(again.current().templates) == ["lab", "big"]
    service.version, service.added_now = "2", ()
    await again.take_added(service)
    assert list(again.current().templates) == list(hub().current().templates) == ["lab"]


async def test_an_unusable_entry_breaks_no_other_entry(hub):
    broken, clash = Added("u-3", "templates", "broken", {"gpus": {"t4": 1}}), Added("u-4", "templates", "lab", {})
    follower = hub()
    await follower.take_added(Service(broken, clash, BIG, NIGHT))
    assert list(follower.current().templates) == ["lab", "big"]
    assert dict(follower.current().templates["lab"].gpus) != {}


def test_an_unreadable_kept_entry_is_empty(hub, tmp_path):
    for text in ("", "{", "[1]", '[{"uid": 1}]'):
        (tmp_path / "gpu" / "catalog-added.json").write_text(text)
        assert list(hub().current().templates) == ["lab"], text


async def test_without_added_entries_there_is_no_file(hub, tmp_path):
    await hub().take_added(Service())
    assert not (tmp_path / "gpu" / "catalog-added.json").exists()


def test_a_wrong_file_at_a_restart_leaves_the_last_good_catalog_in_force_and_is_strict_at_the_first_start(tmp_path):
    file, data = tmp_path / "catalog.yaml", tmp_path / "gpu"
    data.mkdir()

    def start():
        return follow_catalog(file, lambda catalog: (catalog, ()), data)

    file.write_text("version: 1\ntemplates: {lab: {prize: 1}}\n")
    with pytest.raises(SystemExit, match="the hub does not start with this catalog"):
        start()
    file.write_text(yaml.safe_dump(FILE))
    start()
    file.write_text("version: 1\ntemplates: {lab: {prize: 1}}\n")
    assert list(start().current().templates) == ["lab"]
    assert "unknown key 'prize'" in (data / "catalog-problem").read_text()
    assert list(start().current().templates) == ["lab"], "at the restart after it, too"
    file.write_text(yaml.safe_dump({**FILE, "templates": {"new": {}}}))
    assert list(start().current().templates) == ["new"]
    assert not (data / "catalog-problem").exists()
