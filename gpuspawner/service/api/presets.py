"""A user's own choices of the form, by names of their own."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.catalog import OPTIONS
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.leases.lease import NOBODY, Owner
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest import route
from gpuspawner.service.api.rest.shapes import presets as shapes
from gpuspawner.service.store.idempotency import set_answer
from gpuspawner.service.store.personal import Preset

MOST, LONGEST_NAME, LONGEST_VALUE = 20, 60, 500
"""Of one user, and characters of a name and of a value. Arbitrary: a list that is read at a glance."""


class PresetHandler(ApiHandler):
    """For a user: neither a service nor a workspace has any."""

    def owner(self) -> Owner:
        """Return whose presets these are. Raises 403 where who asks is no user."""
        person = self.must()
        if person.owner == NOBODY or person.lease:
            raise HTTPError(403, reason="Presets are a user's own: sign in to the hub, or send a user's token.")
        return person.owner

    def missing(self, name: str) -> HTTPError:
        """Return the error of a preset that does not exist."""
        return HTTPError(404, reason=f"You have no preset called {name[:LONGEST_NAME]}.")


class PresetList(PresetHandler):
    """One's own presets."""

    @route(answer=shapes.PresetList)
    async def get(self) -> None:
        """Answer them by name, and how many there may be."""
        rows = await self.parts.store.read(self.parts.store.presets.of, self.owner())
        self.answer({"presets": [_view(one) for one in rows], "most": MOST})

    @route(answer=shapes.Preset, body=shapes.PresetBody, status=201)
    async def post(self) -> None:
        """Save one, and answer it. It takes the place of an earlier one of its name."""
        owner, body = self.owner(), self.fields("name", "options")
        one = Preset(_name(body.get("name")), self._options(body.get("options")), self.parts.clock.now())
        set_answer(_view(one))
        if not await self.parts.store.write(self.parts.store.presets.save, owner, one, MOST):
            raise RequestRefused("presets", str(MOST + 1), f"up to {MOST}", "Delete one, or save it by its name.", 403)
        self.answer(_view(one), 201)

    def _options(self, value: object) -> dict[str, Any]:
        """Return options that a form may be filled in with; what the templates allow is judged at use."""
        known = {*OPTIONS, *(key for menu in self.parts.catalog.menus.values() for key in menu.keys)}
        if not isinstance(value, dict) or not value:
            raise RequestRefused("options", quoted(value), "what the form has chosen", "Send at least the template.")
        for key, one in value.items():
            if key not in known:
                names = ", ".join(sorted(known))
                raise RequestRefused(quoted(key), "an option that does not exist", names, "Leave it out.")
            texts = one if isinstance(one, list) else [one]
            if not all(isinstance(text, str) and len(text) <= LONGEST_VALUE for text in texts) or len(texts) > MOST:
                raise RequestRefused(key, quoted(one), f"text of up to {LONGEST_VALUE} characters", "Shorten it.")
        return value


class OnePreset(PresetHandler):
    """One of one's own presets."""

    @route(answer=shapes.Named, body=shapes.NameBody)
    async def post(self, name: str) -> None:
        """Rename it, and answer its new name; 409 where another one has it."""
        owner, new = self.owner(), _name(self.fields("name").get("name"))
        store = self.parts.store
        if name not in {one.name for one in await store.read(store.presets.of, owner)}:
            raise self.missing(name)
        set_answer({"name": new})
        if new != name and not await store.write(store.presets.rename, owner, name, new):
            raise Conflict(f"You have a preset called {new} already: delete it first, or choose another name.")
        self.answer({"name": new})

    @route(answer=shapes.Named)
    async def delete(self, name: str) -> None:
        """Forget it, and answer the name that it had."""
        owner, store = self.owner(), self.parts.store
        set_answer({"name": name})
        if not await store.write(store.presets.delete, owner, name):
            raise self.missing(name)
        self.answer({"name": name})


def _name(value: object) -> str:
    name = value.strip() if isinstance(value, str) else ""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or "/" in name:
        remedy = "Write a name as you would say it, for example my 4 x A100 for nightly."
        raise RequestRefused("name", quoted(value), f"1 to {LONGEST_NAME} characters without a slash", remedy)
    return name


def _view(one: Preset) -> dict[str, Any]:
    return {"name": one.name, "options": dict(one.options), "saved_at": one.saved_at}


ROUTES: list[Any] = [(r"/api/v1/presets", PresetList), (r"/api/v1/presets/([^/]+)", OnePreset)]
