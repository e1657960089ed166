"""Messages outside the pages: who is told what, once; and what becomes of targets that are slow, broken or secret."""

import asyncio
from dataclasses import replace

import pytest
from harness.waiting import until
from prometheus_client import CollectorRegistry

from gpuspawner.core import events
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.exits import Exit, ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.steps import note_near_start
from gpuspawner.service.administration.problems import find_problems
from gpuspawner.service.loops import cancel_all
from gpuspawner.service.metrics.collector import ServiceCollector
from gpuspawner.service.notifications import sender as notifier
from gpuspawner.service.notifications.sender import GIVEN_UP_SECONDS, Message, check_targets
from gpuspawner.service.settings import Settings, SettingsError

SECRET = "s3cret-of-the-hook"
HOUR = 3600.0


@pytest.fixture
async def sending():
    """Run a world's notifier, as the service does outside its rounds."""
    tasks = []

    def send(world):
        tasks.append(asyncio.create_task(world.parts.notifier.run()))
        return world.parts.notifier

    yield send
    await cancel_all(tasks)


@pytest.fixture
async def world(make_world, mailbox, webhook, sending):
    """Users by mail, administrators by webhook."""
    made = make_world(notify_users=mailbox.address("{user}@example.org"), notify_admins=(webhook.address(SECRET),))
    sending(made)
    return made


def counts(world):
    registry = CollectorRegistry()
    registry.register(ServiceCollector(world.parts))
    samples = [s for f in registry.collect() if f.name == "gpuspawner_notifications" for s in f.samples]
    return {s.labels["result"]: s.value for s in samples if s.value}


def waiting(world):
    """How many messages wait in the store."""
    return world.parts.store.outbox.count_waiting()


async def put(world, *messages):
    """Store messages, and have them sent."""
    rows = [row for message in messages for row in world.parts.notifier.rows_of(message)]
    await world.parts.store.write(world.parts.store.outbox.add, rows)
    world.parts.notifier.wake()


async def answer(world, lease):
    """Do something that the user of a lease is told of."""
    await world.registry.save(lease, audit=[world.allocator.commits.line(lease, "root", events.Answered("Yes."))])


def page(world, lease):
    return f"{world.parts.public_url}/workspaces/{lease.id}"


async def test_an_idle_workspace_s_user_is_warned_by_mail_and_told_of_its_end(world, mailbox):
    lease = await world.up("ann")
    world.shows(lease, 0)
    await world.go_on(7 * 60)
    assert world.now_of(lease).phase is Phase.RECLAIMING
    await until(lambda: mailbox.received("ann@example.org"))
    await world.go_on(5 * 60)
    await until(lambda: len(mailbox.received("ann@example.org")) == 2)
    (warned, text), (ended, why) = mailbox.received("ann@example.org")
    assert (warned, ended) == ("Your workspace is idle", "Your workspace was ended")
    assert "The GPU has been idle for 5 min" in text
    assert "Its page shows what you can do. Opening the page changes nothing." in text
    assert page(world, lease) in text
    assert "We stopped it because its GPU was idle for" in why
    assert page(world, lease) in why
    await until(lambda: counts(world) == {"sent": 2})  # the mail is there before its answer is


async def test_warnings_are_mailed_without_messages_about_starts(world, mailbox):
    first, second = await world.up("bob", count=2), await world.start("ann")
    world.parts.store.preferences.set_start_mail(second.key.owner, wanted=False)
    world.allocator.registry.note_heard(second.id, 0.0)
    await world.go_on(120)
    await world.hub_stops(world.registry.get(first.id))
    await world.go_on(5, step=1)
    assert world.phase(second) is Phase.RESERVED
    await put(world, Message(second.id, "ann", "idle", "A warning", "It is idle."))
    await until(lambda: mailbox.received("ann@example.org"))
    assert [subject for subject, _ in mailbox.received("ann@example.org")] == ["A warning"]
    world.parts.store.preferences.set_start_mail(second.key.owner, wanted=True)
    await put(world, Message(second.id, "ann", "start near", "It starts", "Now."))
    await until(lambda: len(mailbox.received("ann@example.org")) == 2)


async def test_a_coming_end_is_mailed_once_despite_restarts(world, mailbox, sending):
    lease = await world.up("ann", lifetime="2h")
    world.shows(lease, 80)

    def told():
        return [subject for subject, _ in mailbox.received("ann@example.org")]

    await world.go_on(1.6 * HOUR)
    await until(lambda: len(told()) == 1 and waiting(world) == 0)  # it is noted a moment after it is sent
    world.boot()
    sending(world)
    await world.go_on(120)
    assert waiting(world) == 0
    assert (counts(world), len(told())) == ({}, 1)


async def test_each_threshold_is_notified_and_an_extended_deadline_again(world, mailbox):
    lease = await world.up("ann", lifetime="2h")
    world.shows(lease, 80)
    await world.go_on(1.9 * HOUR)
    await until(lambda: len(mailbox.mails) == 2)
    await world.parts.actions.extend(world.now_of(lease), "ann")
    await world.go_on(HOUR)
    await until(lambda: len(mailbox.mails) == 4)
    subjects = [subject for subject, _ in mailbox.received("ann@example.org")]
    assert sorted(subjects) == [f"Your workspace ends in {left}" for left in ("10 min", "10 min", "30 min", "30 min")]
    assert "The run time of this workspace ends at" in mailbox.received("ann@example.org")[0][1]


async def test_a_queue_grant_is_mailed_once_to_users_who_do_not_wait_on_the_page(world, mailbox):
    holders = [await world.up(name) for name in ("ann", "bob")]
    lease = await world.start("cleo")
    await world.go_on(60)
    assert world.now_of(lease).phase is Phase.PARKED
    world.hub.forget("cleo")
    await world.hub_stops(holders[0])
    await world.go_on(5)
    await until(lambda: mailbox.received("cleo@example.org"))
    await world.go_on(10 * 60)  # its start is dropped, and granted again
    assert world.did(lease).count("granted") > 1
    mails = mailbox.received("cleo@example.org")  # after its third try it may have ended meanwhile, which is told too
    ((_, text),) = [mail for mail in mails if mail[0] == "Your workspace starts now"]
    assert "Got 1 simulated A100 80 GB; starting. It starts by itself" in text


async def test_a_start_that_is_near_is_mailed_once_to_users_who_asked_some_time_ago(world, mailbox):
    for name in ("ann", "bob"):
        world.shows(await world.up(name), 80)
    lease = await world.start("cleo", "train")
    await world.go_on(60)

    def tell(in_seconds):
        step = note_near_start(world.now_of(lease), in_seconds, world.clock.now())
        return None if step is None else world.allocator.commits.commit(world.now_of(lease), step)

    assert tell(60) is None, "its user has just read it on the page"
    await world.go_on(600)
    assert world.now_of(lease).phase is Phase.PARKED
    assert tell(601) is None
    await tell(570)
    assert tell(60) is None
    await until(lambda: mailbox.received("cleo@example.org"))
    ((subject, text),) = mailbox.received("cleo@example.org")
    assert subject == "Your workspace starts soon"
    assert "Your workspace (train) starts soon, probably in about 10 min. It starts by itself" in text


async def test_a_persons_message_waits_for_the_previous_one(world, mailbox, monkeypatch):
    slow = asyncio.Event()

    async def held_up(target, message, sent=notifier._sent):
        if message.kind == "granted" and message.user == "ann":
            await slow.wait()
        return await sent(target, message)

    monkeypatch.setattr(notifier, "_sent", held_up)
    for user in ("ann", "bob"):
        for kind in ("granted", "ended"):
            await put(world, Message(f"lease of {user}", user, kind, f"It was {kind}", "Text"))
    await until(lambda: len(mailbox.received("bob@example.org")) == 2)  # the queue has no other request
    assert mailbox.received("ann@example.org") == []
    slow.set()
    await until(lambda: len(mailbox.received("ann@example.org")) == 2)
    assert [subject for subject, _ in mailbox.received("ann@example.org")] == ["It was granted", "It was ended"]


async def test_users_are_notified_of_stops_by_others_and_not_of_their_own(world, mailbox):
    own, others = await world.up("ann"), await world.up("bob")
    await world.parts.engine.begin_stop(
        own.id, Exit(ExitReason.STOPPED, "ann", "It was stopped by ann, from its page.")
    )
    await world.parts.engine.begin_stop(
        others.id, Exit(ExitReason.STOPPED, "root", "It was stopped by root, from its page.")
    )
    await until(lambda: mailbox.received("bob@example.org"))
    assert "root stopped it. Your files are kept." in mailbox.received("bob@example.org")[0][1]
    assert not mailbox.received("ann@example.org")


async def test_a_preemption_that_the_cluster_announces_is_told_at_once(world, mailbox):
    from gpuspawner.core.leases import transitions  # noqa: PLC0415

    lease = await world.up("ann")
    told = transitions.disrupt(lease, "Training job train-77 needs its GPU.", world.clock.now() + 300)
    await world.registry.save(
        told, audit=[world.allocator.commits.line(lease, "cluster", events.Disrupted(told.disruption))]
    )
    await until(lambda: mailbox.received("ann@example.org"))
    ((subject, text),) = mailbox.received("ann@example.org")
    assert subject == "Your workspace is about to be ended"
    assert "Training job train-77 needs its GPU. This workspace ends at" in text
    assert "It returns to the queue before later requests of its priority" in text


async def test_a_target_that_fails_is_counted_and_logged_without_its_secret(world, mailbox, webhook, caplog):
    mailbox.refuses, webhook.status = True, 500
    lease = await world.up("ann")
    await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.EXPIRED, "gpuspawner", "Its lifetime was 8 h."))
    await until(lambda: counts(world) == {"failed": 1})
    line = world.allocator.commits.line(lease, "ann", events.Disputed("No."))
    await world.registry.save(world.now_of(lease), audit=[line])
    await until(lambda: counts(world) == {"failed": 2})
    assert f"no message to ann (ended of {lease.id}, by mailto): refused, or not reached" in caplog.text
    assert f"no message to the administrators (disputed of {lease.id}, by json)" in caplog.text
    assert SECRET not in caplog.text


async def test_a_target_that_hangs_holds_up_no_other_message(make_world, mailbox, webhook, sending):
    webhook.open.clear()
    hangs = [webhook.address(str(number)) for number in range(2)]
    world = make_world(notify_users=mailbox.address("{user}@example.org"), notify_admins=hangs, notify_seconds=3.0)
    sending(world)
    lease = await world.up("ann")
    await world.registry.save(lease, audit=[world.allocator.commits.line(lease, "ann", events.Disputed("No."))])
    await world.registry.save(lease, audit=[world.allocator.commits.line(lease, "root", events.Answered("Yes."))])
    await until(lambda: counts(world) == {"failed": 2, "sent": 1})
    assert "root answered: Yes." in mailbox.received("ann@example.org")[0][1]


async def test_a_message_that_failed_while_the_clock_was_a_month_ahead_is_sent(world, mailbox):
    (row,) = world.parts.notifier.rows_of(Message("lease of ann", "ann", "warned", "Title", "Text"))
    month = 30 * 86400
    late = replace(row, at=row.at + month, attempts=1, not_before=row.at + month + 20)
    await world.parts.store.write(world.parts.store.outbox.add, [late])
    world.parts.notifier.wake()
    await until(lambda: mailbox.received("ann@example.org"))


async def test_a_message_is_sent_once_its_server_answers_again_and_only_once(world, mailbox):
    mailbox.refuses = True
    await answer(world, await world.up("ann"))
    await until(lambda: counts(world).get("failed") == 1)
    (told,) = [one for one in find_problems(world.parts, [], []) if "No message to users" in one.what]
    assert "mailto: refused, or not reached" in told.what
    assert told.remedy.startswith("1 message waits.")
    mailbox.refuses = False
    world.clock.advance(60)
    world.parts.notifier.wake()
    await until(lambda: waiting(world) == 0)
    world.clock.advance(3600)
    world.parts.notifier.wake()
    await answer(world, await world.up("bob"))
    await until(lambda: mailbox.received("bob@example.org"))
    assert len(mailbox.received("ann@example.org")) == 1
    assert not any("No message to" in one.what for one in find_problems(world.parts, [], []))


async def test_a_message_that_was_stored_is_sent_by_the_next_service(make_world, mailbox, sending):
    world = make_world(notify_users=mailbox.address("{user}@example.org"))
    await answer(world, await world.up("ann"))
    world.boot()
    sending(world)
    await until(lambda: mailbox.received("ann@example.org"))
    await until(lambda: waiting(world) == 0)
    world.boot()
    sending(world)
    await answer(world, await world.up("bob"))
    await until(lambda: mailbox.received("bob@example.org"))
    assert len(mailbox.received("ann@example.org")) == 1


async def test_a_message_is_not_sent_again_while_what_came_of_it_cannot_be_stored(world, mailbox, monkeypatch):
    note, away = world.parts.store.outbox.save_attempts, [True]

    def store(rows):
        if away:
            raise Unavailable("The disk is full.")
        note(rows)

    monkeypatch.setattr(world.parts.store.outbox, "save_attempts", store)
    await answer(world, await world.up("ann"))
    await until(lambda: counts(world) == {"sent": 1})
    for _ in range(3):
        with pytest.raises(Unavailable):
            await world.parts.notifier.send_due()
    away.clear()
    await world.parts.notifier.send_due()
    assert (waiting(world), len(mailbox.received("ann@example.org"))) == (0, 1)


async def test_an_unsaved_step_is_not_notified(world, mailbox, monkeypatch):
    lease = await world.up("ann")
    monkeypatch.setattr(world.parts.store.ledger, "write", lambda *_: (_ for _ in ()).throw(Unavailable("away")))
    with pytest.raises(Unavailable):
        await answer(world, lease)
    monkeypatch.undo()
    assert (waiting(world), mailbox.mails) == (0, [])


async def test_a_message_that_cannot_be_sent_for_a_day_is_given_up_and_counted(world, mailbox):
    mailbox.refuses = True
    await answer(world, await world.up("ann"))
    await until(lambda: counts(world).get("failed") == 1)
    world.clock.advance(GIVEN_UP_SECONDS)
    world.parts.notifier.wake()
    await until(lambda: counts(world) == {"failed": 2, "dropped": 1})
    await until(lambda: waiting(world) == 0)


async def test_mail_goes_where_the_hub_says_and_without_an_address_nowhere(make_world, mailbox, sending):
    world = make_world(notify_users=mailbox.address("{email}"))
    sending(world)
    world.hub.emails["ann"] = "ann.lee+gpu@example.org"
    for name in ("ann", "bob"):
        lease = await world.up(name)
        await answer(world, lease)
    await until(lambda: counts(world) == {"sent": 1, "unaddressed": 1})
    assert len(mailbox.received("ann.lee+gpu@example.org")) == 1


@pytest.mark.parametrize(
    "name", ["eve@evil.org", "eve@evil.org?to=x", "bob,eve", "eve&to=bob", "bob eve", "eve/bob", ""]
)
async def test_a_name_cannot_change_where_a_message_goes(make_world, mailbox, sending, name):
    world = make_world(notify_users=mailbox.address("{user}@example.org"))
    sending(world)
    lease = await world.up(name)
    await answer(world, lease)
    await until(lambda: counts(world) == {"unaddressed": 1})
    assert mailbox.mails == []


async def test_without_a_target_nothing_waits(make_world):
    world = make_world()
    lease = await world.up("ann")
    await answer(world, lease)
    assert waiting(world) == 0


async def test_an_undeliverable_notice_blocks_no_action(world, monkeypatch, caplog):
    monkeypatch.setattr("gpuspawner.service.notifications.messages.present_end", None)
    lease = await world.up("ann")
    await world.parts.engine.begin_stop(lease.id, Exit(ExitReason.EXPIRED, "gpuspawner", "Its lifetime was 8 h."))
    assert world.now_of(lease).phase is Phase.STOPPING
    assert f"telling of a step failed for the lease {lease.id}" in caplog.text


@pytest.mark.parametrize(
    ("settings", "public_url", "says"),
    [
        ({"notify_users": "mailto://x"}, "", "c.JupyterHub.public_url"),
        ({"notify_users": f"mailto://bob:{SECRET}@example.org"}, "http://hub", r"write \{user\} or \{email\} in it"),
        ({"notify_admins": (f"mailtox://bob:{SECRET}@x",)}, "http://hub", r"notify_admins\[0\].*begins with 'mailtox'"),
        ({"notify_admins": (f"{SECRET}",)}, "http://hub", r"notify_admins\[0\].*nothing with ://"),
        ({"notify_teams": {"vision": f"chat:{SECRET}"}}, "http://hub", r"notify_teams\[vision\].*nothing with ://"),
        ({"notify_teams": {"vision": "json://x"}}, "", "c.JupyterHub.public_url"),
    ],
)
def test_promise_10_a_target_that_cannot_be_used_is_refused_without_its_secret(settings, public_url, says):
    with pytest.raises(SettingsError, match=says) as refused:
        check_targets(Settings(**settings), public_url)
    assert SECRET not in str(refused.value)


def test_targets_that_can_be_used_are_taken(mailbox, webhook):
    check_targets(Settings(), "")
    for target in ("{user}@example.org", "{email}"):
        check_targets(Settings(notify_users=mailbox.address(target), notify_admins=(webhook.address(),)), "http://hub")


async def test_a_message_reaches_the_chat_of_its_team_alone_and_a_removed_chat_ends_it(make_world, webhook, sending):
    world = make_world(notify_teams=dict.fromkeys(("vision", "speech"), webhook.address(SECRET)))
    rows_of = world.parts.notifier.rows_of
    assert rows_of(Message("", "", "budget", "Title", "Text", to_admins=True)) == []
    assert rows_of(Message("", "", "budget", "Title", "Text", to_team="robots")) == []
    rows = [row for team in ("vision", "speech") for row in rows_of(Message("", "", "budget", team, "x", to_team=team))]
    assert [row.channel for row in rows] == ["team vision", "team speech"]
    world.parts.notifier._settings = replace(world.parts.settings, notify_teams={"vision": webhook.address(SECRET)})
    await world.parts.store.write(world.parts.store.outbox.add, rows)
    sending(world).wake()
    await until(lambda: waiting(world) == 0)
    assert [one["title"] for one in webhook.messages] == ["vision"]
    assert counts(world) == {"sent": 1, "unaddressed": 1}


async def test_a_broken_chat_of_a_team_is_a_problem_by_the_team_s_name(make_world, webhook, sending):
    world = make_world(notify_teams={"vision": webhook.address(SECRET)})
    webhook.status = 500
    sending(world)
    await put(world, Message("", "", "budget", "Title", "Text", to_team="vision"))
    await until(lambda: world.parts.notifier.troubles)
    (problem,) = [one for one in find_problems(world.parts, (), ()) if "No message" in one.what]
    assert problem.what.startswith("No message to the chat of team vision was delivered for ")
    assert "notify_teams" in problem.remedy
    assert SECRET not in str(problem)


async def parked(world):
    """A parked request of bob, and a GPU that becomes free."""
    alice = await world.up("alice", count=2)
    world.shows(alice, 80)
    lease = await world.start("bob")
    await world.park(lease)
    await world.round()
    await world.hub_stops(alice)
    return lease


async def told_of_its_end(mailbox, why):
    await until(lambda: len(mailbox.received("bob@example.org")) == 2)
    (granted, _), (ended, text) = mailbox.received("bob@example.org")
    assert (granted, ended) == ("Your workspace starts now", "Your workspace was ended")
    assert why in text


async def test_a_user_who_waited_elsewhere_is_told_that_the_hub_did_not_start_it(make_world, mailbox, sending):
    world = make_world(notify_users=mailbox.address("{user}@example.org"), back_off_seconds=(1.0,))
    sending(world)
    lease = await parked(world)
    while world.phase(lease) is not Phase.ENDED:
        world.hub.forget("bob")
        await world.go_on(20, step=5)
    await told_of_its_end(mailbox, "did not start it in 3 tries")


async def test_a_user_who_waited_elsewhere_is_told_that_the_start_failed(make_world, mailbox, sending):
    world = make_world(notify_users=mailbox.address("{user}@example.org"))
    sending(world)
    lease = await parked(world)
    await world.go_on(4, step=1)
    starting = await world.create(await world.ask("bob"))
    assert (starting.id, starting.attempt) == (lease.id, 2)
    await world.hub_stops(starting, "failed", "Its image does not exist.")
    await told_of_its_end(mailbox, "Its image does not exist.")


async def test_a_warning_that_a_killed_service_had_not_sent_is_sent_by_the_next(make_world, mailbox, sending):
    world = make_world(notify_users=mailbox.address("{user}@example.org"))
    lease = await world.up("ann")
    world.shows(lease, 0)
    await world.go_on(7 * 60)
    assert world.phase(lease) is Phase.RECLAIMING
    world.boot()
    sending(world)
    await until(lambda: mailbox.received("ann@example.org"))
    ((title, text),) = mailbox.received("ann@example.org")
    assert title == "Your workspace is idle"
    assert "The GPU has been idle for 6 min" in text


@pytest.mark.parametrize(
    ("column", "damage"),
    [
        pytest.param("document", '{"half', id="text"),
        pytest.param("document", '{"lease": "l"}', id="shape"),
        pytest.param(
            "document", '{"lease": "l", "user": "bob", "kind": ["k"], "title": "t", "text": "t"}', id="a list as kind"
        ),
        pytest.param("channel", "admins x", id="channel"),
        pytest.param("attempts", "x", id="attempts"),
    ],
)
async def test_a_damaged_message_is_given_up_and_the_others_are_sent(world, mailbox, column, damage):
    messages = [Message(f"lease of {name}", name, "warned", "Title", "Text") for name in ("ann", "bob", "cem")]
    rows = [row for message in messages for row in world.parts.notifier.rows_of(message)]
    await world.parts.store.write(world.parts.store.outbox.add, rows)
    world.database.run(f"UPDATE outbox SET {column} = :damage WHERE id = :id", damage=damage, id=rows[1].id)
    world.parts.notifier.wake()
    await until(lambda: waiting(world) == 0)
    assert [len(mailbox.received(f"{name}@example.org")) for name in ("ann", "bob")] == [1, 0]
    assert mailbox.received("cem@example.org")
    assert counts(world) == {"sent": 2, "dropped": 1}
