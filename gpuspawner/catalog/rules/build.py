"""From the entries of the rules to :class:`gpuspawner.core.rules.Rules`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from types import MappingProxyType
from zoneinfo import ZoneInfo

from gpuspawner.catalog.building.extends import Named
from gpuspawner.catalog.document import Issue
from gpuspawner.catalog.models import CatalogEntry
from gpuspawner.catalog.names import did_you_mean
from gpuspawner.catalog.rules.models import TeamEntry
from gpuspawner.catalog.rules.quotas import build_quotas
from gpuspawner.core.rules import ClassHold, Hours, MakeRoom, Rules, Team

UTC = "UTC"


def build_rules(entries: CatalogEntry, named: Named, policies: Collection[str], issues: list[Issue]) -> Rules:
    """Return the rules, adding an issue for each reference or value that is wrong. ``policies`` are the names known."""
    issues.extend(_check_hours(entries, named, policies))
    issues.extend(_check_holds(entries, named))
    after = entries.make_room.after
    if after is None and "make_room" in entries.model_fields_set and not named.is_wrong("make_room"):
        issues.append(Issue(("make_room",), "after which wait is not said", "add after: with a time, for example 30m"))
    zone = entries.timezone or UTC
    return Rules(
        teams=MappingProxyType({name: _team(name, entry) for name, entry in entries.teams.items()}),
        quotas=build_quotas(entries, named, issues),
        holds=tuple(_holds(entries, zone)),
        hours=tuple(
            Hours(one.when, one.policy, one.instead_of)
            for one in entries.hours
            if one.when is not None and one.policy is not None and one.instead_of is not None
        ),
        closed=frozenset(entries.closed),
        make_room=None if after is None else MakeRoom(after),
        timezone=zone,
        contact=entries.contact or "",
        currency=entries.currency or "",
    )


def _team(name: str, entry: TeamEntry) -> Team:
    weight = {} if entry.weight is None else {"weight": entry.weight}
    return Team(name, entry.title or name, priority=entry.priority or 0, **weight)


def _holds(entries: CatalogEntry, zone: str) -> Iterator[ClassHold]:
    for one in entries.holds:
        if one.group is None or one.gpu is None or one.count is None or one.when is None:
            continue
        until = None
        if one.until is not None:  # that day is the last
            after = one.until + dt.timedelta(days=1)
            until = dt.datetime(after.year, after.month, after.day, tzinfo=ZoneInfo(zone)).timestamp()
        yield ClassHold(one.group, one.gpu, one.count, one.when, until)


def _check_hours(entries: CatalogEntry, named: Named, policies: Collection[str]) -> Iterator[Issue]:
    examples = {"when": "when: Mon-Fri 20:00-07:00", "policy": "policy: night", "instead_of": "instead_of: default"}
    for number, one in enumerate(entries.hours):
        loc = ("hours", number)
        yield from _missing("hours", number, one.model_fields_set, named, examples)
        for key in ("policy", "instead_of"):
            name = getattr(one, key)
            if name is not None and name not in policies and not named.has("policies", name):
                yield Issue((*loc, key), f"no policy is called `{name}`", did_you_mean(name, policies))
        if one.policy is not None and one.policy == one.instead_of:
            yield Issue((*loc, "instead_of"), "the same policy", "name the one that judges at other times")


def _check_holds(entries: CatalogEntry, named: Named) -> Iterator[Issue]:
    examples = {"group": "group: cs231", "gpu": "gpu: t4", "count": "count: 8", "when": "when: Thu 09:00-11:00"}
    for number, one in enumerate(entries.holds):
        yield from _missing("holds", number, one.model_fields_set, named, examples)
        if one.gpu is not None and not named.has("gpus", one.gpu):
            wrong = f"no GPU kind is called `{one.gpu}`"
            yield Issue(("holds", number, "gpu"), wrong, did_you_mean(one.gpu, entries.gpus))


def _missing(
    section: str, number: int, written: Collection[str], named: Named, examples: dict[str, str]
) -> Iterator[Issue]:
    """Yield what an entry of a list must say and does not."""
    for key, example in examples.items():
        if key not in written and not named.is_wrong(section, number, key):
            yield Issue((section, number), f"{key} is missing", f"add {example}")
