"""``gpuspawner admin``: what administrators do, with the API that the console uses."""

from __future__ import annotations

import click

from gpuspawner.cli.base import LazyGroup

COMMANDS = {
    "move": ("cli.admin.actions:move", "Move workspaces: they end and start again elsewhere."),
    "reorder": ("cli.admin.actions:reorder", "Move a waiting request up or down in the queue."),
    "exempt": ("cli.admin.restrictions:exempt", "Exempt workspaces from the idle check for a time."),
    "drain": (
        "cli.admin.restrictions:drain",
        "Drain a node, now or for a maintenance to come: nothing new starts on it.",
    ),
    "quarantine": ("cli.admin.restrictions:quarantine", "Quarantine a GPU: no new workspace gets it."),
    "pause": ("cli.admin.restrictions:pause", "Pause grants of a GPU kind, or of everything."),
    "reserve": ("cli.admin.restrictions:reserve", "Reserve GPUs for a user, a team or a group of the hub."),
    "reservations": (
        "cli.calendar:reservations",
        "List the coming reservations and maintenance of GPUs, with their IDs for gpuspawner admin reserve --lift.",
    ),
    "grant": ("cli.quotas:grant", "Add to a quota or a budget for a time."),
    "requests": ("cli.quotas:requests", "List requests for more quota, and approve or decline them."),
    "correct": ("cli.quotas:correct", "Correct the usage that a user is charged."),
    "preempt": ("cli.admin.preempt:preempt", "Claim GPUs in use for more important work."),
    "announce": ("cli.admin.announce:announce", "Send users an announcement, list announcements, or withdraw one."),
    "health": ("cli.admin.reports:health", "Show the temperature, power and errors of each GPU."),
    "catalog": ("cli.admin.catalog:catalog", "Show, compare and change the catalog, or go back to an earlier version."),
    "audit": ("cli.admin.reports:audit", "Show the audit: actor, action, target, origin and reason."),
    "roles": ("cli.admin.reports:roles", "Show the roles: scope, people and what each may do."),
    "export": ("cli.account:export", "Print all that is stored of a user as JSON, also of one who has left."),
    "forget": (
        "cli.account:forget",
        "Put what is stored of a user under a pseudonym, or delete it. Sums of usage stay as they are.",
    ),
    "statement": (
        "cli.admin.reports:statement",
        "Show the statement of a team for a month: GPU hours and cost by member.",
    ),
    "report": (
        "cli.admin.reports:report",
        "Report the GPU hours of a month: allocated, active, idle, reclaimed, and cost.",
    ),
}


@click.group("admin", cls=LazyGroup, lazy=COMMANDS)
def admin() -> None:
    """Manage GPUs, other users' workspaces, quotas and announcements, and read reports.

    It is for administrators, operators, auditors and team leads.
    Sign in with gpuspawner login --admin to use your roles. To stop or extend workspaces of other users, see
    gpuspawner stop --help and gpuspawner extend --help.
    """
