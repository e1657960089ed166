"""The one path from what a user asks to a request: form, prefilling link and REST all end here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gpuspawner.catalog.explain import closest
from gpuspawner.catalog.values import NO_GPU, Catalog, Template
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.request import Request
from gpuspawner.core.units import (
    BadValue,
    OutOfRange,
    parse_bytes,
    parse_count,
    parse_cpu,
    parse_duration,
    show_bytes,
    show_cpu,
    show_duration,
)

T = TypeVar("T", int, float)

OPTIONS = ("template", "gpu", "count", "cpu", "memory", "lifetime")
"""Every key that a user's options may have. Each may be absent: then the template's default holds."""
RESERVED = ("display_name", "user_options")
"""Keys that JupyterHub takes for its own when it sees them in the body of a start."""


def resolve(catalog: Catalog, options: object, user: str) -> Request:
    """Return the request that a user's options mean.

    Args:
        catalog: what may be asked.
        options: any JSON value. Right is a mapping of OPTIONS to texts or numbers, or None for all defaults.
        user: the name of who asks.

    Raises:
        RequestRefused: some value cannot be; nothing else is ever raised.
    """
    asked = _checked_keys(options)
    template = _template(catalog, asked)
    gpu = _gpu(template, asked)
    bounds, default = template.bounds, template.default
    return Request(
        user=user,
        template=template.name,
        policy=template.policy,
        gpu=gpu,
        count=_count(catalog, template, gpu, asked),
        cpu_cores=_bounded(asked, "cpu", bounds.cpu_cores, parse_cpu, show_cpu, default=default.cpu_cores),
        memory_bytes=_bounded(
            asked, "memory", bounds.memory_bytes, parse_bytes, show_bytes, default=default.memory_bytes
        ),
        lifetime_seconds=_bounded(
            asked, "lifetime", bounds.lifetime_seconds, _parse_lifetime, show_duration, default=default.lifetime_seconds
        ),
    )


def from_form(formdata: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the options of a form as JupyterHub hands it over: a list of texts for each field.

    An empty field means the default. The form always sends a count; without a GPU it means nothing, and is dropped.

    Raises:
        RequestRefused: a field that the form does not have, or two values for one field.
    """
    options = {}
    for field, values in formdata.items():
        if field == "_xsrf":  # the hub's own, checked by it
            continue
        if field not in OPTIONS:
            raise _unknown(field)
        if len(values) > 1:
            raise RequestRefused(field, f"{len(values)} values", "one value", "Choose one.")
        if values and values[0].strip():
            options[field] = values[0].strip()
    if options.get("gpu") == NO_GPU:
        options.pop("count", None)
    return options


def to_options(request: Request) -> dict[str, Any]:
    """Return the options that resolve to this request again: for a link that prefills, and for starting again."""
    options: dict[str, Any] = {
        "template": request.template,
        "gpu": request.gpu or NO_GPU,
        "cpu": show_cpu(request.cpu_cores),
        "memory": request.memory_bytes,
        "lifetime": f"{request.lifetime_seconds}s",
    }
    return options if request.gpu is None else {**options, "count": request.count}


def _checked_keys(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        limit = f"a mapping of {', '.join(OPTIONS)}"
        raise RequestRefused("options", quoted(options), limit, 'Send for example {"gpu": "a100", "count": 1}.')
    for key in options:
        if key in RESERVED:
            remedy = f"JupyterHub takes {key} for itself; send the options alone, without {key}."
            raise RequestRefused(key, quoted(options[key]), ", ".join(OPTIONS), remedy)
        if key not in OPTIONS:
            raise _unknown(key)
    return dict(options)


def _unknown(key: object) -> RequestRefused:
    close = closest(quoted(key).strip("'"), OPTIONS)
    remedy = f"Did you mean `{close}`?" if close else "Leave it out."
    return RequestRefused(quoted(key), "an option that does not exist", ", ".join(OPTIONS), remedy)


def _template(catalog: Catalog, asked: Mapping[str, Any]) -> Template:
    name = asked.get("template", next(iter(catalog.templates)))
    if not isinstance(name, str) or name not in catalog.templates:
        remedy = "Choose one of them."
        raise RequestRefused("template", quoted(name), _listed(catalog.templates), remedy)
    return catalog.templates[name]


def _gpu(template: Template, asked: Mapping[str, Any]) -> str | None:
    """Return the kind asked for. ``none`` or null asks for none, which every template allows."""
    kind = asked.get("gpu", template.default.gpu)
    if kind is None or kind == NO_GPU:
        return None
    if not isinstance(kind, str) or kind not in template.gpus:
        remedy = f"Choose one of them: {template.title} offers no other."
        raise RequestRefused("gpu", quoted(kind), _listed([*template.gpus, NO_GPU]), remedy)
    return kind


def _count(catalog: Catalog, template: Template, gpu: str | None, asked: Mapping[str, Any]) -> int:
    if "count" not in asked:
        return template.default_count(gpu)
    least, most = (0, 0) if gpu is None else template.gpus[gpu]
    try:
        count: int | None = parse_count(asked["count"])
    except OutOfRange:
        count = None  # more than any template has
    except BadValue as error:
        raise _refused("count", asked["count"], _ends(least, most, str), error) from None
    if count is None or not least <= count <= most:
        fewer = f"Ask for {_ends(least, most, str)} {catalog.gpus[gpu].title}." if gpu else ""
        remedy = fewer or "Choose a GPU, or leave the count out."
        raise RequestRefused("count", quoted(asked["count"]), _ends(least, most, str), remedy)
    return count


def _bounded(
    asked: Mapping[str, Any],
    field: str,
    bounds: tuple[T, T],
    parse: Callable[[object], T],
    show: Callable[[T], str],
    *,
    default: T,
) -> T:
    if field not in asked:
        return default
    limit = _ends(*bounds, show)
    try:
        value = parse(asked[field])
    except BadValue as error:
        raise _refused(field, asked[field], limit, error) from None
    if not bounds[0] <= value <= bounds[1]:
        nearest = show(bounds[0] if value < bounds[0] else bounds[1])
        raise RequestRefused(field, quoted(asked[field]), limit, f"Ask for {nearest}, or something within the limits.")
    return value


def _parse_lifetime(value: object) -> int:
    return round(parse_duration(value))


def _refused(field: str, value: object, limit: str, error: BadValue) -> RequestRefused:
    remedy = f"{error.right[:1].upper()}{error.right[1:]}."
    if isinstance(error, OutOfRange):
        remedy = "Ask for something within the limits."
    return RequestRefused(field, quoted(value), limit, remedy)


def _ends(least: T, most: T, show: Callable[[T], str]) -> str:
    return show(least) if least == most else f"{show(least)} to {show(most)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:20])
