"""A message to those whose workspaces are chosen: what is said of it first, and then sent."""

from __future__ import annotations

from typing import Any

from gpuspawner.service.administering.asking import Act, Body
from gpuspawner.service.inbox.sending import Sending


async def tell(act: Act, body: Body) -> dict[str, Any]:
    """Send the users of ``ids`` one message, or with ``dry_run`` say whom it reaches.

    Raises:
        RequestRefused: a field is missing or none.
        HTTPError: 403 where that is no administrator, 404 for a workspace that does not exist.
    """
    act.must_be_administrator()
    users = list(dict.fromkeys(lease.user for lease in await act.leases(body)))
    made = await Sending(act.parts, act.person, act.where).send(body, users)
    people = f"{made['reaches']} {'person' if made['reaches'] == 1 else 'people'}: {made['to_words']}"
    mail = "by mail, too" if made["mailed"] else "not by mail: none is set up"
    words = f"It reaches {people}, until {made['until_words']}; {mail}."
    return {"words": f"{words} Nothing was sent yet." if made["dry_run"] else words, "affected": [], "refused": []}
