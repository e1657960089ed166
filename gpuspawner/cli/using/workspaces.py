"""``gpuspawner list``, ``show``, ``explain``, ``open``, ``keep``, ``extend`` and ``stop``: as the pages do."""

from __future__ import annotations

import argparse
import sys
import time
import webbrowser
from typing import Any
from urllib.parse import quote, urlsplit

from gpuspawner.cli.administering.workspaces import act, ask_reason_to_stop, is_administrators
from gpuspawner.cli.asking import ID_LETTERS, ask, ask_all
from gpuspawner.cli.clock import show_time
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.meant import meant, meant_to_change, title
from gpuspawner.cli.output import show, shown
from gpuspawner.cli.table import print_table
from gpuspawner.core.leases.warned import DECIDED
from gpuspawner.core.units import show_bytes, show_cpu, show_duration

ASK_SECONDS = 1.0
"""How often it is looked whether a workspace has ended. It takes seconds."""
PATHS = {"lab": "lab", "vscode": "vscode/"}
"""Where a workspace's server has what it opens."""


def list_workspaces(arguments: argparse.Namespace) -> None:
    """Print the workspaces as a table."""
    path = f"/workspaces?all={int(arguments.all)}"
    if arguments.disputed:
        path = f"/disputes?all={int(arguments.all)}"
    answer = ask_all(arguments, path, "workspaces")
    if arguments.ended > 0 and not arguments.disputed:
        ended = ask(arguments, f"/workspaces?all={int(arguments.all)}&live=0&ended={arguments.ended}")
        answer["workspaces"] += ended["workspaces"]
    show(arguments, answer, lambda told: _print_list(arguments, told["workspaces"]))


def _print_list(arguments: argparse.Namespace, workspaces: list[dict[str, Any]]) -> None:
    if not workspaces and arguments.disputed:
        print("No end was called wrong that is not answered.")
    elif not workspaces:
        whose = "" if arguments.all else " of yours; --all shows everybody's, to administrators"
        print(f"No workspaces{whose}. Start one by gpuspawner start, or on the hub's page Home.")
    else:
        print_table([("ID", "USER", "SERVER", "STATE", "ENDS", "IDLE"), *map(_row, workspaces)])


def _row(workspace: dict[str, Any]) -> tuple[str, ...]:
    state = workspace["words"]
    if workspace["queue"]:
        state += f" (place {workspace['queue']['place']} of {workspace['queue']['of']})"
    if workspace["end"]:
        state = f"{workspace['end']['words']} ({workspace['end']['by']})"
        if dispute := workspace["end"]["dispute"]:
            state += "; called wrong, answered" if dispute["answer"] else "; called wrong, not answered"
    ends = _ends_at(workspace)
    left = "" if ends is None else "in " + show_duration(max(0, round(ends - workspace["now"])))
    if workspace["end"]:
        ended_at = workspace["end"]["at"]
        left = "now" if ended_at is None else show_time(ended_at, workspace["now"])
    idle = workspace["idle"]["words"] if workspace["idle"] else ""
    return workspace["id"][:ID_LETTERS], workspace["user"], workspace["server"] or "-", state, left, idle


def _ends_at(workspace: dict[str, Any]) -> float | None:
    """Return when it ends unless something changes: by what was decided, where that comes before its own time."""
    warning, at = workspace["warning"], workspace["ends_at"]
    told = warning["ends_at"] if warning and warning["kind"] in DECIDED else None
    return min((one for one in (at, told) if one is not None), default=None)


def explain(arguments: argparse.Namespace) -> None:
    """Print what the workspace's page says of it."""
    show(arguments, meant(arguments, arguments.name), _print_explained)


def _print_explained(one: dict[str, Any]) -> None:
    print(f"{title(one)}. {one['words']}.")
    print("\n".join(map(shown, one["explained"])))


def show_workspace(arguments: argparse.Namespace) -> None:
    """Print one workspace: what it was asked for with, what it has, when it ends, and what can be done."""
    show(arguments, meant(arguments, arguments.name), lambda one: _print_whole(arguments, one))


def _print_whole(arguments: argparse.Namespace, one: dict[str, Any]) -> None:
    asked, now = one["request"], one["now"]
    gpus = f"{asked['count']} {asked['gpu']}" if asked["gpu"] else "no GPU"
    cores = f"{show_cpu(asked['cpu_cores'])} core{'' if asked['cpu_cores'] == 1 else 's'}"
    size = f"{cores}, {show_bytes(asked['memory_bytes'])}" if asked["memory_bytes"] else ""
    lines = [("State", one["words"]), ("Template", asked["template"]), ("Asked", ", ".join(filter(None, [gpus, size])))]
    lines += [("Team", asked["team"])] if asked["team"] else []
    lines += [(f"GPU {gpu['index']}", gpu["name"] if one["end"] else _gpu(gpu)) for gpu in one["gpus"]]
    lines += [("Waits", one["queue"]["sentence"])] if one["queue"] else []
    lines += [("Idle", one["idle"]["words"])] if one["idle"] else []
    lines += [("Warning", one["warning"]["text"])] if one["warning"] else []
    if one["end"]:
        lines.append(("Ended", f"{show_time(one['end']['at'] or now, now)}: {one['end']['why']}"))
    elif (ends := _ends_at(one)) is not None:
        lines.append(("Ends", f"{show_time(ends, now)}, in {show_duration(max(0, ends - now))}"))
    if not one["end"]:
        lines.append(("Keep", f"{one['keep']['left']} left, each {show_duration(one['keep']['each_seconds'])}"))
        lines.append(("Extend", one["extend"]["why"] or f"by {show_duration(one['extend']['each_seconds'])}"))
    if one["charged"]:
        cost = "" if one["charged"]["cost"] is None else f", cost {one['charged']['cost']:.2f}"
        lines.append(("Used", f"{one['charged']['gpu_hours']:.1f} GPU h{cost}"))
    lines.append(("Page", _address(arguments, one["page"])))
    print(f"{title(one)}")
    for name, text in lines:
        print(shown(f"  {name + ':':<10} {text}"))


def _gpu(gpu: dict[str, Any]) -> str:
    percent = gpu["utilization_percent"]
    if percent is None:
        return f"{gpu['name']}, {gpu['problem'] or 'not read yet'}"
    return f"{gpu['name']}, {percent:.0f} %, {show_bytes(gpu['memory_used_bytes'] or 0)} used"


def open_workspace(arguments: argparse.Namespace) -> None:
    """Open a workspace in the browser, or print its address where there is none."""
    one = meant(arguments, arguments.name)
    if one["phase"] not in {"running", "reclaiming"}:
        raise RefusedError(f"{title(one)} does not run: {one['words']}. See gpuspawner show {one['id'][:ID_LETTERS]}.")
    address = address_of(arguments, one)
    show(arguments, {"address": address}, lambda told: print(told["address"]))
    if not arguments.json and not arguments.print:
        webbrowser.open(address)


def address_of(arguments: argparse.Namespace, one: dict[str, Any]) -> str:
    """Return where a workspace opens in a browser: what its template opens first."""
    base = arguments.url.rstrip("/").rpartition("/services/")[0]
    server = f"{quote(one['server'], safe='@~')}/" if one["server"] else ""
    what = next((PATHS[name] for name in one["opens"] if name in PATHS), "")
    return f"{base}/user/{quote(one['user'], safe='@~')}/{server}{what}"


def _address(arguments: argparse.Namespace, page: str) -> str:
    parts = urlsplit(arguments.url)
    return f"{parts.scheme}://{parts.netloc}{page}"


def keep(arguments: argparse.Namespace) -> None:
    """Keep a workspace that is idle, as its page's button does."""
    one = meant_to_change(arguments, arguments.name, "keeps")
    answer = ask(arguments, f"/workspaces/{one['id']}/keep", "POST")
    show(arguments, answer, lambda told: print(f"{title(one)} is kept. {told['keep']['left']} more times left."))


def extend(arguments: argparse.Namespace) -> int:
    """Move the end of a workspace by what its policy gives at once."""
    one = meant_to_change(arguments, arguments.name, "extends")
    if is_administrators(arguments, "until", "dry_run"):
        return act(arguments, "extend", {"ids": [one["id"]], "until": arguments.until})
    answer = ask(arguments, f"/workspaces/{one['id']}/extend", "POST")
    show(arguments, answer, lambda told: print(f"{title(one)} ends {show_time(told['ends_at'], told['now'])} now."))
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Stop the one workspace that a name means, or withdraw it from the queue; another's with a reason and notice."""
    one = meant_to_change(arguments, arguments.name, "stops")
    ask_reason_to_stop(arguments, one)
    if is_administrators(arguments, "now", "dry_run"):
        return act(arguments, "stop", {"ids": [one["id"]], "now": arguments.now})
    answer = ask(arguments, f"/workspaces/{one['id']}/stop", "POST")
    while answer["phase"] != "ended" and not arguments.detach:  # before, its name could not be started again
        time.sleep(ASK_SECONDS)
        answer = ask(arguments, f"/workspaces/{one['id']}")
    show(arguments, answer, lambda told: print(f"{title(one)}: {shown(told['words'])}. Its files stay."))
    return 0


def tell(text: str) -> None:
    """Print what is not the command's answer: progress, of which ``--json`` and pipes have nothing."""
    print(shown(text), file=sys.stderr, flush=True)
