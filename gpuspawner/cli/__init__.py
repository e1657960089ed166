"""The command line: ``gpuspawner start``, ``list``, ``stop`` and so on, then ``admin``, ``server`` and ``kube``.

Belongs here: options, calls of the REST API or of the package's functions, and output.
Does not belong here: a number that pages would show in another way.
"""

from gpuspawner.cli.main import main

__all__ = ["main"]
