"""``gpuspawner offers``: what is to be had of each kind of GPU now."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.asking import ask
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.gpus.sharing import USED_UP
from gpuspawner.core.units import show_bytes, show_money


def offers(arguments: argparse.Namespace) -> None:
    """Print the kinds, and what bounds who asks."""
    show(arguments, ask(arguments, "/offers"), _print)


def _print(answer: dict[str, Any]) -> None:
    if not answer["offers"]:
        print("No kind of GPU is offered to you.")
    else:
        rows: list[tuple[str, ...]] = [("KIND", "WHAT IT IS", "MEMORY", "FREE", "WAITING", "PRICE", "NOTE")]
        print_table([*rows, *(_row(one, answer["currency"]) for one in answer["offers"])])
    for line in answer["quota"]:
        print(shown(line["words"]))


def _row(one: dict[str, Any], currency: str) -> tuple[str, ...]:
    free = "unknown" if one["free"] is None else f"{one['free']} of {one['total']}"
    memory = "" if one["memory_bytes"] is None else show_bytes(one["memory_bytes"])
    memory = f"{memory}, not enforced" if memory and not one["memory_enforced"] else memory
    price = "" if one["price_per_hour"] is None else f"{show_money(one['price_per_hour'], currency)} / h"
    title = f"{one['title']} (simulated)" if one["simulated"] else one["title"]
    spot = "spot: the cloud may take it back at any time" if one["spot"] else ""
    shared = "" if one["memory_enforced"] else USED_UP
    return (
        one["kind"],
        title,
        memory,
        free,
        str(one["waiting"]),
        price,
        "; ".join(filter(None, (one["note"], spot, shared, one["measured"]))),
    )
