"""The form's fields for what profiles let people choose: of every profile, as the template may still change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuspawner.catalog import Catalog, Template
from gpuspawner.catalog.profile_options import LONGEST_CHOICE, Menu, MenuOption, field_of, keys_of


def shown(catalog: Catalog, template: Template, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each profile that has options: its slug, the titles of its templates, and its fields.

    A field holds what was ``chosen`` where it is of the profile of ``template``, which is the one shown as chosen.
    """
    own, titles = catalog.menus.get(template.name), dict[str, list[str]]()
    for name, menu in catalog.menus.items():
        titles.setdefault(menu.profile, []).append(catalog.templates[name].title)
    profiles = {menu.profile: menu for menu in catalog.menus.values() if menu.options}
    return [
        {
            "profile": slug,
            "templates": ", ".join(titles[slug]),
            "fields": list(_fields(menu, chosen if own == menu else {})),
        }
        for slug, menu in profiles.items()
    ]


def _fields(menu: Menu, chosen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for option in menu.options:
        for key in keys_of(option):
            value = str(chosen.get(key) or "")[:LONGEST_CHOICE]
            value = "" if value == option.default else value
            yield {"key": key, "name": field_of(menu, key), "value": value, **_told(option, key)}


def _told(option: MenuOption, key: str) -> dict[str, Any]:
    """Return the label, the choices and the hint of a field. The default choice is sent as an empty field."""
    if key == option.name:
        choices = [("" if choice == option.default else choice, title) for choice, title in option.choices.items()]
        return {"label": option.title, "choices": choices, "hint": ""}
    unlisted = option.unlisted
    label = unlisted.title if unlisted else ""
    hint = f"instead of {option.title}" if option.choices else ""
    return {"label": label, "choices": None, "hint": hint}
