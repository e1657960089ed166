"""CEL expressions about a device, evaluated as Kubernetes' scheduler does.

An expression that fails for a device counts as false here. The scheduler stops at the expression instead.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

from celpy import Environment
from celpy.celtypes import BoolType, IntType, ListType, MapType, StringType
from celpy.evaluation import CELFunction

from gpuspawner.backends.kubernetes.dra.models import Device
from gpuspawner.backends.kubernetes.nodes import amount_of

log = logging.getLogger("gpuspawner.kubernetes")

_LOOPS = re.compile(r"\.(all|exists|exists_one|filter|map)\(")
_PARTS = 3


class _Version(StringType):
    """A semantic version. Only its three numbers are compared."""

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"[0-9]+", str(self))[:_PARTS])


class _Domains(MapType):
    """Attributes or capacities by domain. A missing domain is empty."""

    def __missing__(self, _key: object) -> MapType:
        return MapType()


def fits(device: Device, selectors: Iterable[str]) -> bool:
    """Return whether all expressions hold for a device."""
    return all(_holds(expression, _reduce(device, expression)) for expression in selectors)


def _reduce(device: Device, expression: str) -> Device:
    """Return a device with only what an expression reads, so that equal devices are evaluated once."""
    if _LOOPS.search(expression):
        return device
    attributes = tuple(one for one in device.attributes if one[0][1] in expression)
    capacity = tuple(one for one in device.capacity if one[0][1] in expression)
    name = device.name._replace(pool="", device="")
    return Device(name, attributes, device.versions, capacity, is_shared=device.is_shared)


@lru_cache(maxsize=65536)
def _holds(expression: str, device: Device) -> bool:
    program = _program(expression)
    if program is None:
        return False
    try:
        return bool(program.evaluate({"device": _in_cel(device)}) == BoolType(source=True))
    except Exception as error:  # noqa: BLE001 - a user's expression must not stop the view of all devices
        log.debug("%s does not hold for %s: %s", expression, device.name, error)
        return False


@cache
def _environment() -> Environment:
    return Environment()


@lru_cache(maxsize=1024)
def _program(expression: str) -> Any:
    """Return a compiled expression, None if it is invalid: a class may be any cluster's."""
    try:
        return _environment().program(_environment().compile(expression), functions=FUNCTIONS)
    except Exception as error:  # noqa: BLE001 - the library's parser raises anything
        log.warning("A device selector is invalid, so it matches no device: %s (%s)", expression, error)
        return None


def _in_cel(device: Device) -> MapType:
    attributes, capacity = _Domains(), _Domains()
    for (domain, name), value in device.attributes:
        is_version = (domain, name) in device.versions
        parts = [_value(one, is_version=is_version) for one in (value if isinstance(value, tuple) else (value,))]
        _put(attributes, domain, name, ListType(parts) if isinstance(value, tuple) else parts[0])
    for (domain, name), shared in device.capacity:
        _put(capacity, domain, name, IntType(shared.amount))
    return MapType(
        {
            StringType("driver"): StringType(device.name.driver),
            StringType("attributes"): attributes,
            StringType("capacity"): capacity,
            StringType("allowMultipleAllocations"): BoolType(device.is_shared),
        }
    )


def _value(value: str | bool | int, *, is_version: bool) -> Any:
    if is_version:
        return _Version(str(value))
    if isinstance(value, str):
        return StringType(value)
    return BoolType(value) if isinstance(value, bool) else IntType(value)


def _put(domains: _Domains, domain: str, name: str, value: object) -> None:
    if StringType(domain) not in domains:
        domains[StringType(domain)] = MapType()
    domains[StringType(domain)][StringType(name)] = value


def _key(value: object) -> Any:
    return value.parts if isinstance(value, _Version) else int(str(value))


def _compare(one: object, other: object) -> int:
    return int(_key(one) > _key(other)) - int(_key(one) < _key(other))


def _quantity(text: object) -> IntType:
    amount = amount_of("", text)
    if amount is None:
        raise ValueError(f"{text} is not a quantity")
    return IntType(amount)


FUNCTIONS: dict[str, CELFunction] = {
    "quantity": _quantity,
    "semver": lambda text, *_: _Version(text),
    "isQuantity": lambda text: BoolType(amount_of("", text) is not None),
    "isSemver": lambda text, *_: BoolType(re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+([-+].*)?", str(text)) is not None),
    "compareTo": lambda one, other: IntType(_compare(one, other)),
    "isGreaterThan": lambda one, other: BoolType(_compare(one, other) > 0),
    "isLessThan": lambda one, other: BoolType(_compare(one, other) < 0),
    "asInteger": lambda one: IntType(int(one)),
    "major": lambda one: IntType(one.parts[0]),
    "minor": lambda one: IntType(one.parts[1]),
    "patch": lambda one: IntType(one.parts[2]),
    "includes": lambda has, one: BoolType(one in has if isinstance(has, ListType) else has == one),
    "lowerAscii": lambda text: StringType(str(text).lower()),
    "upperAscii": lambda text: StringType(str(text).upper()),
    "trim": lambda text: StringType(str(text).strip()),
    "replace": lambda text, old, new: StringType(str(text).replace(old, new)),
}
"""Functions that Kubernetes adds to CEL: quantities, semantic versions and text."""
