"""Arguments of what administrators do."""

from __future__ import annotations

from typing import Any

from gpuspawner.cli.arguments_shared import add_command, options

RUN = "gpuspawner.cli.administering"
EXAMPLES = {
    "move": """\
  gpuspawner move 7c1d --reason "GPU 0 reports errors" --dry-run
  gpuspawner move 7c1d 90ab --reason "node-7 is repaired" --now
""",
    "exempt": """\
  gpuspawner exempt alice/train --until Friday --reason "a long download first"
  gpuspawner exempt --user alice --until 3d --reason "a demonstration"
  gpuspawner exempt --lift alice --reason "it is over"
""",
    "drain": """\
  gpuspawner drain node-7 --until "2026-12-24 18:00" --reason "a new driver" --dry-run
  gpuspawner drain node-7 --lift --reason "the driver is in"
""",
    "quarantine": """\
  gpuspawner quarantine node-7/3 --reason "ECC errors"
  gpuspawner quarantine node-7/3 --lift --reason "replaced"
""",
    "pause": """\
  gpuspawner pause a100 --until 2h --reason "the network is repaired"
  gpuspawner pause --reason "the storage is away"
  gpuspawner pause --lift --reason "it is back"
""",
    "reserve": """\
  gpuspawner reserve a100 4 --team vision --from tomorrow --until Friday --reason "the demonstration" --dry-run
  gpuspawner reserve --list
  gpuspawner reserve --lift vision --reason "done"
""",
    "audit": """\
  gpuspawner audit --by people --since 2026-11-01
  gpuspawner audit --target node-7 --csv > node-7.csv
  gpuspawner audit --who admin --what drained --json
""",
}
WORKSPACE = "its ID as list shows it, or USER/SERVER (USER/- for the one without a name)"
REASON = "the reason, which the user reads"
LIFTED = "lift the one that --list shows with this ID, or its beginning, or with this user, team, kind or USER/SERVER"
UNTIL = 'such as Friday, "2026-12-24 18:00", 2h or 3d'

FROM = 'such as tomorrow, "2026-12-24 18:00" or 2h (default: now)'


def add_administering(commands: Any) -> None:
    """Add what administrators do, besides ``stop`` and ``extend``, which are their users' commands too."""
    moving = _command(commands, "move", "end workspaces that then start elsewhere, at their old place (administrators)")
    moving.add_argument("names", metavar="NAME", nargs="+", help=WORKSPACE)
    moving.add_argument("--now", action="store_true", help="at once, without the notice of its policy")
    exempting = _command(commands, "exempt", "have workspaces not judged as idle for a time (administrators)")
    exempting.add_argument("names", metavar="NAME", nargs="*", help=WORKSPACE)
    exempting.add_argument("--user", metavar="NAME", default="", help="all that this user runs")
    add_yes(moving)
    draining = _command(commands, "drain", "start nothing new on a node (administrators)")
    draining.add_argument("target", metavar="NODE", nargs="?", default="", help="as the console calls it")
    quarantining = _command(commands, "quarantine", "give a GPU to nobody new (administrators)")
    quarantining.add_argument("target", metavar="GPU", nargs="?", default="", help="its id, as the console shows it")
    pausing = _command(commands, "pause", "grant none of a kind of GPU, or nothing at all (administrators)")
    pausing.add_argument("target", metavar="KIND", nargs="?", default="", help="as the catalog calls it")
    reserving = _command(commands, "reserve", "keep GPUs free for a user or a team (administrators)")
    reserving.add_argument("target", metavar="KIND", nargs="?", default="", help="as the catalog calls it")
    reserving.add_argument("count", metavar="COUNT", nargs="?", type=int, help="how many")
    whom = reserving.add_mutually_exclusive_group()
    whom.add_argument("--user", metavar="NAME", default="", help="for this user")
    whom.add_argument("--team", metavar="NAME", default="", help="for this team of the catalog")
    moving.set_defaults(run=f"{RUN}.workspaces:move")
    for parser in (draining, quarantining, pausing):
        parser.add_argument("--lift", action="store_true", help="lift what is in force of it")
        parser.set_defaults(run=f"{RUN}.restrictions:restrict")
    for parser in (exempting, reserving):
        parser.add_argument("--lift", metavar="NAME", default="", help=LIFTED)
        parser.set_defaults(run=f"{RUN}.restrictions:restrict")
    for parser in (exempting, draining, quarantining, pausing, reserving):
        parser.add_argument("--list", action="store_true", help="list what is in force")
    for parser in (exempting, draining, quarantining, pausing, reserving):
        parser.add_argument("--from", dest="begins", metavar="TIME", default="", help=FROM)
        parser.add_argument("--until", metavar="TIME", default="", help=UNTIL)
    add_yes(reserving)
    auditing = _audit(commands)
    for parser in (moving, exempting, draining, quarantining, pausing, reserving):
        parser.add_argument("--reason", metavar="TEXT", default="", help=REASON)
        parser.add_argument("--dry-run", action="store_true", help="say what it would do, and do nothing")
    for parser in (moving, exempting, draining, quarantining, pausing, reserving, auditing):
        options(parser)


def _audit(commands: Any) -> Any:
    parser = _command(commands, "audit", "say who did what, to what, from where and why (administrators)")
    parser.add_argument("--by", choices=("people", "parts"), default="", help="only people, or only gpuspawner and hub")
    parser.add_argument("--who", metavar="NAME", default="", help="who did it")
    parser.add_argument("--what", metavar="ACTION", default="", help="what was done, such as stop, drained, extended")
    parser.add_argument("--user", metavar="NAME", default="", help="whose workspace or grant it was")
    parser.add_argument("--target", metavar="NAME", default="", help="a workspace's full id, a node, a GPU or a kind")
    parser.add_argument("--since", metavar="DAY", default="", help="the first day, such as 2026-11-01")
    parser.add_argument("--until", metavar="DAY", default="", help="the last day")
    parser.add_argument("--limit", metavar="N", type=int, default=200, help="at most N lines (default: %(default)s)")
    parser.add_argument("--csv", action="store_true", help="print CSV, which no spreadsheet calculates")
    parser.set_defaults(run=f"{RUN}.audit:show")
    return parser


def _command(commands: Any, name: str, words: str) -> Any:
    return add_command(commands, name, words, EXAMPLES[name])


def add_yes(parser: Any) -> None:
    """Add what a terminal is else asked for."""
    parser.add_argument("--yes", action="store_true", help="do not ask at a terminal whether to do it")


def add_reason(parser: Any, *, until: bool = False) -> None:
    """Add what an administrator says to a command that users have too; ``until`` where it takes a time."""
    parser.add_argument("--reason", metavar="TEXT", default="", help="as an administrator, with what its user reads")
    if until:
        parser.add_argument("--until", metavar="TIME", default="", help=f"with a reason: {UNTIL}")
    else:
        parser.add_argument("--now", action="store_true", help="with a reason: at once, without its policy's notice")
        add_yes(parser)
    parser.add_argument("--dry-run", action="store_true", help="with a reason: say what it would do, and do nothing")
