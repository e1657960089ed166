"""Sends messages by mail, chat or webhook, apart from the service's loop, so that a slow target delays nothing.

Messages wait in the store. They are written in the same transaction as their event, so that no crash loses one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.loops import cancel_all
from gpuspawner.service.settings import Settings, SettingsError
from gpuspawner.service.store import Store
from gpuspawner.service.store.outbox import OutboxRow

log = logging.getLogger("gpuspawner.notifier")

RESULTS = ("sent", "failed", "dropped", "unaddressed")
"""Sent, an attempt failed, given up after GIVEN_UP_SECONDS, and without a known address."""
AT_ONCE = 4
"""The number of messages that are sent on one channel at the same time."""
DUE_AT_ONCE = 1000
"""The number of messages that are read from the outbox at once. Arbitrary."""
LOOK_SECONDS, IDLE_SECONDS = 2.0, 60.0
"""The interval of looking for due messages, while some wait and while the outbox is empty. Arbitrary."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 20.0, 900.0
"""The pause between two attempts, which doubles each time. Arbitrary: a mail server restarts within a minute."""
GIVEN_UP_SECONDS = 86400.0
"""After this time without success a message is given up, because its event is long past."""
KEPT_SECONDS = 86400.0
"""The time for which the result of a message is stored."""
OF_STARTS = frozenset({"granted", "start near", "substituted"})
"""Kinds of messages about starts, which a user may switch off. Warnings and ends are always sent."""
NO_ANSWER = "no answer"
USER, ADMINS, TEAM = "user", "admins", "team"
"""The channels: of users, of administrators by their number in the settings, and of teams by their names."""
PLAIN = re.compile(r"[\w.+-]+(@[\w.-]+)?")
"""Names and mail addresses that are safe in a target's address: no second recipient, no option."""
EXTRA = "pip install '.[notify]' in a checkout"


@dataclass(frozen=True)
class Message:
    """One message: to the user of the lease, to the administrators, or to the chat of a team."""

    lease: str
    user: str
    kind: str
    title: str
    text: str
    to_admins: bool = False
    to_team: str = ""


def check_targets(settings: Settings, public_url: str) -> None:
    """Check that messages can be sent.

    Raises:
        SettingsError: they can't be sent. The message names the setting, and shows no secret.
    """
    if not settings.notify_users and not settings.notify_admins and not settings.notify_teams:
        return
    if not public_url:
        raise SettingsError(
            "service_settings.notify_*: messages link to pages, and where people open them is not known; set "
            "c.JupyterHub.public_url to the address of the hub"
        )
    if settings.notify_users and not any(part in settings.notify_users for part in ("{user}", "{email}")):
        raise SettingsError(
            "service_settings.notify_users: everybody's messages would go to one place; write {user} or {email} in it"
        )
    try:
        apprise = _apprise()
    except ImportError as error:
        raise SettingsError(f"service_settings.notify_*: apprise is not installed; {EXTRA}") from error
    targets = {f"notify_admins[{number}]": one for number, one in enumerate(settings.notify_admins)}
    targets |= {f"notify_teams[{team}]": one for team, one in settings.notify_teams.items()}
    if settings.notify_users:
        targets["notify_users"] = settings.notify_users.replace("{email}", "user@example.org").replace("{user}", "user")
    for name, target in targets.items():
        if not apprise.Apprise().add(target):
            begins = quoted(target.partition("://")[0]) if "://" in target else "nothing with ://"
            raise SettingsError(
                f"service_settings.{name}: it is no address that apprise understands (it begins with {begins}); write "
                "one as https://github.com/caronc/apprise/wiki tells, such as mailto://..."
            )


def _apprise() -> Any:
    import apprise  # noqa: PLC0415 - an extra

    logging.getLogger("apprise").disabled = True  # it writes whole addresses, passwords too
    return apprise


@dataclass(frozen=True)
class ChannelFailure:
    """A channel that refuses messages: since when, and why."""

    since: float
    why: str


class Notifier:
    """Sends the messages of the outbox, each once, and tries again after a failure.

    A message is sent again only if the service is killed between the sending and the storing of that.
    """

    def __init__(self, hub: HubClient, settings: Settings, store: Store, clock: Clock) -> None:
        """Send nothing without a target. ``hub`` has the mail addresses."""
        self._hub, self._settings, self._store, self._clock = hub, settings, store, clock
        self._addressed: dict[str, bool] = {}
        """Whether a user had a mail address at the last lookup."""
        self._at_once: dict[str, asyncio.Semaphore] = {}
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The messages that are being sent, by channel and person."""
        self._stored = asyncio.Event()
        self._came: dict[str, OutboxRow] = {}
        """The results of attempts that are not stored yet."""
        self._hangs_until: dict[str, float] = {}
        """The time until which a silent channel is not tried, so that it does not delay others."""
        self.counts: Counter[str] = Counter()
        self.troubles: dict[str, ChannelFailure] = {}
        """The channels that refuse messages now."""
        self.waiting = 0
        """The number of waiting messages at the last look."""

    def reaches(self, user: str) -> bool | None:
        """Return whether messages reach a user, None while the mail address is not looked up yet."""
        template = self._settings.notify_users
        if not template or not _fits(template, user):
            return False
        return self._addressed.get(user) if "{email}" in template else True

    def rows_of(self, message: Message | None) -> list[OutboxRow]:
        """Return the rows of a message: one for each channel."""
        if message is None:
            return []
        channels = [USER] if self._settings.notify_users else []
        if message.to_admins:
            channels = [f"{ADMINS} {number}" for number in range(len(self._settings.notify_admins))]
        elif message.to_team:
            channels = [f"{TEAM} {message.to_team}"] if message.to_team in self._settings.notify_teams else []
        at, document = self._clock.now(), asdict(message)
        subject = f"{message.lease} {message.kind}" if message.lease else ""
        return [OutboxRow(_new_id(), at, channel, subject, document) for channel in channels]

    def wake(self) -> None:
        """Send stored messages soon."""
        self._stored.set()

    async def run(self) -> None:
        """Send messages until the task is cancelled."""
        try:
            while True:
                self._stored.clear()
                try:
                    await self.send_due()
                except Unavailable as error:
                    log.warning("messages wait: %s", error)
                except Exception:
                    log.exception("messages could not be sent; they are tried again")
                with contextlib.suppress(TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                    await asyncio.wait_for(self._stored.wait(), LOOK_SECONDS if self.waiting else IDLE_SECONDS)
        finally:
            await cancel_all(list(self._under_way.values()))

    async def send_due(self) -> None:
        """Start to send due messages. Messages to one person stay in order."""
        outbox = self._store.outbox
        await self._note()
        busy = set(self._under_way)  # before it is read: what is being sent meanwhile may be in it
        due = await self._store.read(outbox.due, self._clock.now(), DUE_AT_ONCE)
        of_person: dict[tuple[str, str], list[OutboxRow]] = {}
        damaged = [row for row in due if not _is_whole(row)]
        for row in damaged:
            log.error("the message %s can't be read from the store: it is given up", row.id)
        self.counts["dropped"] += len(damaged)
        await self._note(*(replace(row, over_at=self._clock.now(), result="damaged") for row in damaged))
        for row in (one for one in due if one not in damaged):
            of_person.setdefault((row.channel, row.document["user"] if row.channel == USER else ""), []).append(row)
        for person, rows in of_person.items():
            if person not in busy | self._under_way.keys():
                self._under_way[person] = asyncio.create_task(self._send_in_order(rows))
                self._under_way[person].add_done_callback(partial(self._end_sending, person))
        if due or self.waiting:
            self.waiting = await self._store.read(outbox.count_waiting)

    def _end_sending(self, person: tuple[str, str], task: asyncio.Task[None]) -> None:
        del self._under_way[person]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("messages could not be sent; they are tried again", exc_info=error)
        else:
            self.wake()  # there may be more of this person

    async def _note(self, *rows: OutboxRow) -> None:
        """Store the results of attempts. A result that cannot be stored now is stored before the next attempt."""
        self._came.update((row.id, row) for row in rows)
        if came := list(self._came.values()):
            await self._store.write(self._store.outbox.save_attempts, came)
            for row in came:
                if self._came.get(row.id) is row:
                    del self._came[row.id]

    async def _send_in_order(self, rows: Sequence[OutboxRow]) -> None:
        """Send the messages of one channel and person until one fails."""
        for number, row in enumerate(rows):
            async with self._at_once.setdefault(row.channel, asyncio.Semaphore(AT_ONCE)):
                hangs_until = self._hangs_until.get(row.channel, 0.0)
                hangs = self._clock.now() < hangs_until
                after = replace(row, not_before=hangs_until) if hangs else await self._attempt(row)
            left = [] if after.over_at is not None else rows[number + 1 :]  # those after it wait for it
            with contextlib.suppress(Unavailable):  # it is tried again before the next look
                await self._note(after, *(replace(one, not_before=after.not_before) for one in left))
            if after.over_at is None:
                return

    async def _attempt(self, row: OutboxRow) -> OutboxRow:
        """Try to send a message, and return its new row."""
        message, now = Message(**row.document), self._clock.now()
        if row.channel == USER and message.kind in OF_STARTS and not await self._is_wanted(message):
            return replace(row, over_at=now, result="unwanted")
        target = await self._address(row, message)
        if isinstance(target, Refusal):
            why = target.why
            if target.for_good:
                self.counts["unaddressed"] += 1
                log.warning("no message to %s (%s of %s): %s", _whom(message), message.kind, message.lease, why)
                return replace(row, over_at=now, result="unaddressed")
        else:
            why = await self._sent_or_why(target, message)
            by = target.partition("://")[0] if "://" in target else "no target"
            if not why:
                self.counts["sent"] += 1
                self.troubles.pop(row.channel, None)
                return replace(row, attempts=row.attempts + 1, over_at=now, result="sent")
            self.troubles.setdefault(row.channel, ChannelFailure(now, f"{by}: {why}"))
            # The address is left out, because it may contain a password.
            log.warning("no message to %s (%s of %s, by %s): %s", _whom(message), message.kind, message.lease, by, why)
        self.counts["failed"] += 1
        attempts = row.attempts + 1
        if now - row.at >= GIVEN_UP_SECONDS:
            self.counts["dropped"] += 1
            return replace(row, attempts=attempts, over_at=now, result="dropped")
        pause_seconds = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(row.attempts, 30))
        if why.startswith(NO_ANSWER):
            self._hangs_until[row.channel] = now + pause_seconds
        return replace(row, attempts=attempts, not_before=now + pause_seconds)

    async def _is_wanted(self, message: Message) -> bool:
        """Return whether the user of a workspace wants messages about its start."""
        lease = await self._store.read(self._store.leases.get, message.lease)
        if lease is None:
            return True
        return await self._store.read(self._store.preferences.wants_start_mail, lease.key.owner)

    async def _address(self, row: OutboxRow, message: Message) -> str | Refusal:
        """Return the address of a message, or a refusal with the reason."""
        if row.channel == USER:
            return await self._target(message.user)
        if message.to_team:
            removed = Refusal("the address of the team was removed", for_good=True)
            return self._settings.notify_teams.get(message.to_team, removed)
        number = int(row.channel.removeprefix(ADMINS))
        targets = self._settings.notify_admins
        return targets[number] if number < len(targets) else Refusal("its target was removed", for_good=True)

    async def _sent_or_why(self, target: str, message: Message) -> str:
        try:
            sent = await asyncio.wait_for(_sent(target, message), self._settings.notify_seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return f"{NO_ANSWER} in {self._settings.notify_seconds:g} s"
        except Exception as error:  # noqa: BLE001 - one message must not end the sending of others
            return type(error).__name__
        return "" if sent else "refused, or not reached"

    async def _target(self, user: str) -> str | Refusal:
        """Return the address of a user's messages, or a refusal with the reason."""
        template, email = self._settings.notify_users, None
        if "{email}" in template:
            try:
                email = await self._hub.email(user)
            except Unavailable:
                return Refusal("the hub does not say the mail address now", for_good=False)
            self._addressed[user] = email is not None and bool(PLAIN.fullmatch(email))
            if not self._addressed[user]:
                return Refusal("no mail address is known", for_good=True)
        if not template or not _fits(template, user):
            return Refusal("no mail address is known", for_good=True)
        return template.replace("{user}", quote(user, safe="@")).replace("{email}", quote(email or "", safe="@"))


def _is_whole(row: OutboxRow) -> bool:
    try:
        message = Message(**row.document)
    except TypeError:
        return False
    texts = (message.lease, message.user, message.kind, message.title, message.text, message.to_team)
    has_channel = (
        row.channel in {USER, f"{TEAM} {message.to_team}"} or row.channel.removeprefix(f"{ADMINS} ").isdecimal()
    )
    return has_channel and isinstance(row.attempts, int) and all(isinstance(one, str) for one in texts)


def _new_id() -> str:
    """Return the id of a row. Ids grow, so that messages of one moment keep their order."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex[:16]}"


class Refusal(NamedTuple):
    """The reason why a message has no address, and whether that is final."""

    why: str
    for_good: bool


def _whom(message: Message) -> str:
    if message.to_team:
        return f"the chat of {message.to_team}"
    return "the administrators" if message.to_admins else message.user


def _fits(template: str, user: str) -> bool:
    """Return whether a user's name is safe in this address, and cannot change its target."""
    return "{user}" not in template or bool(PLAIN.fullmatch(user) and not ("{user}@" in template and "@" in user))


async def _sent(target: str, message: Message) -> bool:
    """Send in a thread of its own. The end of this process does not wait for it."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def tell(sent: bool) -> None:
        if not answer.done():
            answer.set_result(sent)

    def send() -> None:
        try:
            targets = _apprise().Apprise()
            sent = targets.add(target) and targets.notify(body=message.text, title=message.title, body_format="text")
        except Exception:  # noqa: BLE001 - its text may hold the address
            sent = False
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, bool(sent))

    threading.Thread(target=send, daemon=True).start()
    return await answer
