"""What every model of the catalog is made of: a mapping whose keys are known, and the values that many of them take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from gpuspawner.catalog.parsers import (
    TextOf,
    WholeNumber,
    parse_groups,
    parse_kind,
    parse_name,
    parse_object,
    parse_packages,
    parse_positive_duration,
    parse_seconds,
    range_of,
)
from gpuspawner.core.units import parse_bytes, parse_cpu, parse_duration


def _is_none(data: Any) -> Any:
    return {} if data is None else data


Section = BeforeValidator(_is_none)
"""A mapping of which nothing is written (``cpu:``) is an empty one."""

Sections = BeforeValidator(lambda data: [] if data is None else data)
"""The same of a list."""

Name = Annotated[str, BeforeValidator(parse_name)]
ObjectName = Annotated[str, BeforeValidator(parse_object)]
KindName = Annotated[str, BeforeValidator(parse_kind)]
Title = Annotated[str | None, BeforeValidator(TextOf(100))]
Bytes = Annotated[int | None, BeforeValidator(parse_bytes)]
Cores = Annotated[float | None, BeforeValidator(parse_cpu)]
Duration = Annotated[float | None, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[float | None, BeforeValidator(parse_positive_duration)]
Seconds = Annotated[int | None, BeforeValidator(parse_seconds)]
Lifetimes = Annotated[tuple[int, int] | None, BeforeValidator(range_of(parse_seconds))]
GpuCount = Annotated[int, BeforeValidator(WholeNumber(1, 1024))]
GpuCounts = Annotated[tuple[int, int], BeforeValidator(range_of(WholeNumber(1, 1024)))]
Priority = Annotated[int | None, BeforeValidator(WholeNumber(-100, 100))]
Packages = Annotated[list[str], BeforeValidator(parse_packages)]
Groups = Annotated[list[str] | None, BeforeValidator(parse_groups)]


class Entry(BaseModel):
    """A mapping whose keys are known.

    ``later`` names the keys that product and design know, and this version not, and says of each what is right now.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    later: ClassVar[Mapping[str, str]] = MappingProxyType({})
