"""What a template lets people choose beside GPUs and sizes: the options of its profile, named as KubeSpawner does.

An option has listed choices, takes a value that is not listed (``NAME--unlisted-choice``), or both.
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
"""Characters of a value that is not listed. Arbitrary: the longest name of an image that is taken."""


@dataclass(frozen=True)
class Unlisted:
    """A value that is not listed: what it is called, what all of it must match, and what to say where it does not."""

    title: str = "Other"
    pattern: str = ""
    message: str = ""


@dataclass(frozen=True)
class MenuOption:
    """One option: the titles of its choices by their keys, and which holds where none is chosen ("" for none)."""

    name: str
    title: str
    choices: Mapping[str, str] = field(default_factory=dict)
    default: str = ""
    unlisted: Unlisted | None = None


@dataclass(frozen=True)
class Menu:
    """The profile of a template, by its slug, and the options that it has."""

    profile: str
    options: tuple[MenuOption, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that options of a user may have for it."""
        return tuple(key for option in self.options for key in keys_of(option))


def keys_of(option: MenuOption) -> Iterator[str]:
    """Yield the keys by which an option is chosen."""
    if option.choices:
        yield option.name
    if option.unlisted:
        yield f"{option.name}{UNLISTED}"


def check_choices(menu: Menu, asked: Mapping[str, Any]) -> None:
    """Raise RequestRefused for what an option does not offer, and for an option without a default left empty."""
    for option in menu.options:
        chosen, written = asked.get(option.name), asked.get(f"{option.name}{UNLISTED}")
        if written and option.unlisted:
            _check_written(option, option.unlisted, written)
        elif (chosen or not option.default) and not (isinstance(chosen, str) and chosen in option.choices):
            raise _not_offered(option, chosen)


def choices_of(menu: Menu, asked: Mapping[str, Any]) -> dict[str, str]:
    """Return a user's options, which were checked, as KubeSpawner takes them."""
    return {PROFILE: menu.profile, **{key: str(asked[key]) for key in menu.keys if asked.get(key)}}


def field_of(menu: Menu, key: str) -> str:
    """Return the name of a form's field for a key, as KubeSpawner's own form has it."""
    return f"profile-option-{menu.profile}--{key}"


def write_menus(folder: Path, menus: Mapping[str, Menu]) -> None:
    """Leave the menus of templates for the service. Raises OSError where the folder takes none."""
    (folder / FILE).write_bytes(_menus.dump_json(dict(menus)))


def read_menus(folder: Path) -> dict[str, Menu]:
    """Return the menus of templates that the hub left; none where there is no file.

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
