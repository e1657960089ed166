"""Presets: a user's own choices of the form, by names of their own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from tornado.web import HTTPError

from gpuspawner.catalog import OPTIONS, Catalog
from gpuspawner.catalog.requests.start_options import MOST_BYTES, WRITTEN
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.service.api.rest.models import Answer, Body
from gpuspawner.service.store import personal
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.inputs import refused
from gpuspawner.service.web.permissions import Permission

MAX_PRESETS, MAX_NAME_CHARACTERS, MAX_VALUE_CHARACTERS = 20, 60, 500
"""Presets of one user, and characters of a name and of a value. Arbitrary: a list that is read at a glance."""

router = Router()


# Models


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


def _parse_options(value: object) -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return value
    raise refused("what the form has chosen", "Send at least the template.")


Options = Annotated[dict[str, Any], PlainValidator(_parse_options), WithJsonSchema({"type": "object"})]


class PresetInput(Body):
    """A preset to save."""

    name: Name
    """The name, for example ``my 4 x A100 for nightly``."""
    options: Options
    """The choices, by the names of the form."""


class NameInput(Body):
    """A new name."""

    name: Name


class Preset(Answer):
    """Choices of the form by a name of their own."""

    name: str
    options: dict[str, Any]
    saved_at: float


class PresetList(Answer):
    """One's own presets by name, and how many there may be."""

    presets: list[Preset]
    most: int


class Named(Answer):
    """The name of a preset."""

    name: str


# Endpoints


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
        are_short = all(isinstance(text, str) and len(text) <= most for text in texts)
        if not are_short or len(texts) > MAX_PRESETS:
            limit = f"text of up to {most} characters"
            raise RequestRefused(key, quoted(value), limit, "Shorten it.")


def _missing(name: str) -> HTTPError:
    return HTTPError(404, reason=f"You have no preset called {name[:MAX_NAME_CHARACTERS]}.")


def _present(one: personal.Preset) -> Preset:
    return Preset(name=one.name, options=dict(one.options), saved_at=one.saved_at)
