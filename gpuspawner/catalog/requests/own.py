"""What a user brings along or ticks: a repository to clone, an image of their own, tools of the template."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuspawner.catalog.models import Template
from gpuspawner.catalog.visible import listed
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.text_fields import IMAGE
from gpuspawner.core.units import BadValue

LONGEST_ADDRESS = 300
"""Characters. Arbitrary: longer ones are pasted by mistake."""
FORMS = "https://host/path or ssh://user@host/path, without a password"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*@"
_PATH = r"(?:/[A-Za-z0-9._~+-]+)*/[A-Za-z0-9_][A-Za-z0-9._-]*/?"
_ADDRESS = re.compile(rf"https://{_HOST}{_PATH}|ssh://(?:{_USER})?{_HOST}{_PATH}")
_AS_SSH_HAS_IT = re.compile(rf"({_USER}[A-Za-z0-9.-]+):([^/].*)")


def repository(asked: Mapping[str, Any]) -> str:
    """Return the address of a repository to clone, "" for none. ``git@host:path`` is read as ``ssh://git@host/path``.

    Raises:
        RequestRefused: any other address. One that may hold a password is not quoted.
    """
    value = asked.get("repository")
    if value in (None, ""):
        return ""
    text = value.strip() if isinstance(value, str) and len(value) <= LONGEST_ADDRESS else ""
    if found := _AS_SSH_HAS_IT.fullmatch(text):
        text = f"ssh://{found[1]}/{found[2]}"
    if not _ADDRESS.fullmatch(text):
        secret = isinstance(value, str) and "@" in value
        shown = "an address with a user or a password" if secret else quoted(value)
        remedy = "Private ones are read by your SSH key, or a credential helper of Git in your home."
        raise RequestRefused("repository", shown, FORMS, remedy)
    return text


def own_image(template: Template, asked: Mapping[str, Any]) -> str:
    """Return the user's own image, "" for the template's.

    Raises:
        RequestRefused: the template takes none, or its pattern does not match all of the name.
    """
    value = asked.get("own_image")
    if value in (None, ""):
        return ""
    if not template.own_images:
        raise RequestRefused("own_image", quoted(value), "none", f"Leave it out: {template.title} has its own image.")
    try:
        name = str(IMAGE.read(value.strip() if isinstance(value, str) else value))
    except BadValue:
        name = ""
    if not name or not matches(template.own_images, name):
        remedy = "Write its whole name, with the registry and a tag."
        raise RequestRefused("own_image", quoted(value), template.own_images, remedy)
    return name


def tools(template: Template, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the template's tools that are ticked: of a list of names, or a text with commas.

    Raises:
        RequestRefused: something else, or a tool that the template does not offer.
    """
    value = asked.get("tools")
    names = value.split(",") if isinstance(value, str) else [] if value is None else value
    limit = listed(template.tools) or "none"
    remedy = "Choose of them, or leave it out." if template.tools else f"Leave it out: {template.title} offers none."
    if not isinstance(names, (list, tuple)):
        raise RequestRefused("tools", quoted(value), limit, remedy)
    found = [name.strip() if isinstance(name, str) else name for name in names]
    for name in filter(None, found):
        if not isinstance(name, str) or name not in template.tools:
            raise RequestRefused("tools", quoted(name), limit, remedy)
    return tuple(name for name in template.tools if name in found)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern, in which ``*`` is any characters, matches all of an image's name."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
