"""Variants of a model by the types of its fields: one field at a time has each value of its type."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from fractions import Fraction

MOMENT = 1_800_000_600.0
"""A time ten minutes after the present of the pages."""
UNIONS = (typing.Union, types.UnionType)


def variants(one, depth=1, skip=frozenset()):
    """Yield (name, variant) for each other value of each field of a dataclass or a named tuple.

    Models inside it vary too, ``depth`` deep. ``skip`` are fields that keep their value, for example ids.
    """
    yield "as it is", one
    for name, kind in fields_of(type(one)):
        if name in skip:
            continue
        for value in values_of(kind, depth):
            if value != getattr(one, name):
                label = type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)[:40]
                yield f"{name}={label}", replaced(one, name, value)


def fields_of(kind):
    """Return the names and the types of a model's fields."""
    hints = typing.get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [field.name for field in dataclasses.fields(kind)]
    return [(name, hints[name]) for name in names]


def replaced(one, name, value):
    return one._replace(**{name: value}) if hasattr(one, "_replace") else dataclasses.replace(one, **{name: value})


def values_of(kind, depth):
    """Yield values of a type: all of a small type, otherwise distinguishable values, for example "" and a text."""
    origin = typing.get_origin(kind)
    if origin in UNIONS:
        for one in typing.get_args(kind):
            yield from values_of(one, depth)
    elif origin in {tuple, frozenset}:
        inner = typing.get_args(kind)
        if origin is tuple and inner[-1] is not Ellipsis:
            yield tuple(list(values_of(one, depth))[-1] for one in inner)
        else:
            yield origin()
            yield from (origin([value]) for value in list(values_of(inner[0], depth))[-1:])
    elif origin in {Mapping, dict} or kind in {dict, Mapping}:
        yield {}
    elif is_model(kind):
        model = sample(kind)
        yield from (variant for _, variant in variants(model, depth - 1)) if depth else [model]
    else:
        yield from plain_values_of(kind)


def plain_values_of(kind):
    """Yield values of a type that contains no other type."""
    if kind is type(None):
        yield None
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from kind
    elif kind is bool:
        yield from (False, True)
    elif kind in {int, float}:
        yield from (kind(0), kind(MOMENT))
    elif kind is Fraction:
        yield from (Fraction(0), Fraction(1, 2))
    elif kind in {str, typing.Any}:
        yield from ("", "a <text>")


def is_model(kind):
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


def sample(kind):
    """Return a model with only its required fields."""
    defaults = getattr(kind, "_field_defaults", {})
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        of = dataclasses.fields(kind)
        defaults = {x.name: x for x in of if x.default is not missing or x.default_factory is not missing}
    required = [(name, inner) for name, inner in fields_of(kind) if name not in defaults]
    return kind(**{name: list(values_of(inner, 0))[-1] for name, inner in required})
