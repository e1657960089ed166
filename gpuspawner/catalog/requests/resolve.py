"""The one path from what a user asks to a request: form, prefilling link and REST all end here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpuspawner.catalog.models import NO_GPU, Catalog, Guarantee, Template
from gpuspawner.catalog.requests.menus import PROFILE, Menu, check_choices, field_of
from gpuspawner.catalog.requests.own import own_image, repository, tools
from gpuspawner.catalog.requests.picks import ends, offered_instead, pick, refused
from gpuspawner.catalog.visible import choose_team, listed, visible
from gpuspawner.core.as_written import read_bytes, read_cpu, read_duration
from gpuspawner.core.errors import LARGEST_REQUEST_BYTES, RequestRefused, TooLarge, quoted
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.holds import classes_of
from gpuspawner.core.suggestions import closest
from gpuspawner.core.units import BadValue, show_bytes, show_cpu, show_duration

T = TypeVar("T", int, float)
Groups = Collection[str] | None

OPTIONS = (
    "template",
    "gpu",
    "count",
    "cpu",
    "memory",
    "lifetime",
    "team",
    "substitutes",
    "gpu_memory",
    "repository",
    "own_image",
    "tools",
)
"""Every key that a user's options may have. Each may be absent: then the template's default holds."""
LINKED = ("template", "gpu", "count", "cpu", "memory", "lifetime", "gpu_memory")
"""What a link fills in. Who pays, what else one takes, and what is run, each says for themselves."""
TICKED = ("substitutes", "tools")
"""Of which a form has a box for each."""
CHOSEN_BY_NAME = ("template", "team")
"""What stays a choice also where it is the default: the first template and the last team may be others tomorrow."""
RESERVED = ("display_name", "user_options")
"""Keys that JupyterHub takes for its own when it sees them in the body of a start."""


def resolve(
    catalog: Catalog, options: object, user: str, *, groups: Groups = frozenset(), last_team: str = ""
) -> Request:
    """Return the request that a user's options mean.

    Args:
        catalog: what may be asked.
        options: any JSON value. Right is a mapping of OPTIONS to texts or numbers, or None for all defaults. Beside
            them ``profile`` and its options, as KubeSpawner names them. ``substitutes`` is a list of kinds, ``tools``
            one of names; or each is a text with commas.
        user: the name of who asks.
        groups: the hub's groups that the user is in. What is for others answers as a name that does not exist. None:
            whether the user may have it is checked elsewhere.
        last_team: the team that the user's last request was charged to.

    Raises:
        RequestRefused: some value cannot be; nothing else is ever raised.
    """
    _refuse_large(options)
    asked, catalog = _mapping(options), visible(catalog, groups)
    template = template_of(catalog, asked)
    menu = catalog.menus.get(template.name)
    _check_keys(asked, menu)
    if menu is not None:
        check_choices(menu, asked)
    gpus = pick(catalog, template, asked)
    image = own_image(template, asked)
    bounds, default, guarantee = template.bounds, template.default, template.guarantee or Guarantee()
    return Request(
        user=user,
        template=template.name,
        policy=template.policy,
        gpu=gpus.gpu,
        count=gpus.count,
        cpu_cores=_bounded(asked, "cpu", bounds.cpu_cores, read_cpu, show_cpu, default=default.cpu_cores),
        memory_bytes=_bounded(
            asked, "memory", bounds.memory_bytes, read_bytes, show_bytes, default=default.memory_bytes
        ),
        lifetime_seconds=_bounded(
            asked, "lifetime", bounds.lifetime_seconds, _read_lifetime, show_duration, default=default.lifetime_seconds
        ),
        cpu_guarantee_percent=guarantee.cpu_percent,
        memory_guarantee_percent=guarantee.memory_percent,
        image=image or template.image,
        own_image=bool(image),
        repository=repository(asked),
        tools=tools(template, asked),
        opens=template.opens,
        team=choose_team(asked, catalog.rules, groups, last_team),
        substitutes=gpus.substitutes,
        needs_memory_bytes=gpus.needs_memory_bytes,
        needs_compute=template.needs.compute if gpus.gpu else "",
        priority=template.priority,
        classes=classes_of(catalog.rules.holds, groups or ()),
        least_lifetime_seconds=bounds.lifetime_seconds[0],
    )


def completed(catalog: Catalog, request: Request) -> Request:
    """Return a request with what a version that stored it without did not know, by the present catalog."""
    template = catalog.templates.get(request.template)
    if template is None or (request.image is not None and request.opens is not None):
        return request
    return replace(request, image=template.image, opens=template.opens)


def without_lost_consent(catalog: Catalog, request: Request) -> Request:
    """Return a request without those substitutes that its template no longer lets it take."""
    template = catalog.templates.get(request.template)
    if template is None or request.gpu is None or request.gpu not in template.gpus:
        return request
    least = request.needs_memory_bytes or None
    others = offered_instead(catalog, template, request.gpu, request.count, least)
    return replace(request, substitutes=tuple(kind for kind in request.substitutes if kind in others))


def from_form(catalog: Catalog, formdata: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the options of a form as JupyterHub hands it over: a list of texts for each field.

    An empty field means the default. The form always sends a count; without a GPU it means nothing, and is dropped, as
    is what it says of GPUs else, and the choices of profiles that the template has not. Of TICKED several may be.

    Raises:
        RequestRefused: a field that the form does not have, or two values for one field.
    """
    _refuse_large(formdata)
    keys = keys_of_form(catalog, formdata)
    of_others = {field_of(menu, key) for menu in catalog.menus.values() for key in menu.keys} - keys.keys()
    options = {}
    for field, values in formdata.items():
        if field == "_xsrf" or field in of_others:  # the first is the hub's own, checked by it
            continue
        if field not in keys:
            raise _unknown(field, OPTIONS)
        if field in TICKED:
            values = [",".join(values)]  # noqa: PLW2901 - each ticked box is a value
        if len(values) > 1:
            raise RequestRefused(keys[field], f"{len(values)} values", "one value", "Choose one.")
        if values and values[0].strip():
            options[keys[field]] = values[0].strip()
    if options.get("gpu") == NO_GPU:
        for key in ("count", "substitutes", "gpu_memory"):
            options.pop(key, None)
    return options


def without_defaults(
    catalog: Catalog, options: Mapping[str, Any], user: str, *, groups: Groups = frozenset(), last_team: str = ""
) -> dict[str, Any]:
    """Return a form's options without those that mean the same left out: what was not chosen follows the defaults.

    The template and the team stay: they are chosen by name. ``options`` resolve.
    """
    asked, kept = resolve(catalog, options, user, groups=groups, last_team=last_team), dict(options)
    for key in (key for key in OPTIONS if key not in CHOSEN_BY_NAME):
        fewer = {name: value for name, value in kept.items() if name != key}
        try:
            if resolve(catalog, fewer, user, groups=groups, last_team=last_team) == asked:
                kept = fewer
        except RequestRefused:
            continue  # a count that goes with this GPU alone
    return kept


def keys_of_form(catalog: Catalog, formdata: Mapping[str, Sequence[object]]) -> dict[str, str]:
    """Return the keys of options by the fields of a form, for the template that it names."""
    named = next(iter(formdata.get("template") or ()), "")
    menu = catalog.menus.get(str(named) or next(iter(catalog.templates), ""))
    of_menu = {field_of(menu, key): key for key in menu.keys} if menu else {}
    return {**{key: key for key in OPTIONS}, **of_menu}


def to_options(request: Request) -> dict[str, Any]:
    """Return the options that resolve to this request again; a link has those of LINKED alone."""
    options: dict[str, Any] = {
        "template": request.template,
        "gpu": request.gpu or NO_GPU,
        "cpu": show_cpu(request.cpu_cores),
        "memory": request.memory_bytes,
        "lifetime": f"{request.lifetime_seconds}s",
    }
    if request.team:
        options["team"] = request.team
    if request.repository:
        options["repository"] = request.repository
    if request.own_image:
        options["own_image"] = request.image
    if request.tools:
        options["tools"] = ",".join(request.tools)
    if request.gpu is not None:
        options["count"] = request.count
        if request.substitutes:
            options["substitutes"] = ",".join(request.substitutes)
        if request.needs_memory_bytes:
            options["gpu_memory"] = request.needs_memory_bytes
    return options


def _refuse_large(options: object) -> None:
    try:
        size = len(repr(options))
    except Exception:  # noqa: BLE001 - a number that Python does not write out: refused by what it is asked for
        return
    if size > LARGEST_REQUEST_BYTES:
        raise TooLarge


def _mapping(options: object) -> dict[Any, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        limit = f"a mapping of {', '.join(OPTIONS)}"
        raise RequestRefused("options", quoted(options), limit, 'Send for example {"gpu": "a100", "count": 1}.')
    return dict(options)


def _check_keys(asked: Mapping[Any, Any], menu: Menu | None) -> None:
    known = OPTIONS if menu is None else (*OPTIONS, PROFILE, *menu.keys)
    for key in asked:
        if key in RESERVED:
            remedy = f"JupyterHub takes {key} for itself; send the options alone, without {key}."
            raise RequestRefused(key, quoted(asked[key]), ", ".join(OPTIONS), remedy)
        if key not in known:
            raise _unknown(key, known)


def _unknown(key: object, known: Sequence[str]) -> RequestRefused:
    close = closest(quoted(key).strip("'"), known)
    remedy = f"Did you mean `{close}`?" if close else "Leave it out."
    return RequestRefused(quoted(key), "an option that does not exist", ", ".join(known), remedy)


def template_of(catalog: Catalog, asked: Mapping[Any, Any]) -> Template:
    """Return the template asked for: the one that is named, else the first with the profile that is named.

    Raises:
        RequestRefused: there is none of this name.
    """
    if not catalog.templates:
        contact = catalog.rules.contact or "an administrator"
        remedy = f"No workspace is offered to you: ask {contact}."
        raise RequestRefused("template", quoted(asked.get("template", "the first")), "none", remedy, status=403)
    profile, slugs = asked.get(PROFILE), dict.fromkeys(menu.profile for menu in catalog.menus.values())
    if profile and (not isinstance(profile, str) or profile not in slugs) and slugs:
        raise RequestRefused(PROFILE, quoted(profile), listed(slugs), "Choose one of them.")
    fitting = (name for name, menu in catalog.menus.items() if menu.profile == profile)
    name = asked.get("template", next(fitting, next(iter(catalog.templates))))
    if not isinstance(name, str) or name not in catalog.templates:
        remedy = "Choose one of them."
        raise RequestRefused("template", quoted(name), listed(catalog.templates), remedy)
    menu = catalog.menus.get(name)
    if profile and menu is not None and menu.profile != profile:
        remedy = f"Leave the profile out, or name a template of {quoted(profile)}."
        raise RequestRefused(PROFILE, quoted(profile), f"{menu.profile}, of the template {name}", remedy)
    return catalog.templates[name]


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
    limit = ends(*bounds, show)
    try:
        value = parse(asked[field])
    except BadValue as error:
        raise refused(field, asked[field], limit, error, show(default)) from None
    if not bounds[0] <= value <= bounds[1]:
        raise RequestRefused(field, _as_understood(asked[field], show(value)), limit, f"Ask for {limit}.")
    return value


def _as_understood(value: object, shown: str) -> str:
    """Return a value as it was written, with what it was understood to mean where that reads otherwise."""
    written, meant = (text.lower().replace(" ", "").replace("min", "m") for text in (str(value), shown))
    return quoted(value) if written == meant else f"{quoted(value)} ({shown})"


def _read_lifetime(value: object) -> int:
    return round(read_duration(value))
