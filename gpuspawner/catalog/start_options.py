"""The options of a start: their keys, and how a form, a link and a stored request express them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.models import NO_GPU, Catalog
from gpuspawner.catalog.own_software import MOST_BYTES
from gpuspawner.catalog.profile_options import field_of
from gpuspawner.core.errors import LARGEST_REQUEST_BYTES, RequestRefused, TooLarge, quoted
from gpuspawner.core.fields import Reader, list_reader, section, text_reader, whole_number_reader
from gpuspawner.core.leases.request import Request
from gpuspawner.core.text_fields import GROUP, LONGEST_IMAGE, NAME, REQUESTED_KIND, REQUESTED_KINDS, closest_name
from gpuspawner.core.units import show_cpu

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
    if request.team:
        options["team"] = request.team
    if request.repository:
        options["repository"] = request.repository
    if request.own_image:
        options["own_image"] = request.image
    if request.tools:
        options["tools"] = ",".join(request.tools)
    if request.variables:
        options["variables"] = request.variables
    if request.script:
        options["script"] = request.script
    if request.gpu is not None:
        options["count"] = request.count
        if request.substitutes:
            options["substitutes"] = ",".join(request.substitutes)
        if request.needs_memory_bytes:
            options["gpu_memory"] = request.needs_memory_bytes
    return options


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
