"""What each command takes. Only arguments: a command's own modules are imported when it is run, and some are large."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpuspawner.cli.administering.arguments import add_administering
from gpuspawner.cli.adopting.arguments import add_adopting
from gpuspawner.cli.arguments_shared import add_command, add_name, add_url, options
from gpuspawner.cli.chart.arguments import add_chart
from gpuspawner.cli.doctor.arguments import add_doctor
from gpuspawner.cli.keeping.arguments import add_store
from gpuspawner.cli.messaging.arguments import add_message
from gpuspawner.cli.reporting.arguments import add_report
from gpuspawner.cli.serving.operate_arguments import add_operate
from gpuspawner.cli.serving.serve_arguments import add_serve
from gpuspawner.cli.signing.arguments import add_signing
from gpuspawner.cli.using.arguments import add_using

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
  gpuspawner ssh --config train >> ~/.ssh/config
  scp model.pt gpu-train:
"""


def add_parsers(commands: Any) -> None:
    """Add every command; ``run`` of what is parsed names its function, as ``module:function``."""
    add_adopting(commands)
    _add_check(commands)
    add_serve(commands, _factor)
    add_operate(commands)
    add_doctor(commands)
    add_store(commands)
    add_signing(commands)
    add_using(commands)
    _add_preempt(commands)
    add_administering(commands)
    add_report(commands, add_url)
    add_message(commands)
    _add_ssh(commands)
    _add_simulate(commands)
    add_chart(commands, argparse.RawDescriptionHelpFormatter)
    _add_completion(commands)


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


PREEMPT = """\
  gpuspawner preempt take a100 2 --external train-77 --dry-run       whom it would end
  gpuspawner preempt take a100 2 --team vision --by 30m
  gpuspawner preempt list
  gpuspawner preempt give-up 3f2a
"""


def _add_preempt(commands: Any) -> None:
    parser = add_command(
        commands,
        "preempt",
        "claim GPUs that others use, for more important work (administrators)",
        PREEMPT,
        description=(
            "Whoever is ended for a claim is warned before, and returns to the queue at the old place. What is "
            "freed is kept for the claim until it is claimed, given up, or its time is over."
        ),
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
        options(one)


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
    add_url(parser)
    add_name(parser)
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
    parser.add_argument("--store-password-file", metavar="FILE", help="the password for --store")
    source.add_argument("--sessions", type=float, metavar="HOURS", help="generate sessions of so many hours together")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of generated sessions (default: %(default)s)")
    parser.add_argument(
        "--days", type=float, default=DAYS, metavar="N", help="replay the last N days (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write one page with charts, too")
    parser.set_defaults(run="gpuspawner.cli.simulation.simulate:simulate")


COMPLETION = """\
  gpuspawner completion bash >> ~/.bashrc
  gpuspawner completion zsh >> ~/.zshrc
  gpuspawner completion fish > ~/.config/fish/completions/gpuspawner.fish
"""


def _add_completion(commands: Any) -> None:
    parser = add_command(
        commands,
        "completion",
        "print what has your shell complete commands, options and names of workspaces",
        COMPLETION,
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    parser.set_defaults(run="gpuspawner.cli.using.completion:completion")


def _factor(text: str) -> float:
    try:
        factor = float(text)
        if 1 <= factor <= 3600:  # noqa: PLR2004 - what `scaled` takes
            return factor
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no factor: give a number, 1 to 3600")
