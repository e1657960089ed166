"""What of all requests is shown to a service by a process of its own: as much as it decides by. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from gpuspawner.backends.resources import ENDED, READY_AT, REFUSED, Resource

NEW_BYTES = 2**20
"""Of requests for which nothing was asked yet, the oldest first; the others wait until these are judged. Who may make
requests may make thousands of them, and keeps nobody else's from being seen."""
DECIDES = frozenset({"user", "server", "lifetime", READY_AT})
"""What of a request's spec is looked at once its workspace was asked for, or refused."""
LONGEST = 300
LONGEST_OPTION = 1000
"""Of a text in the spec of one that is shown whatever there is: longer ones are refused, however long. Arbitrary."""
TELLS = frozenset({"phase", "lease", "observedGeneration"})
"""What of the status of one that is over."""


def shown(requests: Collection[Resource]) -> list[Resource]:
    """Return them without what nothing is decided by, the oldest first."""
    in_order = sorted(requests, key=lambda one: (one.created, one.uid))
    waiting = [one for one in in_order if _is_waiting(one)]
    left = NEW_BYTES - sum(_bytes_of(one) for one in waiting if one.held)  # they may have their workspaces already
    left_out = set[str]()
    for one in sorted((one for one in waiting if not one.held), key=_is_edited):
        if left <= 0:
            left_out.add(one.uid)
        else:
            left -= _bytes_of(one)
    return [_trimmed(one) for one in in_order if one.uid not in left_out]


def _is_over(one: Resource) -> bool:
    return one.phase in {ENDED, REFUSED} and one.is_judged


def _is_waiting(one: Resource) -> bool:
    return one.is_new and not (one.deleting or _is_over(one))


def _is_edited(one: Resource) -> bool:
    """Whether it was refused before: who edits theirs again and again keeps nobody's first one waiting."""
    return one.phase == REFUSED


def _bytes_of(one: Resource) -> int:
    return len(json.dumps(dict(one.spec)))


def _trimmed(one: Resource) -> Resource:
    one, is_over = replace(one, finalizers=()), _is_over(one)
    if not is_over and (one.ready_at or not one.told_lease):
        return replace(one, spec={key: _short(value, LONGEST_OPTION) for key, value in one.spec.items()})
    status = {key: value for key, value in one.status.items() if key in TELLS} if is_over else one.status
    return replace(one, spec={key: _short(one.spec[key], LONGEST) for key in DECIDES & one.spec.keys()}, status=status)


def _short(value: object, longest: int) -> object:
    """Return a text that is too long for what it stands for no longer than that it is seen to be so."""
    return value[:longest] if isinstance(value, str) else value
