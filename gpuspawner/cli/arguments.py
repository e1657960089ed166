"""What each command takes. Only arguments: a command's own modules are imported when it is run, and some are large."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from gpuspawner.cli.adopting.arguments import add_adopting
from gpuspawner.cli.chart.arguments import add_chart
from gpuspawner.cli.doctor.arguments import add_doctor
from gpuspawner.cli.keeping.arguments import add_store
from gpuspawner.cli.messaging.arguments import add_message
from gpuspawner.cli.reporting.arguments import add_report
from gpuspawner.cli.serving.serve_arguments import add_serve

DAYS = 30
"""Ten-minute maxima are kept this long."""

SIMULATE_EPILOG = """\
It judges with the same function as the running service, as if the policy enforced, or as it warns where its mode is
warn, and changes nothing: the history is only read, also while the service runs. Readings older than a day are
ten-minute maxima, so that what was unknown within them is not known any more. "Rightly" means: no GPU work in the idle
minutes before the stop, nor in the grace, as far as the readings show; of a warning: none in the idle minutes before
it. Who would have pressed Keep after a warning, it cannot know.

examples:
  gpuspawner simulate draft.yaml --data .run/gpuspawner      the recorded history, each workspace by its own policy
  gpuspawner simulate draft.yaml --data DIR --policy night --days 7 --html report.html
  gpuspawner simulate draft.yaml --sessions 10000            generated sessions, whose truth is known
"""


SSH_HELP = """\
Opens a shell in a workspace, or runs a command there. What follows the name goes to ssh as it is:
  gpuspawner ssh train nvidia-smi
  gpuspawner ssh train -L 6006:localhost:6006

For scp, rsync and VS Code Remote, let ssh know the workspace; it is then called gpu-train:
  gpuspawner ssh --config --token-file ~/.gpu-token train >> ~/.ssh/config
  scp model.pt gpu-train:
"""


def add_parsers(commands: Any) -> None:
    """Add every command; ``run`` of what is parsed names its function, as ``module:function``."""
    add_adopting(commands)
    _add_check(commands)
    add_serve(commands, _factor)
    add_doctor(commands)
    add_store(commands)
    _add_remote(commands)
    _add_preempt(commands)
    _add_quota(commands)
    add_report(commands, _add_url)
    add_message(commands, _add_url)
    _add_ssh(commands)
    _add_simulate(commands)
    add_chart(commands, argparse.RawDescriptionHelpFormatter)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser("check", help="check a catalog: every error at once, with file, line and remedy")
    parser.add_argument("file", metavar="FILE", help="the catalog, YAML")
    parser.add_argument("--json", action="store_true", help="print the problems as JSON")
    parser.add_argument(
        "--hub",
        metavar="URL",
        help="the service behind the hub (default: $GPUSPAWNER_URL): ask it, with an administrator's "
        "$GPUSPAWNER_TOKEN, whether the hub has the groups that the catalog names",
    )
    parser.set_defaults(run="gpuspawner.cli.check:check")


def _add_remote(commands: Any) -> None:
    listing = commands.add_parser("list", help="list workspaces")
    listing.add_argument("--all", action="store_true", help="those of all users (administrators)")
    listing.add_argument("--ended", type=int, default=0, metavar="N", help="the last N that ended, too")
    listing.add_argument("--disputed", action="store_true", help="only ends that were called wrong and not answered")
    listing.set_defaults(run="gpuspawner.cli.remote:list_workspaces")
    explaining = commands.add_parser("explain", help="say what is judged of a workspace now, and why")
    name = "its server's name as list shows it, - for none, or the beginning of its id"
    explaining.add_argument("name", metavar="NAME", nargs="?", default="", help=name)
    explaining.set_defaults(run="gpuspawner.cli.remote:explain")
    stopping = commands.add_parser("stop", help="stop a workspace, or withdraw a waiting one")
    stopping.add_argument("name", metavar="NAME", help=name)
    stopping.set_defaults(run="gpuspawner.cli.remote:stop")
    queueing = commands.add_parser("queue", help="say who waits for GPUs, at which place, for how long and why")
    queueing.set_defaults(run="gpuspawner.cli.queue:show_queue")
    for parser in (listing, explaining, stopping, queueing):
        _add_url(parser)
        parser.add_argument("--json", action="store_true", help="print JSON")


def _add_preempt(commands: Any) -> None:
    parser = commands.add_parser(
        "preempt",
        help="claim GPUs that others use, for more important work (administrators)",
        description="Whoever is ended for a claim is warned before, and returns to the queue at the old place. What is "
        "freed is kept for the claim until it is claimed, given up, or its time is over.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    taking = actions.add_parser("take", help="make a claim; with --dry-run say whom it would end")
    taking.add_argument("kind", metavar="KIND", help="the kind of GPU, as the catalog calls it")
    taking.add_argument("count", metavar="COUNT", type=int, help="how many")
    whom = taking.add_mutually_exclusive_group(required=True)
    whom.add_argument("--external", metavar="NAME", help="for work outside the hub, called so to those who are ended")
    whom.add_argument("--team", metavar="NAME", help="for a team of the catalog")
    whom.add_argument("--user", metavar="NAME", help="for a user of the hub")
    taking.add_argument("--by", metavar="TIME", help="not needed before, such as 20m (default: the longest notice)")
    taking.add_argument(
        "--hold", metavar="TIME", help="keep them for so long from now (default: 30m once all are free)"
    )
    taking.add_argument("--any-node", action="store_true", help="they need not be on one node")
    taking.add_argument("--key", metavar="TEXT", help="a repeated claim with the same key is the same claim")
    taking.add_argument("--dry-run", action="store_true", help="say whom it would end, and do nothing")
    taking.set_defaults(run="gpuspawner.cli.preempt:take")
    listing = actions.add_parser("list", help="list the last claims")
    listing.set_defaults(run="gpuspawner.cli.preempt:list_claims")
    known = {"show": "show a claim and whom it ends", "give-up": "give a claim up: who was warned goes on"}
    known["claimed"] = "say that the GPUs are in use by whom they were kept for"
    ones = {name: actions.add_parser(name, help=text) for name, text in known.items()}
    for name, one in ones.items():
        one.add_argument("id", metavar="ID", help="the claim's id as list shows it, or its beginning")
        one.set_defaults(run=f"gpuspawner.cli.preempt:{name.replace('-', '_')}")
    for one in (taking, listing, *ones.values()):
        _add_url(one)
        one.add_argument("--json", action="store_true", help="print JSON")


GRANT_HELP = """\
examples:
  gpuspawner grant alice "4 GPUs" --until Friday --why "deadline of the paper"
  gpuspawner grant --team vision "+20 GPU h" --until "this month" --why "lost a node on Monday"
  gpuspawner grant --take-back 3f2a --why "no longer needed"

GPU hours and cost are added to each day, week or month in which the grant is in force. What is taken back ends nothing
that runs: nothing is started or extended by it any more.
"""


def _add_quota(commands: Any) -> None:
    own = commands.add_parser("quota", help="show what bounds you: used, set aside, left, and when it renews")
    own.add_argument("--user", metavar="NAME", default="", help="of this user (administrators)")
    own.set_defaults(run="gpuspawner.cli.quota:quota")
    used = commands.add_parser("usage", help="show what was used: GPU hours and cost, by day, user, team or kind")
    used.add_argument("--by", choices=("user", "team", "kind", "day"), default="day", help="default: %(default)s")
    used.add_argument("--since", metavar="DAY", help="the first day, such as 2026-11-01 (default: of this month)")
    used.add_argument("--until", metavar="DAY", help="the last day (default: today)")
    used.add_argument("--all", action="store_true", help="that of all users (administrators)")
    used.set_defaults(run="gpuspawner.cli.quota:usage")
    granting = commands.add_parser(
        "grant",
        help="add to somebody's quotas and budgets for a time (administrators)",
        epilog=GRANT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    granting.add_argument("user", metavar="USER", nargs="?", default="", help="for this user")
    granting.add_argument("what", metavar="AMOUNT", nargs="?", help='such as "4 GPUs", "+20 GPU h", "2 h100"')
    granting.add_argument("--team", metavar="TEAM", default="", help="for this team, or for the user in it")
    granting.add_argument("--everybody", action="store_true", help="for everybody together")
    granting.add_argument("--since", metavar="TIME", help="from when, such as tomorrow (default: now)")
    granting.add_argument("--until", metavar="TIME", help="such as Friday, 2026-12-24, this month, 3d")
    granting.add_argument("--take-back", metavar="ID", help="take a grant back, by its id or the beginning of it")
    granting.add_argument("--list", action="store_true", help="list the grants, the newest first")
    granting.set_defaults(run="gpuspawner.cli.quota:grant")
    correcting = commands.add_parser("correct", help="correct what somebody is charged (administrators)")
    correcting.add_argument("user", metavar="USER", help="whose use")
    correcting.add_argument("amount", metavar="AMOUNT", help='such as "-3 GPU h", which gives back, or "+10 cost"')
    correcting.add_argument("--team", metavar="TEAM", default="", help="that is charged")
    correcting.set_defaults(run="gpuspawner.cli.quota:correct")
    for parser in (granting, correcting):
        parser.add_argument("--why", metavar="TEXT", help="the reason, which is stored")
    for parser in (own, used, granting, correcting):
        _add_url(parser)
        parser.add_argument("--json", action="store_true", help="print JSON")


def _add_ssh(commands: Any) -> None:
    parser = commands.add_parser(
        "ssh",
        help="open a workspace by ssh, through the hub",
        description=SSH_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--config", action="store_true", help="print the lines for ~/.ssh/config instead")
    mode.add_argument("--proxy", action="store_true", help="be ssh's ProxyCommand: pass its bytes on")
    parser.add_argument("--key", type=Path, metavar="FILE", help="your key (default: every ~/.ssh/id_*.pub)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="holds your token of the hub (default: $GPUSPAWNER_TOKEN)"
    )
    _add_url(parser)
    parser.add_argument("name", metavar="NAME", help="its server's name, as list shows it: - for the one without")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="a command, or arguments of ssh")
    parser.set_defaults(run="gpuspawner.cli.ssh:ssh")


def _add_simulate(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="replay the recorded history, or generated sessions, against a draft policy",
        description="Say whom a draft policy would have warned and stopped, when, whether rightly, and the GPU hours "
        "won.",
        epilog=SIMULATE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="the catalog with the draft policy, YAML")
    parser.add_argument("--policy", metavar="NAME", help="judge all by this one (default: each by its own)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", metavar="DIR", help="the service's data folder: replay what it recorded")
    source.add_argument("--store", metavar="URL", help="the service's database, where it is none in a folder")
    source.add_argument("--sessions", type=float, metavar="HOURS", help="generate sessions of so many hours together")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of generated sessions (default: %(default)s)")
    parser.add_argument(
        "--days", type=float, default=DAYS, metavar="N", help="replay the last N days (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write one page with charts, too")
    parser.set_defaults(run="gpuspawner.cli.simulation.simulate:simulate")


def _add_url(parser: Any) -> None:
    parser.add_argument(
        "--url",
        default=os.environ.get("GPUSPAWNER_URL", "http://127.0.0.1:8000/services/gpu"),
        help="the service behind the hub (default: $GPUSPAWNER_URL, else %(default)s)",
    )


def _factor(text: str) -> float:
    try:
        factor = float(text)
        if 1 <= factor <= 3600:  # noqa: PLR2004 - what `scaled` takes
            return factor
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no factor: give a number, 1 to 3600")
