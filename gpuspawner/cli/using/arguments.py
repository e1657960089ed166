"""What the commands of users take."""

from __future__ import annotations

import argparse
from typing import Any

from gpuspawner.cli.administering.arguments import add_reason
from gpuspawner.cli.arguments_shared import add_command, add_name, options

RUN = "gpuspawner.cli.using"
START = """\
  gpuspawner start                                         the first template, as its form has it
  gpuspawner start pytorch --gpu a100 --count 2 --lifetime 8h
  gpuspawner start pytorch --gpu a100 --instead h100 --name train --detach
  gpuspawner start pytorch --gpu a100 --dry-run            what it would do now
"""


def add_using(commands: Any) -> None:
    """Add every command."""
    _add_start(commands)
    _add_ready(commands)
    _add_looks(commands)
    _add_acts(commands)
    _add_going_on(commands)
    add_quota(commands)


def _add_start(commands: Any) -> None:
    parser = add_command(
        commands,
        "start",
        "start a workspace: waits in the queue, and ends once it runs",
        START,
        description=(
            "Asks for a workspace as the form does, and waits until it runs: what it waits for is told "
            "whenever that changes. Ctrl-C, or a closed terminal, leaves it its place."
        ),
    )
    _add_options(parser)
    parser.add_argument("--detach", action="store_true", help="do not wait for it")
    parser.add_argument("--dry-run", action="store_true", help="say what it would do now, and ask for nothing")
    parser.set_defaults(run=f"{RUN}.start:start")
    options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add what a start may ask for."""
    parser.add_argument("template", metavar="TEMPLATE", nargs="?", help="as the catalog calls it (default: the first)")
    parser.add_argument("--gpu", metavar="KIND", help="as gpuspawner offers calls it; any; none for none")
    parser.add_argument(
        "--gpu-memory",
        metavar="SIZE",
        help="of each GPU at least, such as 40GiB; without --gpu any that has it",
    )
    parser.add_argument("--count", metavar="N", help="how many GPUs")
    parser.add_argument("--cpu", metavar="CORES", help="such as 4 or 0.5")
    parser.add_argument("--memory", metavar="SIZE", help="as you write it, such as 64 or '64 GB'")
    parser.add_argument("--lifetime", metavar="TIME", help="as you write it, such as 90 (minutes), 1h30 or '3 days'")
    parser.add_argument("--team", metavar="TEAM", help="which team is charged")
    parser.add_argument(
        "--instead", metavar="KIND", action="append", help="this kind will do, too, where it comes sooner"
    )
    parser.add_argument(
        "--tool", metavar="NAME", action="append", help="with this tool of the template, as a kernel of its own"
    )
    parser.add_argument("--repository", metavar="URL", help="cloned into your home; https or ssh, without a password")
    parser.add_argument("--own-image", metavar="IMAGE", help="an image of your own, where the template takes any")
    parser.add_argument("--name", metavar="NAME", default="", help="the workspace's name (default: the one without)")


READY = """\
  gpuspawner ready                                         what is to be ready when
  gpuspawner ready pytorch --gpu a100 --at 8:00 --on weekdays
  gpuspawner ready --at 13:30 --on mon,wed --name train --lifetime 4h
  gpuspawner ready --change 3f2a --at 9:00
  gpuspawner ready --pause 3f2a
  gpuspawner ready --remove 3f2a
  gpuspawner ready --resume 3f2a                           asked for again, after days on which you did not come
"""


def _add_ready(commands: Any) -> None:
    parser = add_command(
        commands,
        "ready",
        "have a workspace ready at a time of some weekdays, or list what is",
        READY,
        description=(
            "Asks for a workspace early enough, by how long the queue is then, that it runs at the time. "
            "Nobody who comes within the policy's claim: it is given back. On three days in a row: it pauses."
        ),
    )
    parser.add_argument("--at", metavar="TIME", help="a time of day in the catalog's time zone, such as 8:00")
    parser.add_argument("--on", metavar="DAYS", help="weekdays (if left out), weekend, daily, or mon,wed")
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--remove", metavar="ID", help="remove one, by its id or the beginning of it")
    doing.add_argument("--change", metavar="ID", help="change when one is to be ready, to --at, --on or both")
    doing.add_argument("--pause", metavar="ID", help="have one asked for no more until you resume it")
    doing.add_argument("--resume", metavar="ID", help="have one asked for again that is paused")
    _add_options(parser)
    parser.set_defaults(run=f"{RUN}.ready:ready")
    options(parser)


def _add_looks(commands: Any) -> None:
    listing = add_command(
        commands, "list", "list workspaces", "  gpuspawner list --ended 5\n  gpuspawner list --all --json\n"
    )
    listing.add_argument("--all", action="store_true", help="those of all users (administrators)")
    listing.add_argument("--ended", type=int, default=0, metavar="N", help="the last N that ended, too (up to 200)")
    listing.add_argument("--disputed", action="store_true", help="only ends that were called wrong and not answered")
    listing.set_defaults(run=f"{RUN}.workspaces:list_workspaces")
    queueing = add_command(
        commands,
        "queue",
        "say who waits for GPUs, at which place, for how long and why",
        "  gpuspawner queue\n  gpuspawner queue --json\n",
    )
    queueing.set_defaults(run=f"{RUN}.queue:show_queue")
    offering = add_command(
        commands,
        "offers",
        "say what is to be had of each kind of GPU now, and what bounds you",
        "  gpuspawner offers\n  gpuspawner offers --json\n",
    )
    offering.set_defaults(run=f"{RUN}.offers:offers")
    showing = add_command(
        commands,
        "show",
        "show one workspace: what it has, when it ends, what can be done",
        "  gpuspawner show          the only one, else the one that ended last\n  gpuspawner show train\n",
    )
    showing.set_defaults(run=f"{RUN}.workspaces:show_workspace")
    explaining = add_command(
        commands,
        "explain",
        "say what is judged of a workspace now, and why",
        "  gpuspawner explain train\n  gpuspawner explain -          the one without a name\n",
    )
    explaining.set_defaults(run=f"{RUN}.workspaces:explain")
    opening = add_command(
        commands,
        "open",
        "open a workspace in the browser",
        "  gpuspawner open train\n  gpuspawner open --print      its address alone\n",
    )
    opening.add_argument("--print", action="store_true", help="print the address, and open nothing")
    opening.set_defaults(run=f"{RUN}.workspaces:open_workspace")
    for parser in (showing, explaining, opening):
        add_name(parser, needed=False)
    for parser in (listing, queueing, offering, showing, explaining, opening):
        options(parser)


def _add_acts(commands: Any) -> None:
    known = {
        "keep": "keep an idle workspace, as its page's button does",
        "extend": "move the end of a workspace, by what its policy gives at once",
        "stop": "stop a workspace, or withdraw a waiting one",
    }
    for name, text in known.items():
        parser = add_command(commands, name, text, f"  gpuspawner {name} train\n")
        add_name(parser)
        if name == "stop":
            parser.add_argument("--detach", action="store_true", help="do not wait until it has ended")
        if name != "keep":
            add_reason(parser, until=name == "extend")
        options(parser)
        parser.set_defaults(run=f"{RUN}.workspaces:{name}")


GOING_ON = {
    "without-gpu": "go on without a GPU: the GPU goes back at once, home and files stay",
    "with-gpu": "go on with a GPU again: asks for what the workspace had before",
}


def _add_going_on(commands: Any) -> None:
    for name, text in GOING_ON.items():
        about = f"{text[0].upper()}{text[1:]}. The workspace stops and starts again: running kernels are lost."
        lines = f"  gpuspawner {name} train --dry-run     what it would do, and wait for\n  gpuspawner {name} train\n"
        parser = add_command(commands, name, text, lines, description=about)
        add_name(parser)
        parser.add_argument("--dry-run", action="store_true", help="say what it would do now, and do nothing")
        options(parser)
        parser.set_defaults(run=f"{RUN}.going_on:go_on", way=name)


GRANT_HELP = """\
  gpuspawner grant alice "4 GPUs" --until Friday --why "deadline of the paper"
  gpuspawner grant --team vision "+20 GPU h" --until "this month" --why "lost a node on Monday"
  gpuspawner grant --take-back 3f2a --why "no longer needed"

GPU hours and cost are added to each day, week or month in which the grant is in force. What is taken back ends nothing
that runs: nothing is started or extended by it any more.
"""


def add_quota(commands: Any) -> None:
    """Add the commands of quotas and use."""
    own = add_command(
        commands,
        "quota",
        "show what bounds you: used, set aside, left, and when it renews",
        "  gpuspawner quota\n  gpuspawner quota --user alice\n",
    )
    own.add_argument("--user", metavar="NAME", default="", help="of this user (administrators)")
    own.set_defaults(run="gpuspawner.cli.using.quota:quota")
    used = add_command(
        commands,
        "usage",
        "show what was used: GPU hours and cost, by day, user, team or kind",
        "  gpuspawner usage --by kind\n  gpuspawner usage --since 2026-11-01 --until 2026-11-30 --json\n",
    )
    used.add_argument("--by", choices=("user", "team", "kind", "day"), default="day", help="default: %(default)s")
    used.add_argument("--since", metavar="DAY", help="the first day, such as 2026-11-01 (default: of this month)")
    used.add_argument("--until", metavar="DAY", help="the last day (default: today)")
    used.add_argument("--all", action="store_true", help="that of all users (administrators)")
    used.set_defaults(run="gpuspawner.cli.using.quota:usage")
    granting = add_command(
        commands, "grant", "add to somebody's quotas and budgets for a time (administrators)", GRANT_HELP
    )
    granting.add_argument("user", metavar="USER", nargs="?", default="", help="for this user")
    granting.add_argument("what", metavar="AMOUNT", nargs="?", help='such as "4 GPUs", "+20 GPU h", "2 h100"')
    granting.add_argument("--team", metavar="TEAM", default="", help="for this team, or for the user in it")
    granting.add_argument("--everybody", action="store_true", help="for everybody together")
    granting.add_argument("--since", metavar="TIME", help="from when, such as tomorrow (default: now)")
    granting.add_argument("--until", metavar="TIME", help="such as Friday, 2026-12-24, this month, 3d")
    granting.add_argument("--take-back", metavar="ID", help="take a grant back, by its id or the beginning of it")
    granting.add_argument("--list", action="store_true", help="list the grants, the newest first")
    granting.set_defaults(run="gpuspawner.cli.using.quota:grant")
    correcting = add_command(
        commands,
        "correct",
        "correct what somebody is charged (administrators)",
        '  gpuspawner correct alice "-3 GPU h" --why "node-7 was away on Monday"\n',
    )
    correcting.add_argument("user", metavar="USER", help="whose use")
    correcting.add_argument("amount", metavar="AMOUNT", help='such as "-3 GPU h", which gives back, or "+10 cost"')
    correcting.add_argument("--team", metavar="TEAM", default="", help="that is charged")
    correcting.set_defaults(run="gpuspawner.cli.using.quota:correct")
    for parser in (granting, correcting):
        parser.add_argument("--why", "--reason", metavar="TEXT", help="the reason, which is stored")
    for parser in (own, used, granting, correcting):
        options(parser)
