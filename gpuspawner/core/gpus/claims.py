"""Claims of devices by Kubernetes' dynamic resource allocation (DRA), instead of a resource of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuspawner.core.fields import Required, section
from gpuspawner.core.text_fields import Capacity, ObjectName, Parameters, Selectors

_WRITE_BOTH = "write driver: and parameters:"


@dataclass(frozen=True)
class DriverConfig:
    """Settings for one driver about the devices of a claim, for example how they are shared."""

    __pydantic_config__ = section()
    driver: Annotated[ObjectName, Required("gpu.nvidia.com", right=_WRITE_BOTH)]
    """The name of the driver, for example gpu.nvidia.com. Required."""
    parameters: Annotated[Parameters, Required({"apiVersion": "v1", "kind": "Config"}, right=_WRITE_BOTH)]
    """An object as the driver documents it, with apiVersion and kind. Required."""


@dataclass(frozen=True)
class DeviceClaim:
    """How pods claim GPUs of a kind, on Kubernetes 1.34 or newer with a DRA driver."""

    __pydantic_config__ = section()
    device_class: Annotated[ObjectName, Required("gpu.nvidia.com", "add {key}: for example {example}")]
    """The DeviceClass, for example gpu.nvidia.com or mig.nvidia.com. Required."""
    selectors: Selectors = ()
    """CEL expressions over `device`. All of them must hold. Default: every device of the class."""
    capacity: Capacity = ()
    """The capacity that one claim takes of a shared device, for example memory: 10Gi. Default: the driver decides."""
    config: tuple[DriverConfig, ...] = ()
    """Settings of drivers, for example how GPUs are shared. Default: no settings."""

    def counted_as(self, kind: str) -> str:
        """Return the name by which such devices of a node are counted. No pod ever requests a resource of this name."""
        return f"{self.device_class}/{kind}"
