"""The claim of a kind of GPU, and what is wrong with one that passed the schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator

from gpuspawner.catalog.claims.models import ClaimEntry
from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.core.gpus.claims import DeviceClaim, DriverConfig


def build_claim(entry: ClaimEntry) -> DeviceClaim | None:
    """Return the claim of a kind; None where none is written."""
    if entry.device_class is None:
        return None
    return DeviceClaim(
        entry.device_class,
        tuple(entry.selectors or ()),
        tuple(sorted(entry.capacity.items())),
        tuple(DriverConfig(one.driver or "", json.dumps(one.parameters, sort_keys=True)) for one in entry.config),
    )


def check_claim(loc: Loc, entry: ClaimEntry, beside: Collection[str], wrong: Callable[..., bool]) -> Iterator[Issue]:
    """Yield what is wrong with a claim. ``beside`` are the kind's other keys; of what is ``wrong`` already, nothing.

    A kind uses claims or a resource, never both: its GPUs would be counted twice.
    """
    if entry.device_class is None:
        yield Issue(loc, "of which DeviceClass is not said", "add device_class: for example gpu.nvidia.com")
    rights = {
        "match": "remove match; add selectors to claim where not every device of its class is of this kind",
        "resource": "keep resource where pods ask for a resource, claim where they have claims",
        "of": "remove of and shares; divide GPUs by capacity of claim, or by a DeviceClass of their parts",
    }
    for key, right in rights.items():
        if key in beside:
            yield Issue((*loc[:-1], key), "a kind that is served by claims has none", right)
    for number, one in enumerate(entry.config):
        for key in ("driver", "parameters"):
            at = (*loc, "config", number)
            if getattr(one, key) is None and not wrong(*at, key):
                yield Issue(at, f"{key} is missing", "write driver: and parameters:")
