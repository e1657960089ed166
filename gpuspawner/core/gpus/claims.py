"""What a kind of GPU asks of Kubernetes' dynamic resource allocation (DRA) in place of a resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuspawner.core.fields import Required, section
from gpuspawner.core.text_fields import Capacity, ObjectName, Parameters, Selectors

_WRITE_BOTH = "write driver: and parameters:"


@dataclass(frozen=True)
class DriverConfig:
    """What one driver is told of the devices that a claim gets, such as how they are shared."""

    __pydantic_config__ = section()
    driver: Annotated[ObjectName, Required("gpu.nvidia.com", right=_WRITE_BOTH)]
    """The driver's name, as gpu.nvidia.com."""
    parameters: Annotated[Parameters, Required({"apiVersion": "v1", "kind": "Config"}, right=_WRITE_BOTH)]
    """An object of the driver's own, with apiVersion and kind."""


@dataclass(frozen=True)
class DeviceClaim:
    """How a pod claims GPUs of a kind, on Kubernetes 1.34 and newer with a DRA driver."""

    __pydantic_config__ = section()
    device_class: Annotated[
        ObjectName, Required("gpu.nvidia.com", "of which DeviceClass is not said", "add {key}: for example {example}")
    ]
    """The DeviceClass, as gpu.nvidia.com or mig.nvidia.com. It must be written."""
    selectors: Selectors = ()
    """CEL expressions over `device`, which must all hold. Default: every device of the class."""
    capacity: Capacity = ()
    """What one takes of a device that several may share, as memory: 10Gi. Default: what the driver says."""
    config: tuple[DriverConfig, ...] = ()
    """Settings of the driver, such as how GPUs are shared. Default: none."""

    def counted_as(self, kind: str) -> str:
        """Return what such devices of a node are counted as: no pod ever asks for a resource of this name."""
        return f"{self.device_class}/{kind}"
