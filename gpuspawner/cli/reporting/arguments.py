"""What ``gpuspawner report`` takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

REPORT_HELP = """\
examples:
  gpuspawner report                                  this month, by team
  gpuspawner report --by user --month 2026-11        who used what in November
  gpuspawner report --by kind --since 2026-11-01 --until 2026-11-15 --csv > use.csv

The numbers are those of the console's page Use. At work and idle are as samples read them; what was not sampled is not
measured, and never counted as idle.
"""
BY = ("team", "user", "kind", "template", "node", "day", "week")


def add_report(commands: Any, add_url: Callable[[Any], None]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="report a month's use: GPU hours held, at work, idle, saved, and cost (administrators)",
        epilog=REPORT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--by", choices=BY, default="team", help="default: %(default)s")
    parser.add_argument("--month", metavar="MONTH", help="such as 2026-11 (default: this one, up to today)")
    parser.add_argument("--since", metavar="DAY", help="the first day, instead of a month")
    parser.add_argument("--until", metavar="DAY", help="the last day (default: today)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    add_url(parser)
    parser.set_defaults(run="gpuspawner.cli.reporting.report:report")
