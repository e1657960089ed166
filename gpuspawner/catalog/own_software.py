"""What a user adds to a start: a repository to clone, an own image, tools of the template, variables and a script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuspawner.catalog.models import Template
from gpuspawner.catalog.visibility import listed
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.text_fields import IMAGE
from gpuspawner.core.units import BadValue

LONGEST_ADDRESS = 300
"""Characters in an address. Arbitrary: a longer text was pasted by mistake."""
FORMS = "https://host/path or ssh://user@host/path, without a password"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*@"
_PATH = r"(?:/[A-Za-z0-9._~+-]+)*/[A-Za-z0-9_][A-Za-z0-9._-]*/?"
_ADDRESS = re.compile(rf"https://{_HOST}{_PATH}|ssh://(?:{_USER})?{_HOST}{_PATH}")
_AS_SSH_HAS_IT = re.compile(rf"({_USER}[A-Za-z0-9.-]+):([^/].*)")


def read_repository(asked: Mapping[str, Any]) -> str:
    """Return the address of the repository to clone, or "". ``git@host:path`` means ``ssh://git@host/path``.

    Raises:
        RequestRefused: any other address. The message does not quote an address that may contain a password.
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


def read_own_image(template: Template, asked: Mapping[str, Any]) -> str:
    """Return the user's own image, or "" for the template's image.

    Raises:
        RequestRefused: the template allows no image, or its pattern does not match the whole name.
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


def read_variables(asked: Mapping[str, Any]) -> str:
    """Return the variables as lines ``NAME=value``, "" for none. Empty lines and those that begin with # are dropped.

    Raises:
        RequestRefused: a line is no variable, or its name is reserved. The message never quotes a value.
    """
    value = asked.get("variables")
    if value in (None, ""):
        return ""
    if not isinstance(value, str) or len(value.encode(errors="replace")) > MOST_BYTES:
        raise RequestRefused("variables", "more than that, or no text", f"{MOST_BYTES:,} bytes of text", "Shorten it.")
    found: dict[str, str] = {}
    for number, raw in enumerate(value.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _VARIABLE.fullmatch(line)
        if match is None or not line.isprintable():
            limit, remedy = "one NAME=value in a line", "A name has letters, digits and underscores."
            raise RequestRefused("variables", f"something else in line {number}", limit, remedy)
        if match[1].upper().startswith(RESERVED_NAMES) or match[1].upper() in RESERVED_WHOLE:
            remedy = f"Leave it out of line {number}. The workspace sets it."
            raise RequestRefused("variables", quoted(match[1]), "names that the workspace does not use", remedy)
        found[match[1]] = match[2]
    if len(found) > MOST_VARIABLES:
        raise RequestRefused("variables", str(len(found)), f"up to {MOST_VARIABLES}", "Put the others into a file.")
    return "\n".join(f"{name}={value}" for name, value in found.items())


def variables_in(text: str) -> dict[str, str]:
    """Return the variables of :func:`read_variables`'s text by name."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def read_script(asked: Mapping[str, Any]) -> str:
    """Return the start-up script, "" for none.

    Raises:
        RequestRefused: it is too long, or no text.
    """
    value = asked.get("script")
    if value in (None, ""):
        return ""
    text = value.replace("\r\n", "\n") if isinstance(value, str) else "\0"
    if "\0" in text or len(text.encode(errors="replace")) > MOST_BYTES:
        remedy = "Put a longer one into a file of your home, and run that."
        raise RequestRefused("script", "more than that, or no text", f"{MOST_BYTES:,} bytes of text", remedy)
    return text.strip() and f"{text.rstrip()}\n"


MOST_BYTES = 16384
"""The size of a script, or of all variables. Arbitrary: a pod's annotation holds both, with all else that is asked."""
MOST_VARIABLES = 50
RESERVED_NAMES = ("NVIDIA_", "CUDA_VISIBLE", "JUPYTERHUB_", "GPUSPAWNER_", "KUBERNETES_", "LD_")
"""The workspace's GPUs, hub and libraries. A user's own file of variables may not set them either."""
RESERVED_WHOLE = frozenset({"HOME", "PATH", "SHELL", "USER", "PYTHONPATH", "PYTHONHOME"})
"""Without the right values the server would not start."""
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_VARIABLE = re.compile(rf"(?:export\s+)?({VARIABLE_NAME.pattern})=(.*)")


def choose_tools(template: Template, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the tools that the user ticked, from a list of names or a text with commas.

    Raises:
        RequestRefused: it is neither, or the template does not offer a tool.
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
    """Return whether a pattern matches the whole name of an image. ``*`` in it means any characters."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
