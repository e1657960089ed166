"""``gpuspawner completion``: click's own completion of commands and options, and ours of workspaces."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gpuspawner.cli import base

EXAMPLES = """\
gpuspawner completion bash >> ~/.bashrc
gpuspawner completion zsh >> ~/.zshrc
gpuspawner completion fish > ~/.config/fish/completions/gpuspawner.fish"""


@base.command("completion", examples=EXAMPLES)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion of commands, options and names for your shell.

    Names of your workspaces are completed, too. Open a new shell afterwards.
    """
    from gpuspawner.cli.main import COMPLETION_VARIABLE, gpuspawner  # noqa: PLC0415 - it imports this module

    made = get_completion_class(shell)
    assert made is not None
    print(made(gpuspawner, {}, "gpuspawner", COMPLETION_VARIABLE).source())  # noqa: T201 - a script with tabs
