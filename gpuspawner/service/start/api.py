"""The API of starts: who is signed in, what could be had, what a start would do, and presets of the form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from tornado.web import HTTPError

from gpuspawner import __version__
from gpuspawner.catalog import OPTIONS, Catalog, teams_of
from gpuspawner.catalog.requests.start_options import MOST_BYTES, NO_TEXT, WRITTEN
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.service.api.rest.models import Answer, Body
from gpuspawner.service.quotas.presenter import present_bounds
from gpuspawner.service.start import models
from gpuspawner.service.start.check import check_start
from gpuspawner.service.start.models import StartBody
from gpuspawner.service.start.offers import coming_reservations, present_offer, present_teams
from gpuspawner.service.store import personal
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import allows, refused
from gpuspawner.service.web.permissions import Permission, Role
from gpuspawner.version import commit

router = Router()


@router.get("/api/v1/?", Permission.USE)
async def get_account(actor: Actor) -> models.Account:
    """Return your name, rights and teams, and the version of the service."""
    state, person = actor.state, actor.person
    teams, team = await present_teams(state, person.owner, await actor.groups())
    return models.Account(
        version=__version__,
        commit=commit() or None,
        user=person.name,
        admin=Role.ADMINISTRATOR in person.roles,
        roles=[role.value for role in Role if role in person.roles],
        pages=state.page_url or None,
        teams=teams,
        team=team,
    )


@router.get("/api/v1/offers", Permission.USE, serves_forms=True)
async def list_offers(actor: Actor) -> models.Offers:
    """Return each GPU kind that you may have, with its free GPUs. null means unknown.

    GPUs that are held for others are not free. The answer also has the reader's quota, their teams, and the substitutes
    that they accepted last, by template.
    """
    state, person = actor.state, actor.person
    catalog, groups, asker = await actor.visible_catalog(), await actor.groups_shown(), await actor.asker()
    teams, team = await present_teams(state, person.owner, groups)
    coming = coming_reservations(state, asker)
    bounds = present_bounds(
        state,
        [
            Requester(person.name, person.owner.user_created, one)
            for one in teams_of(state.catalog.rules, groups) or ("",)
        ],
    )
    consents = await state.allocator.resolver.last_consents(person.owner)
    return models.Offers(
        offers=[
            present_offer(one, state, coming.get(one.kind, ""))
            for one in state.queue.offers_to(asker)
            if one.kind in catalog.gpus
        ],
        currency=catalog.rules.currency,
        age_seconds=actor.now - state.scheduler.fleet.observed_at if state.scheduler.fleet.complete else None,
        held=sum(x.request.count for x in state.registry if person.owns(x)),
        consents={name: list(kinds) for name, kinds in consents.items()},
        quota=[one for found in bounds for one in found],
        teams=teams,
        team=team,
    )


@router.post("/api/v1/check", Permission.USE, idempotent=False, serves_forms=True)
async def check(actor: Actor, *, body: StartBody) -> models.Outlook:
    """Return what a start would do now, or everything that is wrong with it. Nothing is requested."""
    options = body.options()
    server = await actor.state.hub.check_server_name(actor.person.name, options.pop("server", ""))
    return await check_start(actor.state, actor.person, options, server)


@router.get("/api/v1/groups", Permission.SEE_FLEET)
async def list_groups(actor: Actor) -> models.Groups:
    """Return the groups of the hub, and a sentence for each group of the catalog that the hub lacks."""
    members = actor.state.members
    await members.read_names()
    return models.Groups(groups=sorted(members.names), missing=list(members.find_missing()))


# Presets: a user's own choices of the form, by names of their own


MAX_PRESETS, MAX_NAME_CHARACTERS, MAX_VALUE_CHARACTERS = 20, 60, 500
"""Presets of one user, and characters of a name and of a value. Arbitrary: a list that is read at a glance."""


def _parse_name(value: object) -> str:
    name = value.strip() if isinstance(value, str) else ""
    if 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable() and "/" not in name:
        return name
    remedy = "Write a name as you would say it, for example my 4 x A100 for nightly."
    raise refused(f"1 to {MAX_NAME_CHARACTERS} characters without a slash", remedy)


Name = Annotated[
    str,
    PlainValidator(_parse_name),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS}),
]


class PresetInput(Body):
    """A preset to save."""

    name: Name
    """The name, for example ``my 4 x A100 for nightly``."""
    options: dict[str, Any] = allows("what the form has chosen", "Send at least the template.", min_length=1)
    """The choices, by the names of the form."""


class NameInput(Body):
    """A new name."""

    name: Name


class Preset(Answer):
    """A user's choices of the form, with a name."""

    name: str
    options: dict[str, Any]
    saved_at: float


class PresetList(Answer):
    """The user's own presets by name, and their largest number."""

    presets: list[Preset]
    most: int


class Named(Answer):
    """The name of a preset."""

    name: str


@router.get("/api/v1/presets", Permission.HAVE_PRESETS)
async def list_presets(actor: Actor) -> PresetList:
    """Return the presets by name, and how many you may have."""
    rows = await actor.state.store.read(actor.state.store.presets.of, actor.person.owner)
    return PresetList(presets=[_present(one) for one in rows], most=MAX_PRESETS)


@router.post("/api/v1/presets", Permission.HAVE_PRESETS, status=201)
async def save_preset(actor: Actor, *, body: PresetInput) -> Preset:
    """Save a preset, and return it. It replaces a preset of the same name."""
    _check_options(actor.state.catalog, body.options)
    one, store = personal.Preset(body.name, body.options, actor.now), actor.state.store
    saved = _present(one)
    actor.store_answer(saved)
    if not await store.write(store.presets.save, actor.person.owner, one, MAX_PRESETS):
        limit = f"up to {MAX_PRESETS}"
        raise RequestRefused("presets", str(MAX_PRESETS + 1), limit, "Delete one, or save it by its name.", 403)
    return saved


@router.post("/api/v1/presets/{name}", Permission.HAVE_PRESETS)
async def rename_preset(actor: Actor, name: str, *, body: NameInput) -> Named:
    """Rename a preset, and return its new name. 409 if another preset has that name."""
    owner, store, renamed = actor.person.owner, actor.state.store, Named(name=body.name)
    if name not in {one.name for one in await store.read(store.presets.of, owner)}:
        raise _missing(name)
    actor.store_answer(renamed)
    if body.name != name and not await store.write(store.presets.rename, owner, name, body.name):
        raise Conflict(f"You have a preset called {body.name} already: delete it first, or choose another name.")
    return renamed


@router.delete("/api/v1/presets/{name}", Permission.HAVE_PRESETS)
async def delete_preset(actor: Actor, name: str) -> Named:
    """Delete a preset, and return its name."""
    deleted, store = Named(name=name), actor.state.store
    actor.store_answer(deleted)
    if not await store.write(store.presets.delete, actor.person.owner, name):
        raise _missing(name)
    return deleted


def _check_options(catalog: Catalog, options: dict[str, Any]) -> None:
    """Raise RequestRefused for options that no form has. Whether a template allows a value is decided at a start."""
    known = {*OPTIONS, *(key for menu in catalog.menus.values() for key in menu.keys)}
    for key, value in options.items():
        if key not in known:
            names = ", ".join(sorted(known))
            raise RequestRefused(quoted(key), "an option that does not exist", names, "Leave it out.")
        texts = value if isinstance(value, list) else [value]
        most = MOST_BYTES if key in WRITTEN else MAX_VALUE_CHARACTERS
        are_texts = all(isinstance(text, str) and len(text) <= most and not NO_TEXT.search(text) for text in texts)
        if not are_texts or len(texts) > MAX_PRESETS:
            limit = f"text of up to {most} characters"
            raise RequestRefused(key, quoted(value), limit, "Shorten it.")


def _missing(name: str) -> HTTPError:
    return HTTPError(404, reason=f"You have no preset called {name[:MAX_NAME_CHARACTERS]}.")


def _present(one: personal.Preset) -> Preset:
    return Preset(name=one.name, options=dict(one.options), saved_at=one.saved_at)
