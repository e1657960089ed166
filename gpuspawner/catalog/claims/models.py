"""Kinds of GPU that are served by claims (dynamic resource allocation): what the catalog says of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuspawner.catalog.claims.parsers import parse_capacity, parse_capacity_name, parse_parameters, parse_selectors
from gpuspawner.catalog.entry import Entry, Section, Sections
from gpuspawner.catalog.parsers import parse_object


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
