"""Resolve the options of a start: the request that they mean, and everything that is refused.

Form, link, API and custom resource all use this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.gpu_choice import choose_gpus, kinds_instead, range_words, refuse_value
from gpuspawner.catalog.requests.profile_options import PROFILE, Menu, check_choices
from gpuspawner.catalog.requests.start_options import (
    OPTIONS,
    choose_tools,
    read_own_image,
    read_repository,
    read_script,
    read_variables,
    refuse_large,
    unknown_option,
)
from gpuspawner.catalog.requests.visibility import choose_team, listed, visible
from gpuspawner.catalog.template_models import Guarantee, Template
from gpuspawner.core.errors import Conflict, RequestRefused, TooLarge, label_of, quoted
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.class_holds import classes_of
from gpuspawner.core.text_fields import CHEAPEST, NEAREST
from gpuspawner.core.units import (
    BadValue,
    parse_form_bytes,
    parse_form_cpu,
    parse_form_duration,
    show_bytes,
    show_cpu,
    show_duration,
)

T = TypeVar("T", int, float)
V = TypeVar("V")
Groups = Collection[str] | None
Options = Mapping[str, Any]

RESERVED = ("display_name", "user_options")
"""Keys that JupyterHub takes for its own when it sees them in the body of a start."""
MOST_REFUSALS = 20
"""Arbitrary: more than a form has fields, so that a flood of unknown options takes no time."""


class AllRefused(RequestRefused):
    """Everything that is refused about a user's options. Its message and its parts are those of the first refusal.

    ``understood`` says how the sizes and times that are right were read, by option.
    """

    def __init__(self, refused: Sequence[RequestRefused], understood: Mapping[str, str]) -> None:
        """Keep both. ``refused`` has at least one refusal."""
        self.refused, self.understood = tuple(refused), understood
        first = refused[0]
        super().__init__(first.field, first.asked, first.limit, first.remedy, first.status)


@dataclass(frozen=True)
class Resolution:
    """The meaning of a start's options.

    ``request`` is made of the options that are ``accepted``. There is a refusal for each other option. ``request`` is
    None if it cannot be made at all, for example because the user must name a team.
    """

    request: Request | None
    accepted: Options
    refused: tuple[RequestRefused, ...] = ()

    @property
    def understood(self) -> dict[str, str]:
        """How the sizes and times that are accepted were read, by option."""
        return {} if self.request is None else understood(self.request, self.accepted)

    def must(self) -> Request:
        """Return the request.

        Raises:
            AllRefused: some option is refused.
            TooLarge: the options are too long to be read.
        """
        if self.refused:
            first = self.refused[0]
            raise first if isinstance(first, TooLarge) else AllRefused(self.refused, self.understood)
        assert self.request is not None, "no request is made only if something is refused"
        return self.request


class _OptionReading:
    """Reads options part by part, and drops each option that a part refuses."""

    def __init__(self, options: Options) -> None:
        self.options = dict(options)
        self.refused: list[RequestRefused] = []

    def read(self, part: Callable[[Options], V]) -> V:
        """Return the value that a part reads. Raises RequestRefused if dropping an option does not help."""
        while True:
            try:
                return part(self.options)
            except RequestRefused as error:
                self.refused.append(error)
                key = error.field.strip("'")
                if key not in self.options or len(self.refused) >= MOST_REFUSALS:
                    raise
                del self.options[key]


def resolve_all(
    catalog: Catalog, options: object, user: str, *, groups: Groups = frozenset(), last_team: str = ""
) -> Resolution:
    """Return the request that a user's options mean, and a refusal for each wrong option. Never raises.

    Args:
        catalog: what users may ask for.
        options: any JSON value. It should be a mapping from OPTIONS to texts or numbers, or None for all defaults. It
            may also have ``profile`` and its options, as KubeSpawner names them. ``substitutes`` is a list of kinds and
            ``tools`` a list of names, or each is a text with commas.
        user: the name of the user.
        groups: the hub's groups that the user is in. An entry for other groups is answered like one that does not
            exist. None: the caller has checked what the user may have.
        last_team: the team that the user's last request was charged to.
    """
    try:
        refuse_large(options)
        reading = _OptionReading(_mapping(options))
    except RequestRefused as error:
        return Resolution(None, {}, (error,))
    try:
        request = _read_request(visible(catalog, groups), reading, user, groups, last_team)
    except RequestRefused:
        return Resolution(None, {}, tuple(reading.refused))
    return Resolution(request, reading.options, tuple(reading.refused))


def resolve(
    catalog: Catalog, options: object, user: str, *, groups: Groups = frozenset(), last_team: str = ""
) -> Request:
    """Return the request that a user's options mean. The arguments are those of :func:`resolve_all`.

    Raises:
        AllRefused: some option is wrong.
        TooLarge: the options are too long to be read. Nothing else is ever raised.
    """
    return resolve_all(catalog, options, user, groups=groups, last_team=last_team).must()


def _read_request(catalog: Catalog, reading: _OptionReading, user: str, groups: Groups, last_team: str) -> Request:
    template = reading.read(partial(template_of, catalog))
    menu = catalog.menus.get(template.name)
    reading.read(partial(_check_keys, menu))
    if menu is not None:
        reading.read(partial(check_choices, menu))
    gpus = reading.read(partial(choose_gpus, catalog, template))
    image = reading.read(partial(read_own_image, template))
    bounds, default, guarantee = template.bounds, template.default, template.guarantee or Guarantee()
    cpu = _Size("cpu", bounds.cpu_cores, default.cpu_cores, parse_form_cpu, show_cpu)
    memory = _Size("memory", bounds.memory_bytes, default.memory_bytes, parse_form_bytes, show_bytes)
    lifetime = _Size("lifetime", bounds.lifetime_seconds, default.lifetime_seconds, _read_lifetime, show_duration)
    return Request(
        user=user,
        template=template.name,
        policy=template.policy,
        gpu=gpus.gpu,
        count=gpus.count,
        cpu_cores=reading.read(cpu.read),
        memory_bytes=reading.read(memory.read),
        lifetime_seconds=reading.read(lifetime.read),
        cpu_guarantee_percent=guarantee.cpu_percent,
        memory_guarantee_percent=guarantee.memory_percent,
        image=image or template.image,
        own_image=bool(image),
        repository=reading.read(read_repository),
        tools=reading.read(partial(choose_tools, template)),
        variables=reading.read(read_variables),
        script=reading.read(read_script),
        opens=template.opens,
        team=reading.read(partial(choose_team, catalog.rules, groups, last_team)),
        substitutes=gpus.substitutes,
        needs_memory_bytes=gpus.needs_memory_bytes,
        needs_compute=template.needs.compute if gpus.gpu else "",
        needs_driver=template.needs.driver if gpus.gpu else "",
        needs_cuda=template.needs.cuda if gpus.gpu else "",
        priority=template.priority,
        classes=classes_of(catalog.rules.holds, groups or ()),
        least_lifetime_seconds=bounds.lifetime_seconds[0],
        topology=template.topology,
        place=template.place,
        cluster_order=tuple(template.gpus) if template.place in {CHEAPEST, NEAREST} else (),
    )


def without_defaults(
    catalog: Catalog, options: Options, user: str, *, groups: Groups = frozenset(), last_team: str = ""
) -> dict[str, Any]:
    """Return the options of a form without those that mean the same when left out.

    A later start then follows the defaults of that time. Template and team stay, because the first template and the
    last team may be others tomorrow.

    Raises:
        AllRefused: as :func:`resolve`.
    """
    request = resolve(catalog, options, user, groups=groups, last_team=last_team)
    catalog = visible(catalog, groups)
    template = catalog.templates[request.template]
    is_default = {
        "cpu": request.cpu_cores == template.default.cpu_cores,
        "memory": request.memory_bytes == template.default.memory_bytes,
        "lifetime": request.lifetime_seconds == template.default.lifetime_seconds,
        "repository": not request.repository,
        "own_image": not request.own_image,
        "tools": not request.tools,
        "variables": not request.variables,
        "script": not request.script,
    }
    kept = {key: value for key, value in options.items() if not is_default.get(key)}
    chosen = choose_gpus(catalog, template, kept)
    for key in ("gpu", "count", "substitutes", "gpu_memory"):  # what one of them means may depend on the others
        fewer = {name: value for name, value in kept.items() if name != key}
        try:
            kept = fewer if choose_gpus(catalog, template, fewer) == chosen else kept
        except RequestRefused:
            continue
    return kept


def without_lost_consent(catalog: Catalog, request: Request) -> Request:
    """Return a request without substitutes that its template no longer offers."""
    template = catalog.templates.get(request.template)
    if template is None or request.gpu is None or request.gpu not in template.gpus:
        return request
    least = request.needs_memory_bytes or None
    offered = kinds_instead(catalog, template, request.gpu, request.count, least)
    return replace(request, substitutes=tuple(kind for kind in request.substitutes if kind in offered))


def understood(request: Request, options: Options) -> dict[str, str]:
    """Return how each size and time in ``options``, which resolve to ``request``, was read."""
    read = {
        "cpu": show_cpu(request.cpu_cores),
        "memory": show_bytes(request.memory_bytes),
        "gpu_memory": show_bytes(request.needs_memory_bytes),
        "lifetime": show_duration(request.lifetime_seconds),
    }
    return {key: words for key, words in read.items() if options.get(key) not in (None, "")}


def what_is_wrong(refused: Sequence[RequestRefused]) -> str:
    """Return one sentence: the refusal if there is one, or else the labels of all fields that are refused."""
    if len(refused) == 1:
        return str(refused[0])
    *labels, last = dict.fromkeys(label_of(one.field) for one in refused)
    return f"Change {', '.join(labels)}{' and ' if labels else ''}{last} first."


def all_words(error: Conflict | RequestRefused) -> str:
    """Return everything that an error says is wrong, for places that cannot show each refusal at its field."""
    return " ".join(map(str, error.refused)) if isinstance(error, AllRefused) else str(error)


def _mapping(options: object) -> dict[Any, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        limit = f"a mapping of {', '.join(OPTIONS)}"
        raise RequestRefused("options", quoted(options), limit, 'Send for example {"gpu": "a100", "count": 1}.')
    return dict(options)


def _check_keys(menu: Menu | None, options: Options) -> None:
    known = OPTIONS if menu is None else (*OPTIONS, PROFILE, *menu.keys)
    for key in options:
        if key in RESERVED:
            remedy = f"JupyterHub takes {key} for itself; send the options alone, without {key}."
            raise RequestRefused(key, quoted(options[key]), ", ".join(OPTIONS), remedy)
        if key not in known:
            raise unknown_option(key, known)


def template_of(catalog: Catalog, options: Options) -> Template:
    """Return the template that options name, or else the first one with the profile that they name.

    Raises:
        RequestRefused: no such template is offered.
    """
    if not catalog.templates:
        contact = catalog.rules.contact or "an administrator"
        remedy = f"No workspace is offered to you: ask {contact}."
        raise RequestRefused("template", quoted(options.get("template", "the first")), "none", remedy, status=403)
    profile, slugs = options.get(PROFILE), dict.fromkeys(menu.profile for menu in catalog.menus.values())
    if profile and (not isinstance(profile, str) or profile not in slugs) and slugs:
        raise RequestRefused(PROFILE, quoted(profile), listed(slugs), "Choose one of them.")
    fitting = (name for name, menu in catalog.menus.items() if menu.profile == profile)
    name = options.get("template", next(fitting, next(iter(catalog.templates))))
    if not isinstance(name, str) or name not in catalog.templates:
        remedy = "Choose one of them."
        raise RequestRefused("template", quoted(name), listed(catalog.templates), remedy)
    menu = catalog.menus.get(name)
    if profile and menu is not None and menu.profile != profile:
        remedy = f"Leave the profile out, or name a template of {quoted(profile)}."
        raise RequestRefused(PROFILE, quoted(profile), f"{menu.profile}, of the template {name}", remedy)
    return catalog.templates[name]


@dataclass(frozen=True)
class _Size(Generic[T]):
    """A size or time that a request may choose within bounds."""

    key: str
    bounds: tuple[T, T]
    default: T
    parse: Callable[[object], T]
    show: Callable[[T], str]

    def read(self, options: Options) -> T:
        """Return the value of the option, or the default. Raises RequestRefused."""
        if self.key not in options:
            return self.default
        limit, written = range_words(*self.bounds, self.show), options[self.key]
        try:
            value = self.parse(written)
        except BadValue as error:
            raise refuse_value(self.key, written, limit, error, self.show(self.default)) from None
        if not self.bounds[0] <= value <= self.bounds[1]:
            remedy = f"Write for example {self.show(self.default)}."
            raise RequestRefused(self.key, _as_understood(written, self.show(value)), limit, remedy)
        return value


def _as_understood(value: object, shown: str) -> str:
    """Return a value as it was written, with how it was read if that differs."""
    written, meant = (text.lower().replace(" ", "").replace("min", "m") for text in (str(value), shown))
    return quoted(value) if written == meant else f"{quoted(value)} ({shown})"


def _read_lifetime(value: object) -> int:
    return round(parse_form_duration(value))
