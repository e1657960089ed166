"""The options form: a user's choices and the outcome of Start. It works without JavaScript and without style.

The hub puts it inside its own ``<form>`` as it is, so every value in it is escaped here. It brings its own style and
script: a hub whose administrator wrote another spawn page shows it whole, and it works while the service is away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jupyterhub.user import User
from jupyterhub.utils import isoformat

from gpuspawner import __version__
from gpuspawner.backends.local.nvidia import has_devices
from gpuspawner.catalog import (
    ANY_GPU,
    LINKED,
    NO_GPU,
    OPTIONS,
    TICKED,
    Catalog,
    from_form,
    keys_of_form,
    teams_of,
    visible,
    without_defaults,
)
from gpuspawner.catalog.requests.profile_options import LONGEST_CHOICE
from gpuspawner.catalog.requests.start_options import MOST_BYTES, WRITTEN
from gpuspawner.catalog.requests.visibility import price_words, team_title
from gpuspawner.core.authentication import sign_ticket
from gpuspawner.core.errors import RequestRefused, label_of, quoted, split_sentences
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.placement import describe_memory
from gpuspawner.core.gpus.vendors import measurement_note
from gpuspawner.look import LOOK
from gpuspawner.spawner.waiting import StartEnded
from gpuspawner.spawner.web import form_fields
from gpuspawner.spawner.web.form_fields import LONGEST_SHOWN
from gpuspawner.spawner.web.pages import TEMPLATES, LiveAnswers, ServiceView, judge_offline

if TYPE_CHECKING:
    from gpuspawner.spawner.mixin import GPUSpawnerMixin

AWAY = "No GPU can be granted now. The GPU service does not answer. Choose No GPU, or wait. This page tries again."
CONTINUATIONS = ("It stops ", "Your share ", "You get it ")
"""Beginnings of sentences that the summary shows with the sentence before them."""
ANCHORS = {
    "template": "gs-gpus",
    "gpu": "gs-gpus",
    "substitutes": "gs-instead",
    "tools": "gs-tools",
    "team": "gs-team-choice",
}
"""The id of a field to which links lead, if it is not ``gs-`` and the name of the field."""

_environment = Environment(
    loader=FileSystemLoader([TEMPLATES, LOOK]),
    auto_reload=False,  # an upgrade replaces the files of a running hub
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class FormView:
    """The content of one form.

    Args:
        catalog: what the user may choose.
        user: the user whose server starts.
        server: its name, ``""`` for the default one.
        ticket: the form's ticket, with which the page asks the service.
        service_prefix: where browsers find the service, ending in ``/``.
        chosen: options to fill in, of any kind: from a link, from what was posted or last used.
        notes: sentences about these options.
        live: the service's current answers, None if it does not answer.
        own: whether ``user`` looks at the form.
        teams: the teams that the user may charge, by name and title.
        own_ticket: a ticket for the user's presets and schedules; "" if another person looks at the form.
        posted: whether the choices were submitted and refused.
        names: whether the hub lets people name servers.
        hub_prefix: where browsers find the hub, ending in ``/``.
    """

    catalog: Catalog
    user: str
    server: str
    ticket: str
    service_prefix: str
    chosen: Mapping[str, Any]
    notes: Sequence[str] = ()
    live: LiveAnswers | None = None
    own: bool = True
    teams: Sequence[tuple[str, str]] = ()
    own_ticket: str = ""
    posted: bool = False
    names: bool = False
    hub_prefix: str = "/hub/"

    def render(self) -> str:
        """Return the form as HTML."""
        catalog, chosen, live = self.catalog, self.chosen, self.live
        now = live or judge_offline(catalog, chosen, self.user, AWAY)
        shown = {key: form_fields.show_value(key, chosen.get(key, "")) for key in OPTIONS}
        template = catalog.templates.get(shown["template"], next(iter(catalog.templates.values()), None))
        whose = None if self.own else self.user
        if template is None:
            without = _environment.get_template("gpuspawner/form_without.html")
            return without.render(sentence=now.sentence, whose=whose)
        described = {name: form_fields.describe_template(catalog, one) for name, one in catalog.templates.items()}
        values = {
            **vars(self),
            **_present_catalog(catalog, live),
            **_present_outlook(now, away=live is None),
            "chosen": shown,
            "template": template,
            "substitutes": form_fields.present_substitutes(catalog, template, chosen, live),
            "team": _selected_team(self.teams, chosen, live),
            "fields": form_fields.present_sizes(catalog, template, now),
            "ticked_tools": form_fields.parse_ticked(chosen.get("tools")),
            "menus": form_fields.present_menus(catalog, template, chosen),
            "data": {"templates": described},
            "refused_fields": _refused_fields(now) if self.posted else [],
            "version": __version__,
            "whose": whose,
            "away_sentence": AWAY,
        }
        return _environment.get_template("gpuspawner/form.html").render(values)


def _present_outlook(now: LiveAnswers, *, away: bool) -> dict[str, Any]:
    """Return the outcome of Start, as the summary shows it."""
    icon, kind = ("bolt", "gs-good") if now.starts_now else ("alert", "gs-warn") if away else ("hourglass", "")
    return {
        "sentences": _split_facts(now.sentence),
        "state": {"icon": icon, "kind": kind},
        "quota": now.quota,
        "cost": now.cost,
        "wrong": now.wrong,
        "refused": now.refused,
    }


def _split_facts(text: str) -> list[str]:
    """Return the sentences of a text, each with those that continue its thought. The first one stands alone."""
    facts: list[str] = []
    for one in split_sentences(text):
        if len(facts) > 1 and one.startswith(CONTINUATIONS):
            facts[-1] += f" {one}"
        else:
            facts.append(one)
    return facts


def _refused_fields(now: LiveAnswers) -> list[dict[str, str]]:
    """Return each refused field: its label, its id, and the reason."""
    return [
        {"label": label_of(field), "words": words, "id": ANCHORS.get(field, f"gs-{field}")}
        for field, words in now.wrong.items()
    ]


def _present_catalog(catalog: Catalog, live: LiveAnswers | None) -> dict[str, Any]:
    """Return the parts of the catalog that every visitor sees."""
    templates, gpus, simulated = (
        catalog.templates.values(),
        _present_kinds(catalog, live),
        _simulated_kinds(catalog, live),
    )
    return {
        "templates": templates,
        "gpus": gpus,
        "no_gpu": NO_GPU,
        "any_gpu": ANY_GPU if any(len(one.gpus) > 1 for one in templates) else None,
        "simulated": simulated,
        "all_simulated": bool(gpus) and all(one["kind"].name in simulated for one in gpus),
        "own_images": any(one.own_images for one in templates),
        "tools": any(one.tools for one in templates),
        "fast": catalog.fast,
    }


def _present_kinds(catalog: Catalog, live: LiveAnswers | None) -> list[dict[str, Any]]:
    """Return the rows of the GPU kinds that some template offers."""
    offered = {name for template in catalog.templates.values() for name in template.gpus}
    kinds = (kind for kind in catalog.gpus.values() if kind.name in offered)
    return [
        {
            "kind": kind,
            "more": _describe_kind(catalog, kind),
            "free": _describe_availability(kind.name, live),
            "measured": _describe_measurement(kind, live),
        }
        for kind in kinds
    ]


def prefill_from_query(arguments: Mapping[str, Sequence[str | bytes]]) -> dict[str, str]:
    """Return the options that a link fills in, from the arguments of ``/hub/spawn`` as the browser sent them.

    As JupyterHub 6 has it: if any argument begins with ``opt-``, those without it are ignored (5.x passes them all on).
    Unknown options are left out. The first of several values counts.
    """
    texts = {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, values in arguments.items()
        for value in values[:1]
    }
    prefixed = {key[4:]: value for key, value in texts.items() if key.startswith("opt-")}
    return {key: value[:LONGEST_SHOWN] for key, value in (prefixed or texts).items() if key in LINKED and value}


def offered(catalog: Catalog, link: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the options of a link that the form can show, and a sentence for each option that it cannot."""
    kept, notes = dict(link), list[str]()
    template = catalog.templates.get(link.get("template", ""), next(iter(catalog.templates.values()), None))
    if template is None:
        return {}, notes
    if link.get("template", template.name) != template.name:
        notes.append(
            _describe_replacement(f"workspace {quoted(kept.pop('template'))}", "which is not offered", template.title)
        )
    gpu = link.get("gpu", NO_GPU)
    if gpu not in {NO_GPU, ANY_GPU, *template.gpus}:
        del kept["gpu"]
        asked = catalog.gpus[gpu].title if gpu in catalog.gpus else quoted(gpu)
        usual = catalog.gpus[template.default.gpu].title if template.default.gpu else "No GPU"
        notes.append(_describe_replacement(f"GPU {asked}", f"which {template.title} does not offer", usual))
    return kept, notes


def _describe_replacement(asked: str, wrong: str, instead: str) -> str:
    return f"The link asks for the {asked}, {wrong}. {instead} is chosen instead: choose another, or go on with it."


def prefill_from_post(catalog: Catalog, formdata: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the values of a refused form, to fill them in again."""
    keys = keys_of_form(catalog, formdata)
    texts = {field: values for field, values in formdata.items() if all(isinstance(one, str) for one in values)}
    ticked = {field: [",".join(values)] for field, values in texts.items() if field in TICKED}
    return {
        keys[field]: values[0][
            : MOST_BYTES if field in WRITTEN else LONGEST_SHOWN if field in OPTIONS else LONGEST_CHOICE
        ]
        for field, values in {**texts, **ticked}.items()
        if field in keys and values and values[0]
    }


def _selected_team(teams: Sequence[tuple[str, str]], chosen: Mapping[str, Any], live: LiveAnswers | None) -> str:
    """Return the selected team: the chosen one, else the last one. "" if the user must choose."""
    names = [name for name, _ in teams]
    wanted = (chosen.get("team"), live.team if live else "", names[0] if len(names) == 1 else "")
    return next((team for team in wanted if team in names), "")


def _describe_kind(catalog: Catalog, kind: GpuKind) -> str:
    spot = "spot: the cloud may take it back at any time" if kind.spot else ""
    return ", ".join(filter(None, [*describe_memory(kind), price_words(catalog, kind.name), spot]))


def _describe_availability(kind: str, live: LiveAnswers | None) -> dict[str, str]:
    """Return how many GPUs of a kind are free, the class of their state, and why the others are not."""
    offer = live.offers.get(kind) if live else None
    if offer is None or offer["free"] is None or offer["total"] is None:
        return {"words": "Not known", "state": "", "note": ""}
    free, total = offer["free"], offer["total"]
    words = f"{free} of {total} free" if free else "None free"
    waiting = f"{offer['waiting']} waiting" if offer["waiting"] else ""
    state = "gs-good" if free and not waiting else "gs-warn"
    return {"words": words, "state": state, "note": ", ".join(filter(None, [waiting, offer["note"]]))}


def _describe_measurement(kind: GpuKind, live: LiveAnswers | None) -> str:
    """Return how the GPUs of a kind are measured if users should know it before Start, else ""."""
    offer = live.offers.get(kind.name) if live else None
    return measurement_note(kind.resource) if offer is None else str(offer["measured"])


def _simulated_kinds(catalog: Catalog, live: LiveAnswers | None) -> set[str]:
    """Return the kinds whose GPUs are simulated. While the service is away, this machine's devices decide."""
    if live is not None:
        return {kind for kind, offer in live.offers.items() if offer["simulated"]}
    here = set() if has_devices() else set(catalog.simulated)
    return {kind.name for kind in catalog.gpus.values() if kind.pool in here}


class SpawnForm:
    """The form of a spawner on JupyterHub's spawn page."""

    def __init__(self, spawner: GPUSpawnerMixin) -> None:
        """Show and read the form of this spawner."""
        self._spawner = spawner
        self._link: Mapping[str, str] | None = None

    def take_link(self, request: Any) -> None:
        """Take a link's options for the form, and remove them from the request: the hub would start with them."""
        if request is not None and request.method == "GET":
            self._link = prefill_from_query(request.query_arguments)
            request.query_arguments = {}

    def read(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the options of a submitted form. After a refusal the form is shown again, with the reason."""
        spawner = self._spawner
        asker = spawner._gpu_asker()
        catalog = visible(spawner.gpu_catalog, asker["groups"])
        # JupyterHub 6.1 shows a named server's form again through the default server. Both have the same user.
        spawner.user.gpu_posted = prefill_from_post(catalog, formdata)
        try:
            return without_defaults(spawner.gpu_catalog, from_form(catalog, formdata), spawner.user.name, **asker)
        except RequestRefused as error:
            raise StartEnded(str(error), reason="refused", status=error.status) from error

    async def render(self) -> str:
        """Return the form as HTML, with the service's current numbers."""
        spawner = self._spawner
        await spawner.gpu_follow_catalog()
        catalog, groups = spawner.gpu_catalog, spawner.gpu_groups()
        available = visible(catalog, groups)
        posted = bool(spawner.user.__dict__.get("gpu_posted"))
        chosen, notes = self._choose_values(available)
        # People who may start this server see its form. The form must not let them act as its user.
        secret = bytes.fromhex(spawner.gpu_secret())
        created, looks = isoformat(spawner.user.orm_user.created), getattr(spawner.handler, "current_user", None)
        ticket = sign_ticket(secret, spawner.user.name, created, time(), form=True)
        is_own = isinstance(looks, User) and looks.name == spawner.user.name
        view = FormView(
            available,
            user=spawner.user.name,
            server=spawner.name,
            ticket=ticket,
            service_prefix=spawner.gpu_service_prefix,
            chosen=chosen,
            notes=notes,
            live=await ServiceView(spawner.gpu_service_url, ticket, secret).live(chosen, spawner.name),
            own=not spawner.gpu_actor(),
            own_ticket=sign_ticket(secret, spawner.user.name, created, time()) if is_own else "",
            teams=tuple((team, team_title(catalog, team)) for team in teams_of(catalog.rules, groups)),
            posted=posted,
            names=bool(spawner.user.allow_named_servers),
            hub_prefix=spawner.hub.base_url,
        )
        return view.render()

    def _choose_values(self, available: Catalog) -> tuple[Mapping[str, Any], list[str]]:
        """Return the choices of the form: those of a refused form, else of the link, else of the last start.

        Also return a sentence for each choice of the link that is not offered.
        """
        posted = self._spawner.user.__dict__.pop("gpu_posted", None)
        link, self._link = self._link, None
        if link:
            return offered(available, link)
        if posted and link is None:
            return posted, []
        last = self._spawner._gpu_resolution(self._spawner.user_options).accepted  # without refused values
        # Only the service knows which team was charged and what else the user consented to.
        return {key: value for key, value in last.items() if key in LINKED}, []
