"""Stronger claims carried out: warned, ended at the time said, kept for the claimant, and in the queue again."""

import contextlib
from dataclasses import replace

import pytest
from service_world import Killed, Life

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.exits import ExitReason, withdrawn
from gpuspawner.core.leases.lease import WAITING, Phase
from gpuspawner.core.queue.preemption import PreemptionState
from gpuspawner.core.rules import Account
from gpuspawner.service.notifications.messages import message_of
from gpuspawner.service.preemption import preemptions
from gpuspawner.service.preemption.claims import present_claim
from gpuspawner.service.preemption.preemptions import new_claim
from gpuspawner.service.workspaces.presenter import present_workspace

PROTECTED, NOTICE = 1800.0, 300.0


def a_claim(world, count=1, **changes):
    asked = {"kind": "a100", "external": "Training job train-77", **changes}
    return new_claim("root", world.clock.now(), count=count, **asked)


async def old(world, user, **options):
    """A workspace that has run for long enough to be ended, at work."""
    lease = await world.up(user, **options)
    world.clock.advance(PROTECTED)
    world.shows(lease, 80)
    await world.round()
    return world.now_of(lease)


def back_of(world, lease):
    return next((x for x in world.registry if x.key == lease.key and x.id != lease.id), None)


async def test_a_victim_is_warned_ended_at_the_time_said_and_waits_again(world):
    alice, bob = await old(world, "alice", count=2), await world.start("bob", count=2)
    made = await world.parts.preemptions.make(a_claim(world, 2))
    warned, at = world.now_of(alice), world.clock.now() + NOTICE
    assert (warned.phase, warned.notice.at, made.ends_at) == (Phase.RUNNING, at, at)
    warning = present_workspace(world.parts, warned).warning
    assert (warning.kind, warning.ends_at, warning.actions) == ("claim", at, [])
    assert warning.text.startswith("Training job train-77 needs 2 A100 80 GB. Your workspace ends at ")
    assert present_workspace(world.parts, warned).explained[0] == warning.text
    assert (
        "(5 min). Save now. Running kernels are lost; files stay. It returns to the queue before later" in warning.text
    )
    await world.go_on(NOTICE - 10, step=10)
    assert world.phase(alice) is Phase.RUNNING
    await world.go_on(20, step=5)
    ended, back = world.now_of(alice), back_of(world, alice)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.MADE_ROOM, "root")
    assert ended.message == "Training job train-77 needs 2 A100 80 GB. Your files are untouched."
    assert (back.phase, back.asked_at, back.request) == (Phase.PARKED, alice.asked_at, alice.request)
    assert back.waiting_since > world.clock.now() - 20
    held = await world.parts.preemptions.get(made.id)
    assert held.state is PreemptionState.HELD
    offer = world.parts.queue.offer("a100")
    assert (offer.free, offer.note, offer.held) == (
        0,
        "2 reserved for a request ahead",
        "2 reserved for a request ahead",
    )
    told = world.view(back).queue
    assert told.sentence.startswith("The free GPUs are reserved for a request with priority. You are ")
    assert world.phase(bob) in WAITING, "what was freed for another is not theirs"
    assert [x for x in world.did(alice) if x == "warned of claim"] == ["warned of claim"]


async def test_victims_stand_before_what_was_asked_after_them_whatever_they_used(world):
    alice, bob = await old(world, "alice", count=1), await old(world, "bob", count=1)
    later = [await world.start(name, count=1) for name in ("carol", "dave")]
    await world.parts.preemptions.make(a_claim(world, 2))
    await world.go_on(NOTICE + 10, step=5)
    line = [back_of(world, alice), back_of(world, bob), *later]
    assert [world.view(x).queue.place for x in line] == [1, 2, 3, 4]


async def test_claimed_or_released_gpus_are_granted_to_waiting_requests_in_order(world):
    alice, bob = await old(world, "alice", count=2), await world.start("bob", count=2)
    made = await world.parts.preemptions.make(a_claim(world, 2))
    await world.go_on(NOTICE + 10, step=5)
    assert (
        await world.parts.preemptions.claimed(await world.parts.preemptions.get(made.id))
    ).state is PreemptionState.CLAIMED
    await world.round()
    assert [back_of(world, alice).phase, world.phase(bob)].count(Phase.RESERVED) == 1


async def test_gpus_already_used_by_an_outside_claimant_are_granted_to_no_other_after_it_says_so(world):
    alice, bob = await old(world, "alice", count=2), await world.start("bob", count=2)
    made = await world.parts.preemptions.make(a_claim(world, 2))
    await world.go_on(NOTICE + 10, step=5)
    for slot in alice.slots:
        world.backend.change_gpu(slot.gpu, foreign=True)  # since the last look
    held = await world.parts.preemptions.get(made.id)
    world.backend.unreachable = "the machine does not answer"
    with pytest.raises(Unavailable):
        await world.parts.preemptions.claimed(held)
    world.backend.unreachable = ""
    assert (await world.parts.preemptions.claimed(held)).state is PreemptionState.CLAIMED
    assert (back_of(world, alice).phase, world.phase(bob)) == (Phase.PARKED, Phase.PARKED)


async def test_a_withdrawn_preemption_spares_and_notifies_the_warned_users(world):
    alice = await old(world, "alice")
    made = await world.parts.preemptions.make(a_claim(world, 2))
    assert world.now_of(alice).notice is not None
    over = await world.parts.preemptions.give_up(made)
    assert (over.state, over.over_at) == (PreemptionState.GIVEN_UP, world.clock.now())
    spared = world.now_of(alice)
    assert (spared.notice, present_workspace(world.parts, spared).warning) == (None, None)
    await world.go_on(NOTICE + 60, step=20)
    assert world.phase(alice) is Phase.RUNNING
    assert [x for x in world.did(alice) if "claim" in x] == ["warned of claim", "claim gone"]
    assert await world.parts.preemptions.give_up(over) == over, "a repeated message"
    with pytest.raises(Conflict, match="This claim is over: it was given up"):
        await world.parts.preemptions.claimed(over)


async def test_nothing_is_claimed_before_it_is_free(world):
    await old(world, "alice")
    made = await world.parts.preemptions.make(a_claim(world, 2))
    with pytest.raises(Conflict, match="Its GPUs are not free yet"):
        await world.parts.preemptions.claimed(made)


async def test_a_repeated_message_evicts_no_second_workspace(world):
    alice, bob = await world.up("alice"), await old(world, "bob")
    first = await world.parts.preemptions.make(a_claim(world, key="once"))
    assert [x.notice is not None for x in map(world.now_of, (alice, bob))] == [False, True], "who runs since the latest"
    again = await world.parts.preemptions.make(a_claim(world, key="once"))
    assert again == first
    await world.round()
    assert world.now_of(alice).notice is None
    assert len(world.parts.preemptions.live) == 1
    with pytest.raises(Conflict, match="This idempotency key was used for another claim"):
        await world.parts.preemptions.make(a_claim(world, 2, key="once"))
    another = await world.parts.preemptions.make(a_claim(world))
    assert world.now_of(alice).notice.preemption == another.id, "a claim of its own takes the other"


async def test_a_claim_that_is_stored_is_no_error_though_its_notices_cannot_be(world, monkeypatch):
    alice = await old(world, "alice", count=2)

    def away(*_arguments):
        raise Unavailable("The store does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(world.parts.store, "save", away)
        made = await world.parts.preemptions.make(a_claim(world))
    assert world.now_of(alice).notice is None
    await world.parts.preemptions.step()
    assert world.now_of(alice).notice.preemption == made.id
    assert [one.id for one in world.parts.preemptions.live] == [made.id]


async def test_a_preview_lists_the_evictions_and_does_none(world):
    alice = await old(world, "alice", count=2)
    await world.sample()
    stands, plan = world.parts.preemptions.preview(a_claim(world, 1))
    assert [x.id for x in plan.victims] == [alice.id]
    view = present_claim(world.parts, stands, plan.victims, dry_run=True).as_json()
    assert view["words"] == "1 A100 80 GB can be had by ending 1 workspace. Nothing was done."
    (victim,) = view["victims"]
    assert (victim["user"], victim["returns"]) == ("alice", True)
    assert victim["loses"] == "Running kernels of 30 min, 200 MiB on its GPUs; files stay."
    assert world.now_of(alice).notice is None
    assert world.parts.preemptions.live == ()


async def test_a_hundred_thousand_gpus_are_refused_after_a_few_looks(world, monkeypatch):
    await old(world, "alice")
    looks, plan = [], preemptions.plan_preemption
    monkeypatch.setattr(preemptions, "plan_preemption", lambda *seen: looks.append(seen) or plan(*seen))
    with pytest.raises(Conflict, match=r"You asked for 100000 A100 80 GB\. At most 2 can be freed now"):
        await world.parts.preemptions.make(a_claim(world, 100_000, one_node=False))
    assert len(looks) < 20


async def test_more_than_can_be_freed_is_refused_with_what_can_be(world):
    await old(world, "alice")
    bob = await world.up("bob")
    with pytest.raises(Conflict) as refused:
        await world.parts.preemptions.make(a_claim(world, 2))
    assert str(refused.value).startswith(
        "You asked for 2 A100 80 GB on one node. At most 1 can be freed now. Other work"
    )
    assert str(refused.value).endswith("Ask for at most 1, or try again later.")
    assert world.now_of(bob).notice is None
    world.backend.complete = False
    await world.parts.scheduler.observe(world.clock.now())
    with pytest.raises(Unavailable, match="not seen at this moment"):
        await world.parts.preemptions.make(a_claim(world))


async def test_while_the_list_of_gpus_is_away_no_other_workspace_is_chosen(world):
    alice, bob = await old(world, "alice"), await old(world, "bob")
    claim = await world.parts.preemptions.make(a_claim(world))
    warned, other = sorted((alice, bob), key=lambda lease: world.now_of(lease).notice is None)
    await world.hide_gpus()
    with pytest.raises(Unavailable, match="not seen at this moment"):
        await world.parts.preemptions.make(a_claim(world))
    await world.registry.save(replace(world.now_of(warned), notice=None))  # it may not end for the claim any more
    world.clock.advance(preemptions.LOOK_SECONDS)
    await world.sample()
    assert [world.now_of(lease).notice for lease in (warned, other)] == [None, None]
    world.show_gpus()
    await world.round()
    await world.sample()
    (again,) = (lease.notice for lease in map(world.now_of, (warned, other)) if lease.notice is not None)
    assert again.preemption == claim.id


async def test_unclaimed_gpus_expire_and_go_to_the_queue(world):
    alice = await old(world, "alice", count=2)
    until = world.clock.now() + 600
    made = await world.parts.preemptions.make(a_claim(world, 2, hold_until=until))
    await world.go_on(590, step=10)
    held = await world.parts.preemptions.get(made.id)
    assert (held.state, back_of(world, alice).phase) == (PreemptionState.HELD, Phase.PARKED)
    await world.go_on(20, step=5)
    assert (await world.parts.preemptions.get(made.id)).state is PreemptionState.LAPSED
    assert back_of(world, alice).phase is Phase.RESERVED


async def test_a_claim_ends_workspaces_at_its_time_and_never_before_the_notice(world):
    alice = await old(world, "alice", count=2)
    now = world.clock.now()
    made = await world.parts.preemptions.make(a_claim(world, ends_at=now + 900))
    assert (made.ends_at, world.now_of(alice).notice.at) == (now + 900, now + 900)
    await world.parts.preemptions.give_up(made)
    soon = await world.parts.preemptions.make(a_claim(world, ends_at=now + 60))
    assert (soon.ends_at, world.now_of(alice).notice.at) == (now + NOTICE, now + NOTICE)


async def test_the_gpus_of_a_user_are_granted_to_their_request_before_others(world):
    alice, bob = await old(world, "alice", count=2), await world.start("bob", count=2)
    carol = Account("", world.hub.add("carol"))
    made = await world.parts.preemptions.make(a_claim(world, 2, external="", account=carol, user="carol"))
    assert world.now_of(alice).notice.why == "Another request needs 2 A100 80 GB."
    await world.go_on(NOTICE + 10, step=5)
    assert world.phase(bob) in WAITING
    await world.parts.allocator.commits.finish(bob, withdrawn("somebody"))  # the order of the queue has its own tests
    await world.parts.allocator.commits.finish(back_of(world, alice), withdrawn("somebody"))
    hers = await world.start("carol", count=2)
    assert hers.phase is Phase.RESERVED
    await world.sample()
    assert (await world.parts.preemptions.get(made.id)).state is PreemptionState.CLAIMED


async def test_another_end_spares_the_warned_workspaces(world):
    alice, bob = await world.up("alice"), await old(world, "bob")
    await world.parts.preemptions.make(a_claim(world))
    assert world.now_of(bob).notice is not None
    await world.hub_stops(world.now_of(alice), "died")
    await world.sample()
    assert world.now_of(bob).notice is None, "alice's GPU is free now"


async def test_a_server_started_after_the_warning_is_not_ended(world):
    alice = await old(world, "alice", count=2)
    made = await world.parts.preemptions.make(a_claim(world, 2))
    await world.hub_stops(world.now_of(alice), "died")
    await world.round()
    again = await world.start("alice", count=2)
    await world.go_on(NOTICE + 10, step=5)
    assert ((await world.parts.preemptions.get(made.id)).state, world.phase(again)) == (
        PreemptionState.HELD,
        Phase.PARKED,
    )


async def test_while_the_hub_is_silent_no_workspace_is_evicted(world):
    alice = await old(world, "alice", count=2)
    await world.parts.preemptions.make(a_claim(world, 2))
    world.hub.unreachable = "away"
    await world.go_on(NOTICE + 60, step=10)
    assert world.phase(alice) is Phase.RUNNING
    world.hub.unreachable = ""
    await world.go_on(30, step=5)
    assert world.now_of(alice).reason is ExitReason.MADE_ROOM


async def test_without_back_in_queue_a_preempted_workspace_ends(make_world):
    world = make_world(policy={"preemption": {"back_in_queue": False}})
    alice = await old(world, "alice", count=2)
    await world.parts.preemptions.make(a_claim(world, 2))
    assert "Start it again when you need it." in world.view(alice).warning.text
    await world.go_on(NOTICE + 10, step=5)
    assert (world.now_of(alice).reason, back_of(world, alice)) == (ExitReason.MADE_ROOM, None)


async def test_mails_about_a_claim_say_what_the_page_says(make_world):
    world = make_world(notify_users="json://127.0.0.1/{user}")
    told = []
    alice = await old(world, "alice", count=2)
    world.registry.on_stored = lambda lease, line: told.append(message_of(world.parts, lease, line))
    made = await world.parts.preemptions.make(a_claim(world, 2))
    await world.parts.preemptions.give_up(made)
    warned, spared = (x for x in told if x)
    assert (warned.user, warned.title) == ("alice", "Your workspace has to make room")
    assert "Save now." in warned.text
    assert "priority, and starts again by itself, and you get a message when it runs." in warned.text
    assert alice.id in warned.text
    assert spared.title == "Your workspace goes on"


@pytest.mark.parametrize("half", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("kill_at", range(9))
async def test_promise_2_no_crash_between_warning_and_end_loses_or_doubles_anything(world, kill_at, half):
    """The service dies before or after each thing that outlives it, at any step from the claim to the end."""
    alice = await old(world, "alice", count=2)
    world.boot(Life(kill_at, half=half))
    await world.round()
    claim = a_claim(world, 2, key="once")
    with contextlib.suppress(Killed):
        await world.parts.preemptions.make(claim)
    await world.go_on(NOTICE + 90, step=30)
    world.boot()
    await world.round()
    await world.parts.preemptions.make(replace(claim, id="again"))  # its answer was lost: it is sent again
    assert len(world.parts.preemptions.live) == 1
    await world.go_on(NOTICE + 90, step=30)
    ended, back = world.now_of(alice), back_of(world, alice)
    assert (ended.reason, back.asked_at, back.phase) == (ExitReason.MADE_ROOM, alice.asked_at, Phase.PARKED)
    assert world.did(alice).count("warned of claim") == 1
    assert world.parts.preemptions.live[0].state is PreemptionState.HELD


async def test_a_notice_whose_claim_is_gone_is_taken_back(world):
    alice = await old(world, "alice", count=2)
    made = await world.parts.preemptions.make(a_claim(world, 2))
    world.parts.store.preemptions.save([replace(made, state=PreemptionState.GIVEN_UP)])
    world.boot()
    await world.round()
    await world.sample()
    assert world.now_of(alice).notice is None


async def test_a_kind_that_left_the_catalog_leaves_its_claims_as_they_stand(world):
    alice = await old(world, "alice", count=2)
    await world.parts.preemptions.make(a_claim(world, 1, kind="half"))
    assert world.now_of(alice).notice is not None
    world.change_catalog(replace(world.catalog, gpus={"a100": world.catalog.gpus["a100"]}))
    await world.round()
    await world.go_on(NOTICE + 10, step=5)
    assert world.now_of(alice).reason is ExitReason.MADE_ROOM
    assert world.parts.preemptions.live[0].state is PreemptionState.HELD


async def test_a_clock_that_went_back_between_two_services_moves_a_claim_with_its_workspaces(world):
    alice = await old(world, "alice", count=2)
    made = await world.parts.preemptions.make(a_claim(world, 2))
    ahead, left = world.now_of(alice).notice.at - made.made_at, made.kept_until - made.made_at
    world.crash()
    world.clock.advance(-3600.0)
    world.boot()
    found, now = await world.parts.preemptions.get(made.id), world.clock.now()
    assert found.made_at <= now
    assert world.now_of(alice).notice.at == found.ends_at == found.made_at + ahead
    assert found.kept_until == found.made_at + left
