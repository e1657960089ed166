"""Annotations for fields that hold names, addresses and other text.

A name in capitals is a reader, for a field with another type: ``Annotated[str | None, NAME]``.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlparse, urlsplit
from zoneinfo import ZoneInfo, available_timezones

from gpuspawner.core.errors import closest_name, quoted
from gpuspawner.core.fields import (
    Reader,
    Schema,
    SortedPairs,
    choice_reader,
    list_reader,
    pattern_reader,
    text_reader,
    write_nothing,
)
from gpuspawner.core.units import BadValue

LONGEST_NAME = 63
"""Characters in a name: as many as a Kubernetes label holds."""
LONGEST_GROUP = 255
"""Characters in the name of a group or user: as many as JupyterHub's database holds."""
LONGEST_IMAGE = 500
LONGEST_ICON = 6000
LONGEST_OBJECT_NAME = 253
"""The limit of Kubernetes for names of objects and resources."""
LONGEST_LABEL = 253 + 1 + 63
"""The limit of Kubernetes for a label's prefix, slash and name."""
LONGEST_URL = 2000
LONGEST_PATH = 4000
LONGEST_CURRENCY = 10
"""Arbitrary: ISO 4217 has three letters, and your own unit may have more, for example *credits*."""
LONGEST_PACKAGE, MOST_PACKAGES = 100, 50
"""Characters in one package, and packages in one tool. Arbitrary: more belongs into an image."""
LONGEST_SELECTOR, MOST_SELECTORS, LONGEST_PARAMETERS = 10 * 1024, 32, 10 * 1024
"""The limits of Kubernetes for device requests."""

# --- names

_NAME = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NAME_SCHEMA: Schema = {"type": "string", "maxLength": LONGEST_NAME, "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"}
NAME = pattern_reader(
    "not a name",
    _NAME,
    LONGEST_NAME,
    f"use small letters, digits and dashes, at most {LONGEST_NAME}, for example a100-80gb",
    "a name",
    _NAME_SCHEMA,
)


def _read_kind(value: object) -> str:
    name: str = NAME.read(value)
    if name in {"none", "any"}:
        means = "no GPU" if name == "none" else "any GPU"
        raise BadValue(f"{quoted(name)} means {means}", "choose another name for this kind")
    return name


def _read_requested_kind(value: object) -> str:
    kind, at, cluster = value.partition("@") if isinstance(value, str) else (value, "", "")
    return f"{NAME.read(kind)}{at}{NAME.read(cluster) if at else ''}"


def _read_group(value: object) -> str:
    right = f"write it as the hub has it, at most {LONGEST_GROUP} characters; in quotes if it looks like something else"
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_GROUP or not value.isprintable():
        raise BadValue(f"{quoted(value)} is not a name in the hub", right)
    return value.strip()


KIND = Reader(_read_kind, "the name of a GPU kind", _NAME_SCHEMA)
REQUESTED_KIND = Reader(
    _read_requested_kind,
    "a GPU kind, `any` or `none`",
    {
        "type": "string",
        "maxLength": 2 * LONGEST_NAME + 1,
        "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?(@[a-z0-9]([a-z0-9-]*[a-z0-9])?)?$",
    },
)
KINDS = list_reader(KIND, "GPU kinds", "[h100, t4]")
REQUESTED_KINDS = list_reader(REQUESTED_KIND, "GPU kinds", "[h100, t4]", may_be_empty=True)
DATA_NAMES = list_reader(NAME, "names", "[genomes, imagenet]", may_be_empty=True)
GROUP = Reader(
    _read_group, "the name of a group or user", {"type": "string", "minLength": 1, "maxLength": LONGEST_GROUP}
)
GROUPS = list_reader(GROUP, "groups", "[vision, speech]", may_be_empty=True, convert=frozenset)

Name = Annotated[str, NAME]
KindName = Annotated[str, KIND]
KindNames = Annotated[tuple[str, ...], KINDS]
GroupName = Annotated[str, GROUP]
GroupNames = Annotated[frozenset[str], GROUPS]
DataNames = Annotated[tuple[str, ...], DATA_NAMES]
DataNameSet = Annotated[frozenset[str], replace(DATA_NAMES, read=lambda value: frozenset(DATA_NAMES.read(value)))]

# --- names of Kubernetes

_LABEL = r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_DOMAIN = rf"{_NAME}(?:\.{_NAME})+"
OBJECT_NAME = pattern_reader(
    "not the name of a Kubernetes object",
    rf"{_NAME}(?:\.{_NAME})*",
    LONGEST_OBJECT_NAME,
    "write it as kubectl shows it: small letters, digits, dashes and dots",
    "the name of a Kubernetes object",
)
RESOURCE_NAME = pattern_reader(
    "not an extended resource of Kubernetes",
    rf"(?!(?:[a-z0-9.-]+\.)?kubernetes\.io/)(?!requests\.){_DOMAIN}/{_LABEL}",
    LONGEST_OBJECT_NAME,
    "write it as nodes show it, for example nvidia.com/gpu or nvidia.com/mig-1g.10gb",
    "an extended resource of Kubernetes",
)
_LABEL_NAME = pattern_reader(
    "not the name of a label",
    rf"(?:{_NAME}(?:\.{_NAME})*/)?{_LABEL}",
    LONGEST_LABEL,
    "write it as kubectl get nodes --show-labels does, for example karpenter.sh/capacity-type",
    "the name of a label",
)
_LABEL_VALUE = pattern_reader(
    "not the value of a label",
    rf"(?:{_LABEL})?",
    LONGEST_NAME,
    "write it as kubectl get nodes --show-labels does, and in quotes if it looks like something else",
    "the value of a label",
)
_CAPACITY_NAME = pattern_reader(
    "not the name of a capacity",
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}",
    LONGEST_OBJECT_NAME,
    "write it as ResourceSlices do, for example memory",
    "the name of a capacity",
)


def _read_quantity(value: object) -> str:
    written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    form = r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?:[KMGTPE]i|[kMGTPE])?"
    if not isinstance(written, str) or not re.fullmatch(form, written):
        raise BadValue(f"{quoted(value)} is not a quantity", "write it as Kubernetes does, for example 10Gi")
    return written


def _read_selectors(value: object) -> tuple[str, ...]:
    right = (
        "write a list of expressions, as [\"device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA H')\"]"
    )
    if not isinstance(value, list) or not value or len(value) > MOST_SELECTORS:
        raise BadValue(f"{quoted(value)} is not a list of 1 to {MOST_SELECTORS} expressions", right)
    for one in value:
        if not isinstance(one, str) or not one.strip() or len(one) > LONGEST_SELECTOR:
            raise BadValue(f"{quoted(one)} is not an expression", right)
        _check_cel(one)
    return tuple(one.strip() for one in value)


def _check_cel(expression: str) -> None:
    try:
        from celpy import Environment  # noqa: PLC0415 - an extra, and slow
        from celpy.celparser import CELParseError  # noqa: PLC0415
    except ImportError:
        raise BadValue(
            "selectors need a part that is not installed", "pip install '.[kubernetes]' in a checkout"
        ) from None
    try:
        Environment().compile(expression)
    except CELParseError:
        right = "write it as in a ResourceClaim, in double quotes, and text within it in single ones"
        raise BadValue(f"{quoted(expression)} is not a CEL expression", right) from None


def _read_parameters(value: object) -> str:
    right = "write what the driver's documentation shows, with apiVersion and kind"
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("apiVersion", "kind")):
        raise BadValue(f"{quoted(value)} has no apiVersion and kind", right)
    try:
        found = json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        raise BadValue(f"{quoted(value)} cannot be written as JSON", right) from None
    if len(found) > LONGEST_PARAMETERS:
        raise BadValue("these parameters are too long", f"write at most {LONGEST_PARAMETERS} characters")
    return found


ObjectName = Annotated[str, OBJECT_NAME]
ResourceName = Annotated[str, RESOURCE_NAME]
Labels = Annotated[tuple[tuple[str, str], ...], SortedPairs(_LABEL_NAME, _LABEL_VALUE)]
QUANTITY = Reader(_read_quantity, "a quantity of Kubernetes")
Capacity = Annotated[tuple[tuple[str, str], ...], SortedPairs(_CAPACITY_NAME, QUANTITY)]
Selectors = Annotated[
    tuple[str, ...],
    Reader(
        _read_selectors,
        "a list of CEL expressions over `device`",
        {"type": "array", "items": {"type": "string"}, "maxItems": MOST_SELECTORS},
        write_nothing,
    ),
]
Parameters = Annotated[str, Reader(_read_parameters, "an object of the driver", {"type": "object"})]
"""An object that only the driver understands, as JSON."""

# --- text and addresses

_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?/)?"
_PATH = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REGISTRY = rf"(?:localhost|{_DOMAIN})(?::[0-9]{{1,5}})?"
_PACKAGE = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
    r"(?:\[[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*\])?"
    r"(?:(?:===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9.*+!_-]+(?:,(?:==|~=|!=|<=|>=|<|>)[A-Za-z0-9.*+!_-]+)*)?"
)
_AROUND = re.compile(r" *(,|[<>=!~]=*) *")
_CURRENCY = re.compile(rf"[^\d\s<>&\"']{{1,{LONGEST_CURRENCY}}}")
IMAGE = pattern_reader(
    "not a container image",
    rf"{_HOST}{_PATH}(?:/{_PATH})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    LONGEST_IMAGE,
    "write registry, name and tag, for example registry.example.org/ml/pytorch:2.9",
    "a container image",
    {"type": "string", "maxLength": LONGEST_IMAGE},
)
_IMAGE_PATTERN = pattern_reader(
    "not a pattern of images with a registry",
    rf"{_REGISTRY}/[A-Za-z0-9._/:@*-]+",
    LONGEST_IMAGE,
    "write a registry and a path, with * for any characters, for example registry.example.org/ml/*",
    "a pattern of images",
    {"type": "string", "maxLength": LONGEST_IMAGE},
)
ICONS = ("notebook", "layers", "bolt", "flame", "chart", "code", "terminal", "table", "disk", "gpu", "cpu", "users")
"""The pictures of ``gs_icons.svg`` that a template may have."""
PICTURE = "data:"
"""How the picture of an administrator begins. Every other icon is one of ICONS."""
_PICTURE = rf"{PICTURE}image/(?:svg\+xml|png|webp);base64,[A-Za-z0-9+/]+={{0,2}}"
Icon = Annotated[
    str,
    pattern_reader(
        "not an icon",
        rf"{'|'.join(ICONS)}|{_PICTURE}",
        LONGEST_ICON,
        f"write {', '.join(ICONS)}, or a picture of at most {LONGEST_ICON} characters as data:image/svg+xml;base64,...",
        f"{', '.join(f'`{name}`' for name in ICONS)}, or a picture as a `data:` address, SVG, PNG or WebP",
        {"type": "string", "maxLength": LONGEST_ICON},
    ),
]
Topology = Annotated[
    str, choice_reader("not a topology", "write prefer or require", {name: name for name in ("prefer", "require")})
]
CHEAPEST, NEAREST, SOONEST = "cheapest", "nearest", "soonest"
ClusterPlace = Annotated[
    str,
    choice_reader(
        "not a way to choose a cluster",
        "write cheapest, nearest or soonest",
        {name: name for name in (CHEAPEST, NEAREST, SOONEST)},
    ),
]
_DCGM_DEVICE, _DCGM_PROFILING = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
_METRIC = pattern_reader(
    "not the name of a metric",
    r"[a-zA-Z_:][a-zA-Z0-9_:]*",
    LONGEST_URL,
    "write it as the exporter does, as DCGM_FI_DEV_GPU_UTIL",
    "the name of a metric",
)
_HOST_NAME = pattern_reader(
    "not the name or address of a host",
    r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]",
    LONGEST_OBJECT_NAME,
    "write one without scheme and port, for example nodes.us-east.example.org",
    "the name or address of a host",
)


def _read_currency(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not _CURRENCY.fullmatch(value):
        right = f"write it as it stands before an amount, at most {LONGEST_CURRENCY} characters, for example CHF"
        raise BadValue(f"{quoted(value)} is not a currency", right)
    return value


def _read_path(value: object) -> str:
    if isinstance(value, str) and value.startswith("/") and value.isprintable() and len(value) <= LONGEST_PATH:
        return value
    raise BadValue(f"{quoted(value)} is not a path", "write it from the root, for example /run/secrets/name/file")


def _read_url(value: object) -> str:
    right = "write it with http:// or https://, for example http://server.example.org:8080"
    wrong = BadValue(f"{quoted(value)} is not an address", right)
    if not isinstance(value, str) or len(value) > LONGEST_URL:
        raise wrong
    try:
        parts = urlsplit(value.strip())
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise wrong
    if parts.username is not None or parts.password is not None:
        raise BadValue(
            "the address contains a name or a password", "remove it, and write the path of a file in token_file"
        )
    return value.strip().rstrip("/")


def _read_activity_metric(value: object) -> str:
    if isinstance(value, str) and value.lower() == "none":
        return ""
    name: str = _METRIC.read(value)
    if name.startswith(_DCGM_DEVICE):
        right = "write the name of a profiling counter, for example DCGM_FI_PROF_GR_ENGINE_ACTIVE, or none"
        raise BadValue(f"{name} is not a ratio averaged over time", right)
    return name


def _read_utilization_metric(value: object) -> str:
    name: str = _METRIC.read(value)
    if name.startswith(_DCGM_PROFILING):
        raise BadValue(f"{name} is a ratio, not a percentage", "write it as readings.activity")
    if name.startswith(_DCGM_DEVICE) and not name.endswith("_UTIL"):
        raise BadValue(f"{name} is not a utilization", "write the name of one, for example DCGM_FI_DEV_GPU_UTIL")
    return name


def _read_timezone(value: object) -> str:
    right = "write a name of the time zone database, for example Europe/Zurich"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or not value.strip():
        raise BadValue(f"{quoted(value)} is not a time zone", right)
    try:
        ZoneInfo(value)
    except (ValueError, OSError, KeyError):
        close = closest_name(value, sorted(available_timezones()), most=1000)
        raise BadValue(f"{quoted(value)} is not a time zone", f"did you mean `{close}`?" if close else right) from None
    return value


def read_packages(value: object) -> tuple[str, ...]:
    """Read packages that pip installs by name. Options of pip, addresses and paths are refused."""
    right = 'write names as pip takes them, for example [transformers, "datasets>=3,<4"]'
    if not isinstance(value, list) or not value:
        raise BadValue(f"{quoted(value)} is not a list of packages", right)
    if len(value) > MOST_PACKAGES:
        raise BadValue(f"{len(value)} packages are more than {MOST_PACKAGES}", "build an image of them")
    found = [_AROUND.sub(r"\1", item.strip(" ")) if isinstance(item, str) else "" for item in value]
    for item, name in zip(value, found, strict=True):
        if len(name) > LONGEST_PACKAGE or not _PACKAGE.fullmatch(name):
            raise BadValue(f"{quoted(item)} is not a package", right)
    return tuple(dict.fromkeys(found))


Title = Annotated[str, text_reader(100)]
LongText = Annotated[str, text_reader(2000)]
Image = Annotated[str, IMAGE]
ImagePattern = Annotated[str, _IMAGE_PATTERN]
Url = Annotated[str, Reader(_read_url, "an http or https address")]
FilePath = Annotated[str, Reader(_read_path, "the path of a file")]
HostName = Annotated[str, _HOST_NAME]
MetricName = Annotated[str, _METRIC]
ActivityMetric = Annotated[str, Reader(_read_activity_metric, "the name of a metric that is a ratio, or `none`")]
UtilizationMetric = Annotated[str, Reader(_read_utilization_metric, "the name of a metric that is a percentage")]
Currency = Annotated[str, Reader(_read_currency, "a currency like CHF")]
TimeZone = Annotated[str, Reader(_read_timezone, "a time zone like Europe/Zurich")]
Packages = Annotated[
    tuple[str, ...],
    Reader(
        read_packages,
        "a list of packages",
        {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": MOST_PACKAGES},
    ),
]


def is_service_address(url: object) -> bool:
    """Return whether a URL can be the service's address: http, with a host and without a path."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlparse(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0 and parts.path in {"", "/"}
    except ValueError:  # an invalid port
        return False


LOG_FORMATS = ("text", "json")
"""The forms of the service's log: lines for people, or one JSON object a line."""
