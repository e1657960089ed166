"""The table of commands, and what ends a command. Exit codes: 0 done, 1 invalid, 2 refused, 3 service away."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from io import TextIOWrapper

import click

from gpuspawner.cli import base
from gpuspawner.cli.errors import INTERRUPTED, INVALID, CommandError
from gpuspawner.core.errors import quoted

STDOUT = 1
COMPLETION_VARIABLE = "_GPUSPAWNER_COMPLETE"
COMMANDS = {
    "start": ("cli.start:start", "Start a workspace and wait until it runs."),
    "list": ("cli.workspaces:list_workspaces", "List workspaces."),
    "show": ("cli.workspaces:show", "Show a workspace: its state, GPUs, end, and what you can do."),
    "explain": ("cli.workspaces:explain", "Explain how a workspace is judged now, and why."),
    "open": ("cli.workspaces:open_workspace", "Open a workspace in the browser."),
    "keep": ("cli.workspaces:keep", "Keep an idle workspace running."),
    "extend": ("cli.workspaces:extend", "Move the end of a workspace."),
    "stop": ("cli.workspaces:stop", "Stop a workspace, or withdraw a waiting one."),
    "rename": ("cli.workspaces:rename", "Give a workspace another name for people."),
    "change": ("cli.workspaces:change", "Change the GPUs, CPU or memory of a running workspace."),
    "with-gpu": ("cli.workspaces:with_gpu", "Restart a workspace with a GPU again."),
    "done": ("cli.workspaces:done", "Say when you will be done with a workspace."),
    "without-gpu": ("cli.workspaces:without_gpu", "Restart a workspace without a GPU, which is released at once."),
    "queue": ("cli.quotas:queue", "Show the queue: requests for GPUs with their positions and reasons."),
    "calendar": ("cli.calendar:calendar", "Show the coming reservations and maintenance of GPUs."),
    "offers": ("cli.quotas:offers", "Show the GPUs that are available now, and your limits."),
    "quota": ("cli.quotas:quota", "Show your quota: used, reserved, left, and when it resets."),
    "request": ("cli.quotas:request", "Ask for more quota for a time, or list your requests."),
    "usage": ("cli.quotas:usage", "Show GPU hours and cost by day, workspace, user, team or kind."),
    "export-me": ("cli.account:export_me", "Print all that is stored of you as JSON."),
    "schedule": ("cli.calendar:schedule", "Schedule a workspace for a time of some weekdays, or list schedules."),
    "secrets": ("cli.account:secrets", "List your secrets, save one or delete one."),
    "login": ("cli.account:login", "Sign in with a code that you type on a page of the hub."),
    "logout": ("cli.account:logout", "Sign out: end the token of this machine."),
    "tokens": ("cli.account:tokens", "List the machines that are signed in as you, or sign one out."),
    "ssh": ("cli.ssh:ssh", "Open a shell in a workspace with ssh, through the hub."),
    "completion": ("cli.main:completion", "Print the completion of commands, options and names for your shell."),
    "admin": ("cli.admin:admin", "Manage GPUs, other users' workspaces, quotas and announcements, and read reports."),
    "server": ("cli.server:server", "Set up, check and run the hub's GPU service."),
    "kube": ("cli.kube:kube", "For Kubernetes: chart values, custom resources and their process."),
}


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from gpuspawner.version import describe_version  # noqa: PLC0415  # imports subprocess, which --help can do without

        click.echo(f"gpuspawner {describe_version()}")
        context.exit()


@click.group(
    cls=base.LazyGroup,
    lazy=COMMANDS,
    groups=("admin", "server", "kube"),
    context_settings={"max_content_width": 100},
    epilog="Exit codes: 0 done, 1 invalid, 2 refused, 3 service away, 130 interrupted.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print version and commit.",
)
def gpuspawner() -> None:
    """GPU workspaces for JupyterHub."""


@base.command(
    "completion",
    examples="""\
gpuspawner completion bash >> ~/.bashrc
gpuspawner completion zsh >> ~/.zshrc
gpuspawner completion fish > ~/.config/fish/completions/gpuspawner.fish""",
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion of commands, options and names for your shell.

    Names of your workspaces are completed, too. Open a new shell afterwards.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only shells ask for it

    made = get_completion_class(shell)
    assert made is not None
    print(made(gpuspawner, {}, "gpuspawner", COMPLETION_VARIABLE).source())  # noqa: T201 - a script with tabs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if COMPLETION_VARIABLE in os.environ:  # a shell asks for completions
        gpuspawner.main(prog_name="gpuspawner", complete_var=COMPLETION_VARIABLE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a stream that is closed is None
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack the script of a name
    code = _run(list(sys.argv[1:] if arguments is None else arguments))
    output = sys.modules.get("gpuspawner.cli.output")  # commands that print no times do not import it
    if output is not None:
        output.name_zone(time.time())
    return code


def _run(arguments: list[str]) -> int:  # noqa: PLR0911 - each kind of end returns its code
    """Run a command. Errors are printed here, in one place."""
    try:
        with gpuspawner.make_context("gpuspawner", arguments) as context:
            code = int(gpuspawner.invoke(context) or 0)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as ended:  # --help and --version
        return ended.exit_code
    except click.ClickException as error:
        _with_bounds_in_words(error).show()
        return INVALID
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # Python flushes once more as it exits
        if isinstance(error, BrokenPipeError):  # `| head` has read enough
            return 0
        words = f"{error.filename}: {error.strerror}." if error.filename else f"{error}"
        _print_error(f"gpuspawner: {words}")
        return INVALID
    except CommandError as error:
        _print_error(str(error))
        return error.code
    except UnicodeEncodeError as error:  # the terminal has another encoding
        _print_error(f"gpuspawner: {quoted(error.object)} is not text in UTF-8. Write it again.")
        return INVALID
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return code


def _with_bounds_in_words(error: click.ClickException) -> click.ClickException:
    """Return an error that says the bounds of a number in words. click writes them as ``0<=x<=200``."""
    if isinstance(error, click.BadParameter) and error.param is not None:
        bounds = error.param.type
        if isinstance(bounds, (click.IntRange, click.FloatRange)):
            return click.BadParameter(f"Write a number from {bounds.min} to {bounds.max}.", error.ctx, error.param)
    return error


def _print_error(message: str) -> None:
    from gpuspawner.cli.output import say_lines  # noqa: PLC0415 - help needs no output

    say_lines(message, to_stderr=True)
