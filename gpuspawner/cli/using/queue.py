"""``gpuspawner queue``: who waits, at which place, for how long and why, by the REST API."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from gpuspawner.cli.asking import ID_LETTERS, ask
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.units import show_duration


def show_queue(arguments: argparse.Namespace) -> None:
    """Print those of the asker, to administrators those of all; of others how many wait for what."""
    show(arguments, ask(arguments, "/queue"), _print_queue)


def _print_queue(answer: dict[str, Any]) -> None:
    line = answer["queue"]
    named = [one for one in line if one["id"]]
    if not line:
        print("Nobody waits.")
        return
    if named:
        rows: list[tuple[str, ...]] = [("ID", "USER", "SERVER", "TEAM", "FOR", "PLACE", "SINCE", "STARTS IN")]
        print_table([*rows, *(_row(one, answer["now"]) for one in named)])
        for one in named:
            print(shown(f"{one['id'][:ID_LETTERS]}: {_why(one)}"))
    else:
        print("You wait for nothing.")
    others = Counter(one["asked"] for one in line if not one["id"])
    for asked, count in others.items():
        print(shown(f"{count} {'other waits' if count == 1 else 'others wait'} for {asked}."))


def _row(one: dict[str, Any], now: float) -> tuple[str, ...]:
    place = f"{one['place']} of {one['of']}"
    since = show_time(one["asked_at"], now)
    return (
        one["id"][:ID_LETTERS],
        one["user"],
        one["server"] or "-",
        one["team"] or "-",
        one["asked"],
        place,
        since,
        _range(one),
    )


def _range(one: dict[str, Any]) -> str:
    """Return in how long it starts: likely and at most, as far as both are known."""
    likely, most = one["likely_seconds"], one["at_most_seconds"]
    if most is None:
        return "not known" if likely is None else f"about {show_duration(likely)}"
    if likely is None or likely >= most:
        return f"at most {show_duration(most)}"
    return f"{show_duration(likely)} to {show_duration(most)}"


def _why(one: dict[str, Any]) -> str:
    """Return what it waits for, which rule holds it back, and why its place changed."""
    found = [one["sentence"]]
    if held := one["held_back"]:
        found += [held["words"]] if held["words"] not in one["sentence"] else []
        found.append(f"Held back by the rule {held['rule']}.")
    return " ".join(filter(None, [*found, one["changed"]]))
