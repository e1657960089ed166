"""Names of workspaces, which are names of servers in the hub."""

from __future__ import annotations

import re

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.parts import Parts

LONGEST_NAME = 30
SLUG = re.compile(r"[a-z](-?[a-z0-9])*")
"""The names that JupyterHub 6 accepts for new servers."""
LONGEST_OLD_NAME = 60
"""The longest name of a server from an older hub. Arbitrary: it becomes part of addresses and of pod names."""
RULE = f"at most {LONGEST_NAME} lower-case letters, digits and single hyphens, a letter first, no hyphen last"


async def read_server(parts: Parts, user: str, name: object) -> str:
    """Return the name of a user's workspace after a check.

    Raises:
        RequestRefused: the hub does not accept this name.
        Unavailable: the hub does not say whether a server from before JupyterHub 6 has this name.
    """
    if isinstance(name, str) and (not name or (len(name) <= LONGEST_NAME and SLUG.fullmatch(name))):
        return name
    may_be_old = isinstance(name, str) and len(name) <= LONGEST_OLD_NAME and name.isprintable() and "/" not in name
    if may_be_old and await parts.hub.takes_name(user, str(name)):
        return str(name)
    raise RequestRefused("server", quoted(name), RULE, "Choose another name, or leave it out.")
