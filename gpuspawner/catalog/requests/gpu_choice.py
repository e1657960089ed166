"""The GPUs that the options of a start mean: kind, number, substitutes and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.visibility import listed
from gpuspawner.catalog.template_models import ANY_GPU, NO_GPU, Template
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.units import BadValue, OutOfRange, parse_count, parse_form_bytes, show_bytes

T = TypeVar("T", int, float)


@dataclass(frozen=True)
class GpuChoice:
    """The GPUs of a request. ``gpu`` is None exactly when ``count`` is 0."""

    gpu: str | None
    count: int
    substitutes: tuple[str, ...] = ()
    needs_memory_bytes: int = 0


def choose_gpus(catalog: Catalog, template: Template, asked: Mapping[str, Any]) -> GpuChoice:
    """Return the GPUs that a user's options mean.

    ``gpu: any`` means the smallest kind of the template with at least ``gpu_memory``, the cheapest of equal ones. It is
    also consent to the other kinds. With a kind by name, ``gpu_memory`` offers each kind of the template that has as
    much memory as a substitute.

    Raises:
        RequestRefused: the template does not offer this.
    """
    wants_memory = asked.get("gpu_memory") not in (None, "")
    kind = _kind(template, asked, ANY_GPU if wants_memory else template.default.gpu)
    if kind is None:
        for key in ("gpu_memory", "substitutes"):
            if asked.get(key) not in (None, "", [], ()):
                raise RequestRefused(key, quoted(asked[key]), "none", "Choose a GPU, or leave it out.")
        return GpuChoice(None, _count(catalog, template, None, asked))
    least = _least(catalog, template, asked) if wants_memory else None
    if kind == ANY_GPU:
        return _any(catalog, template, asked, least)
    if least and not catalog.gpus[kind].own_memory_bytes:
        remedy = f"Leave the memory out, or write {ANY_GPU} for the GPU: others on the same GPU may use up its memory."
        raise RequestRefused("gpu_memory", quoted(asked["gpu_memory"]), f"none of {catalog.gpus[kind].title}", remedy)
    if least is not None and catalog.gpus[kind].own_memory_bytes < least:
        has = show_bytes(catalog.gpus[kind].memory_bytes)
        remedy = f"Choose a larger GPU than {catalog.gpus[kind].title}, or write {ANY_GPU} for the GPU."
        raise RequestRefused("gpu_memory", quoted(asked["gpu_memory"]), f"up to {has}", remedy)
    count = _count(catalog, template, kind, asked)
    others = kinds_instead(catalog, template, kind, count, least)
    chosen = _substitutes(_many(count, catalog.gpus[kind].title), others, asked, usual=())
    return GpuChoice(kind, count, chosen, max(template.needs.memory_bytes, least or 0))


def kinds_instead(
    catalog: Catalog, template: Template, kind: str, count: int, least_bytes: int | None = None
) -> tuple[str, ...]:
    """Return the kinds that a user may accept instead of ``count`` GPUs of ``kind``, the first to be given first.

    These are the template's ``substitutes``. With ``least_bytes``, each kind of the template that has as much memory
    follows.
    """
    others = list(template.substitutes.get(kind, ()))
    if least_bytes is not None:
        others += [other for other in _by_size(catalog, template.gpus) if other not in {kind, *others}]
    return tuple(
        other
        for other in others
        if other in catalog.gpus
        and catalog.gpus[other].own_memory_bytes >= (least_bytes or 0)
        and _allows(template, other, count)
    )


def _any(catalog: Catalog, template: Template, asked: Mapping[str, Any], least: int | None) -> GpuChoice:
    floor = max(template.needs.memory_bytes, least or 0)
    fitting = [kind for kind in _by_size(catalog, template.gpus) if catalog.gpus[kind].own_memory_bytes >= floor]
    if "count" in asked:
        bounds = (min(template.gpus[kind][0] for kind in fitting), max(template.gpus[kind][1] for kind in fitting))
        count = _counted(asked, *bounds)
        fitting = [kind for kind in fitting if count is not None and _allows(template, kind, count)]
        if not fitting:
            limit = range_words(*bounds, str)
            raise RequestRefused("count", quoted(asked["count"]), limit, f"Ask for {limit}, or for a GPU by its name.")
    gpu = fitting[0]
    count = _count(catalog, template, gpu, asked)
    floor = max(floor, catalog.gpus[gpu].own_memory_bytes if least is None else 0)
    others = kinds_instead(catalog, template, gpu, count, floor)
    others = tuple(one for one in others if catalog.gpus[one].memory_bytes >= catalog.gpus[gpu].memory_bytes)
    chosen = _substitutes(_many(count, catalog.gpus[gpu].title), others, asked, usual=others, itself=gpu)
    return GpuChoice(gpu, count, chosen, floor)


def _by_size(catalog: Catalog, kinds: Iterable[str]) -> list[str]:
    """Return kinds from the smallest to the largest, and equal ones from the cheapest to those without a price."""

    def size(name: str) -> tuple[int, bool, float]:
        kind = catalog.gpus[name]
        return kind.memory_bytes, kind.price_per_hour is None, kind.price_per_hour or 0.0

    return sorted(kinds, key=size)


def _allows(template: Template, kind: str, count: int) -> bool:
    least, most = template.gpus.get(kind, (count, count))
    return least <= count <= most


def _kind(template: Template, asked: Mapping[str, Any], usual: str | None) -> str | None:
    """Return the kind that is asked for. ``none`` or null means no GPU, which every template allows."""
    kind = asked.get("gpu", usual)
    if kind is None or kind == NO_GPU:
        return None
    if not isinstance(kind, str) or (kind not in template.gpus and not (kind == ANY_GPU and template.gpus)):
        remedy = f"Choose one of them: {template.title} offers no other."
        wide = [ANY_GPU] if len(template.gpus) > 1 else []
        raise RequestRefused("gpu", quoted(kind), listed([*template.gpus, *wide, NO_GPU]), remedy)
    return kind


def _least(catalog: Catalog, template: Template, asked: Mapping[str, Any]) -> int:
    """Return the memory that each GPU must have. At least one kind of the template has it."""
    value = asked["gpu_memory"]
    most = max(catalog.gpus[kind].own_memory_bytes for kind in template.gpus)
    if not most:
        remedy = f"Leave it out: nothing enforces the memory of the GPUs of {template.title}."
        raise RequestRefused("gpu_memory", quoted(value), "none", remedy)
    limit = f"up to {show_bytes(most)}"
    try:
        least = parse_form_bytes(value)
    except BadValue as error:
        raise refuse_value("gpu_memory", value, limit, error, show_bytes(most)) from None
    if least > most:
        remedy = f"Ask for at most {show_bytes(most)}: {template.title} offers no larger GPU."
        raise RequestRefused("gpu_memory", quoted(value), limit, remedy)
    return least


def _count(catalog: Catalog, template: Template, gpu: str | None, asked: Mapping[str, Any]) -> int:
    if "count" not in asked:
        return template.default_count(gpu)
    least, most = (0, 0) if gpu is None else template.gpus[gpu]
    count = _counted(asked, least, most)
    if count is None or not least <= count <= most:
        fewer = f"Ask for {range_words(least, most, str)} {catalog.gpus[gpu].title}." if gpu else ""
        remedy = fewer or "Choose a GPU, or leave the number out."
        raise RequestRefused("count", quoted(asked["count"]), range_words(least, most, str), remedy)
    return count


def _counted(asked: Mapping[str, Any], least: int, most: int) -> int | None:
    """Return the number that is asked for, or None if it is more than any template offers."""
    try:
        return parse_count(asked["count"])
    except OutOfRange:
        return None
    except BadValue as error:
        raise refuse_value("count", asked["count"], range_words(least, most, str), error, str(most)) from None


def _many(count: int, title: str) -> str:
    return f"{count} {title}" if count > 1 else title


def _substitutes(
    title: str, others: tuple[str, ...], asked: Mapping[str, Any], usual: tuple[str, ...], itself: str = ""
) -> tuple[str, ...]:
    """Return the kinds that a user accepts instead, from a list of names or a text with commas."""
    value = asked.get("substitutes")
    if value is None:
        return usual
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    limit = listed(others) or "none"
    remedy = "Choose from them, or leave it out." if others else f"Leave it out: no other kind can replace {title}."
    if not isinstance(names, (list, tuple)):
        raise RequestRefused("substitutes", quoted(value), limit, remedy)
    for name in names:
        if not isinstance(name, str) or name not in {*others, itself} - {""}:
            raise RequestRefused("substitutes", quoted(name), limit, remedy)
    return tuple(other for other in others if other in names)


def refuse_value(field: str, value: object, limit: str, error: BadValue, example: str) -> RequestRefused:
    """Return the refusal of a value that cannot be read. ``example`` is within the limit, unlike that of the error."""
    if isinstance(error, OutOfRange):
        return RequestRefused(field, quoted(value), limit, f"Write for example {example}.")
    right, _, _ = error.right.partition(", for example ")
    return RequestRefused(field, quoted(value), limit, f"{right[:1].upper()}{right[1:]}, for example {example}.")


def range_words(least: T, most: T, show: Callable[[T], str]) -> str:
    """Return a range as a message shows it."""
    return show(least) if least == most else f"{show(least)} to {show(most)}"
