"""``gpuspawner completion``."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode


def completion(arguments: argparse.Namespace) -> None:
    """Print the lines for a shell; they ask this command line what may come next."""
    print(shellcode(["gpuspawner"], shell=arguments.shell))
