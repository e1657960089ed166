"""``gpuspawner quota``, ``usage`` and ``grant``: the same REST API that the pages use."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import urlencode

from gpuspawner.cli.asking import REFUSED, AwayError, RefusedError, call, token_of, told
from gpuspawner.cli.remote import ID_LETTERS, shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.units import show_time


def quota(arguments: argparse.Namespace) -> int:
    """Print what bounds a user: each limit and budget, what is used, left, and when it renews."""
    return _told(arguments, f"/quota{_query(user=arguments.user)}", _print_quota)


def usage(arguments: argparse.Namespace) -> int:
    """Print what was used, by user, team, kind or day."""
    query = _query(by=arguments.by, since=arguments.since, until=arguments.until, all="1" if arguments.all else "")
    return _told(arguments, f"/usage{query}", _print_usage)


def grant(arguments: argparse.Namespace) -> int:
    """Grant somebody more for a time, take a grant back, or list the grants."""
    if arguments.list:
        return _told(arguments, "/quota-grants", _print_grants)
    if arguments.take_back:
        return _take_back(arguments)
    if arguments.what is None:  # of a team, or of everybody, the amount alone is named
        arguments.user, arguments.what = "", arguments.user
    body = {"what": arguments.what, "until": arguments.until, "why": arguments.why, "since": arguments.since}
    whom = {"team": arguments.team, "user": arguments.user, "everybody": arguments.everybody}
    body |= {name: value for name, value in whom.items() if value}
    return _told(arguments, "/quota-grants", _print_grant, "POST", body)


def correct(arguments: argparse.Namespace) -> int:
    """Charge somebody more, or give back, by a line of the ledger."""
    body = {"user": arguments.user, "team": arguments.team, "amount": arguments.amount, "why": arguments.why}
    return _told(arguments, "/usage/corrections", _print_correction, "POST", body)


def _take_back(arguments: argparse.Namespace) -> int:
    name = arguments.take_back
    try:
        listed = _ask(arguments, "/quota-grants")["grants"]
    except (RefusedError, AwayError) as error:
        return told(error)
    found = [one for one in listed if one["id"].startswith(name)]
    if len(found) != 1:
        count = "No grant" if not found else f"{len(found)} grants"
        print(f"{count} with an id that begins {name!r}. See gpuspawner grant --list.", file=sys.stderr)
        return REFUSED
    return _told(arguments, f"/quota-grants/{found[0]['id']}", _print_grant, "DELETE", {"why": arguments.why})


def _told(arguments: argparse.Namespace, path: str, printed: Any, method: str = "GET", body: Any = None) -> int:
    try:
        answer = _ask(arguments, path, method, body)
    except (RefusedError, AwayError) as error:
        return told(error)
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        printed(answer)
    return 0


def _ask(arguments: argparse.Namespace, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
    return call(f"{arguments.url.rstrip('/')}/api/v1{path}", token_of(), method, body)


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
