"""Restrictions as rows of the console: the content of the list, CSV and JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuspawner.core.administering.restrictions import Measure
from gpuspawner.service.tell.console.listing import Column, Filter, Table

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
