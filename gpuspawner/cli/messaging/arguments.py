"""What ``gpuspawner message`` takes."""

from __future__ import annotations

from typing import Any

from gpuspawner.cli.arguments_shared import add_command, options

HELP = """\
  gpuspawner message send --to all --until Friday "Maintenance on Friday, 18:00: workspaces end at 17:50."
  gpuspawner message send --to group:vision --until 2h "node-7 gets new GPUs." --dry-run
  gpuspawner message list --past
  gpuspawner message withdraw 3f2a

It stands on the hub's pages and ours, and in JupyterLab, until its end or until its reader has read it, and goes out by
mail where mail is set up. A group's message reaches who is in the group when it is sent.
"""


def add_message(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands, "message", "tell people something, on all pages, in JupyterLab and by mail (administrators)", HELP
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    sending = actions.add_parser("send", help="send a message")
    sending.add_argument("text", metavar="TEXT", help="plain text, at most 500 characters; - reads it")
    sending.add_argument("--to", metavar="WHOM", required=True, help="all, user:NAME or group:NAME")
    sending.add_argument("--until", metavar="TIME", required=True, help="such as Friday, 2h, 2026-12-24 18:00")
    sending.add_argument("--dry-run", action="store_true", help="say how many people it reaches, and send nothing")
    sending.set_defaults(run="gpuspawner.cli.messaging.command:send")
    listing = actions.add_parser("list", help="list the messages that are shown")
    listing.add_argument("--past", action="store_true", help="all of the last 30 days")
    listing.set_defaults(run="gpuspawner.cli.messaging.command:list_messages")
    withdrawing = actions.add_parser("withdraw", help="take a message from the pages and out of inboxes")
    withdrawing.add_argument("id", metavar="ID", help="its id as list shows it, or the beginning of it")
    withdrawing.set_defaults(run="gpuspawner.cli.messaging.command:withdraw")
    for one in (sending, listing, withdrawing):
        options(one)
