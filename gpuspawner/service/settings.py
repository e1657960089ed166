"""The service's times, in seconds, and where it sends messages. Each says why it has its value.

An administrator changes them by ``configure(c, ..., service_settings={"keep_ended_seconds": 90 * 86400})``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpuspawner.core.errors import quoted
from gpuspawner.core.leases.transitions import BACK_OFF_SECONDS
from gpuspawner.core.text_fields import LOG_FORMATS, did_you_mean
from gpuspawner.service.log import TEXT


class SettingsError(ValueError):
    """Settings that cannot be used: says all that is wrong with them, a line each."""


@dataclass(frozen=True)
class Settings:
    """Times of the lease protocol (design, section 6), and of what is kept."""

    listen_seconds: float = 30.0
    """A waiter not heard for this long no longer listens: three of its long polls."""
    reserved_seconds: float = 30.0
    """A reservation lapses unless it is acknowledged within this."""
    heartbeat_seconds: float = 60.0
    """A start without heartbeat and without process for this long was dropped by the hub."""
    tick_seconds: float = 1.0
    """The period of looking at processes and due times: well under the 5 s in which a freed GPU starts the next."""
    fleet_seconds: float = 5.0
    """The age at which the view of the GPUs is renewed."""
    hub_seconds: float = 10.0
    """The age at which the hub's list of servers is renewed, and how long its last answer counts as answering."""
    no_room_seconds: float = 20.0
    """A start for which the cluster finds no room for this long goes back to the queue: a scheduler that is only busy,
    or a pod that is only just going, takes less."""
    no_room_wait_seconds: float = 30.0
    """After that, others pass for this long. Arbitrary: as the shortest time in which a workspace ends."""
    orphan_seconds: float = 300.0
    """A process whose server is absent is seen so twice, this far apart, before it is ended."""
    settle_seconds: float = 3.0
    """A workspace gone from hub and backend is ended after this without a word: the hub's report tells why it ended."""
    stop_retry_seconds: float = 10.0
    """A stop that the hub was sent is sent again after this."""
    stop_race_seconds: float = 5.0
    """A start cancelled this soon after our own stop of the same workspace was cancelled by us: restart it."""
    back_off_seconds: tuple[float, ...] = BACK_OFF_SECONDS
    """After a dropped start, others pass for this long. The third that is dropped ends the request."""
    probe_deadline_seconds: float = 20.0
    """A probe that takes longer says nothing. Driver start-up takes 1 to 3 s for each GPU that nobody holds."""
    probes_at_once: int = 8
    """Probes running at the same time: each is a process on this machine. As many again may run of workspaces whose
    probe before failed: one that hangs again delays none of the others."""
    concurrent_starts: int = 20
    """Starts under way at the same time, instead of the hub's concurrent_spawn_limit, which waiters would fill."""
    concurrent_starts_each: int = 5
    """Of these, those of one user: who starts many named servers at once leaves room for everybody else's."""
    keep_ended_seconds: float = 400 * 86400.0
    """Ended workspaces, their audit and the readings behind their ends are forgotten after this: a year's report, and
    a month to write it."""
    keep_use_seconds: float = 400 * 86400.0
    """The ledger of what workspaces used is kept for this: a year's report, and a month to write it."""
    cluster: str = "default"
    """What metrics call the cluster: for a Prometheus that reads those of several."""
    notify_users: str = ""
    """Where each user's messages go: an address as apprise writes them, with ``{user}`` for the user's name or
    ``{email}`` for the mail address that the hub's authenticator stored. Empty: nowhere."""
    notify_admins: tuple[str, ...] = ()
    """Where the administrators' messages go, likewise."""
    log_format: str = TEXT
    """The form of the service's log: ``text``, or ``json`` for one JSON object a line."""
    notify_seconds: float = 20.0
    """A message that takes longer is taken for not sent."""


LONGEST_CLUSTER = 63
ADDRESSES = frozenset({"notify_users", "notify_admins"})
"""These settings may contain passwords, so their values are never shown."""


def changed(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the settings with the given values.

    Raises:
        SettingsError: a name is unknown or a value is invalid, for example a time of 0.
    """
    written: dict[str, Any] = {}
    wrong = []
    known = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for name, value in values.items():
        right = _right_address(known[name], value) if name in ADDRESSES else _right(known.get(name), value)
        if name == "log_format":
            right = "" if value in LOG_FORMATS else " or ".join(LOG_FORMATS)
        if name not in known:
            wrong.append(f"service_settings.{name}: there is no such setting; {did_you_mean(name, known)}")
        elif right:
            shown = "what is written" if name in ADDRESSES else quoted(value)
            wrong.append(f"service_settings.{name}: {shown} is not right; write {right}")
        else:
            written[name] = tuple(value) if isinstance(value, list) else value
    if wrong:
        raise SettingsError("\n".join(wrong))
    return replace(settings, **written)


def _right(like: object, value: object) -> str:
    """Return a description of valid values, "" if the value is valid."""
    if isinstance(like, str):
        named = isinstance(value, str) and 1 <= len(value) <= LONGEST_CLUSTER and value.isprintable()
        return "" if named else f"a name of 1 to {LONGEST_CLUSTER} letters"
    if isinstance(like, tuple):
        good = isinstance(value, (list, tuple)) and value and all(_is_number(one) for one in value)
        return "" if good else "a list of seconds"
    if isinstance(like, int):
        return "" if _is_number(value) and isinstance(value, int) else "a whole number of at least 1"
    return "" if _is_number(value) else "a number of seconds above 0"


def _right_address(like: object, value: object) -> str:
    if isinstance(like, tuple):
        good = isinstance(value, (list, tuple)) and all(isinstance(one, str) and one for one in value)
        return "" if good else "a list of addresses, such as mailto://..."
    return "" if isinstance(value, str) else "an address with {user} or {email} in it, such as mailto://..."


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
