"""The options of a template's profile, with the names that KubeSpawner gives them.

An option has listed choices, or takes a value that is not listed (``NAME--unlisted-choice``), or both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuspawner.core.errors import RequestRefused, quoted

FILE = "menus.json"
PROFILE = "profile"
UNLISTED = "--unlisted-choice"
LONGEST_CHOICE = 500
"""Characters of a value that is not listed. Arbitrary: as many as the name of an image may have."""


@dataclass(frozen=True)
class Unlisted:
    """A value that is not listed: its title, the pattern that it must match, and the message if it does not."""

    title: str = "Other"
    pattern: str = ""
    message: str = ""


@dataclass(frozen=True)
class MenuOption:
    """One option: the titles of its choices by their keys, and the default choice, or "" if the user must choose."""

    name: str
    title: str
    choices: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    unlisted: Unlisted | None = None


@dataclass(frozen=True)
class Menu:
    """The slug of a template's profile, and the options of that profile."""

    profile: str
    options: tuple[MenuOption, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a start may have for this profile."""
        return tuple(key for option in self.options for key in keys_of(option))


def keys_of(option: MenuOption) -> Iterator[str]:
    """Yield the keys that choose a value of an option."""
    if option.choices:
        yield option.name
    if option.unlisted:
        yield f"{option.name}{UNLISTED}"


def check_choices(menu: Menu, asked: Mapping[str, Any]) -> None:
    """Raise RequestRefused for a choice that is not offered, and for an empty option without a default."""
    for option in menu.options:
        chosen, written = asked.get(option.name), asked.get(f"{option.name}{UNLISTED}")
        if written and option.unlisted:
            _check_written(option, option.unlisted, written)
        elif (chosen or not option.default) and not (isinstance(chosen, str) and chosen in option.choices):
            raise _not_offered(option, chosen)


def choices_of(menu: Menu, asked: Mapping[str, Any]) -> dict[str, str]:
    """Return checked options as KubeSpawner takes them."""
    return {PROFILE: menu.profile, **{key: str(asked[key]) for key in menu.keys if asked.get(key)}}


def field_of(menu: Menu, key: str) -> str:
    """Return the name of the form's field for a key. KubeSpawner's own form uses the same name."""
    return f"profile-option-{menu.profile}--{key}"


def write_menus(folder: Path, menus: Mapping[str, Menu]) -> None:
    """Write the menus of templates for the service. Raises OSError if the folder cannot be written."""
    (folder / FILE).write_bytes(_menus.dump_json(dict(menus)))


def read_menus(folder: Path) -> dict[str, Menu]:
    """Return the menus of templates that the hub wrote, or an empty mapping if there is no file.

    Raises:
        ValueError: the file is not what :func:`write_menus` writes.
    """
    file = folder / FILE
    try:
        return _menus.validate_json(file.read_bytes()) if file.exists() else {}
    except (OSError, ValidationError) as error:
        raise ValueError(f"{file} holds no menus of profiles ({error}).") from error


_menus = TypeAdapter(dict[str, Menu])


def _check_written(option: MenuOption, unlisted: Unlisted, written: object) -> None:
    key = f"{option.name}{UNLISTED}"
    if not isinstance(written, str) or len(written) > LONGEST_CHOICE or not written.isprintable():
        raise RequestRefused(key, quoted(written), f"{LONGEST_CHOICE} characters of text", "Write a shorter one.")
    if set(written) & {"{", "}"} or (unlisted.pattern and not re.fullmatch(unlisted.pattern, written)):
        remedy = unlisted.message or "Write another, or choose one that is listed."
        raise RequestRefused(key, quoted(written), unlisted.pattern or "no braces", remedy)


def _not_offered(option: MenuOption, chosen: object) -> RequestRefused:
    if not option.choices:
        return RequestRefused(f"{option.name}{UNLISTED}", "nothing", option.title, "Write one.")
    offered = ", ".join([*option.choices][:20])
    return RequestRefused(option.name, quoted(chosen) if chosen else "nothing", offered, "Choose one of them.")
