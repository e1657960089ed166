"""Fields of models that administrators write in YAML, and the readers of their values.

A model is a frozen dataclass, and each of its fields is one key. The annotation carries a ``Reader``. The default holds
when the key is left out. The text below the field is its documentation. A reader parses what was written, and tells the
reference page and the JSON schemas what the key takes. So a new key needs nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, get_type_hints

from gpuspawner.core.errors import quoted
from gpuspawner.core.units import BadValue, parse_count, parse_range

Schema = dict[str, Any]
"""A JSON schema."""

MOST_ITEMS = 100
"""Items of a list or mapping without a bound of its own. Arbitrary: the API server counts the cost of rules by it."""
MOST_AMOUNT = 1_000_000

_UNIT = re.compile(r"_(seconds|bytes|cores|percent|per_hour)$|_$")
"""The part of a field's name that its key leaves out: a unit, or the underscore after a Python keyword."""


def section(**keys: str) -> Mapping[str, Any]:
    """Return the pydantic configuration of a section of the file.

    Args:
        keys: the keys of fields whose key is not just the field's name without its unit.
    """
    return {"extra": "forbid", "alias_generator": lambda name: keys.get(name, _UNIT.sub("", name))}


def number_or_text() -> Schema:
    """Return the schema of a value that only its reader can check, for example ``30m``."""
    return {"x-kubernetes-int-or-string": True}


@dataclass(frozen=True)
class Reader:
    """Parses one kind of value.

    Args:
        read: returns the value of what was written, or raises BadValue.
        accepts: what may be written, for the reference page.
        schema: what a JSON schema can say about it.
        write: returns a value as an administrator would write it; "" if the page shows no default.
        is_time: whether a catalog with shortened times divides it.
    """

    read: Callable[[object], Any]
    accepts: str
    schema: Schema = field(default_factory=number_or_text)
    write: Callable[[Any], str] = str
    is_time: bool = False

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - the command line uses values without pydantic

        return core_schema.no_info_plain_validator_function(self.read)


@dataclass(frozen=True)
class SortedPairs:
    """Reads a mapping and keeps it as a sorted tuple of pairs, which can be hashed."""

    key: Reader
    value: Reader

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - as above

        readers = (one.__get_pydantic_core_schema__(source, handler) for one in (self.key, self.value))
        return core_schema.no_info_after_validator_function(
            lambda found: tuple(sorted(found.items())), core_schema.dict_schema(*readers)
        )


@dataclass(frozen=True)
class Required:
    """Marks a key that must be written.

    Args:
        example: replaces the missing value, so that the rest of the file is still checked.
        right: what to do if it is missing, with ``{key}`` and ``{example}`` filled in.
    """

    example: Any
    right: str = "add {key}: {example}"


class Stored:
    """Marks a section that the store keeps. Pydantic reads its plain values by the names of its fields.

    All its fields need a default, for documents that an older version stored.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - as above

        types, found = get_type_hints(source), []
        for one in fields(source):
            value = core_schema.with_default_schema(handler.generate_schema(types[one.name]), default=one.default)
            found.append(core_schema.dataclass_field(one.name, value))
        return core_schema.dataclass_schema(
            source, core_schema.dataclass_args_schema(source.__name__, found), list(types)
        )


class SchemaDefault:
    """Marks a field whose default the schema of a custom resource contains, so that the API server stores it."""


class UnknownKey(BadValue):
    """A file holds a field that is only for the program."""


def _refuse(_value: object) -> Any:
    raise UnknownKey("", "")


Internal = Reader(_refuse, "")
"""Marks a field that only the program sets. In a file it is an unknown key."""


def write_nothing(_value: object) -> str:
    """Show no default on the reference page."""
    return ""


def pattern_reader(
    wrong: str, regex: str, longest: int, right: str, accepts: str, schema: Schema | None = None
) -> Reader:
    """Return a reader of text that matches ``regex`` as a whole and has at most ``longest`` characters."""
    compiled = re.compile(regex)

    def read(value: object) -> str:
        if not isinstance(value, str) or len(value) > longest or not compiled.fullmatch(value):
            raise BadValue(f"{quoted(value)} is {wrong}", right)
        return value

    return Reader(read, accepts, schema or number_or_text())


def text_reader(longest: int) -> Reader:
    """Return a reader of printable text of at most ``longest`` characters."""
    right = f"write one to {longest} characters of text; put it in quotes if it looks like something else"

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise BadValue(f"{quoted(value)} is not text", right)
        if len(value) > longest or not all(c.isprintable() or c == "\n" for c in value):
            raise BadValue(f"{quoted(value)} is too long or has characters that cannot be shown", right)
        return value.strip()

    return Reader(read, f"text of at most {longest} characters", {"type": "string", "maxLength": longest})


def whole_number_reader(least: int, most: int) -> Reader:
    """Return a reader of whole numbers from ``least`` to ``most``."""

    def read(value: object) -> int:
        try:
            return parse_count(value, least, most)
        except BadValue as error:
            raise BadValue(error.wrong, f"write a whole number from {least} to {most}") from None

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Reader(read, f"a whole number from {least} to {most}", schema)


def number_reader(wrong: str, right: str, most: float, *, zero: bool) -> Reader:
    """Return a reader of numbers up to ``most``. ``zero`` says whether 0 is allowed."""

    def read(value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most and (value or zero):
            return float(value)
        raise BadValue(f"{quoted(value)} is {wrong}", right)

    return Reader(read, f"a number from 0 to {most:,.0f}" if zero else "a number above 0", write="{:g}".format)


def amount_reader(accepts: str, example: str) -> Reader:
    """Return a reader of exact numbers from 0 with at most three decimals."""
    form = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,3})?")

    def read(value: object) -> Fraction:
        written = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        written = written.strip(" ") if isinstance(written, str) else written
        if not isinstance(written, str) or not form.fullmatch(written) or Fraction(written) > MOST_AMOUNT:
            raise BadValue(f"{quoted(value)} is not {accepts}", f"write {accepts}, for example {example}")
        return Fraction(written)

    return Reader(read, accepts)


def choice_reader(wrong: str, right: str, values: Mapping[Any, Any]) -> Reader:
    """Return a reader of a few words. ``values`` maps each word to what it means."""

    def read(value: object) -> Any:
        for word, meaning in values.items():
            if type(word) is type(value) and word == value:
                return meaning
        raise BadValue(f"{quoted(value)} is {wrong}", right)

    words = list(values)
    schema: Schema = {"type": "boolean" if isinstance(words[0], bool) else "string"}
    if set(words) != {True, False}:
        schema["enum"] = words
    written = {meaning: str(word).lower() for word, meaning in values.items()}
    *first, last = (f"`{str(word).lower()}`" for word in words)
    accepts = f"{', '.join(first)} or {last}" if first else last
    return Reader(read, accepts, schema, lambda value: written.get(value, ""))


def list_reader(
    item: Reader,
    items: str,
    example: str,
    *,
    may_be_empty: bool = False,
    convert: Callable[[Mapping[Any, None]], Any] = tuple,
) -> Reader:
    """Return a reader of lists.

    Args:
        item: reads one item. A repeated item counts once.
        items: the noun for several items.
        example: a list of them, for messages.
        may_be_empty: whether an empty list is right.
        convert: makes the value of the items.
    """

    def read(value: object) -> Any:
        if not isinstance(value, list) or not (value or may_be_empty):
            raise BadValue(f"{quoted(value)} is not a list of {items}", f"write for example {example}")
        return convert(dict.fromkeys(item.read(one) for one in value))

    schema = {"type": "array", "items": item.schema, "maxItems": MOST_ITEMS}
    return Reader(read, f"a list of {items}", schema, _write_list)


def _write_list(value: Any) -> str:
    return f"[{', '.join(value)}]" if value else ""


def range_reader(end: Reader) -> Reader:
    """Return a reader of a range with two ends. A single value is both ends."""

    def write(ends: tuple[Any, Any]) -> str:
        return "-".join(dict.fromkeys(map(end.write, ends)))

    accepts = f"a range or one value, each {end.accepts}"
    return replace(
        end, read=lambda value: parse_range(value, end.read), accepts=accepts, schema=number_or_text(), write=write
    )
