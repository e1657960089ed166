"""The form's fields: sizes with their bounds, GPUs that may be given instead, and the choices of profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpuspawner.catalog import ANY_GPU, NO_GPU, Catalog, Guarantee, Template, kinds_instead
from gpuspawner.catalog.requests.profile_options import LONGEST_CHOICE, Menu, MenuOption, field_of, keys_of
from gpuspawner.catalog.requests.start_options import MOST_BYTES, WRITTEN
from gpuspawner.catalog.requests.visibility import prices
from gpuspawner.core.errors import label_of
from gpuspawner.core.units import BadValue, parse_bytes, parse_duration, show_bytes, show_cpu, show_duration
from gpuspawner.spawner.web.pages import LiveAnswers

LONGEST_SHOWN = 200
"""Characters of a value that a form repeats. Arbitrary: a link may carry megabytes."""
CPU_CHOICES = (0.5, 1, 2, 4, 8, 16, 32, 64, 128)
MEMORY_CHOICES = tuple(2**power for power in range(29, 41))
LIFETIME_CHOICES = (30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800)
LIFETIME_BUTTONS = frozenset({3600, 14400, 28800, 43200, 86400, 604800})
SIZES = ("count", "gpu_memory", "cpu", "memory", "lifetime")


def present_sizes(catalog: Catalog, template: Template, live: LiveAnswers) -> dict[str, dict[str, Any]]:
    """Return the size fields by name: label, default, hint, suggestions, and how the value was understood."""
    data = describe_template(catalog, template)
    return {
        name: {"name": name, "label": label_of(name), "understood": live.understood.get(name, ""), **data[name]}
        for name in SIZES
    }


def describe_template(catalog: Catalog, template: Template) -> dict[str, Any]:
    """Return the fields of a template as JSON, for the page's script."""
    menu = catalog.menus.get(template.name)
    bounds, default, guarantee = template.bounds, template.default, template.guarantee or Guarantee()
    counts = {kind: {"least": least, "most": most} for kind, (least, most) in template.gpus.items()}
    defaults = {kind: template.default_count(kind) for kind in counts}
    if len(counts) > 1:
        ends = [*template.gpus.values()]
        counts[ANY_GPU] = {"least": min(least for least, _ in ends), "most": max(most for _, most in ends)}
        defaults[ANY_GPU] = min(defaults.values())
    most = max((most for _, most in template.gpus.values()), default=0)
    count = default.count or ""
    return {
        "profile": menu.profile if menu else None,
        "own_images": template.own_images,
        "gpu": default.gpu or NO_GPU,
        "gpus": {kind: {**ends, "default": defaults[kind]} for kind, ends in counts.items()},
        "count": _field(str(count), f"1 to {most}" if most else "No GPU", ()),
        "substitutes": substitutes_of(catalog, template),
        "gpu_memory": _gpu_memory(catalog, template),
        "cpu": _size_field(show_cpu, default.cpu_cores, bounds.cpu_cores, CPU_CHOICES, guarantee.cpu_percent),
        "memory": _size_field(
            show_bytes, default.memory_bytes, bounds.memory_bytes, MEMORY_CHOICES, guarantee.memory_percent
        ),
        "lifetime": _field(
            _write_lifetime(default.lifetime_seconds),
            _bounded(bounds.lifetime_seconds, show_duration, ())[0],
            _bounded(bounds.lifetime_seconds, _write_lifetime, LIFETIME_CHOICES)[1],
        ),
        "lifetimes": _usual_lifetimes(bounds.lifetime_seconds),
    }


def _gpu_memory(catalog: Catalog, template: Template) -> dict[str, Any]:
    """Return the field for the minimum memory of any GPU."""
    sizes = sorted({catalog.gpus[kind].own_memory_bytes for kind in template.gpus} - {0})
    hint = f"At least this much, up to {show_bytes(sizes[-1])}" if sizes else "none"
    return _field(show_bytes(max(sizes[0], template.needs.memory_bytes)) if sizes else "", hint, map(show_bytes, sizes))


def _size_field(
    show: Callable[[Any], str], default: float, bounds: tuple[float, float], choices: Sequence[float], percent: float
) -> dict[str, Any]:
    """Return a field of CPU or memory, of which a percentage is guaranteed."""
    hint, suggestions = _bounded(bounds, show, choices)
    guaranteed = "" if percent == 100 else f", {percent:g} % of it guaranteed"  # noqa: PLR2004 - all of it
    return _field(show(default), f"{hint}{guaranteed}", suggestions)


def _field(default: str, hint: str, suggestions: Iterable[str]) -> dict[str, Any]:
    return {"default": default, "hint": hint, "suggestions": list(suggestions)}


def _bounded(
    bounds: tuple[float, float], show: Callable[[Any], str], choices: Sequence[float]
) -> tuple[str, list[str]]:
    least, most = bounds
    hint = show(least) if least == most else f"{show(least)} to {show(most)}"
    return hint, [show(choice) for choice in choices if least <= choice <= most]


def _usual_lifetimes(bounds: tuple[int, int]) -> list[str]:
    """Return the usual run times within the bounds, which the form shows as chips."""
    within = [seconds for seconds in LIFETIME_CHOICES if bounds[0] <= seconds <= bounds[1]]
    usual = [seconds for seconds in within if seconds in LIFETIME_BUTTONS]
    return [_write_lifetime(seconds) for seconds in (usual if len(usual) > 1 else within[-5:])]


def _write_lifetime(seconds: float) -> str:
    """Return a lifetime as people write it, ``1h30m``, so that it reads as the same again."""
    text = show_duration(seconds).replace("min", "m").replace(" ", "")
    return text if parse_duration(text) == seconds else f"{seconds:g}s"


def show_value(key: str, value: object) -> str:
    """Return an option as its field shows it: ``8 GiB`` for 8589934592, ``8h`` for ``28800s``."""
    if key in WRITTEN:
        return str(value)[:MOST_BYTES]
    text = str(value)[:LONGEST_SHOWN]
    try:
        if key in {"memory", "gpu_memory"}:
            nice = show_bytes(parse_bytes(value))
            return nice if parse_bytes(nice) == parse_bytes(value) else text
        if key == "lifetime":
            return _write_lifetime(parse_duration(value))
    except BadValue:
        pass  # it is shown unchanged, with the reason why it is wrong
    return text


def substitutes_of(catalog: Catalog, template: Template) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the possible substitutes of each kind, each with the smallest and the largest count of GPUs."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for kind, (least, most) in template.gpus.items():
        for count in range(least, most + 1):
            for other in kinds_instead(catalog, template, kind, count):
                first, _ = found.setdefault(kind, {}).get(other, (count, count))
                found[kind][other] = (first, count)
    return found


def present_substitutes(
    catalog: Catalog, template: Template, chosen: Mapping[str, Any], live: LiveAnswers | None
) -> list[dict[str, Any]]:
    """Return each substitute that a template offers: the requested kind, its substitute, and the consequence.

    ``ticked`` substitutes are accepted by the choices. Consent to an earlier request does not count.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for one in catalog.templates.values():
        for kind, others in substitutes_of(catalog, one).items():
            for other in others:
                found.setdefault((kind, other), []).append(one.title)
    asked = chosen.get("gpu") or template.default.gpu
    wanted, now = parse_ticked(chosen.get("substitutes")), live.substitutes if live else {}
    return [
        {
            "asked": kind,
            "given": other,
            "title": catalog.gpus[other].title,
            "instead_of": catalog.gpus[kind].title,
            "templates": ", ".join(titles),
            "words": (now.get(other, "") if kind == asked else "") or prices(catalog, kind, other),
            "ticked": kind == asked and other in wanted,
        }
        for (kind, other), titles in found.items()
    ]


def parse_ticked(said: object) -> set[str]:
    """Return the names in a text with commas, as a refused form has it, or in a list."""
    names = said.split(",") if isinstance(said, str) else said
    return {name.strip() for name in names if isinstance(name, str)} if isinstance(names, (list, tuple)) else set()


def present_menus(catalog: Catalog, template: Template, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each profile that has options: its slug, the titles of its templates, and its fields.

    Fields of the profile of ``template``, which is selected, hold the ``chosen`` values.
    """
    own, titles = catalog.menus.get(template.name), dict[str, list[str]]()
    for name, menu in catalog.menus.items():
        titles.setdefault(menu.profile, []).append(catalog.templates[name].title)
    profiles = {menu.profile: menu for menu in catalog.menus.values() if menu.options}
    return [
        {
            "profile": slug,
            "templates": ", ".join(titles[slug]),
            "fields": list(_menu_fields(menu, chosen if own == menu else {})),
        }
        for slug, menu in profiles.items()
    ]


def _menu_fields(menu: Menu, chosen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for option in menu.options:
        for key in keys_of(option):
            value = str(chosen.get(key) or "")[:LONGEST_CHOICE]
            value = "" if value == option.default else value
            yield {"key": key, "name": field_of(menu, key), "value": value, **_present_option(option, key)}


def _present_option(option: MenuOption, key: str) -> dict[str, Any]:
    """Return the label, the choices and the hint of a field. The default choice is sent as an empty field."""
    if key == option.name:
        choices = [("" if choice == option.default else choice, title) for choice, title in option.choices.items()]
        return {"label": option.title, "choices": choices, "hint": ""}
    unlisted = option.unlisted
    label = unlisted.title if unlisted else ""
    hint = f"instead of {option.title}" if option.choices else ""
    return {"label": label, "choices": None, "hint": hint}
