"""Sends messages by mail, chat or webhook, beside the service's loop: slow or broken, a target holds up nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

from gpuspawner.core.errors import Unavailable, quoted
from gpuspawner.service.observe.hub import Hub
from gpuspawner.service.settings import Settings, SettingsError

log = logging.getLogger("gpuspawner.notifier")

RESULTS = ("sent", "failed", "dropped", "unaddressed")
"""Sent to a target; not; not even tried, as too many waited; of a user whose address is not known."""
WAITING = 1000
"""Messages that wait. Arbitrary: at the end of a lecture a few hundred; more means that a target takes none."""
AT_ONCE = 4
PAUSE_SECONDS = 0.2
"""Until it is looked again whether there is room for more of many messages. Arbitrary."""
PLAIN = re.compile(r"[\w.+-]+(@[\w.-]+)?")
"""Names and mail addresses that mean themselves in an address: no second recipient, no option of a target."""
EXTRA = "pip install '.[notify]' in a checkout"


@dataclass(frozen=True)
class Message:
    """One message: to the user of the lease, or to the administrators."""

    lease: str
    user: str
    kind: str
    title: str
    text: str
    to_admins: bool = False


def check_targets(settings: Settings, public_url: str) -> None:
    """See that messages could be sent, where some are to be.

    Raises:
        SettingsError: they could not; says which target, and nothing of what is secret in it.
    """
    if not settings.notify_users and not settings.notify_admins:
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


class Notifier:
    """Takes messages at any time, and sends each to its targets once."""

    def __init__(self, hub: Hub, settings: Settings) -> None:
        """Send nothing where no target is set. ``hub`` knows mail addresses."""
        self._hub, self._settings = hub, settings
        self._queue: asyncio.Queue[Message] = asyncio.Queue(WAITING)
        self._granted: set[str] = set()
        self._addressed: dict[str, bool] = {}
        """Whether a user had a mail address when it was last asked for."""
        self._sending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.counts: Counter[str] = Counter()

    def reaches(self, user: str) -> bool | None:
        """Whether messages reach a user; None where that hangs on a mail address that nobody has asked for yet."""
        template = self._settings.notify_users
        if not template or not _fits(template, user):
            return False
        return self._addressed.get(user) if "{email}" in template else True

    def put(self, message: Message | None) -> None:
        """Have a message sent soon. A lease that is granted again, as its start was dropped, is told of once."""
        if message is None or not (self._settings.notify_admins if message.to_admins else self._settings.notify_users):
            return
        if message.kind == "granted":
            if message.lease in self._granted:
                return
            self._granted.add(message.lease)
        elif message.kind == "ended":
            self._granted.discard(message.lease)
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.counts["dropped"] += 1

    async def put_all(self, messages: Sequence[Message]) -> None:
        """Have many messages sent, some at a time: others find room between them."""
        for message in messages if self._settings.notify_users else ():
            while self._queue.qsize() > WAITING // 2:  # noqa: ASYNC110 - no event tells how many wait
                await asyncio.sleep(PAUSE_SECONDS)
            self.put(message)

    async def run(self) -> None:
        """Send what comes, some at once, for ever."""
        await asyncio.gather(*(self._work() for _ in range(AT_ONCE)))

    async def _work(self) -> None:
        while True:
            message = await self._queue.get()
            try:
                await self._tell(message)
            except Exception as error:  # noqa: BLE001 - one message must not end the sending of others
                self._failed(message, "", type(error).__name__)

    async def _tell(self, message: Message) -> None:
        if message.to_admins:
            await self._send(message, self._settings.notify_admins)
            return
        async with self._sending.setdefault(message.user, asyncio.Lock()):  # of one person, in order
            target = await self._target(message.user)
            if target is not None:
                await self._send(message, [target])
                return
        self.counts["unaddressed"] += 1
        log.warning("not told: %s (%s of %s): no mail address is known", message.user, message.kind, message.lease)

    async def _send(self, message: Message, targets: Sequence[str]) -> None:
        for target in targets:
            try:
                sent = await asyncio.wait_for(_sent(target, message), self._settings.notify_seconds)
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                self._failed(message, target, f"no answer in {self._settings.notify_seconds:g} s")
                continue
            if sent:
                self.counts["sent"] += 1
            else:
                self._failed(message, target, "refused, or not reached")

    async def _target(self, user: str) -> str | None:
        """Return where a user's messages go; None where it is not known, or could be read as another place."""
        template, email = self._settings.notify_users, None
        if "{email}" in template:
            try:
                email = await self._hub.email(user)
            except Unavailable:
                return None
            self._addressed[user] = email is not None and bool(PLAIN.fullmatch(email))
            if not self._addressed[user]:
                return None
        if not _fits(template, user):
            return None
        return template.replace("{user}", quote(user, safe="@")).replace("{email}", quote(email or "", safe="@"))

    def _failed(self, message: Message, target: str, why: str) -> None:
        """Count it and say it, without the address: a password may stand in it."""
        self.counts["failed"] += 1
        who = "the administrators" if message.to_admins else message.user
        by = target.partition("://")[0] if "://" in target else "no target"
        log.warning("not told: %s (%s of %s, by %s): %s", who, message.kind, message.lease, by, why)


def _fits(template: str, user: str) -> bool:
    """Whether a user's name may stand in this address: it could be read as another place."""
    return "{user}" not in template or bool(PLAIN.fullmatch(user) and not ("{user}@" in template and "@" in user))


async def _sent(target: str, message: Message) -> bool:
    """Send in a thread of its own that nothing waits for: not even the end of this process."""
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
