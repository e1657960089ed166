"""The settings and the choices of a profile, as values of a template. No I/O."""

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
    """CPU in cores or memory in bytes: the limit, and the guaranteed part. None if it is not written."""

    limit: float | None = None
    guarantee: float | None = None

    @property
    def asked(self) -> float | None:
        """The amount that a request asks for."""
        return self.guarantee if self.limit is None else self.limit

    @property
    def percent(self) -> int:
        """The guaranteed percentage. It is 100 if no smaller guarantee is written."""
        if self.limit is None or self.guarantee is None or self.guarantee >= self.limit:
            return 100
        return max(1, math.ceil(100 * self.guarantee / self.limit))


@dataclass(frozen=True)
class Override:
    """The contents of an override. Only KubeSpawner has the settings in ``stays``. ``told`` names everything lost."""

    image: str = ""
    opens: tuple[str, ...] = ()
    cpu: Amount = Amount()
    memory: Amount = Amount()
    gpus: tuple[FoundGpus, ...] | None = None
    """None if GPUs are not mentioned, or empty if the override says that there are no GPUs."""
    stays: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()

    @property
    def has_amounts(self) -> bool:
        """Whether it sets CPU, memory or GPUs."""
        return self.gpus is not None or self.cpu.asked is not None or self.memory.asked is not None

    def under(self, over: Override) -> Override:
        """Return this override with the values of ``over`` on top."""
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
        words = f"kubespawner_override: {as_json(settings)} is not a dict that can be read."
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
        told.append(f"{name}: {as_json(value)[:80]} is not an amount that can be read. {BY_HAND}")
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
                f"image: {as_json(rest.pop('image'))} is not an image for the catalog. Write registry/name:tag."
            )
        return read
    rest.pop("image")
    return replace(read, image=image)


def written_size(size_bytes: float) -> str:
    """Return a size for the catalog, rounded up."""
    if size_bytes >= GIBIBYTE and size_bytes % GIBIBYTE == 0:
        return f"{int(size_bytes // GIBIBYTE)}GiB"
    return f"{max(1, math.ceil(size_bytes / MEBIBYTE))}MiB"


_WITHOUT = (
    "users choose any size, so a choice of a size cannot set it. Remove it, or write it into the profile's own "
    "kubespawner_override."
)
_OF_TEMPLATE = "the catalog has no such setting. Write a profile with it, and name that profile in the template."
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
    """An option that stays in KubeSpawner's profile, and why."""

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

    1. The first option whose choices set amounts, and no images, gives the sizes.
    2. The first option whose choices set only images, and that takes no other values, gives the images.
    3. Other options stay if they offer anything. KubeSpawner applies them, and the form shows them.
    """
    if not written:
        return Options()
    if not isinstance(written, Mapping):
        return Options(told=(f"profile_options: {as_json(written)[:80]} is not a dict that can be read.",))
    found = Options()
    for name, option in written.items():
        found = _sorted(found, str(name), option)
    return found


def _sorted(found: Options, name: str, option: Any) -> Options:
    if not isinstance(option, Mapping) or not isinstance(option.get("choices") or {}, Mapping):
        return replace(found, told=(*found.told, f"{name}: {as_json(option)[:80]} is not an option that can be read."))
    choices = tuple(_choice(str(key), one) for key, one in (option.get("choices") or {}).items())
    choices = tuple(sorted(choices, key=lambda one: not one.default))
    takes_others = _mapping(option.get("unlisted_choice")).get("enabled") is True
    told = [
        f"{name}: {key}: it is not a setting of KubeSpawner and was not read." for key in option if key not in SHOWN
    ]
    if _mapping(option.get(BUILDING)).get("enabled"):
        other = "users may name an image that is built elsewhere" if takes_others else "build images elsewhere"
        told.append(f"{name}: {BUILDING}: gpuspawner builds no images from repositories; {other}.")
    if not choices and not takes_others:
        told.append(f"{name}: it has no choices.")
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
    told.append(
        f"{name}: it sets amounts, but another option already gave the templates. Write templates for it by hand."
    )
    return replace(found, told=(*found.told, *told))


def _as_sizes(
    found: Options, name: str, choices: tuple[Choice, ...], told: list[str], *, takes_others: bool
) -> Options:
    if found.sizes:
        told.append(f"{name}: another option already gave the sizes. Widen the template's bounds by hand.")
        return replace(found, told=(*found.told, *told))
    if takes_others:
        told.append(f"{name}: unlisted_choice: users choose any size within the template's bounds.")
    told += [f"{name}, {one.title}: {key}: {_WITHOUT}" for one in choices for key in one.override.stays]
    return replace(found, sizes=choices, told=(*found.told, *told))


def _as_images(
    found: Options, name: str, choices: tuple[Choice, ...], told: list[str], *, takes_others: bool
) -> Options:
    if takes_others:
        told.append(f"{name}: unlisted_choice: each template has one image. Write a template for each other image.")
    told += [f"{name}, {one.title}: {key}: {_OF_TEMPLATE}" for one in choices for key in one.override.stays]
    return replace(found, images=choices, told=(*found.told, *told))


def _choice(key: str, written: Any) -> Choice:
    if not isinstance(written, Mapping):
        return Choice(key, key, default=False, override=Override(told=(f"{as_json(written)[:80]} is not a choice.",)))
    override = read_override(written.get("kubespawner_override"))
    return Choice(key, str(written.get("display_name") or key), written.get("default") is True, override)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
