"""What a kind of GPU asks of Kubernetes' dynamic resource allocation (DRA) in place of a resource."""

from __future__ import annotations

from typing import NamedTuple


class DriverConfig(NamedTuple):
    """What a driver alone understands: ``parameters`` is JSON, an object with ``apiVersion`` and ``kind``."""

    driver: str
    parameters: str


class DeviceClaim(NamedTuple):
    """Which devices serve a kind, and what a claim of one says.

    ``selectors`` are CEL expressions over ``device``; all must hold, and those of the DeviceClass too. ``capacity`` is
    what one takes of a device that several share, as (name, quantity).
    """

    device_class: str
    selectors: tuple[str, ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    config: tuple[DriverConfig, ...] = ()

    def counted_as(self, kind: str) -> str:
        """Return what such devices of a node are counted as: no pod ever asks for a resource of this name."""
        return f"{self.device_class}/{kind}"
