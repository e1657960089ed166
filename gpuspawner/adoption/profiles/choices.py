"""A profile's ``profile_options``: which become sizes, which images, and which stay as they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.adoption.profiles.overrides import Override, read_override
from gpuspawner.adoption.profiles.sources import as_json

_WITHOUT = (
    "a size that people choose freely can't set it. Take it out, or write it into the profile's own "
    "kubespawner_override."
)
_OF_TEMPLATE = "the catalog has no such setting. Write a profile with it, and profile: in that template."
BUILDING = "dynamic_image_building"
SHOWN = {"display_name", "description", "choices", "unlisted_choice", BUILDING}


@dataclass(frozen=True)
class Choice:
    """One choice of an option."""

    key: str
    title: str
    default: bool
    override: Override


@dataclass(frozen=True)
class Option:
    """An option that stays KubeSpawner's, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Options:
    """The result of a profile's options. ``told`` names each loss with its option."""

    sizes: tuple[Choice, ...] = ()
    images: tuple[Choice, ...] = ()
    stay: tuple[Option, ...] = ()
    told: tuple[str, ...] = ()


def sort_options(written: Any) -> Options:
    """Return the result of each option.

    1. One whose choices say amounts alone, or amounts and what stays, is sizes; of several such, the first.
    2. One whose choices say images alone, and that takes no others, is images; of several, the first.
    3. The rest stays, where it offers anything: KubeSpawner applies it, and the form shows it.
    """
    if not written:
        return Options()
    if not isinstance(written, Mapping):
        return Options(told=(f"profile_options: {as_json(written)[:80]} is no dict that can be read.",))
    found = Options()
    for name, option in written.items():
        found = _sorted(found, str(name), option)
    return found


def _sorted(found: Options, name: str, option: Any) -> Options:
    if not isinstance(option, Mapping) or not isinstance(option.get("choices") or {}, Mapping):
        return replace(found, told=(*found.told, f"{name}: {as_json(option)[:80]} is no option that can be read."))
    choices = tuple(_choice(str(key), one) for key, one in (option.get("choices") or {}).items())
    choices = tuple(sorted(choices, key=lambda one: not one.default))
    takes_others = _mapping(option.get("unlisted_choice")).get("enabled") is True
    told = [f"{name}: {key}: not KubeSpawner's own, and not read." for key in option if key not in SHOWN]
    if _mapping(option.get(BUILDING)).get("enabled"):
        other = "people may name an image that is built elsewhere" if takes_others else "build images elsewhere"
        told.append(f"{name}: {BUILDING}: no images are built from repositories here; {other}.")
    if not choices and not takes_others:
        told.append(f"{name}: there is nothing to choose of it.")
        return replace(found, told=(*found.told, *told))
    lost = [f"{name}, {one.title}: {line}" for one in choices for line in one.override.told]
    if any(one.override.has_amounts for one in choices):
        return _with_amounts(found, name, choices, [*told, *lost], takes_others=takes_others)
    images_alone = bool(choices) and all(one.override.image and not one.override.stays for one in choices)
    if images_alone and not (takes_others or found.images or lost):
        return _as_images(found, name, choices, told, takes_others=False)
    why = "It takes values that are not listed." if takes_others else "Its choices set more than the catalog says."
    return replace(found, stay=(*found.stay, Option(name, why)), told=(*found.told, *told))


def _with_amounts(
    found: Options, name: str, choices: tuple[Choice, ...], told: list[str], *, takes_others: bool
) -> Options:
    """Return the result of an option that cannot stay: a hub does not start with amounts in a profile."""
    if not any(one.override.image for one in choices):
        return _as_sizes(found, name, choices, told, takes_others=takes_others)
    if not found.images:
        return _as_images(found, name, choices, told, takes_others=takes_others)
    told.append(f"{name}: it says amounts, and another option gave the templates already. Write templates of it.")
    return replace(found, told=(*found.told, *told))


def _as_sizes(
    found: Options, name: str, choices: tuple[Choice, ...], told: list[str], *, takes_others: bool
) -> Options:
    if found.sizes:
        told.append(f"{name}: another option gave the sizes already. Widen the template's bounds by hand.")
        return replace(found, told=(*found.told, *told))
    if takes_others:
        told.append(f"{name}: unlisted_choice: people ask for any size within the template's bounds.")
    told += [f"{name}, {one.title}: {key}: {_WITHOUT}" for one in choices for key in one.override.stays]
    return replace(found, sizes=choices, told=(*found.told, *told))


def _as_images(
    found: Options, name: str, choices: tuple[Choice, ...], told: list[str], *, takes_others: bool
) -> Options:
    if takes_others:
        told.append(f"{name}: unlisted_choice: a template has the image that it names. Write one for each.")
    told += [f"{name}, {one.title}: {key}: {_OF_TEMPLATE}" for one in choices for key in one.override.stays]
    return replace(found, images=choices, told=(*found.told, *told))


def _choice(key: str, written: Any) -> Choice:
    if not isinstance(written, Mapping):
        return Choice(key, key, default=False, override=Override(told=(f"{as_json(written)[:80]} is no choice.",)))
    override = read_override(written.get("kubespawner_override"))
    return Choice(key, str(written.get("display_name") or key), written.get("default") is True, override)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
