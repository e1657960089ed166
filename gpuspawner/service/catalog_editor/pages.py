"""The page Catalog of the console: a form of one entry, the preview of a change, comparison, versions and roll-back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tornado.web import HTTPError

from gpuspawner.catalog.document import read_text
from gpuspawner.catalog.edits import text_at
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.units import BadValue
from gpuspawner.service.catalog_editor.api import (
    list_versions,
    preview_catalog,
    read_catalog,
    read_version,
    save_catalog,
)
from gpuspawner.service.catalog_editor.form import PARTS, common_keys, fields_of, with_fields
from gpuspawner.service.catalog_editor.models import CatalogPreview, CatalogResource
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.admin_page import AdminPage
from gpuspawner.service.web.permissions import Permission

ORIGIN = "the console"
NUMBER = re.compile("[0-9]{1,9}")
FILE = "file"
"""The part of the page with the whole file."""
LONGEST_FORM_CHARACTERS = 32_000
"""The longest file with a form. Browsers may send twice as many bytes, and a request has at most 64 KiB."""
EFFECT_ICONS = {
    "good": ("check", "gs-good"),
    "warn": ("alert", "gs-warn"),
    "bad": ("x", "gs-bad"),
    "info": ("info", ""),
}
RESOURCES = frozenset({"templates", "policies", "quotas"})
"""The parts whose entries may be custom resources."""
ARGUMENTS = frozenset({"part", "entry", "compare", "saved", "before"})


class CatalogPage(AdminPage):
    """GET: an entry of the catalog, and its versions. POST ``step=look``: a preview. POST ``step=do``: saves it."""

    tab = "catalog"

    async def get(self) -> None:
        """Answer the page."""
        if unknown := set(self.request.query_arguments) - ARGUMENTS:
            raise HTTPError(400, reason=f"This page has no argument {min(unknown)[:40]}.")
        part, entry = self._place(self.get_query_argument)
        await self._show(part, entry)

    async def post(self) -> None:
        """Show a preview, or save a version and go back to the entry. If it is refused, the form keeps its values."""
        part, entry = self._place(self.get_body_argument)
        actor = self.actor(ORIGIN)
        actor.require(Permission.EDIT_CATALOG)
        text = "\n".join(self.get_body_argument("text", "", strip=False).splitlines())
        does = self.get_body_argument("step", "look") == "do"
        typed: dict[str, Any] = {"reason": self.get_body_argument("reason", "")}
        try:
            if part != FILE:
                seen = "\n".join(self.get_body_argument("seen", "", strip=False).splitlines())
                fields = {name: self.get_body_argument(name) for name in self.request.body_arguments}
                text = with_fields(part, text, seen, fields)
            elif text and not text.endswith("\n"):
                text += "\n"
            typed["text"] = text
            found = await self._act(actor, part, entry, text, does=does)
        except BadValue as error:
            await self._show(part, entry, 400, text=text, typed=typed, problem=f"{error.wrong}. {error.right}.")
        except RequestRefused as error:
            wrong = {error.field: f"{error.remedy} Allowed: {error.limit}."}
            await self._show(part, entry, error.status, text=text, typed=typed, errors=wrong, problem=error.details)
        except Conflict as error:
            await self._show(part, entry, 409, text=text, typed=typed, problem=str(error), since=self._base())
        else:
            if found is None:
                address = f"{self.parts.prefix.rstrip('/')}/console/catalog?{urlencode(self._after(part, entry))}"
                self.redirect(address, status=303)
            else:
                await self._show(part, entry, text=text, typed=typed, found=found)

    async def _act(self, actor: Actor, part: str, entry: str, text: str, *, does: bool) -> CatalogPreview | None:
        """Return the preview of a change, None if it was saved."""
        removes = self.get_body_argument("remove", "") == "1"
        change: dict[str, Any] = {"base": self._base(), "text": None if removes else text}
        if part != FILE:
            if not entry:
                raise RequestRefused("entry", "no name", "a name of letters and digits", "Give the new entry a name.")
            change["entry"] = f"{part}.{entry}"
        if not does:
            preview: CatalogPreview = await preview_catalog.act(actor, values=change)
            return preview
        await save_catalog.act(actor, values={**change, "reason": self.get_body_argument("reason", "")})
        return None

    def _base(self) -> int:
        return _number(self.get_body_argument("base", ""))

    def _after(self, part: str, entry: str) -> dict[str, Any]:
        there = {} if self.get_body_argument("remove", "") == "1" else {"entry": entry}
        return {"part": part, **there, "saved": 1}

    def _place(self, read: Any) -> tuple[str, str]:
        """Return the part of the page and the entry that an address or a form names."""
        part = read("part", "templates")
        if part not in {*PARTS, FILE}:
            raise HTTPError(404, reason=f"The catalog has no part {part[:40]} with a form.")
        return part, read("entry", "")

    async def _show(
        self,
        part: str,
        entry: str,
        status: int = 200,
        *,
        text: str | None = None,
        typed: dict[str, Any] | None = None,
        errors: dict[str, str] | None = None,
        problem: str = "",
        found: CatalogPreview | None = None,
        since: int | None = None,
    ) -> None:
        """Answer the page. ``text`` is what was typed, ``since`` the version that another one has overtaken."""
        actor = self.actor(ORIGIN)
        state = await read_catalog.act(actor)
        newest = state.version
        arguments = {"before": before} if (before := self.get_query_argument("before", "")) else {}
        versions = await list_versions.act(actor, arguments={"limit": "10", **arguments})
        data = _mapping(read_text(state.text).data)
        entries = _mapping(data.get(part))
        resources = {one.entry.partition(".")[2]: one for one in state.resources if one.entry.startswith(f"{part}.")}
        is_new = bool(text is not None and entry not in {*entries, *resources}) or (
            not entry and self.get_query_argument("entry", None) == ""
        )
        if part != FILE and not entry and not is_new and entries:
            entry = next(iter(entries))
        resource = resources.get(entry) if entry not in entries else None
        written = state.text if part == FILE else text_at(state.text, (part, entry)) if entry in entries else ""
        written = resource.text if resource else written
        adds = state.adds_resources and not state.editable and part in RESOURCES
        self.show(
            "admin_catalog.html",
            status,
            state=state,
            may_edit=self._may_edit(state.editable),
            may_add=self._may_edit(state.editable or adds),
            has_form=self._may_edit(resource.editable if resource else state.editable or (is_new and adds)),
            base=resource.version if resource else 0 if is_new and adds else newest.number if newest else 0,
            resource=resource,
            is_new_resource=is_new and adds,
            part=part,
            parts=[(name, title, len(data.get(name) or {})) for name, title in PARTS.items()],
            entry=entry,
            entries=_titles_of(resources, entries),
            is_new=is_new,
            is_missing=part != FILE and bool(entry) and entry not in {*entries, *resources} and not is_new,
            **_form_of(part, written if text is None else text, entries),
            typed=typed or {},
            errors=errors or {},
            problem=problem,
            found=found,
            icons=EFFECT_ICONS,
            removes=self.get_argument("remove", "") == "1",
            saved=self.get_query_argument("saved", "") == "1",
            versions=versions,
            comparison=await self._comparison(actor, since),
        )

    def _may_edit(self, is_editable: bool) -> bool:
        return is_editable and self.viewer().reach(Permission.EDIT_CATALOG) is not None

    async def _comparison(self, actor: Actor, since: int | None) -> Any:
        """Return the comparison that the address asks for, or of a conflict, None without one."""
        if since:
            try:
                return await _compare_with_newest(actor, str(since))
            except HTTPError:
                return None  # the version that the reader had is not kept
        compared = self.get_query_argument("compare", "")
        return await _compare_with_newest(actor, compared) if compared else None


async def _compare_with_newest(actor: Actor, number: str) -> Any:
    """Return the comparison of the newest version of an entry with an earlier one."""
    if not NUMBER.fullmatch(number):  # the input type says what is wrong with it
        return await read_version.act(actor, "newest", arguments={"against": number})
    newest = (await read_version.act(actor, number)).version.newest
    return await read_version.act(actor, str(newest), arguments={"against": number})


def _mapping(found: object) -> dict[str, Any]:
    """Return a part of the catalog, {} for a missing or damaged one."""
    return found if isinstance(found, dict) else {}


def _number(text: str) -> int:
    """Return the number of a version, 0 for a text that is not a number."""
    return int(text) if NUMBER.fullmatch(text) else 0


def _form_of(part: str, text: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the template for the form: the text, and its fields, the common ones first."""
    fields = [] if part == FILE else fields_of(part, text)
    common = common_keys(part, entries) if fields else frozenset()
    return {
        "text": text,
        "is_too_long": part == FILE and len(text) > LONGEST_FORM_CHARACTERS,
        "fields": [one for one in fields if one.name in common],
        "other_fields": [one for one in fields if one.name not in common],
    }


def _titles_of(resources: Mapping[str, CatalogResource], entries: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of all entries by name, those of custom resources first."""
    found = {name: _title_of(name, _mapping(read_text(one.text).data)) for name, one in resources.items()}
    return found | {name: _title_of(name, one) for name, one in entries.items()}


def _title_of(name: str, entry: object) -> str:
    title = entry.get("title") if isinstance(entry, dict) else None
    return str(title) if title else name


class RestorePage(AdminPage):
    """GET: what going back to a version does. POST: goes back to it."""

    tab = "catalog"

    @property
    def permission(self) -> Permission:
        """The permission to change the catalog."""
        return Permission.EDIT_CATALOG

    async def get(self, number: str) -> None:
        """Answer the preview, with the field for the reason."""
        await self._show(number)

    async def post(self, number: str) -> None:
        """Save the version again, and go to the catalog."""
        base, reason = _number(self.get_body_argument("base", "")), self.get_body_argument("reason", "")
        values = {"base": base, "version": _number(number), "reason": reason}
        try:
            await save_catalog.act(self.actor(ORIGIN), values=values)
        except RequestRefused as error:
            await self._show(number, error.status, problem=f"{error.remedy} Allowed: {error.limit}.")
        except Conflict as error:
            await self._show(number, 409, problem=str(error))
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/console/catalog?saved=1", status=303)

    async def _show(self, number: str, status: int = 200, problem: str = "") -> None:
        actor = self.actor(ORIGIN)
        target = (await read_version.act(actor, number)).version
        base, found = target.newest, None
        try:
            found = await preview_catalog.act(actor, values={"base": base, "version": target.number})
        except (Conflict, RequestRefused) as error:
            status, problem = (409, problem or str(error)) if status == 200 else (status, problem)  # noqa: PLR2004 - HTTP's
        self.show(
            "admin_catalog_restore.html",
            status,
            target=target,
            base=base,
            found=found,
            problem=problem,
            icons=EFFECT_ICONS,
        )


ROUTES: list[Any] = [
    (r"/console/catalog", CatalogPage),
    (r"/console/catalog/restore/([^/]+)", RestorePage),
]
