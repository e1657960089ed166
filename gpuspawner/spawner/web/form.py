"""The options form: what a user may choose, with what Start will do. It works without JavaScript, and without style.

The hub puts it inside its own ``<form>`` as it is, so every value in it is escaped here. It brings its own style and
script: a hub whose administrator wrote another spawn page shows it whole, and it works while the service is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpuspawner.backends.local.nvidia import has_devices
from gpuspawner.catalog import ANY_GPU, LINKED, NO_GPU, OPTIONS, TICKED, Catalog, Guarantee, Template, keys_of_form
from gpuspawner.catalog.prices import price_words
from gpuspawner.catalog.profile_options import LONGEST_CHOICE
from gpuspawner.core.errors import label_of, quoted
from gpuspawner.core.gpus.fleet import GpuKind, describe_memory
from gpuspawner.core.gpus.vendors import measurement_note
from gpuspawner.core.units import BadValue, parse_bytes, parse_duration, show_bytes, show_cpu, show_duration
from gpuspawner.spawner.web import instead
from gpuspawner.spawner.web import menus as form_menus
from gpuspawner.spawner.web.live import Live
from gpuspawner.spawner.web.offline import judged
from gpuspawner.spawner.web.pages import TEMPLATES

AWAY = "GPUs can't be granted now: the GPU service does not answer. Work without one, or wait: this page looks again."
LONGEST_SHOWN = 200
"""Characters of a value that a form repeats. Arbitrary: a link may carry megabytes."""
CPU_CHOICES = (0.5, 1, 2, 4, 8, 16, 32, 64, 128)
MEMORY_CHOICES = tuple(2**power for power in range(29, 41))
LIFETIME_CHOICES = (30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800)
LIFETIME_BUTTONS = frozenset({3600, 14400, 28800, 86400, 604800})

_environment = Environment(
    loader=FileSystemLoader(TEMPLATES),
    auto_reload=False,  # an upgrade that is installed meanwhile lays others there
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(
    catalog: Catalog,
    *,
    user: str,
    server: str,
    ticket: str,
    service_prefix: str,
    chosen: Mapping[str, Any],
    notes: Sequence[str] = (),
    live: Live | None = None,
    own: bool = True,
    teams: Sequence[tuple[str, str]] = (),
    own_ticket: str = "",
) -> str:
    """Return the form as HTML.

    Args:
        catalog: what the user may choose.
        user: for whom a server starts.
        server: its name, ``""`` for the default one.
        ticket: a form's, for what the page asks of the service.
        service_prefix: where browsers find the service, ending in ``/``.
        chosen: options to fill in, of any kind: from a link, from what was posted or last used.
        notes: what else to tell of them, in sentences.
        live: what the service says now, None where it does not answer.
        own: whether ``user`` is who looks.
        own_ticket: the user's own, for what is theirs alone; "" where somebody else may look.
        teams: those that the user may have charged, by name and title.
    """
    now = live or judged(catalog, chosen, user, AWAY)
    shown = {key: _shown(key, chosen.get(key, "")) for key in OPTIONS}
    template = catalog.templates.get(shown["template"], next(iter(catalog.templates.values()), None))
    if template is None:
        return _without(now.sentence, None if own else user)
    return _environment.get_template("gpuspawner/form.html").render(
        user=user,
        server=server,
        ticket=ticket,
        own_ticket=own_ticket,
        prefix=service_prefix,
        chosen=shown,
        notes=notes,
        template=template,
        **_of_catalog(catalog, live),
        substitutes=instead.rows(catalog, template, chosen, live),
        teams=[{"name": name, "title": title} for name, title in teams],
        team=_team(teams, chosen, live),
        fields=_fields(catalog, template, now),
        ticked_tools=instead.ticked(chosen.get("tools")),
        menus=form_menus.shown(catalog, template, chosen),
        data=_of_script(catalog, template, chosen, live),
        **_of_answer(now),
        whose=None if own else user,
        away=live is None,
        away_sentence=AWAY,
    )


def _of_answer(now: Live) -> dict[str, Any]:
    """Return what the page says that Start would do."""
    return {name: getattr(now, name) for name in ("sentence", "quota", "cost", "wrong", "refused")}


def _of_catalog(catalog: Catalog, live: Live | None) -> dict[str, Any]:
    """Return what the page shows of the catalog, whoever looks."""
    templates = catalog.templates.values()
    return {
        "templates": templates,
        "gpus": _kinds(catalog, live),
        "no_gpu": NO_GPU,
        "any_gpu": ANY_GPU if any(len(one.gpus) > 1 for one in templates) else None,
        "simulated": _simulated(catalog, live),
        "own_images": any(one.own_images for one in templates),
        "tools": any(one.tools for one in templates),
        "fast": catalog.fast,
        "timezone": catalog.rules.timezone,
    }


def _without(sentence: str, whose: str | None) -> str:
    """Return the page of who is offered nothing."""
    return _environment.get_template("gpuspawner/form_without.html").render(sentence=sentence, whose=whose)


def _kinds(catalog: Catalog, live: Live | None) -> list[dict[str, Any]]:
    """Return the rows of the GPU kinds that some template offers."""
    offered = {name for template in catalog.templates.values() for name in template.gpus}
    kinds = (kind for kind in catalog.gpus.values() if kind.name in offered)
    return [
        {
            "kind": kind,
            "more": _more(catalog, kind),
            "free": _free(kind.name, live),
            "measured": _measured(kind, live),
        }
        for kind in kinds
    ]


def _of_script(
    catalog: Catalog, template: Template, chosen: Mapping[str, Any], live: Live | None
) -> dict[str, dict[str, Any]]:
    """Return what the form's script needs: the fields of each template, and what was consented to."""
    consents = live.consents if live else {}
    return {
        "templates": {name: _data(catalog, one) for name, one in catalog.templates.items()},
        "consents": {**consents, template.name: sorted(instead.consented(template, chosen, live))},
    }


def prefill_from_query(arguments: Mapping[str, Sequence[str | bytes]]) -> dict[str, str]:
    """Return the options that a link fills in, from the arguments of ``/hub/spawn`` as the browser sent them.

    As JupyterHub 6 has it: if any argument begins with ``opt-``, those without it are ignored (5.x passes them all on).
    What is no option is left out; the first of several values counts.
    """
    texts = {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, values in arguments.items()
        for value in values[:1]
    }
    prefixed = {key[4:]: value for key, value in texts.items() if key.startswith("opt-")}
    return {key: value[:LONGEST_SHOWN] for key, value in (prefixed or texts).items() if key in LINKED and value}


def offered(catalog: Catalog, link: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return of a link's options what the form can show as chosen, and a sentence for each choice that it cannot."""
    kept, notes = dict(link), list[str]()
    template = catalog.templates.get(link.get("template", ""), next(iter(catalog.templates.values()), None))
    if template is None:
        return {}, notes
    if link.get("template", template.name) != template.name:
        notes.append(_replaced(f"workspace {quoted(kept.pop('template'))}", "which is not offered", template.title))
    gpu = link.get("gpu", NO_GPU)
    if gpu not in {NO_GPU, ANY_GPU, *template.gpus}:
        del kept["gpu"]
        asked = catalog.gpus[gpu].title if gpu in catalog.gpus else quoted(gpu)
        usual = catalog.gpus[template.default.gpu].title if template.default.gpu else "No GPU"
        notes.append(_replaced(f"GPU {asked}", f"which {template.title} does not offer", usual))
    return kept, notes


def _replaced(asked: str, wrong: str, instead: str) -> str:
    return f"The link asks for the {asked}, {wrong}. {instead} is chosen instead: choose another, or go on with it."


def prefill_from_post(catalog: Catalog, formdata: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return what to fill in again after a submitted form was refused."""
    keys = keys_of_form(catalog, formdata)
    texts = {field: values for field, values in formdata.items() if all(isinstance(one, str) for one in values)}
    ticked = {field: [",".join(values)] for field, values in texts.items() if field in TICKED}
    return {
        keys[field]: values[0][: LONGEST_SHOWN if field in OPTIONS else LONGEST_CHOICE]
        for field, values in {**texts, **ticked}.items()
        if field in keys and values and values[0]
    }


def _team(teams: Sequence[tuple[str, str]], chosen: Mapping[str, Any], live: Live | None) -> str:
    """Return the team that is shown as chosen: the one that was, else the last one; "" where the user has to say."""
    names = [name for name, _ in teams]
    wanted = (chosen.get("team"), live.team if live else "", names[0] if len(names) == 1 else "")
    return next((team for team in wanted if team in names), "")


def _more(catalog: Catalog, kind: GpuKind) -> str:
    spot = "spot: the cloud may take it back at any time" if kind.spot else ""
    return ", ".join(filter(None, [*describe_memory(kind), price_words(catalog, kind.name), spot]))


def _free(kind: str, live: Live | None) -> str:
    offer = live.offers.get(kind) if live else None
    if offer is None or offer["free"] is None or offer["total"] is None:
        return "free: unknown"
    free = f"{offer['free']} of {offer['total']} free" if offer["total"] or not offer["note"] else offer["note"]
    waiting = f", {offer['waiting']} waiting" if offer["waiting"] else ""
    note = f"; {offer['note']}" if offer["total"] and offer["note"] else ""
    return f"{free}{waiting}{note}"


def _measured(kind: GpuKind, live: Live | None) -> str:
    """Return how its GPUs are measured, where that is to be known before Start; "" otherwise."""
    offer = live.offers.get(kind.name) if live else None
    return measurement_note(kind.resource) if offer is None else str(offer["measured"])


def _simulated(catalog: Catalog, live: Live | None) -> set[str]:
    """Return the kinds whose GPUs are simulated; while the service is away, those that are where there is no GPU."""
    if live is not None:
        return {kind for kind, offer in live.offers.items() if offer["simulated"]}
    here = set() if has_devices() else set(catalog.simulated)
    return {kind.name for kind in catalog.gpus.values() if kind.pool in here}


def _fields(catalog: Catalog, template: Template, live: Live) -> list[dict[str, Any]]:
    """Return the fields beside the GPUs: for each its name, label, default, hint, suggestions, and what it means."""
    data = _data(catalog, template)
    return [
        {"name": name, "label": label_of(name), "understood": live.understood.get(name, ""), **data[name]}
        for name in ("count", "gpu_memory", "cpu", "memory", "lifetime")
    ]


def _data(catalog: Catalog, template: Template) -> dict[str, Any]:
    """Return what the page needs to know of a template, as JSON."""
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
        "count": _field(str(count), f"up to {most}" if most else "none", ()),
        "substitutes": instead.offered(catalog, template),
        "gpu_memory": _gpu_memory(catalog, template),
        "cpu": _sized(show_cpu, default.cpu_cores, bounds.cpu_cores, CPU_CHOICES, guarantee.cpu_percent),
        "memory": _sized(
            show_bytes, default.memory_bytes, bounds.memory_bytes, MEMORY_CHOICES, guarantee.memory_percent
        ),
        "lifetime": _field(
            _written_lifetime(default.lifetime_seconds),
            *_bounded(bounds.lifetime_seconds, _written_lifetime, LIFETIME_CHOICES),
        ),
        "lifetimes": _few(bounds.lifetime_seconds),
    }


def _gpu_memory(catalog: Catalog, template: Template) -> dict[str, Any]:
    """Return the field for the memory that any GPU is to have at least."""
    sizes = sorted({catalog.gpus[kind].own_memory_bytes for kind in template.gpus} - {0})
    hint = f"at least; up to {show_bytes(sizes[-1])}" if sizes else "none"
    return _field(show_bytes(max(sizes[0], template.needs.memory_bytes)) if sizes else "", hint, map(show_bytes, sizes))


def _sized(
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


def _few(bounds: tuple[int, int]) -> list[str]:
    """Return the lifetimes that stand beside the field as buttons, within the bounds."""
    within = [seconds for seconds in LIFETIME_CHOICES if bounds[0] <= seconds <= bounds[1]]
    usual = [seconds for seconds in within if seconds in LIFETIME_BUTTONS]
    return [_written_lifetime(seconds) for seconds in (usual if len(usual) > 1 else within[-5:])]


def _written_lifetime(seconds: float) -> str:
    """Return a lifetime as people write it, ``1h30m``, so that it reads as the same again."""
    text = show_duration(seconds).replace("min", "m").replace(" ", "")
    return text if parse_duration(text) == seconds else f"{seconds:g}s"


def _shown(key: str, value: object) -> str:
    """Return an option as its field shows it: ``8 GiB`` for 8589934592, ``8h`` for ``28800s``; others as they are."""
    text = str(value)[:LONGEST_SHOWN]
    try:
        if key in {"memory", "gpu_memory"}:
            nice = show_bytes(parse_bytes(value))
            return nice if parse_bytes(nice) == parse_bytes(value) else text
        if key == "lifetime":
            return _written_lifetime(parse_duration(value))
    except BadValue:
        pass  # it is shown as it is, and the sentence says what is wrong with it
    return text
