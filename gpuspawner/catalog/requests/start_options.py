"""The options of a start: their keys, how a form, a link and a stored request express them, and what users add.

Users may add a repository to clone, an own image, tools of the template, variables and a script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.profile_options import field_of
from gpuspawner.catalog.requests.visibility import listed
from gpuspawner.catalog.template_models import NO_GPU, Template
from gpuspawner.core.errors import LARGEST_REQUEST_BYTES, RequestRefused, TooLarge, closest_name, quoted
from gpuspawner.core.fields import Reader, list_reader, section, text_reader, whole_number_reader
from gpuspawner.core.leases.request import Request
from gpuspawner.core.text_fields import GROUP, IMAGE, LONGEST_IMAGE, NAME, REQUESTED_KIND, REQUESTED_KINDS
from gpuspawner.core.units import BadValue, show_cpu

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
    if NO_TEXT.search(text) or len(text.encode()) > MOST_BYTES:
        remedy = "Put a longer one into a file of your home, and run that."
        raise RequestRefused("script", "more than that, or no text", f"{MOST_BYTES:,} bytes of text", remedy)
    return text.strip() and f"{text.rstrip()}\n"


MOST_BYTES = 16384
"""The size of a script, or of all variables. Arbitrary: a pod's annotation holds both, with all else that is asked."""
NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that no variable of a process can hold: null, and halves of surrogate pairs."""
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
    remedy = "Choose from them, or leave it out." if template.tools else f"Leave it out: {template.title} offers none."
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


_TEXT, _LONG_TEXT = text_reader(LONGEST_IMAGE), text_reader(MOST_BYTES)
_TOOLS = list_reader(NAME, "tools", "[nlp]")
_AS_WRITTEN = Reader(lambda value: value, "a size or a time")
"""A size or a time that the resolution of the request reads, as in a form."""


@dataclass(frozen=True)
class StartOptions:
    """Options of a start. The template decides about each option that is left out."""

    __pydantic_config__ = section()
    template: Annotated[str | None, NAME] = None
    """The template. Default: the first template of the catalog."""
    gpu: Annotated[str | None, REQUESTED_KIND] = None
    """A GPU kind of the catalog, KIND@CLUSTER for another cluster, `any` or `none`."""
    count: Annotated[int | None, whole_number_reader(0, 1024)] = None
    """The number of GPUs."""
    cpu: Annotated[Any, _AS_WRITTEN] = None
    """CPU cores, for example 4 or "0.5"."""
    memory: Annotated[Any, _AS_WRITTEN] = None
    """Memory, for example 64GiB."""
    lifetime: Annotated[Any, _AS_WRITTEN] = None
    """The lifetime, for example 8h. A longer lifetime extends a running workspace, within the usual rules."""
    team: Annotated[str | None, GROUP] = None
    """The team that is charged."""
    substitutes: Annotated[tuple[str, ...] | None, REQUESTED_KINDS] = None
    """GPU kinds that the user accepts instead, the preferred kind first."""
    gpu_memory: Annotated[Any, _AS_WRITTEN] = None
    """The least memory of a substitute, for example 40GiB."""
    repository: Annotated[str | None, _TEXT] = None
    """A repository that is cloned into the home: an https or ssh address without a password."""
    own_image: Annotated[str | None, _TEXT] = None
    """The user's own image, if the template allows it."""
    tools: Annotated[tuple[str, ...] | None, _TOOLS] = None
    """Tools of the template to install."""
    variables: Annotated[str | None, _LONG_TEXT] = None
    """Variables for the workspace: one NAME=value in a line. Secrets do not belong here."""
    script: Annotated[str | None, _LONG_TEXT] = None
    """A script that runs when the workspace has started."""


OPTIONS = tuple(keys_of(StartOptions))
"""Every option that a user may give. The template's default holds for an option that is left out."""
LINKED = ("template", "gpu", "count", "cpu", "memory", "lifetime", "gpu_memory")
"""Options that a link may fill in. Users choose for themselves who pays, what they accept instead and what runs."""
WRITTEN = ("variables", "script")
"""Options of several lines, which may be long."""
TICKED = ("substitutes", "tools")
"""Options for which a form has several boxes."""


def from_form(catalog: Catalog, formdata: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the options of a form, which JupyterHub passes on as a list of texts for each field.

    An empty field means the default. A form always sends a count, and the fields of every profile. Without a GPU, what
    the form says about GPUs is dropped. Fields of profiles that the template does not have are dropped, too.

    Raises:
        RequestRefused: a field that the form does not have, or several values for a field that takes one.
    """
    refuse_large(formdata)
    keys = keys_of_form(catalog, formdata)
    of_other_profiles = {field_of(menu, key) for menu in catalog.menus.values() for key in menu.keys} - keys.keys()
    options = {}
    for field, values in formdata.items():
        if field == "_xsrf" or field in of_other_profiles:  # the hub adds and checks _xsrf
            continue
        if field not in keys:
            raise unknown_option(field, OPTIONS)
        if field in TICKED:
            values = [",".join(values)]  # noqa: PLW2901 - each box that is ticked sends a value
        if len(values) > 1:
            raise RequestRefused(keys[field], f"{len(values)} values", "one value", "Choose one.")
        if values and values[0].strip():
            options[keys[field]] = values[0].strip()
    if options.get("gpu") == NO_GPU:
        for key in ("count", "substitutes", "gpu_memory"):
            options.pop(key, None)
    return options


def keys_of_form(catalog: Catalog, formdata: Mapping[str, Sequence[object]]) -> dict[str, str]:
    """Return the option that each field of a form gives, for the template that the form names."""
    template = next(iter(formdata.get("template") or ()), "")
    menu = catalog.menus.get(str(template) or next(iter(catalog.templates), ""))
    of_profile = {field_of(menu, key): key for key in menu.keys} if menu else {}
    return {**{key: key for key in OPTIONS}, **of_profile}


def to_options(request: Request) -> dict[str, Any]:
    """Return the options that resolve to this request again."""
    options: dict[str, Any] = {
        "template": request.template,
        "gpu": request.gpu or NO_GPU,
        "cpu": show_cpu(request.cpu_cores),
        "memory": request.memory_bytes,
        "lifetime": f"{request.lifetime_seconds}s",
    }
    optional: dict[str, Any] = {
        "team": request.team,
        "repository": request.repository,
        "own_image": request.image if request.own_image else "",
        "tools": ",".join(request.tools),
        "variables": request.variables,
        "script": request.script,
    }
    if request.gpu is not None:
        options["count"] = request.count
        optional |= {"substitutes": ",".join(request.substitutes), "gpu_memory": request.needs_memory_bytes}
    return {**options, **{name: value for name, value in optional.items() if value}}


def refuse_large(options: object) -> None:
    """Raise TooLarge for more than any form holds, before anything is read."""
    try:
        size = len(repr(options))
    except Exception:  # noqa: BLE001 - Python does not print very large numbers; their option refuses them
        return
    if size > LARGEST_REQUEST_BYTES:
        raise TooLarge


def unknown_option(key: object, known: Sequence[str]) -> RequestRefused:
    """Return the refusal of an option that does not exist."""
    close = closest_name(quoted(key).strip("'"), known)
    remedy = f"Did you mean `{close}`?" if close else "Leave it out."
    return RequestRefused(quoted(key), "an option that does not exist", ", ".join(known), remedy)
