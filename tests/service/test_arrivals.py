"""A workspace that comes while its user is away: claimed, warned of, given back, asked for again."""

import json

import pytest

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.core import events
from gpuspawner.core.administration import Restriction, RestrictionKind
from gpuspawner.core.events import Exempted
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.notifications.messages import message_of
from gpuspawner.service.store import AuditLine
from gpuspawner.service.waiting.presenter import reach_words
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.service.workspaces.warnings import elsewhere

MINUTE, HOUR = 60.0, 3600.0
SSH, EDITOR = "ssh 200", "editor 300"


def reads(world, lease, *soft, percent=0, opened=False):
    """From now on its extension tells of no kernel, and of whether a page was loaded; ``soft`` is what else is seen."""
    gpus, probes = {slot.gpu: percent for slot in lease.slots}, []
    for number in range(300):
        clock = world.clock.now() % 1e6 + 60 * number
        told = {"begin": 1, "pid": 100, "uptime": clock, "kernels": [], "opened": opened, "end": 1}
        lines = [f"kernels 100 {json.dumps(told)}", *soft]
        probes.append(ProbeResult(probe_text(gpus, clock_seconds=clock, holders=list(gpus), soft=lines)))
    world.backend.probes[lease.id] = probes


async def came_while_away(world, user="bob"):
    """A start that waited parked, and that the service has had started."""
    holder = await world.up("holder", count=2)
    waiting = await world.start(user)
    await world.park(waiting)
    await world.hub_stops(holder)
    await world.go_on(4, step=1)
    await world.create(await world.ask(user))
    world.hub.answer(user)
    await world.round()
    lease = world.now_of(waiting)
    assert lease.phase is Phase.RUNNING
    reads(world, lease)
    return lease


@pytest.fixture
def world(make_world):
    return make_world(policy={"claim": "30m"})


async def test_an_absent_user_is_warned_halfway_and_loses_the_gpu(world):
    lease = await came_while_away(world)
    await world.go_on(14 * MINUTE)
    view = world.view(lease)
    assert (view.warning, view.phase) == (None, "running"), "idle for 14 min of 5, and that does not count"
    assert view.arrival.words.startswith("It has been ready since ")
    assert view.idle.words.startswith("idle time counts once it is opened")
    assert view.explained[:2] == [view.arrival.words, f"I{view.idle.words[1:]}."]
    assert not any("a warning comes in" in sentence for sentence in view.explained)
    await world.go_on(2 * MINUTE)
    warned = world.view(lease).warning
    assert (warned.kind, warned.actions) == ("unclaimed", ["keep"])
    assert "nobody has opened it" in warned.text
    assert warned.ends_at == pytest.approx(lease.running_at + 30 * MINUTE, abs=61)
    carol = await world.start("carol", count=2)
    await world.go_on(15 * MINUTE)
    ended = world.now_of(lease)
    assert (ended.phase, ended.reason, ended.ended_by) == (Phase.ENDED, ExitReason.NOBODY_CAME, "gpuspawner")
    told = "In the 30 min since it was ready nobody opened it, connected to it or used its GPU, so its GPU goes to "
    assert ended.message.startswith(told), "true also of who pressed Start, or ran the command, a moment before"
    assert "Asking again joins the end of the queue." in present_workspace(world.parts, ended).end.why
    assert world.did(lease)[-2:] == ["warned nobody came", "stop"]
    again = await world.ask("bob")
    assert again.asked_at > carol.asked_at


@pytest.mark.parametrize(
    ("soft", "more", "words"),
    [
        ((), {"opened": True}, "opened in a browser"),
        ((SSH,), {}, "an SSH session is open"),
        ((EDITOR,), {}, "a VS Code window is open"),
        ((), {"percent": 60}, "GPU 0 at 60 %"),
    ],
)
async def test_a_visit_after_the_warning_keeps_the_workspace_for_a_whole_idle_time(world, soft, more, words):
    lease = await came_while_away(world)
    await world.go_on(20 * MINUTE)
    reads(world, lease, *soft, **more)
    await world.go_on(MINUTE)
    claimed = world.now_of(lease)
    assert (claimed.arrival, claimed.claimed_at) == (None, pytest.approx(world.clock.now(), abs=1))
    assert ("gpuspawner", "came", words) in world.audit(lease)
    assert present_workspace(world.parts, claimed).warning is None
    reads(world, lease, opened=True)
    await world.go_on(4 * MINUTE)
    assert world.phase(lease) is Phase.RUNNING
    await world.go_on(2 * MINUTE)
    assert world.phase(lease) is Phase.RECLAIMING, "it is judged as every workspace"


@pytest.mark.parametrize("mode", ["observe", "warn"])
async def test_without_enforcement_an_unvisited_workspace_starts_ordinary_idle_time(make_world, mode):
    world = make_world(policy={"claim": "30m", "mode": mode})
    lease = await came_while_away(world)
    await world.go_on(29 * MINUTE)
    assert "would warn" not in world.did(lease)
    await world.go_on(14 * MINUTE)
    after = world.now_of(lease)
    assert (after.phase, after.arrival, after.claimed_at, after.unclaimed) == (Phase.RUNNING, None, None, True)
    did = world.did(lease)
    assert ("warned nobody came" in did) == (mode == "warn")
    assert "nobody came yet" in did
    assert after.streak.idle_seconds == pytest.approx(12 * MINUTE, abs=2 * MINUTE), "counted from then"


async def test_without_the_jupyter_extension_nobody_counts_as_absent(world):
    lease = await came_while_away(world)
    world.backend.probes.pop(lease.id)
    await world.go_on(31 * MINUTE)
    after = world.now_of(lease)
    assert (after.phase, after.arrival, after.streak.idle_seconds <= 2 * MINUTE) == (Phase.RUNNING, None, True)
    assert not after.unclaimed
    assert "warned nobody came" not in world.did(lease)


async def test_keep_counts_as_a_visit(world):
    lease = await came_while_away(world)
    await world.go_on(20 * MINUTE)
    await world.parts.actions.keep(world.registry.get(lease.id), "bob")
    await world.go_on(55 * MINUTE)
    kept = world.now_of(lease)
    assert (kept.phase, kept.arrival, kept.keeps_used) == (Phase.RUNNING, None, 1)


@pytest.mark.parametrize("after", [0, 20])
async def test_an_exempt_workspace_needs_no_visit(world, after):
    lease = await came_while_away(world)
    await world.go_on(after * MINUTE)
    now = world.clock.now()
    one = Restriction("r-1", RestrictionKind.EXEMPT, lease.id, "A long download", "admin", now, now + 2 * HOUR)
    made = AuditLine(now, lease.id, "bob", "admin", Exempted("exempt", "train", reason="A long download"))
    await world.parts.restrictions.add([one], lambda write: world.registry.save(audit=[made], others=[write]))
    await world.go_on(HOUR)
    exempt = world.now_of(lease)
    assert (exempt.phase, exempt.arrival, exempt.claimed_at) == (Phase.RUNNING, None, None)
    assert present_workspace(world.parts, exempt).warning is None
    assert world.did(lease).count("nobody came yet") == 1
    assert ("warned nobody came" in world.did(lease)) == bool(after)


async def test_an_outage_of_service_or_hub_does_not_shorten_the_time_to_visit(world):
    lease = await came_while_away(world)
    await world.go_on(20 * MINUTE)
    world.hub.unreachable = "The hub does not answer."
    await world.go_on(MINUTE)
    before = world.now_of(lease).arrival
    await world.go_on(30 * MINUTE)
    assert world.now_of(lease).arrival == before, "nobody could have come"
    world.hub.unreachable = ""
    world.clock.advance(5 * 3600)
    world.boot()
    await world.parts.engine.resume()
    await world.round()
    await world.sample()
    after = world.now_of(lease)
    assert after.phase is Phase.RUNNING
    assert after.arrival.passed_seconds <= before.passed_seconds + 1.5 * MINUTE
    await world.go_on(12 * MINUTE)
    assert world.now_of(lease).reason is ExitReason.NOBODY_CAME


async def test_a_claim_warning_reaches_only_other_workspaces_of_the_same_user(world):
    lease = await came_while_away(world)
    own, others = await world.up("bob", "second", gpu="none"), await world.up("carol", gpu="none")
    [told] = elsewhere(world.parts, own)
    assert told.id == lease.id
    assert told.text.startswith("Your default workspace is ready. Open it, connect by SSH, or use its GPU by ")
    assert elsewhere(world.parts, others) == []
    reads(world, lease, opened=True)
    await world.go_on(MINUTE)
    assert elsewhere(world.parts, own) == []


async def test_a_user_who_waited_on_the_page_need_not_visit(world):
    lease = await world.up("alice")
    assert lease.arrival is None
    reads(world, lease)
    await world.go_on(8 * MINUTE)
    assert world.phase(lease) is not Phase.RUNNING, "idle as ever"


async def test_messages_of_grant_and_warning_say_what_to_do(world):
    holder = await world.up("holder", count=2)
    waiting = await world.start("bob")
    await world.park(waiting)
    await world.hub_stops(holder)
    await world.go_on(2, step=1)
    granted = world.now_of(waiting)
    (turn,) = (
        line for line in world.parts.store.audit_log.latest(waiting.id) if isinstance(line.event, events.Granted)
    )
    told = message_of(world.parts, granted, turn)
    assert told.text.partition("\n")[0].endswith(
        "Open it, connect by SSH, or use its GPU within 30 min, or its GPU goes to the next in line."
    )
    await world.create(await world.ask("bob"))
    world.hub.answer("bob")
    await world.round()
    reads(world, world.now_of(waiting))
    await world.go_on(16 * MINUTE)
    (warned,) = (
        x for x in world.parts.store.audit_log.latest(waiting.id) if isinstance(x.event, events.WarnedNobodyCame)
    )
    message = message_of(world.parts, world.registry.get(waiting.id), warned)
    assert (message.user, message.title) == ("bob", "Your workspace waits for you")
    assert "nobody has opened it" in message.text


@pytest.mark.parametrize(
    ("settings", "known", "words"),
    [
        ({}, None, "A message in your Inbox tells you when it starts."),
        ({"notify_users": "mailto://x/{user}"}, None, "You get a message when it starts."),
        (
            {"notify_users": "mailto://x/{email}"},
            None,
            "You get a message when it starts, if the hub knows your mail address.",
        ),
        ({"notify_users": "mailto://x/{email}"}, "bob@example.org", "You get a message when it starts."),
        ({"notify_users": "mailto://x/{email}"}, "", "A message in your Inbox tells you when it starts."),
    ],
)
async def test_the_page_names_the_messages_that_reach_its_user(make_world, settings, known, words):
    world = make_world(**settings)
    if known is not None:
        world.hub.emails["bob"] = known
        await world.parts.notifier._target("bob")
    assert reach_words(world.parts, "bob", world.key("bob")) == words
    await world.up("bob", "second", gpu="none")
    if words.startswith("Nothing") or "if the hub" in words:
        assert reach_words(world.parts, "bob", world.key("bob")) == "JupyterLab of second tells you when it starts."


async def test_a_command_that_waited_counts_as_one_visit(make_world):
    world = make_world()
    lease = await came_while_away(world)
    for _ in range(2):
        await world.parts.actions.note_arrival(world.now_of(lease), "bob", "waited for on the command line", "here")
    claimed = world.now_of(lease)
    assert (claimed.arrival, claimed.claimed_at) == (None, world.clock.now())
    assert world.did(lease).count("came") == 1
