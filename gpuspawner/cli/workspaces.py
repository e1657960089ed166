"""``gpuspawner list``, ``show``, ``explain``, ``open``, ``keep``, ``extend``, ``stop``, ``change`` and restarts."""

from __future__ import annotations

import time
import webbrowser
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import (
    AdminAction,
    admin_options,
    ask_reason_to_stop,
    dry_run_option,
    has_reason,
    now_option,
    run_action,
    until_option,
    yes_option,
)
from gpuspawner.cli.client import Session, find_one, find_to_change, title_of
from gpuspawner.cli.errors import RefusedError
from gpuspawner.cli.output import Column, counted, escape, or_dash, print_table, say, say_lines, short_id, show_time
from gpuspawner.core.leases.exits import FINAL_WARNINGS
from gpuspawner.core.units import show_bytes, show_cpu, show_duration

POLL_SECONDS = 1.0
"""Between two looks at a workspace that stops, which takes seconds."""
RUNNING_PHASES = frozenset({"running", "reclaiming"})
"""Phases of a workspace that its user can open."""
PATHS = {"lab": "lab", "vscode": "vscode/"}
"""Paths below a workspace's server, by the name in ``opens``."""


def _state(words: str, queue: dict[str, Any] | None, end: dict[str, Any] | None) -> str:
    if end:
        dispute = end["dispute"]
        answered = "; reported as wrong, " + ("answered" if dispute["answer"] else "not answered") if dispute else ""
        return f"{end['words']} ({end['by']}){answered}"
    return f"{words} (place {queue['place']} of {queue['of']})" if queue else words


def _ends(ends_at: float | None, warning: dict[str, Any] | None, end: dict[str, Any] | None, now: float) -> str:
    if end:
        return "now" if end["at"] is None else show_time(end["at"], now)
    at = _end_of(ends_at, warning)
    return "" if at is None else f"in {show_duration(max(0, round(at - now)))}"


def _end_of(ends_at: float | None, warning: dict[str, Any] | None) -> float | None:
    """Return when a workspace ends: by a decision of others, if that is before its own end."""
    decided = warning["ends_at"] if warning and warning["kind"] in FINAL_WARNINGS else None
    return min((one for one in (ends_at, decided) if one is not None), default=None)


COLUMNS = (
    Column("ID", ("id",), short_id),
    Column("USER", ("user",)),
    Column("SERVER", ("server",), or_dash),
    Column("STATE", ("words", "queue", "end"), _state),
    Column("ENDS", ("ends_at", "warning", "end", "now"), _ends),
    Column("IDLE", ("idle",), lambda idle: idle["words"] if idle else ""),
)


@base.command("list", examples="gpuspawner list --ended 5\ngpuspawner list --all --json")
@click.option("--all", "all_users", is_flag=True, help="Workspaces of all users (administrators).")
@click.option(
    "--ended", type=click.IntRange(0, 200), default=0, metavar="N", help="Also the last N that ended, up to 200."
)
@click.option("--disputed", is_flag=True, help="Only ends that a user reported as wrong, without an answer.")
@base.session_options
def list_workspaces(session: Session, ended: int, *, all_users: bool, disputed: bool) -> None:
    """List workspaces."""
    path = f"/{'disputes' if disputed else 'workspaces'}?all={all_users:d}"
    answer = session.ask_all(path, "workspaces")
    if ended > 0 and not disputed:
        more = session.ask(f"/workspaces?all={all_users:d}&live=0&ended={ended}")
        answer["workspaces"] += more["workspaces"]
    session.show(answer, lambda told: _print_list(told["workspaces"], all_users=all_users, disputed=disputed))


def _print_list(workspaces: list[dict[str, Any]], *, all_users: bool, disputed: bool) -> None:
    if workspaces:
        print_table(COLUMNS, workspaces)
    elif disputed:
        say("Every report of a wrong end is answered.")
    elif all_users:
        say("There are no workspaces.")
    else:
        say(
            "You have no workspaces now. Start one with gpuspawner start, or on the hub's page Start. gpuspawner list "
            "--ended 5 shows those that ended, and gpuspawner explain says why the last one did."
        )


@base.command("explain", examples="gpuspawner explain train\ngpuspawner explain -          the one without a name")
@base.name_argument(required=False)
@base.session_options
def explain(session: Session, name: str) -> None:
    """Explain how a workspace is judged now, and why."""
    session.show(find_one(session, name), lambda one: _print_explained(session, one))


def _print_explained(session: Session, one: dict[str, Any]) -> None:
    say(f"{title_of(one)}. {one['words']}.")
    for line in one["explained"]:
        say(line)
    _print_output(session, one)


def _print_output(session: Session, one: dict[str, Any]) -> None:
    """Print the last output of a server that failed, as far as the reader may see it."""
    if one["end"] is None or one["end"]["reason"] != "failed":
        return
    output = session.ask(f"/workspaces/{one['id']}/output")
    if output["text"]:
        say("Last output of its server:")
        say_lines(output["text"].rstrip("\n"))


@base.command(
    "show", examples="gpuspawner show          the only one, else the one that ended last\ngpuspawner show train"
)
@base.name_argument(required=False)
@base.session_options
def show(session: Session, name: str) -> None:
    """Show a workspace: its state, GPUs, end, and what you can do."""
    session.show(find_one(session, name), lambda one: _print_whole(session, one))


def _print_whole(session: Session, one: dict[str, Any]) -> None:
    """Print the fields of a workspace. An ended workspace has neither GPU readings nor actions."""
    now = one["now"]
    lines = [("State", one["words"]), ("Template", one["request"]["template"]), ("Request", _requested(one["request"]))]
    lines += [("Team", one["request"]["team"])] if one["request"]["team"] else []
    lines += [(f"GPU {gpu['index']}", gpu["name"] if one["end"] else _gpu(gpu)) for gpu in one["gpus"]]
    lines += [("Queue", one["queue"]["sentence"])] if one["queue"] else []
    lines += [("Idle", one["idle"]["words"])] if one["idle"] else []
    lines += [("Warning", one["warning"]["text"])] if one["warning"] else []
    if one["end"]:
        lines.append(("Ended", f"{show_time(one['end']['at'] or now, now)}: {one['end']['why']}"))
    elif (ends := _end_of(one["ends_at"], one["warning"])) is not None:
        lines.append(("Ends", f"{show_time(ends, now)}, in {show_duration(max(0, ends - now))}"))
    if not one["end"]:
        lines.append(("Keep", f"{one['keep']['left']} left, each {show_duration(one['keep']['each_seconds'])}"))
        lines.append(("Extend", one["extend"]["why"] or f"by {show_duration(one['extend']['each_seconds'])}"))
    if one["charged"]:
        cost = "" if one["charged"]["cost"] is None else f", cost {one['charged']['cost']:.2f}"
        lines.append(("Charged", f"{one['charged']['gpu_hours']:.1f} GPU h{cost}"))
    parts = urlsplit(session.url)
    lines.append(("Page", f"{parts.scheme}://{parts.netloc}{one['page']}"))
    say(title_of(one))
    for name, text in lines:
        say(f"  {name + ':':<10} {text}")
    _print_output(session, one)


def _requested(request: dict[str, Any]) -> str:
    gpus = f"{request['count']} {request['gpu']}" if request["gpu"] else "no GPU"
    if not request["memory_bytes"]:
        return gpus
    cores = f"{show_cpu(request['cpu_cores'])} core{'' if request['cpu_cores'] == 1 else 's'}"
    return f"{gpus}, {cores}, {show_bytes(request['memory_bytes'])}"


def _gpu(gpu: dict[str, Any]) -> str:
    percent = gpu["utilization_percent"]
    if percent is None:
        return f"{gpu['name']}, {gpu['problem'] or 'not read yet'}"
    return f"{gpu['name']}, {percent:.0f} %, {show_bytes(gpu['memory_used_bytes'] or 0)} used"


@base.command("open", examples="gpuspawner open train\ngpuspawner open --print      only its address")
@base.name_argument(required=False)
@click.option("--print", "print_only", is_flag=True, help="Print the address and open no browser.")
@base.session_options
def open_workspace(session: Session, name: str, *, print_only: bool) -> None:
    """Open a workspace in the browser."""
    one = find_one(session, name)
    if one["phase"] not in RUNNING_PHASES:
        see = f"See gpuspawner show {short_id(one['id'])}."
        raise RefusedError(escape(f"{title_of(one)} is not running: {one['words']}. {see}"))
    address = address_of(session, one)
    session.show({"address": address}, lambda told: say(told["address"]))
    if not session.as_json and not print_only:
        webbrowser.open(address)


def address_of(session: Session, one: dict[str, Any]) -> str:
    """Return the address of what a workspace's template opens first."""
    base_url = session.url.rstrip("/").rpartition("/services/")[0]
    server = f"{quote(one['server'], safe='@~')}/" if one["server"] else ""
    path = next((PATHS[name] for name in one["opens"] if name in PATHS), "")
    return f"{base_url}/user/{quote(one['user'], safe='@~')}/{server}{path}"


@base.command("keep", examples="gpuspawner keep train")
@base.name_argument()
@base.session_options
def keep(session: Session, name: str) -> None:
    """Keep an idle workspace running.

    The idle check pauses for a while. The end of the workspace does not move: use gpuspawner extend for that.
    """
    one = find_to_change(session, name)
    answer = session.ask(f"/workspaces/{one['id']}/keep", "POST")
    left, until = answer["keep"]["left"], (answer["idle"] or {}).get("kept_until")
    paused = f"Its idle check is paused until {show_time(until, answer['now'])}" if until else "It keeps running"
    more = f"You can keep it {counted(left, 'more time')}."
    session.show(answer, lambda _: say(f"{title_of(one)}: {paused}. {more}"))


@base.command("extend", examples='gpuspawner extend train\ngpuspawner extend 7c1d90ab --until 3d --reason "a deadline"')
@base.name_argument()
@until_option
@admin_options
@base.session_options
def extend(session: Session, name: str, until: str, reason: str, *, dry_run: bool) -> int:
    """Move the end of a workspace.

    Without options it moves by as much as the workspace's policy gives at once. For a workspace of another user, an
    administrator writes USER/SERVER (USER/- for the one without a name) or the ID as gpuspawner list --all shows it.
    """
    one = find_to_change(session, name)
    if has_reason(reason, {"--until": until, "--dry-run": dry_run}):
        return run_action(session, AdminAction("extend", [one["id"]], reason, {"until": until}, dry_run=dry_run))
    answer = session.ask(f"/workspaces/{one['id']}/extend", "POST")
    session.show(answer, lambda told: say(f"{title_of(one)} now ends {show_time(told['ends_at'], told['now'])}."))
    return 0


@base.command("stop", examples='gpuspawner stop train\ngpuspawner stop 7c1d90ab --reason "maintenance on Friday"')
@base.name_argument()
@click.option("--detach", is_flag=True, help="Do not wait until the workspace has ended.")
@now_option
@yes_option
@admin_options
@base.session_options
def stop(session: Session, name: str, reason: str, *, detach: bool, now: bool, yes: bool, dry_run: bool) -> int:
    """Stop a workspace, or withdraw a waiting one.

    Its files are kept. Administrators give a reason to stop a workspace of another user, who then gets a notice. Its
    NAME is then USER/SERVER (USER/- for the one without a name) or the ID as gpuspawner list --all shows it.
    """
    one = find_to_change(session, name)
    reason = ask_reason_to_stop(session, one, reason)
    if has_reason(reason, {"--now": now, "--dry-run": dry_run}):
        action = AdminAction("stop", [one["id"]], reason, {"now": now}, dry_run=dry_run, confirmed=yes)
        return run_action(session, action)
    answer = session.ask(f"/workspaces/{one['id']}/stop", "POST")
    while answer["phase"] != "ended" and not detach:  # before that, its name cannot be started again
        time.sleep(POLL_SECONDS)
        answer = session.ask(f"/workspaces/{one['id']}")
    session.show(answer, lambda told: say(f"{title_of(one)}: {told['words']}. Its files are kept."))
    return 0


@base.command("done", examples="gpuspawner done train --in 30\ngpuspawner done train --in 0     not soon")
@base.name_argument()
@click.option("--in", "minutes", type=click.IntRange(0, 1440), required=True, help="In how many minutes; 0: not soon.")
@base.session_options
def done(session: Session, name: str, minutes: int) -> None:
    """Say when you will be done with a workspace.

    The workspace does not end then. Users who wait for such a GPU see a better estimate of their start.
    """
    one = find_to_change(session, name)
    answer = session.ask(f"/workspaces/{one['id']}/done", "POST", {"minutes": minutes})
    told = f"{title_of(one)}: you will not be done soon."
    if minutes:
        told = f"{title_of(one)}: you will be done at about {show_time(answer['now'] + 60 * minutes, answer['now'])}."
    session.show(answer, lambda _: say(f"{told} It does not stop then."))


@base.command(
    "without-gpu", examples="gpuspawner without-gpu train --dry-run     what would happen\ngpuspawner without-gpu train"
)
@base.name_argument()
@dry_run_option
@base.session_options
def without_gpu(session: Session, name: str, *, dry_run: bool) -> None:
    """Restart a workspace without a GPU, which is released at once.

    Home and files are kept. The workspace stops and starts again, so running kernels are lost.
    """
    _restart(session, name, "without-gpu", dry_run=dry_run)


@base.command(
    "with-gpu", examples="gpuspawner with-gpu train --dry-run     what would happen\ngpuspawner with-gpu train"
)
@base.name_argument()
@dry_run_option
@base.session_options
def with_gpu(session: Session, name: str, *, dry_run: bool) -> None:
    """Restart a workspace with a GPU again.

    It requests the GPUs that the workspace had before. Home and files are kept. The workspace stops and starts again,
    so running kernels are lost.
    """
    _restart(session, name, "with-gpu", dry_run=dry_run)


@base.command("rename", examples='gpuspawner rename train "Llama fine-tuning"')
@base.name_argument()
@click.argument("title")
@base.session_options
def rename(session: Session, name: str, title: str) -> None:
    """Give a workspace another name for people.

    Pages and messages show it. The address and the command line keep the name of the server. "" takes it back.
    """
    one = find_to_change(session, name)
    answer = session.ask(f"/workspaces/{one['id']}/rename", "POST", {"title": title})
    session.show(answer, lambda told: say(escape(f"{title_of(one)} is now called {told['name']}.")))


@base.command(
    "change",
    examples="gpuspawner change train --count 4\n"
    'gpuspawner change train --gpu h100 --memory "192 GB" --dry-run     what would happen\n'
    "gpuspawner change train --withdraw",
)
@base.name_argument()
@click.option("--gpu", metavar="KIND", help="The new GPU kind, or none.")
@click.option("--count", metavar="N", type=int, help="The new number of GPUs.")
@click.option("--cpu", metavar="CORES", help="The new number of CPU cores.")
@click.option("--memory", metavar="SIZE", help='The new memory, for example "64 GB".')
@click.option("--now", "at_once", is_flag=True, help="Stop the workspace now, and let the new size wait in the queue.")
@click.option("--withdraw", is_flag=True, help="Withdraw a waiting change.")
@dry_run_option
@base.session_options
def change(
    session: Session, name: str, *, at_once: bool, withdraw: bool, dry_run: bool, **size: str | int | None
) -> None:
    """Change the GPUs, CPU or memory of a running workspace.

    It runs on until the new size is free. Then it restarts with the same files, and running kernels are lost.
    """
    one = find_to_change(session, name)
    path = f"/workspaces/{one['id']}/size"
    asked = {key: value for key, value in size.items() if value is not None}
    if withdraw:
        answer = session.ask(path, "DELETE")
        session.show(answer, lambda _: say(f"{title_of(one)} keeps its size."))
    elif dry_run:
        session.show(session.ask(f"{path}?{urlencode(asked)}"), _print_size)
    else:
        answer = session.ask(path, "POST", {**asked, "at_once": at_once})
        session.show(answer, lambda told: say(f"{title_of(one)}: {_change_words(told)}"))


def _print_size(found: dict[str, Any]) -> None:
    say(f"{found['size']}. {found['sentence']}")
    for effect in found["effects"]:
        say(f"{effect['words']} {effect['more']}".rstrip())
    say("Nothing was done.")


def _change_words(told: dict[str, Any]) -> str:
    waiting = told["size_change"]
    if waiting:
        return f"it changes to {waiting['size']}. {waiting['sentence']} It runs on until then."
    words: str = told["end"]["message"] if told["end"] else told["words"]
    return words


def _restart(session: Session, name: str, way: str, *, dry_run: bool) -> None:
    one = find_to_change(session, name)
    path = f"/workspaces/{one['id']}"
    if not dry_run:
        answer = session.ask(f"{path}/{way}", "POST")
        session.show(answer, lambda told: say(f"{title_of(one)}: {told['end']['message']}"))
        return
    answer = session.ask(f"{path}/going-on")
    offered = answer["going_on"]
    if offered is None or offered["action"] != way or offered["why"]:
        why = offered["why"] if offered and offered["action"] == way else f"{one['words']}."
        raise RefusedError(
            escape(f"{title_of(one)} cannot restart {way.replace('-', ' ').replace('gpu', 'a GPU')}. {why}")
        )
    session.show(answer, _print_restart)


def _print_restart(answer: dict[str, Any]) -> None:
    say(f"{answer['going_on']['words']} {answer['now']}")
    say("Nothing was done.")
