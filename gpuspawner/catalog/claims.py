"""Kinds of GPU that are served by claims (dynamic resource allocation): what the catalog says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.entry import Entry, Section, Sections
from gpuspawner.catalog.parsers import parse_object
from gpuspawner.catalog.selectors import parse_capacity, parse_capacity_name, parse_parameters, parse_selectors
from gpuspawner.core.gpus.claims import DeviceClaim, DriverConfig


class DriverConfigEntry(Entry):
    """What one driver is told of the devices that a claim gets, such as how they are shared."""

    driver: Annotated[str | None, BeforeValidator(parse_object)] = None
    """The driver's name, as gpu.nvidia.com."""
    parameters: Annotated[dict[str, object] | None, BeforeValidator(parse_parameters)] = None
    """An object of the driver's own, with apiVersion and kind."""


class ClaimEntry(Entry):
    """How a pod claims GPUs of a kind, on Kubernetes 1.34 and newer with a DRA driver."""

    device_class: Annotated[str | None, BeforeValidator(parse_object)] = None
    """The DeviceClass, as gpu.nvidia.com or mig.nvidia.com. It must be written."""
    selectors: Annotated[list[str] | None, BeforeValidator(parse_selectors)] = None
    """CEL expressions over `device`, which must all hold. Default: every device of the class."""
    capacity: Annotated[
        dict[
            Annotated[str, BeforeValidator(parse_capacity_name)],
            Annotated[str, BeforeValidator(parse_capacity)],
        ],
        Section,
    ] = Field(default_factory=dict)
    """What one takes of a device that several may share, as memory: 10Gi. Default: what the driver says."""
    config: Annotated[list[DriverConfigEntry], Sections] = Field(default_factory=list)
    """Settings of the driver, such as how GPUs are shared. Default: none."""


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
