"""``gpuspawner quota``, ``usage`` and ``grant``: the same REST API that the pages use."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import urlencode

from gpuspawner.cli.asking import ID_LETTERS, ask, ask_all, one_begins
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.table import print_table


def quota(arguments: argparse.Namespace) -> None:
    """Print what bounds a user: each limit and budget, what is used, left, and when it renews."""
    show(arguments, ask(arguments, f"/quota{_query(user=arguments.user)}"), _print_quota)


def usage(arguments: argparse.Namespace) -> None:
    """Print what was used, by user, team, kind or day."""
    query = _query(by=arguments.by, since=arguments.since, until=arguments.until, all="1" if arguments.all else "")
    show(arguments, ask(arguments, f"/usage{query}"), _print_usage)


def grant(arguments: argparse.Namespace) -> None:
    """Grant somebody more for a time, take a grant back, or list the grants."""
    why = {"why": arguments.why} if arguments.why else {}
    if arguments.list:
        show(arguments, ask_all(arguments, "/quota-grants", "grants"), _print_grants)
        return
    if arguments.take_back:
        listed = ask_all(arguments, "/quota-grants", "grants")["grants"]
        one = one_begins(listed, arguments.take_back, "grant", "gpuspawner grant --list")
        show(arguments, ask(arguments, f"/quota-grants/{one['id']}", "DELETE", why), _print_grant)
        return
    if arguments.what is None:  # of a team, or of everybody, the amount alone is named
        arguments.user, arguments.what = "", arguments.user
    said = {name: getattr(arguments, name) for name in ("what", "until", "since", "team", "user", "everybody")}
    body = {**why, **{name: value for name, value in said.items() if value}}
    show(arguments, ask(arguments, "/quota-grants", "POST", body), _print_grant)


def correct(arguments: argparse.Namespace) -> None:
    """Charge somebody more, or give back, by a line of the ledger."""
    said = {name: getattr(arguments, name) for name in ("user", "team", "amount", "why")}
    body = {name: value for name, value in said.items() if value}
    show(arguments, ask(arguments, "/usage/corrections", "POST", body), _print_correction)


def _query(**values: str | None) -> str:
    named = {name: value for name, value in values.items() if value}
    return f"?{urlencode(named)}" if named else ""


def _print_quota(answer: dict[str, Any]) -> None:
    lines = [line["words"] for line in (*answer["limits"], *answer["budgets"])]
    lines += [f"Granted: {one['words']} ({one['by']}: {one['why']})" for one in answer["grants"]]
    for line in lines or ["Nothing bounds what you may use."]:
        print(shown(line))


def _print_usage(answer: dict[str, Any]) -> None:
    since, until = answer["since"], answer["until"]
    if not answer["rows"]:
        print(f"Nothing was used from {since} to {until}.")
        return
    has_cost = answer["cost"] is not None
    head = (answer["by"].upper(), "GPU H", "GIVEN BACK", *(("COST",) if has_cost else ()))
    rows: list[tuple[str, ...]] = [head]
    whole = {"name": "all", "gpu_hours": answer["gpu_hours"], "cost": answer["cost"]}
    whole["given_back_gpu_hours"] = sum(one["given_back_gpu_hours"] for one in answer["rows"])
    for one in (*answer["rows"], whole):
        cost = (f"{one['cost']:.2f}",) if has_cost else ()
        rows.append((one["name"], f"{one['gpu_hours']:.1f}", f"{one['given_back_gpu_hours']:.1f}", *cost))
    print(f"From {since} to {until}, {answer['timezone']}; what runs, up to now.")
    print_table(rows)


def _print_grants(answer: dict[str, Any]) -> None:
    if not answer["grants"]:
        print("No grants were made.")
        return
    rows: list[tuple[str, ...]] = [("ID", "WHAT", "STATE", "BY", "MADE", "WHY")]
    for one in answer["grants"]:
        made = show_time(one["made_at"], one["now"])
        rows.append((one["id"][:ID_LETTERS], one["words"], one["state"], one["by"], made, one["why"]))
    print_table(rows)


def _print_grant(one: dict[str, Any]) -> None:
    print(shown(f"{one['words']} (grant {one['id'][:ID_LETTERS]}): {one['state']}."))
    if one["note"]:
        print(shown(one["note"]))


def _print_correction(one: dict[str, Any]) -> None:
    print(shown(f"{one['words']}."))
