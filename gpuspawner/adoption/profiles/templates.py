"""KubeSpawner's profiles as templates and GPU kinds of a catalog, and everything that is lost. No I/O."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuspawner.adoption.discovered_gpus import FoundGpus, KindKey, kinds_of
from gpuspawner.adoption.draft import Draft, Entry, named
from gpuspawner.adoption.profiles.overrides import (
    Amount,
    Choice,
    Options,
    Override,
    read_override,
    sort_options,
    written_size,
)
from gpuspawner.adoption.profiles.sources import Source, as_json
from gpuspawner.core.units import show_cpu

KNOWN = {"display_name", "description", "slug", "default", "kubespawner_override", "profile_options"}
LONGEST_TITLE, LONGEST_DESCRIPTION = 100, 2000
LIFETIME = (
    "Servers of profiles run without an end. A workspace of these templates ends after 8 h, or after the time that its "
    "user chooses, at most 24 h. Decide: for example bounds: {lifetime: 30m-7d}, and lifetime: 30m-7d in the policy."
)


@dataclass(frozen=True)
class Profile:
    """One profile. ``own`` is its override on top of the settings for all profiles. ``lost`` names everything lost.

    ``stays`` are settings and options that it keeps in ``profile_list``.
    """

    title: str
    slug: str
    description: str
    default: bool
    own: Override
    options: Options
    lost: tuple[str, ...]
    stays: tuple[str, ...]
    kept: Mapping[str, Any]
    """The profile with only the settings that it keeps, as KubeSpawner reads it."""


@dataclass(frozen=True)
class ImportResult:
    """The catalog of an import, sentences about what is ``lost`` and what ``stays``, and the next steps.

    ``kept`` are the profiles that ``profile_list`` must still have. It is empty if nothing stays.
    """

    draft: Draft
    lost: tuple[str, ...]
    stays: tuple[str, ...]
    next_steps: tuple[str, ...]
    profiles: int = 0
    kept: tuple[Mapping[str, Any], ...] = ()


def convert_profiles(source: Source, slug_of: Any) -> ImportResult:
    """Convert profiles. ``slug_of`` makes KubeSpawner's slug of a title."""
    base = read_override(source.base)
    lost = [f"{source.where}: {line}" for line in source.told] + [f"settings of all: {line}" for line in base.told]
    profiles = []
    for number, written in enumerate(source.profiles, 1):
        title = written.get("display_name") if isinstance(written, Mapping) else None
        if not isinstance(title, str) or not title.strip():
            lost.append(f"profile {number}: {as_json(written)[:80]} has no display_name that can be read. Write one.")
            continue
        profiles.append(_read(written, base, slug_of))
    profiles.sort(key=lambda one: not one.default)
    lost += [f"{one.title}: {line}" for one in profiles for line in one.lost]
    stays = [f"{one.title}: {line}" for one in profiles for line in one.stays]
    every = [gpu for one in profiles for choice in _choices(one) for gpu in _asked(one, choice)]
    entries, names = kinds_of(every)
    templates: list[Entry] = []
    for one in profiles:
        templates += _templates(one, names, [each.name for each in templates], names_profile=bool(stays))
    draft = Draft(_head(source, lost, stays), tuple(entries), tuple(templates))
    kept = tuple(one.kept for one in profiles) if stays else ()
    return ImportResult(draft, tuple(lost), tuple(stays), tuple(_next(source, base, profiles)), len(profiles), kept)


def _read(written: Mapping[str, Any], base: Override, slug_of: Any) -> Profile:
    own = read_override(written.get("kubespawner_override"))
    options = sort_options(written.get("profile_options"))
    title = _plain(written["display_name"])[:LONGEST_TITLE] or "Profile"
    unknown = [f"{key}: it is not a setting of KubeSpawner and was not read." for key in written if key not in KNOWN]
    guarantees = _uneven(own, options)
    stays = [f"{name}: a setting of the profile, which its template names." for name in own.stays]
    stays += [f"{one.name}: an option of the profile, which the form shows. {one.why}" for one in options.stay]
    slug = str(written.get("slug") or slug_of(written["display_name"]))
    kept = {
        "display_name": written["display_name"],
        "slug": slug,
        "default": written.get("default") is True,
        "kubespawner_override": dict(own.stays),
        "profile_options": {one.name: written["profile_options"][one.name] for one in options.stay},
    }
    return Profile(
        title,
        slug,
        _plain(str(written.get("description") or ""))[:LONGEST_DESCRIPTION],
        written.get("default") is True,
        base.under(own),
        options,
        (*own.told, *options.told, *unknown, *guarantees),
        tuple(stays),
        kept,
    )


def _uneven(own: Override, options: Options) -> list[str]:
    """Return the lost guarantees, if choices guarantee different parts."""
    told = []
    for name in ("cpu", "memory"):
        amounts = [getattr(own.under(one.override), name) for one in options.sizes]
        if len({one.percent for one in amounts if one.asked is not None}) > 1:
            told.append(
                f"guarantee of {name}: choices guarantee different parts. The part of the default choice is for all."
            )
    return told


def _choices(profile: Profile) -> list[Choice | None]:
    return [*profile.options.sizes] or [None]


def _asked(profile: Profile, choice: Choice | None) -> tuple[FoundGpus, ...]:
    found = profile.own if choice is None else profile.own.under(choice.override)
    of_images = [gpu for one in profile.options.images for gpu in one.override.gpus or ()]
    return (*(found.gpus or ()), *of_images)


def _templates(
    profile: Profile, names: Mapping[KindKey, str], taken: Iterable[str], *, names_profile: bool
) -> list[Entry]:
    """Return the template of a profile, or one for each image that users may choose."""
    used, made = list(taken), []
    images: list[Choice | None] = [*profile.options.images] or [None]
    for image in images:
        own = profile.own if image is None else profile.own.under(image.override)
        title = profile.title if image is None else f"{profile.title}: {image.title}"
        name = named(profile.slug if image is None else f"{profile.slug}-{image.key}", used, "profile")
        used.append(name)
        values = {"title": title[:LONGEST_TITLE], **_what(profile, own, names_profile=names_profile)}
        values |= _sizes(own, profile.options.sizes, names)
        made.append(Entry(name, values, () if own.image or names_profile else ("It has the hub's own image.",)))
    return made


def _what(profile: Profile, own: Override, *, names_profile: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"description": profile.description} if profile.description else {}
    if own.image:
        values["image"] = own.image
    if own.opens:
        values["opens"] = list(own.opens)
    if names_profile:
        values["profile"] = profile.slug
    return values


def _sizes(own: Override, sizes: tuple[Choice, ...], names: Mapping[KindKey, str]) -> dict[str, Any]:
    """Return GPUs, bounds, defaults and guarantees. If the profile has choices, the bounds span them."""
    choices = [own.under(one.override) for one in sizes] or [own]
    usual = choices[next((number for number, one in enumerate(sizes) if one.default), 0)]
    values: dict[str, Any] = {}
    gpus: dict[str, list[int]] = {}
    for one in choices:
        for gpu in one.gpus or ():
            gpus.setdefault(names[gpu.kind_key], []).append(gpu.count)
    bounds: dict[str, Any] = {}
    default: dict[str, Any] = {}
    if gpus:
        values["gpus"] = {name: _range(counts) for name, counts in gpus.items()}
        first = next(iter(usual.gpus or ()), None)
        default |= {"gpu": "none"} if first is None else {"gpu": names[first.kind_key], "count": first.count}
    for name, show in (("cpu", show_cpu), ("memory", written_size)):
        amounts = [asked for one in choices if (asked := _amount(one, name).asked)]
        if amounts:
            least, most = show(min(amounts)), show(max(amounts))
            bounds[name] = _number(least) if least == most else f"{least}-{most}"
            default[name] = _number(show(_amount(usual, name).asked or min(amounts)))
    if bounds:
        values["bounds"] = bounds
    if default:
        values["default"] = default
    parts = {name: f"{part}%" for name in ("cpu", "memory") if (part := _amount(usual, name).percent) < 100}  # noqa: PLR2004
    return {**values, "guarantee": parts} if parts else values


def _amount(override: Override, name: str) -> Amount:
    return override.cpu if name == "cpu" else override.memory


def _number(text: str) -> Any:
    return float(text) if "." in text and text.replace(".", "").isdigit() else int(text) if text.isdigit() else text


def _range(counts: list[int]) -> Any:
    least, most = min(counts), max(counts)
    return least if least == most else f"{least}-{most}"


def _plain(text: str) -> str:
    """Return a title or description without its HTML: pages show texts as they are."""
    without = html.unescape(re.sub(r"<[^<>]{1,500}>", " ", text))
    return " ".join("".join(one if one.isprintable() else " " for one in without).split())


def _head(source: Source, lost: Iterable[str], stays: Iterable[str]) -> tuple[str, ...]:
    return (
        f"gpuspawner server import made this catalog of {source.where}. Check it: gpuspawner server check FILE.",
        LIFETIME,
        *(f"Not converted: {line}" for line in lost),
        *(f"Stays: {line}" for line in stays),
    )


def _next(source: Source, base: Override, profiles: Iterable[Profile]) -> list[str]:
    """Return the next steps for the hub's own settings. The hub does not start with these and a catalog."""
    steps = []
    if base.has_amounts:
        steps.append(
            f"Remove the settings for all profiles ({', '.join(source.base)}). The templates' bounds replace them, and "
            "the hub does not start with both."
        )
    kept = [one for one in profiles if one.stays]
    if not kept:
        steps.append(f"Remove {source.where}. The catalog replaces all of it.")
        return steps
    steps.append(
        f"Keep {source.where}, but in each profile only the settings that stay. Images, CPU, memory and GPUs are now "
        "in the templates, and the hub does not start with both."
    )
    return steps
