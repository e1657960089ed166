"""Names of workspaces, which are names of servers in the hub."""

from __future__ import annotations

import re

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.parts import Parts

LONGEST_NAME = 30
SLUG = re.compile(r"[a-z](-?[a-z0-9])*")
"""What JupyterHub 6 takes as the name of a new server."""
LONGEST_OLD_NAME = 60
"""Of a server in an older hub. Arbitrary: it becomes part of addresses and of pods' names."""
RULE = f"at most {LONGEST_NAME} lower-case letters, digits and single hyphens, a letter first, no hyphen last"


async def read_server(parts: Parts, user: str, name: object) -> str:
    """Return the name of a workspace of a user, as it was sent.

    Raises:
        RequestRefused: the hub takes no such name.
        Unavailable: the hub does not say whether it has such a server from before JupyterHub 6.
    """
    if isinstance(name, str) and (not name or (len(name) <= LONGEST_NAME and SLUG.fullmatch(name))):
        return name
    may_be_old = isinstance(name, str) and len(name) <= LONGEST_OLD_NAME and name.isprintable() and "/" not in name
    if may_be_old and await parts.hub.takes_name(user, str(name)):
        return str(name)
    raise RequestRefused("server", quoted(name), RULE, "Choose another name, or leave it out.")
