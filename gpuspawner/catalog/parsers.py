"""How single values of the catalog are read: each parser raises ``BadValue`` with what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from gpuspawner.catalog.names import did_you_mean
from gpuspawner.catalog.values import ANY_GPU, NO_GPU, OPENS, SSH
from gpuspawner.core.errors import quoted
from gpuspawner.core.idle.policy import Mode
from gpuspawner.core.idle.soft import SOFT_EVIDENCE
from gpuspawner.core.units import BadValue, parse_count, parse_duration, parse_percent, parse_range

N = TypeVar("N", int, float)

LONGEST_NAME = 63
"""Characters in a name: as many as a Kubernetes label holds, where names will be written."""
MOST_PRICE = 1_000_000.0
MOST_COMPUTE = 100
LONGEST_ON_STOP_SECONDS = 600.0
"""Others wait for the GPUs meanwhile. Arbitrary: a large checkpoint takes minutes."""
SHORTEST_SAMPLE_SECONDS = 0.1
"""Arbitrary: an exec of the probe takes about as long."""

LONGEST_URL = 2000
LONGEST_PATH = 4000

_DCGM_DEVICE, _DCGM_PROFILING = "DCGM_FI_DEV_", "DCGM_FI_PROF_"
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_OBJECT = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern})*")
_LABEL_PART = r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_LABEL = re.compile(rf"(?:{_OBJECT.pattern}/)?{_LABEL_PART}")
_LABEL_VALUE = re.compile(rf"(?:{_LABEL_PART})?")
_COMPUTE = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")
_DNS = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+"
_RESOURCE = re.compile(rf"(?!(?:[a-z0-9.-]+\.)?kubernetes\.io/)(?!requests\.){_DNS}/{_LABEL_PART}")
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?/)?"
_PATH = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(rf"{_HOST}{_PATH}(?:/{_PATH})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")
_REGISTRY = r"(?:localhost|[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+)(?::[0-9]{1,5})?"
_OWN_IMAGES = re.compile(rf"{_REGISTRY}/[A-Za-z0-9._/:@*-]+")
_PACKAGE = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
    r"(?:\[[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*\])?"
    r"(?:(?:===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9.*+!_-]+(?:,(?:==|~=|!=|<=|>=|<|>)[A-Za-z0-9.*+!_-]+)*)?"
)
_AROUND = re.compile(r" *(,|[<>=!~]=*) *")
LONGEST_PACKAGE, MOST_PACKAGES = 100, 50
"""Characters of one, and how many one tool may have. Arbitrary: more belongs into an image."""
LONGEST_IMAGE = 500
LONGEST_RESOURCE = 253
LONGEST_LABEL = 253 + 1 + 63
LONGEST_GROUP = 255
"""Characters in the name of a group or user: as many as JupyterHub's database holds."""


def parse_name(value: object) -> str:
    """Read a name of a kind, template, policy or quota."""
    right = f"use small letters, digits and dashes, at most {LONGEST_NAME}, for example a100-80gb"
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not _NAME.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no name", right)
    return value


def parse_kind(value: object) -> str:
    """Read the name of a GPU kind."""
    name = parse_name(value)
    if name in {NO_GPU, ANY_GPU}:
        means = "no GPU" if name == NO_GPU else "any GPU"
        raise BadValue(f"{quoted(name)} means {means}", "choose another name for this kind")
    return name


def parse_asked_kind(value: object) -> str:
    """Read the kind of GPU that a start asks for: ``a100``, of another cluster ``a100@us-east``, ``any``, ``none``."""
    kind, at, cluster = value.partition("@") if isinstance(value, str) else (value, "", "")
    return parse_name(kind) + (at + parse_name(cluster) if at else "")


def parse_asked_kinds(value: object) -> list[str]:
    """Read the kinds that a start takes instead."""
    if not isinstance(value, list):
        raise BadValue(f"{quoted(value)} is no list of GPU kinds", "write for example [h100, t4]")
    return list(dict.fromkeys(parse_asked_kind(item) for item in value))


@dataclass(frozen=True)
class TextOf:
    """A reader of text of at most ``longest`` characters."""

    longest: int

    def __call__(self, value: object) -> str:
        """Read it."""
        right = f"write one to {self.longest} characters of text; put it in quotes if it looks like something else"
        if not isinstance(value, str) or not value.strip():
            raise BadValue(f"{quoted(value)} is no text", right)
        if len(value) > self.longest or not all(c.isprintable() or c == "\n" for c in value):
            raise BadValue(f"{quoted(value)} is too long or has characters that cannot be shown", right)
        return value.strip()


@dataclass(frozen=True)
class WholeNumber:
    """A reader of whole numbers from ``least`` to ``most``."""

    least: int
    most: int

    def __call__(self, value: object) -> int:
        """Read it."""
        right = f"write a whole number from {self.least} to {self.most}"
        try:
            return parse_count(value, self.least, self.most)
        except BadValue as error:
            raise BadValue(error.wrong, right) from None


def range_of(parse_end: Callable[[object], N]) -> Callable[[object], tuple[N, N]]:
    """Return a reader of two ends, each read by ``parse_end``."""
    return lambda value: parse_range(value, parse_end)


def parse_version(value: object) -> int:
    """Read the catalog's version."""
    if value != 1 or isinstance(value, (bool, float)):
        raise BadValue(f"version {quoted(value)} is not known", "write version: 1")
    return 1


def parse_compute(value: object) -> str:
    """Read a compute capability, such as ``8.0``."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < MOST_COMPUTE
    text = f"{value:.1f}" if number else value
    if not isinstance(text, str) or not _COMPUTE.fullmatch(text):
        raise BadValue(f"{quoted(value)} is no compute capability", "write it as NVIDIA does, for example 8.0")
    return text


def parse_price(value: object) -> float:
    """Read the price of an hour."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_PRICE:
        raise BadValue(f"{quoted(value)} is no price", "write a plain number, the price of an hour, for example 2.10")
    return float(value)


def parse_sample(value: object) -> float:
    """Read a sampling period in seconds."""
    seconds = parse_duration(value)
    if seconds < SHORTEST_SAMPLE_SECONDS:
        raise BadValue(f"{quoted(value)} would sample without pause", "write at least 0.1s; 60s is usual")
    return seconds


def parse_on_stop_timeout(value: object) -> float:
    """Read how long what runs before an end may take, in seconds."""
    seconds = parse_positive_duration(value)
    if seconds > LONGEST_ON_STOP_SECONDS:
        raise BadValue(f"{quoted(value)} is longer than 10m", "people wait for these GPUs: write at most 10m")
    return seconds


def parse_positive_duration(value: object) -> float:
    """Read a time above 0 in seconds."""
    seconds = parse_duration(value)
    if seconds <= 0:
        raise BadValue(f"{quoted(value)} is no time at all", "write a time above 0, for example 30m")
    return seconds


def parse_seconds(value: object) -> int:
    """Read a time of at least one whole second."""
    return max(1, round(parse_positive_duration(value)))


def parse_threshold(value: object) -> float:
    """Read a percentage of at least 1."""
    percent, right = parse_percent(value), "write a percentage from 1%, for example 5%"
    if percent <= 0:
        raise BadValue(f"{quoted(value)} would make every GPU busy", right)
    if percent < 1:  # a fraction that was meant, as 0.05 for 5 %, would never end anything
        raise BadValue(f"{quoted(value)} is less than the 1 % that nvidia-smi counts by", right)
    return percent


def parse_share(value: object) -> float:
    """Read which percentage of what is asked is guaranteed, at least 1."""
    percent, right = parse_percent(value), "write a percentage from 1% to 100%, for example 25%"
    if percent < 1:
        raise BadValue(f"{quoted(value)} would guarantee nothing", right)
    return percent


def parse_mode(value: object) -> Mode:
    """Read how far an idle verdict goes."""
    try:
        return Mode(value)
    except ValueError:
        right = "write observe (only record), warn (tell people) or enforce (stop)"
        raise BadValue(f"{quoted(value)} is no mode", right) from None


def parse_yes(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise BadValue(f"{quoted(value)} is neither yes nor no", "write true or false")
    return value


def parse_opens(value: object) -> list[str]:
    """Read what workspaces open, the default first."""
    right = "write a list of lab, vscode and ssh, the default first, for example [lab, vscode, ssh]"
    if not isinstance(value, list) or not value:
        raise BadValue(f"{quoted(value)} is not what a workspace can open", right)
    for item in value:
        if item not in OPENS:
            raise BadValue(f"{quoted(item)} is not what a workspace can open", right)
        if value.count(item) > 1:
            raise BadValue(f"{item} stands there twice", right)
    if value == [SSH]:
        raise BadValue("ssh alone leaves nothing for the browser to open", "write opens: [lab, ssh]")
    return value


def parse_resource(value: object) -> str:
    """Read the name of an extended resource of Kubernetes."""
    right = "write it as nodes show it, for example nvidia.com/gpu or nvidia.com/mig-1g.10gb"
    if not isinstance(value, str) or len(value) > LONGEST_RESOURCE or not _RESOURCE.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no extended resource of Kubernetes", right)
    return value


def parse_object(value: object) -> str:
    """Read the name of an object of Kubernetes, such as a LocalQueue."""
    right = "write it as kubectl shows it: small letters, digits, dashes and dots"
    if not isinstance(value, str) or len(value) > LONGEST_RESOURCE or not _OBJECT.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no name of an object of Kubernetes", right)
    return value


def parse_label(value: object) -> str:
    """Read the name of a label of Kubernetes' nodes."""
    if not isinstance(value, str) or len(value) > LONGEST_LABEL or not _LABEL.fullmatch(value):
        right = "write it as kubectl get nodes --show-labels does, for example karpenter.sh/capacity-type"
        raise BadValue(f"{quoted(value)} is no name of a label", right)
    return value


def parse_label_value(value: object) -> str:
    """Read what a label of Kubernetes' nodes says."""
    if not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
        right = "write it as kubectl get nodes --show-labels does, and in quotes if it looks like something else"
        raise BadValue(f"{quoted(value)} is no value of a label", right)
    return value


def parse_image(value: object) -> str:
    """Read the name of a container image."""
    right = "write registry, name and tag, for example registry.example.org/ml/pytorch:2.9"
    if not isinstance(value, str) or len(value) > LONGEST_IMAGE or not _IMAGE.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no container image", right)
    return value


def parse_http_url(value: object) -> str:
    """Read the address of a server; a password has no place in it."""
    right = "write it with http:// or https://, for example http://server.example.org:8080"
    if not isinstance(value, str) or len(value) > LONGEST_URL:
        raise BadValue(f"{quoted(value)} is no address", right)
    try:
        parts = urlsplit(value.strip())
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise BadValue(f"{quoted(value)} is no address", right)
    if parts.username is not None or parts.password is not None:
        raise BadValue("a name or password stands in the address", "take it out, and name a file by token_file")
    return value.strip().rstrip("/")


def parse_metric(value: object) -> str:
    """Read the name of a metric of Prometheus."""
    if isinstance(value, str) and len(value) <= LONGEST_URL and _METRIC.fullmatch(value):
        return value
    raise BadValue(f"{quoted(value)} is no metric's name", "write it as the exporter does, as DCGM_FI_DEV_GPU_UTIL")


def parse_activity_metric(value: object) -> str:
    """Read the name of a metric that is a ratio averaged over time; "" for none."""
    if isinstance(value, str) and value.lower() == "none":
        return ""
    name = parse_metric(value)
    if name.startswith(_DCGM_DEVICE):
        right = "write that of a profiling counter, as DCGM_FI_PROF_GR_ENGINE_ACTIVE, or none"
        raise BadValue(f"{name} is no ratio averaged over time", right)
    return name


def parse_utilization_metric(value: object) -> str:
    """Read the name of a metric that is a percentage."""
    name = parse_metric(value)
    if name.startswith(_DCGM_PROFILING):
        raise BadValue(f"{name} is a ratio, not a percentage", "write it as readings.activity")
    if name.startswith(_DCGM_DEVICE) and not name.endswith("_UTIL"):
        raise BadValue(f"{name} is no utilization", "write that of one, as DCGM_FI_DEV_GPU_UTIL")
    return name


def parse_path(value: object) -> str:
    """Read the path of a file, from the root."""
    if isinstance(value, str) and value.startswith("/") and value.isprintable() and len(value) <= LONGEST_PATH:
        return value
    raise BadValue(f"{quoted(value)} is no path", "write it from the root, for example /run/secrets/name/file")


def parse_own_images(value: object) -> str:
    """Read which images people may bring: a pattern of whole names, that begins with a registry."""
    right = "write a registry and a path, with * for any characters, for example registry.example.org/ml/*"
    if not isinstance(value, str) or len(value) > LONGEST_IMAGE or not _OWN_IMAGES.fullmatch(value):
        raise BadValue(f"{quoted(value)} is no pattern of images with their registry", right)
    return value


def parse_packages(value: object) -> list[str]:
    """Read packages as pip installs them by name: neither an option of pip's, nor an address or a path."""
    right = 'write names as pip takes them, for example [transformers, "datasets>=3,<4"]'
    if not isinstance(value, list) or not value:
        raise BadValue(f"{quoted(value)} is no list of packages", right)
    if len(value) > MOST_PACKAGES:
        raise BadValue(f"{len(value)} packages are more than {MOST_PACKAGES}", "build an image of them")
    found = [_AROUND.sub(r"\1", item.strip(" ")) if isinstance(item, str) else "" for item in value]
    for item, name in zip(value, found, strict=True):
        if len(name) > LONGEST_PACKAGE or not _PACKAGE.fullmatch(name):
            raise BadValue(f"{quoted(item)} is no package", right)
    return list(dict.fromkeys(found))


def parse_warnings(value: object) -> list[float]:
    """Read times before a deadline in seconds, the longest first."""
    if not isinstance(value, list) or len(value) > 5:  # noqa: PLR2004 - a sixth mail is not read
        raise BadValue(f"{quoted(value)} is no list of at most 5 times", "write for example [1h, 10m]")
    return sorted({parse_positive_duration(item) for item in value}, reverse=True)


def parse_soft_evidence(value: object) -> list[str]:
    """Read the names of soft evidence that counts. An empty list counts none."""
    right = f"write a list of {', '.join(SOFT_EVIDENCE)}, for example [cpu, kernel]"
    if not isinstance(value, list):
        raise BadValue(f"{quoted(value)} is no list of soft evidence", right)
    for item in value:
        if item not in SOFT_EVIDENCE:
            known = did_you_mean(item, SOFT_EVIDENCE) if isinstance(item, str) else ""
            raise BadValue(f"{quoted(item)} is no soft evidence", known or right)
    return list(dict.fromkeys(value))


def parse_group(value: object) -> str:
    """Read the name of a group or a user of the hub."""
    right = f"write it as the hub has it, at most {LONGEST_GROUP} characters; in quotes if it looks like something else"
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_GROUP or not value.isprintable():
        raise BadValue(f"{quoted(value)} is no name of the hub", right)
    return value.strip()


def parse_groups(value: object) -> list[str]:
    """Read groups of the hub: a list of their names. An empty one is no restriction."""
    if not isinstance(value, list):
        raise BadValue(f"{quoted(value)} is no list of groups", "write for example [vision, speech]")
    return list(dict.fromkeys(parse_group(item) for item in value))


def parse_kinds(value: object) -> list[str]:
    """Read kinds of GPU that may be given instead of another, the first the first to be given."""
    if not isinstance(value, list) or not value:
        raise BadValue(f"{quoted(value)} is no list of GPU kinds", "write for example [h100, t4]")
    return list(dict.fromkeys(parse_kind(item) for item in value))


def parse_labels(value: object) -> list[str]:
    """Read names of data."""
    if not isinstance(value, list):
        raise BadValue(f"{quoted(value)} is no list of names", "write for example [genomes, imagenet]")
    return list(dict.fromkeys(parse_name(item) for item in value))
