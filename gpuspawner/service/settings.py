"""The service's times, in seconds, and where it sends messages.

An administrator changes them by ``configure(c, ..., service_settings={"keep_ended_seconds": 90 * 86400})``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuspawner.core.errors import did_you_mean, quoted
from gpuspawner.core.leases.transitions import BACK_OFF_SECONDS
from gpuspawner.core.text_fields import LOG_FORMATS
from gpuspawner.service.log import TEXT


class SettingsError(ValueError):
    """Settings that cannot be used. The message has a line for each fault."""


@dataclass(frozen=True)
class Settings:
    """Times of the lease protocol (design, section 6), and of what is kept."""

    listen_seconds: float = 30.0
    """A spawner that has not asked for this long no longer waits for its lease. It is the time of three long polls."""
    reserved_seconds: float = 30.0
    """The hub must acknowledge granted GPUs within this time. Otherwise the request waits again."""
    heartbeat_seconds: float = 60.0
    """A start without a heartbeat and without a process for this long counts as given up by the hub."""
    tick_seconds: float = 1.0
    """How often the service looks at processes and due times."""
    fleet_seconds: float = 5.0
    """How often the service reads which GPUs there are."""
    hub_seconds: float = 10.0
    """How often the service reads the hub's list of servers. Without an answer for this long, it counts as away."""
    no_room_seconds: float = 20.0
    """If the cluster finds no room for a pod for this long, the request returns to the queue."""
    no_room_wait_seconds: float = 30.0
    """How long such a request then lets others pass."""
    orphan_seconds: float = 300.0
    """A process whose server the hub does not know is ended if it is found twice, this far apart."""
    settle_seconds: float = 3.0
    """A workspace that is gone from hub and backend ends after this time, even if the hub reports no reason."""
    stop_retry_seconds: float = 10.0
    """The service asks the hub again to stop a server after this time."""
    stop_race_seconds: float = 5.0
    """If a start is cancelled this soon after the service stopped the same workspace, the service starts it again."""
    back_off_seconds: tuple[float, ...] = BACK_OFF_SECONDS
    """How long a request lets others pass after the first and the second failed start. The third one ends it."""
    probe_deadline_seconds: float = 20.0
    """A probe that takes longer has failed. The driver starts in 1 to 3 s for each GPU that no process uses."""
    probes_at_once: int = 8
    """How many probes run at the same time, each as a process of this machine. As many again may run in workspaces
    whose last probe failed, so that these delay no others."""
    concurrent_starts: int = 20
    """How many starts run at the same time. The hub's own limit is off, because it counts waiting users."""
    concurrent_starts_each: int = 5
    """How many of these starts may belong to one user."""
    keep_ended_seconds: float = 400 * 86400.0
    """How long ended workspaces are kept, with their audit and the readings behind their ends."""
    keep_use_seconds: float = 400 * 86400.0
    """How long the ledger of usage is kept."""
    cluster: str = "default"
    """The name of the cluster in metrics, for a Prometheus that scrapes several."""
    documentation_url: str = ""
    """The address of your copy of the documentation, for example https://docs.example.org/gpu/. Pages link to it."""
    notify_users: str = ""
    """Where the messages of each user go, as an address of apprise. ``{user}`` is the name of the user. ``{email}`` is
    the mail address that the hub's authenticator stored. If it is empty, no messages are sent."""
    notify_admins: tuple[str, ...] = ()
    """Where the messages of administrators go, as addresses of apprise."""
    notify_teams: Mapping[str, str] = field(default_factory=dict)
    """Where the messages about a team go in addition to its leads, for example a chat. An address of apprise for each
    team of the catalog."""
    log_format: str = TEXT
    """The format of the service's log: ``text``, or ``json`` for one JSON object in each line."""
    notify_seconds: float = 20.0
    """A message that takes longer to send counts as not sent."""


LONGEST_CLUSTER = 63
ADDRESSES = frozenset({"notify_users", "notify_admins", "notify_teams"})
"""These settings may contain passwords, so their values are never shown."""


def change_settings(settings: Settings, values: Mapping[str, Any]) -> Settings:
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
        if name == "documentation_url":
            good = isinstance(value, str) and re.fullmatch(r"(https?://[^\s/]+\S*)?", value)
            right = "" if good else "an address that begins with https:// or http://"
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
    if isinstance(like, Mapping):
        texts = [text for pair in value.items() for text in pair] if isinstance(value, Mapping) else [None]
        good = all(isinstance(one, str) and one for one in texts)
        return "" if good else "teams with an address for each, such as vision: slack://..."
    if isinstance(like, tuple):
        good = isinstance(value, (list, tuple)) and all(isinstance(one, str) and one for one in value)
        return "" if good else "a list of addresses, such as mailto://..."
    return "" if isinstance(value, str) else "an address with {user} or {email} in it, such as mailto://..."


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
