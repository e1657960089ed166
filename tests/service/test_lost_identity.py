"""Workspaces of an identity that was lost with ``data_dir``: rebuilt if the pod proves it, otherwise reported."""

import logging
from dataclasses import replace

import pytest
from service_world import SECRET

from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.lease_documents import lease_variables

OLD, NEW, THEIRS = "1" * 32, "2" * 32, "3" * 32
NEW_SECRET = b"n" * 32
HOUR_SECONDS = 3600.0


async def after_a_loss(make_world, hub_id=OLD, *, kept=True, older_seconds=60.0):
    """Another ``data_dir``, an hour later, next to alice's workspace. With ``kept``, the backend knows its age.

    It was made ``older_seconds`` before the new secret.
    """
    old = make_world()
    lease = await old.up("alice")
    new = make_world()
    new.clock, new.hub = old.clock, old.hub
    new.hub.clock.advance(HOUR_SECONDS)
    new.hub_id, new.secret, new.secret_made_at = hub_id, NEW_SECRET, new.clock.now()
    new.boot()
    one = old.backend.running[lease.id, 1]
    kept_since = new.secret_made_at - older_seconds if kept else None
    new.backend.running[lease.id, 1] = replace(one, kept_since=kept_since)
    return new, lease


async def test_promise_2_a_pod_is_measured_again_by_its_hubs_id_alone(make_world):
    world, lease = await after_a_loss(make_world)
    await world.rounds(2)
    rebuilt = world.registry.get(lease.id)
    assert (rebuilt.phase, rebuilt.slots, rebuilt.options) == (Phase.RUNNING, lease.slots, lease.options)
    assert rebuilt.granted_at == lease.granted_at, "its deadline is what it was"
    world.shows(rebuilt, 0)
    await world.go_on(120)
    assert world.streak(rebuilt).idle_seconds > 0
    assert world.parts.engine.observer.orphans.lost_identities == ()


@pytest.mark.parametrize(
    ("which", "what", "remedy"),
    [
        pytest.param({"kept": False}, "another secret", "Restore the file secret", id="its user could have written it"),
        pytest.param({"older_seconds": -1.0}, "another secret", "Restore the file secret", id="newer than the secret"),
        pytest.param({"hub_id": NEW}, OLD, f'configure(hub_id="{OLD}") with a new, empty data_dir', id="another id"),
        pytest.param({"hub_id": NEW, "kept": False}, OLD, "have their users start them again", id="another id, local"),
    ],
)
async def test_an_implausible_identity_is_reported_with_the_remedy_and_not_rebuilt(
    make_world, caplog, which, what, remedy
):
    caplog.set_level(logging.CRITICAL)
    world, lease = await after_a_loss(make_world, **which)
    await world.go_on(900)
    assert world.registry.get(lease.id) is None
    assert (lease.id, 1) in world.backend.running
    (sentence,) = world.parts.engine.observer.orphans.lost_identities
    assert sentence.startswith("1 workspace of this hub runs")
    assert what in sentence
    assert remedy in sentence
    world.backend.vanish(lease.id)
    await world.round()
    assert world.parts.engine.observer.orphans.lost_identities == ()


async def test_another_hub_next_to_ours_is_no_lost_identity(world):
    lease = await world.up("alice")
    elsewhere = replace(lease, id="theirs", key=replace(lease.key, hub=THEIRS, user_created="at another hub"))
    world.backend.run("theirs", 1, lease_variables(elsewhere, b"their secret" * 3))
    await world.round()
    assert world.parts.engine.observer.orphans.lost_identities == ()


@pytest.mark.parametrize("hub", ["", "x", "<script>", "1" * 31, THEIRS + "\n"])
async def test_an_invalid_hub_id_is_never_repeated_to_an_administrator(world, hub):
    lease = await world.up("alice")
    forged = {**lease_variables(replace(lease, id="forged"), SECRET), "GPUSPAWNER_HUB_ID": hub}
    world.backend.run("forged", 1, {**forged, "GPUSPAWNER_LEASE_SIGNATURE": "0f"})
    await world.round()
    assert world.parts.engine.observer.orphans.lost_identities == ()
