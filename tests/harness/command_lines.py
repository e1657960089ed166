"""A command line as click reads it, without running the command."""

import click

from gpuspawner.cli.main import gpuspawner


def read_command(words):
    """Return the context of the command or group that the words after `gpuspawner` name, with its options' values.

    Raises click.UsageError where the command line is not valid.
    """
    name, command, context, words = "gpuspawner", gpuspawner, None, list(words)
    while isinstance(command, click.Group) and words:
        context = command.make_context(name, words, parent=context)
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    if isinstance(command, click.Group):
        return click.Context(command, info_name=name, parent=context)
    return command.make_context(name, words, parent=context)


def commands(group=gpuspawner, path=("gpuspawner",)):
    """Yield each command and group below a group, with its path."""
    context = click.Context(group, info_name=" ".join(path))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
