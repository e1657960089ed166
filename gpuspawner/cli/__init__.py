"""The command line: ``gpuspawner init | import | check | doctor | serve | list | stop``, and so on.

Belongs here: reading arguments, calling a room or the REST API, printing.
Never here: a number that pages would show differently.
"""

from gpuspawner.cli.main import main

__all__ = ["main"]
