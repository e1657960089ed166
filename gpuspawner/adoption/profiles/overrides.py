"""The settings and the choices of a profile, as values of a template. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpuspawner.adoption.discovered_gpus import FoundGpus
from gpuspawner.adoption.found_gpus import to_gpus
from gpuspawner.adoption.profiles.sources import AMOUNTS, as_json
from gpuspawner.backends.kubernetes.nodes import is_kept_label, model_of
from gpuspawner.core.gpus.vendors import is_gpu_resource
from gpuspawner.core.text_fields import IMAGE, RESOURCE_NAME
from gpuspawner.core.units import (
    GIBIBYTE,
    LONGEST,
    MEBIBYTE,
    MOST_BYTES,
    MOST_CORES,
    MOST_GPUS,
    BadValue,
    parse_count,
    show_bytes,
)

PAGES = {"/lab": ("lab",), "/lab/": ("lab",), "/vscode": ("vscode",), "/vscode/": ("vscode",)}
BY_HAND = "Write bounds: in the template."
RESOURCES = ("extra_resource_limits", "extra_resource_guarantees")
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)i?B?")
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Amount:
    """Of CPU in cores or memory in bytes: the most that one gets, and what of it is guaranteed; None where not said."""

    limit: float | None = None
    guarantee: float | None = None

    @property
    def asked(self) -> float | None:
        """The amounts of a request."""
        return self.guarantee if self.limit is None else self.limit

    @property
    def percent(self) -> int:
        """Which part is guaranteed: all of it where nothing says less."""
        if self.limit is None or self.guarantee is None or self.guarantee >= self.limit:
            return 100
        return max(1, math.ceil(100 * self.guarantee / self.limit))


@dataclass(frozen=True)
class Override:
    """The contents of an override. ``stays`` are settings that only KubeSpawner has, ``told`` the reasons of losses."""

    image: str = ""
    opens: tuple[str, ...] = ()
    cpu: Amount = Amount()
    memory: Amount = Amount()
    gpus: tuple[FoundGpus, ...] | None = None
    """None without a word on GPUs; empty if it says that there are no GPUs."""
    stays: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()

    @property
    def has_amounts(self) -> bool:
        """Whether it says how much a workspace gets."""
        return self.gpus is not None or self.cpu.asked is not None or self.memory.asked is not None

    def under(self, over: Override) -> Override:
        """Return this with what ``over`` says on top of it."""
        return Override(
            over.image or self.image,
            over.opens or self.opens,
            _under(self.cpu, over.cpu),
            _under(self.memory, over.memory),
            self.gpus if over.gpus is None else over.gpus,
            {**self.stays, **over.stays},
            (*self.told, *over.told),
        )


def _under(own: Amount, over: Amount) -> Amount:
    limit = own.limit if over.limit is None else over.limit
    return Amount(limit, own.guarantee if over.guarantee is None else over.guarantee)


def read_override(settings: Any) -> Override:
    """Return the contents of a ``kubespawner_override``."""
    if not isinstance(settings, Mapping):
        words = f"kubespawner_override: {as_json(settings)} is no dict that can be read."
        return Override() if settings is None else Override(told=(words,))
    rest = {str(name): value for name, value in settings.items()}
    told: list[str] = []
    read = Override()
    for name in AMOUNTS:
        if rest.get(name) is not None:
            amount = _amount(name, rest.pop(name), told)
            read = _with_amount(read, name, amount)
    read = _with_gpus(read, rest, told)
    if "image" in rest:
        read = _with_image(read, rest, told)
    if isinstance(rest.get("default_url"), str) and rest["default_url"] in PAGES:
        read = replace(read, opens=PAGES[rest.pop("default_url")])
    return replace(read, stays={name: value for name, value in rest.items() if value is not None}, told=tuple(told))


def _amount(name: str, value: Any, told: list[str]) -> float | None:
    is_cpu = name.startswith("cpu")
    parsed, most = (_cores(value), MOST_CORES) if is_cpu else (_size(value), MOST_BYTES)
    if parsed is None:
        told.append(f"{name}: {as_json(value)[:80]} is no amount that can be read. {BY_HAND}")
    elif not 0 <= parsed <= most:
        limit = f"{MOST_CORES} cores" if is_cpu else show_bytes(MOST_BYTES)
        told.append(f"{name}: {as_json(value)[:80]} is not from 0 to {limit}. {BY_HAND}")
        return None
    return parsed or None  # KubeSpawner reads 0 as not set


def _with_amount(read: Override, name: str, amount: float | None) -> Override:
    which, what = ("cpu" if name.startswith("cpu") else "memory"), name.partition("_")[2]
    changed = replace(read.cpu if which == "cpu" else read.memory, **{what: amount})
    return replace(read, **{which: changed})  # type: ignore[arg-type]


def _cores(value: Any) -> float | None:
    text = str(value)
    try:
        cores = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        return None
    return round(cores, 3) if math.isfinite(cores) and not isinstance(value, bool) else None


def _size(value: Any) -> float | None:
    """Return bytes as KubeSpawner reads them: 2G is 2 GiB."""
    found = None if isinstance(value, bool) else _BYTES.fullmatch(str(value).strip()[: LONGEST + 1])
    return float(found[1]) * _SIZES[found[2]] if found else None


def _with_gpus(read: Override, rest: dict[str, Any], told: list[str]) -> Override:
    counts: dict[str, int] = {}
    for name in RESOURCES:
        resources = rest.get(name)
        if not isinstance(resources, Mapping):
            continue
        for resource in [one for one in resources if is_gpu_resource(str(one))]:
            try:
                RESOURCE_NAME.read(resource)
                counts[resource] = parse_count(resources[resource], 0, MOST_GPUS)
            except BadValue as error:
                told.append(f"{name}: {resource}: {error.wrong}.")
        others = {key: value for key, value in resources.items() if not is_gpu_resource(str(key))}
        rest.update({name: others} if others else {})
        if not others:
            rest.pop(name)
    if not counts:
        return read
    selector = rest.get("node_selector")
    labels = {str(key): str(value) for key, value in selector.items()} if isinstance(selector, Mapping) else {}
    if isinstance(selector, Mapping):
        others = {key: value for key, value in selector.items() if not is_kept_label(str(key))}
        rest.update({"node_selector": others} if others else {})
        if not others:
            rest.pop("node_selector")
    found = [
        replace(to_gpus(model_of(labels, resource), resource, {"": count}), count=count)
        for resource, count in counts.items()
        if count
    ]
    return replace(read, gpus=tuple(found))


def _with_image(read: Override, rest: dict[str, Any], told: list[str]) -> Override:
    try:
        image = IMAGE.read(rest["image"])
    except BadValue:
        if isinstance(rest["image"], str):
            told.append(
                f"image: {as_json(rest.pop('image'))} is no image that the catalog takes. Write registry/name:tag."
            )
        return read
    rest.pop("image")
    return replace(read, image=image)


def written_size(size_bytes: float) -> str:
    """Return a size as the catalog has it, no less than it was."""
    if size_bytes >= GIBIBYTE and size_bytes % GIBIBYTE == 0:
        return f"{int(size_bytes // GIBIBYTE)}GiB"
    return f"{max(1, math.ceil(size_bytes / MEBIBYTE))}MiB"


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
