"""Quotas, grants and restrictions as rows of the console: what every list, CSV and JSON of them holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuspawner.core.administering.restrictions import Measure
from gpuspawner.service.tell.console.listing import Column, Filter, Table

FULL, OVER, NEAR = "full", "over the share", "over 80 %"
NEAR_SHARE = 0.8
"""From this share of it on a quota is nearly used up. Arbitrary: as the documents advise to alert."""

LIMITS = Table(
    "limits",
    (
        Column("who", "Whose", "link"),
        Column("entry", "Entry"),
        Column("what", "Of what"),
        Column("used", "Used", "amount", absent="none"),
        Column("set_aside", "Set aside", "amount", absent="none"),
        Column("waiting", "Waited for", "amount", absent="none"),
        Column("share", "Share", "amount", absent="none"),
        Column("most", "At most", "amount", absent="none"),
        Column("left", "Left", "amount", absent="none"),
        Column("percent", "Taken", "percent", absent="no end"),
        Column("state", "State"),
        Column("lasts_until", "Lasts until", "time", absent="it is not used up before it renews"),
        Column("renews_at", "Renews", "time", absent="never"),
    ),
    (
        Filter("find", "Whose, entry", within=("who", "entry")),
        Filter("what", "Of what", within=("what",)),
        Filter("state", "State", tuple((state, state) for state in (FULL, OVER, NEAR))),
    ),
    sort="-percent",
)

GRANTS = Table(
    "grants",
    (
        Column("what", "What is added"),
        Column("whom", "For whom"),
        Column("state", "State"),
        Column("since", "From", "time"),
        Column("until", "Until", "time"),
        Column("by", "By"),
        Column("made_at", "Made", "time"),
        Column("taken_back_by", "Taken back by"),
        Column("why", "Why", "words"),
        Column("taken_back_why", "Why it was taken back", "words"),
    ),
    (
        Filter("find", "For whom, by whom", within=("whom", "by")),
        Filter("state", "State", tuple((x, x) for x in ("in force", "to come", "over", "taken back"))),
    ),
    sort="-made_at",
)

RESTRICTIONS = Table(
    "restrictions",
    (
        Column("title", "What"),
        Column("what", "Kind of act"),
        Column("state", "State"),
        Column("by", "By"),
        Column("since", "Made", "time"),
        Column("begins_at", "From", "time"),
        Column("until", "Until", "time", absent="until it is lifted"),
        Column("lifted_by", "Lifted by"),
        Column("lifted_at", "Lifted", "time", absent="not lifted"),
        Column("reason", "Reason", "words"),
        Column("lifted_reason", "Why it was lifted", "words"),
    ),
    (
        Filter("find", "On what, for whom, by whom", within=("title", "by")),
        Filter("what", "Kind of act", tuple((measure.value, measure.value) for measure in Measure)),
        Filter("state", "State", tuple((x, x) for x in ("in force", "to come", "over", "lifted"))),
    ),
    sort="-since",
)


def limit_row(who: str, page: str, entry: str, what: str, numbers: Mapping[str, float | None]) -> dict[str, Any]:
    """Return a limit or budget of somebody. ``numbers`` are its amounts by column, and its times."""
    taken = (numbers["used"] or 0.0) + (numbers.get("set_aside") or 0.0)
    most, share = numbers["most"], numbers["share"]
    end = share if most is None else most
    part = taken / end if end else None
    near = NEAR if part is not None and part >= NEAR_SHARE else ""
    return {
        "id": f"{entry} {who} {what}",
        "page": page,
        "who": who,
        "entry": entry,
        "what": what,
        **{name: numbers.get(name) for name in ("used", "set_aside", "waiting", "share", "most", "left")},
        "percent": None if part is None else 100 * part,
        "state": state_of(taken, share, most) or near,
        "lasts_until": numbers.get("lasts_until"),
        "renews_at": numbers.get("renews_at"),
    }


def state_of(taken: float, share: float | None, most: float | None) -> str:
    """Return how a limit or budget stands where that is told; "" otherwise."""
    if most is not None and taken >= most:
        return FULL
    return OVER if share is not None and taken > share else ""


def grant_rows(views: Iterable[tuple[Mapping[str, Any], str, str]]) -> list[dict[str, Any]]:
    """Return a row for each grant: its view, what it adds, and for whom."""
    return [
        {
            "id": view["id"],
            "what": what,
            "whom": whom,
            **{name: view[name] for name in ("state", "since", "until", "by", "made_at", "why")},
            "taken_back_by": view["taken_back"]["by"] if view["taken_back"] else "",
            "taken_back_why": view["taken_back"]["why"] if view["taken_back"] else "",
        }
        for view, what, whom in views
    ]


def restriction_rows(views: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each restriction, of its view."""
    return [
        {
            **{
                name: view[name]
                for name in ("id", "title", "what", "state", "by", "since", "begins_at", "until", "reason")
            },
            "lifted_by": view["lifted"]["by"] if view["lifted"] else "",
            "lifted_at": view["lifted"]["at"] if view["lifted"] else None,
            "lifted_reason": view["lifted"]["reason"] if view["lifted"] else "",
        }
        for view in views
    ]
