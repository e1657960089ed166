"""Another catalog while all runs: who waits, what runs, what the schedulers serve and what administrators read."""

import os
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from datetime import time as time_of_day

import pytest
import requests
import yaml
from page_world import Browser
from service_world import IDLE_FOR, POLICY

from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.rules.catalog_reload import CatalogReload

GPUS = {
    "a100": {"title": "A100 80 GB", "match": "*A100*", "memory": "80GiB"},
    "half": {"title": "Half an A100", "of": "a100", "shares": 2},
}
PYTORCH = {"gpus": {"a100": "1-8", "half": "1-2"}, "substitutes": {"a100": ["half"]}, "default": {"lifetime": "8h"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.yaml"


def write(path, gpus=GPUS, policy=None, **templates):
    """Write a catalog: as that of the world but for what is given."""
    entries = {
        "version": 1,
        "gpus": gpus,
        "templates": templates or {"pytorch": PYTORCH},
        "policies": {"default": {**POLICY, **(policy or {})}},
    }
    path.write_text(yaml.safe_dump(entries, sort_keys=False))
    at = time.time() - 60
    os.utime(path, (at, at))


@pytest.fixture
def world(make_world, path):
    """A world whose service follows a file."""
    write(path)
    world = make_world()
    world.change_catalog(CatalogFile(path))
    return world


def reload_of(world):
    parts = world.parts
    return CatalogReload(parts.allocator, parts.engine)


def audited(world):
    """Return the audited catalog changes, the oldest first: (actor, address, change, version in force)."""
    lines = [line for line in reversed(world.parts.store.audit_log.latest()) if line.event.name == "catalog changed"]
    return [(line.actor, line.where, line.why, line.target) for line in lines]


async def test_a_change_of_the_catalog_is_in_the_audit_with_the_entries_that_differ(world, path):
    reload, first = reload_of(world), world.parts.in_force.version
    await reload.look()
    write(path, policy={"keep": {"times": 9}}, pytorch=PYTORCH, small={"gpus": {"half": 1}})
    assert await reload.look()
    second = world.parts.in_force.version
    assert audited(world) == [
        ("gpuspawner", "the catalog's file", "the first catalog of this audit log", first),
        ("gpuspawner", "the catalog's file", "templates: added small; policies: changed default", second),
    ]
    await reload.look()
    await reload_of(world).look()  # the service starts again
    assert len(audited(world)) == 2


async def test_a_catalog_that_changed_while_no_service_ran_is_in_the_audit(world, path):
    await reload_of(world).look()
    write(path, pytorch=PYTORCH, small={"gpus": {"half": 1}})
    world.change_catalog(CatalogFile(path))
    await reload_of(world).look()
    told = ("it differs from the one before the service started", world.parts.in_force.version)
    assert audited(world)[-1][2:] == told


async def test_an_unchanged_catalog_changes_nothing(world):
    assert not await reload_of(world).look()


async def test_a_withdrawn_offer_is_reported_and_a_smaller_possible_request_keeps_its_place(world, path):
    await world.up("ada", count=2)
    waits = await world.start("bob", gpu="half", count=2)
    consents = await world.start("eve", gpu="a100", count=1, substitutes="half")
    reload = reload_of(world)
    write(path, pytorch={"gpus": {"a100": "1-8"}})
    assert await reload.look()
    assert world.phase(waits) is Phase.ENDED
    assert "GPU: You asked for 'half'. Allowed: a100" in world.now_of(waits).message
    left = world.now_of(consents)
    assert (left.phase, left.asked_at) == (Phase.QUEUED, consents.asked_at)
    assert left.request.substitutes == ()
    joined = await world.ask("eve", **left.options)
    assert (joined.id, joined.asked_at) == (consents.id, consents.asked_at)


async def test_a_team_that_left_the_catalog_ends_no_wait(world, path):
    await world.up("ada", count=2)
    waits = await world.start("bob", gpu="a100", count=1)
    reload, charged = reload_of(world), world.registry.get(waits.id)
    await world.registry.save(replace(charged, request=replace(charged.request, team="vision")))
    write(path, pytorch={**PYTORCH, "title": "New"})
    assert await reload.look()
    assert world.phase(waits) is Phase.QUEUED


async def test_schedulers_use_the_new_kinds(world, path):
    reload = reload_of(world)
    write(path, {**GPUS, "third": {"of": "a100", "shares": 3}}, pytorch={"gpus": {"third": 1}})
    assert await reload.look()
    assert list(world.parts.scheduler.kinds) == ["a100", "half", "third"]
    assert (await world.start("alice", gpu="third")).phase is not Phase.ENDED
    await world.round()
    (slot,) = world.registry.of_key(world.key("alice")).slots
    assert slot.share * 3 == 1


async def test_a_price_changes_at_midnight_for_workspaces_that_start_and_for_no_other(world, path):
    today = datetime.fromtimestamp(world.clock.now(), timezone.utc).date()
    priced = {**GPUS["a100"], "price": 2, "price_changes": {today + timedelta(days=1): 3}}
    write(path, {**GPUS, "a100": priced}, pytorch={**PYTORCH, "bounds": {"lifetime": "30m-48h"}})
    reload = reload_of(world)
    assert await reload.look()
    first = await world.up("alice")
    assert not await reload.look(), "nothing changes before"
    midnight = datetime.combine(today + timedelta(days=1), time_of_day(), timezone.utc).timestamp()
    world.clock.advance(midnight - world.clock.now())
    assert await reload.look()
    second = await world.up("bob")
    assert [world.registry.get(one.id).rate.price_per_hour for one in (first, second)] == [2, 3]
    restarted = reload_of(world)
    world.parts.in_force.catalog = CatalogFile(path).catalog
    await restarted.first()
    assert world.parts.catalog.gpus["a100"].price_per_hour == 3
    assert world.parts.catalog.gpus["half"].price_per_hour == 1.5


async def test_idle_time_restarts_under_another_policy_and_continues_under_the_same(world, path):
    lease = await world.up("alice")
    await world.go_on(IDLE_FOR - 60)
    before, reload = world.streak(lease), reload_of(world)
    assert before.idle_seconds > 0
    write(path, policy={"keep": {"times": 9, "each": "1h"}})
    assert await reload.look()
    assert world.streak(lease) == before
    write(path, policy={"mode": "warn"})
    assert await reload.look()
    assert world.streak(lease).idle_seconds == 0
    assert world.streak(lease).mode.value == "warn"


async def test_keeps_and_extensions_stay_as_granted_after_a_reload(world, path):
    lease = await world.up("alice")
    reload = reload_of(world)
    write(path, policy={"keep": {"times": 0, "each": "5m"}, "extend": {"each": "5m", "total": "5m"}})
    assert await reload.look()
    kept = await world.parts.actions.keep(world.registry.get(lease.id), "alice")
    assert kept.kept_until - world.clock.now() == 3600, "an hour, as it was granted"
    extended = await world.parts.actions.extend(world.registry.get(lease.id), "alice")
    assert extended.deadline_at - lease.deadline_at == 3600
    later = await world.up("bob")
    moved = await world.parts.actions.extend(world.registry.get(later.id), "bob")
    assert moved.deadline_at - later.deadline_at == 300
    world.boot()
    assert world.registry.get(lease.id).terms == lease.terms, "and over a restart"


async def test_promise_2_a_reload_that_could_not_be_stored_is_repeated(world, path):
    await world.up("ada", count=2)
    waits = await world.start("bob", gpu="half", count=2)
    reload, save = reload_of(world), world.parts.store.save

    def refuse(*_arguments, **_more):
        raise Unavailable("The disk is full.")

    world.parts.store.save = refuse
    write(path, pytorch={"gpus": {"a100": "1-8"}})
    with pytest.raises(Unavailable):
        await reload.look()
    world.parts.store.save = save
    assert await reload.look()
    assert world.phase(waits) is Phase.ENDED


async def test_an_invalid_catalog_changes_nothing(world, path):
    waits, reload = await world.start("bob"), reload_of(world)
    path.write_text("version: 1\ntemplates: {pytorch: {gpus: {a10: 1}}}\n")
    os.utime(path, (0, 0))
    assert not await reload.look()
    assert list(world.parts.catalog.gpus) == ["a100", "half"]
    assert world.phase(waits) is not Phase.ENDED


def metric(world):
    answer = requests.get(f"{world.home}metrics", headers={"Authorization": f"token {world.token('prometheus')}"})
    return [line for line in answer.text.splitlines() if line.startswith("gpuspawner_catalog_reload_success")]


def test_only_administrators_see_an_invalid_catalog_with_file_and_line(make_web_world, path):
    write(path)
    world = make_web_world(CatalogFile(path))
    world.observe()
    assert metric(world) == ["gpuspawner_catalog_reload_success 1.0"]
    path.write_text("version: 1\ntemplates: {pytorch: {gpus: {a10: 1}}}\n")
    os.utime(path, (0, 0))
    assert not world.call(reload_of(world).look)
    told = f"{path}:2: templates.pytorch.gpus.a10: no GPU kind is called `a10`"
    page = Browser(world, "admin").look("console/").text
    assert "The catalog was changed and cannot be used. The previous one stays in force." in page
    assert told in page
    assert told not in Browser(world, "alice").home.text
    assert metric(world) == ["gpuspawner_catalog_reload_success 0.0"]
    write(path)
    world.call(reload_of(world).look)
    assert "cannot be used" not in Browser(world, "admin").look("console/").text
