"""Commands with examples in their help, groups that import a command when it runs, and options that commands share."""

from __future__ import annotations

import difflib
import functools
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gpuspawner.cli.errors import InvalidError

if TYPE_CHECKING:
    from gpuspawner.backends.kubernetes.settings import ClusterSettings

F = TypeVar("F", bound=Callable[..., Any])
KUBERNETES_PACKAGES = frozenset({"aiohttp", "kubernetes_asyncio", "kubespawner"})
"""Packages of the extra ``kubernetes``. Others are those of the extra ``hub``."""


class Command(click.Command):
    """A command whose help ends with examples."""

    def __init__(self, *arguments: Any, examples: str = "", **more: Any) -> None:
        """Keep the examples, one on each line."""
        super().__init__(*arguments, **more)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples.splitlines()))


def join_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds all these options, in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def command(name: str, *, examples: str = "", **more: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function. Its docstring is the help."""
    return click.command(name, cls=Command, examples=examples, **more)


class LazyGroup(click.Group):
    """A group that knows the name and the first line of the help of each command, and imports a command to run it."""

    def __init__(
        self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], groups: Sequence[str] = (), **more: Any
    ) -> None:
        """Keep the commands by name: ``module:function`` below ``gpuspawner``, and the first line of the help.

        ``groups`` are the names of those that are groups.
        """
        super().__init__(*arguments, **more)
        self.lazy, self.groups = lazy, groups

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click passes it
        """Return the names in the order of the table."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click passes it
        """Import a command."""
        if cmd_name not in self.lazy:
            return None
        module, _, function = self.lazy[cmd_name][0].partition(":")
        return cast("click.Command", getattr(_import(f"gpuspawner.{module}"), function))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. The error for a name that does not exist suggests a similar one."""
        if args and args[0] not in self.lazy and not args[0].startswith("-") and not ctx.resilient_parsing:
            names = [f"{name} {args[0]}" for name in self.groups if args[0] in self._group(ctx, name).lazy]
            above = ctx.parent.command if ctx.parent is not None else None
            if isinstance(above, LazyGroup) and args[0] in above.lazy:
                names.append(f"gpuspawner {args[0]}")
            similar = names or difflib.get_close_matches(args[0], self.lazy)
            hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def _group(self, ctx: click.Context, name: str) -> LazyGroup:
        return cast("LazyGroup", self.get_command(ctx, name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - likewise
        """Write names and first lines, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in self.lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete names of commands without an import, and options."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only shells ask for it

        names = [name for name in self.lazy if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.lazy[name][1]) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]


def _import(module: str) -> Any:
    """Import a command's module. The garbage collector would take a quarter of the time, so it is off meanwhile."""
    gc.disable()
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "gpuspawner"}:
            raise
        extra = "kubernetes" if error.name in KUBERNETES_PACKAGES else "hub"
        raise InvalidError(f"{error.name} is not installed. Run pip install '.[{extra}]' in a checkout.") from error
    finally:
        gc.freeze()
        gc.enable()


def _default_url() -> str:
    from gpuspawner.cli.logins import default_url  # noqa: PLC0415 - help needs no client

    return default_url()


PATH: click.ParamType[Path] = click.Path(path_type=Path)
url_option = click.option(
    "--url",
    metavar="URL",
    default=_default_url,
    help="Address of the service behind the hub. Default: $GPUSPAWNER_URL, else where you signed in last, else "
    "http://127.0.0.1:8000/services/gpu.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


cluster_options = join_options(
    click.option(
        "--kubeconfig",
        metavar="FILE",
        help="How to reach the cluster. Default: $KUBECONFIG, ~/.kube/config, or the account of the pod.",
    ),
    click.option("--context", metavar="NAME", help="A context of that file. Default: the current one."),
)


def cluster_settings(kubeconfig: str | None, context: str | None, namespace: str = "") -> ClusterSettings:
    """Return the way to the cluster: the named file, $KUBECONFIG, ~/.kube/config, else the account of the pod.

    Raises:
        InvalidError: the named file does not exist.
    """
    from gpuspawner.backends.kubernetes.settings import ClusterSettings  # noqa: PLC0415 - users' commands need it not

    if kubeconfig and not Path(kubeconfig).exists():
        raise InvalidError(f"--kubeconfig: {kubeconfig} does not exist. Name the file that kubectl uses.")
    usual = Path("~/.kube/config").expanduser()
    found = kubeconfig or os.environ.get("KUBECONFIG", "") or (str(usual) if usual.exists() else "")
    return ClusterSettings(namespace, kubeconfig=found, context=context or "")


def session_options(function: F) -> F:
    """Add ``--url`` and ``--json``. The function gets ``session`` in their place."""

    @functools.wraps(function)
    def run(*, url: str, as_json: bool, **options: Any) -> Any:
        from gpuspawner.cli.client import Session, expect_service_answers  # noqa: PLC0415 - help needs no client

        with expect_service_answers(url):
            return function(session=Session(url, as_json), **options)

    return cast("F", url_option(json_option(run)))


def name_argument(*, required: bool = True) -> Callable[[F], F]:
    """Add ``NAME``, a workspace. Shells complete it."""
    if required:
        return click.argument("name", metavar="NAME", shell_complete=_complete_name)
    return click.argument("name", metavar="[NAME]", required=False, default="", shell_complete=_complete_name)


def _complete_name(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the user's workspaces that begin so. Return nothing if the service does not answer."""
    from gpuspawner.cli.client import Session, expect_service_answers  # noqa: PLC0415 - only shells ask for it
    from gpuspawner.cli.errors import CommandError  # noqa: PLC0415

    try:
        url = ctx.params.get("url") or _default_url()
        with expect_service_answers(url):
            names = [one["server"] or "-" for one in Session(url).ask("/workspaces")["workspaces"]]
            return [name for name in names if name.isprintable() and name.startswith(incomplete)]
    except CommandError:
        return []
