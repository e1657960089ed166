"""The parts of custom resources that a separate process sends to the service: those that decisions use."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

from gpuspawner.backends.custom_resources.base import ENDED, READY_AT, REFUSED, Resource

NEW_BYTES = 2**20
"""The most bytes of new requests, the oldest first. The others wait. So a flood of requests hides no other request."""
DECIDES = frozenset({"user", "server", "lifetime", READY_AT})
"""The keys of a spec that matter after its workspace was requested or refused."""
LONGEST = 300
LONGEST_OPTION = 1000
"""The most characters of an option. Longer options are refused anyway. Arbitrary."""
TELLS = frozenset({"phase", "lease", "observedGeneration"})
"""The keys of the status of a request that is over."""


def visible_requests(requests: Collection[Resource]) -> list[Resource]:
    """Return the requests with the parts that decisions use, the oldest first."""
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
    """Return whether it was refused before. Edited requests come after new ones."""
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
    return value[:longest] if isinstance(value, str) else value
