"""GPUs as they were found, the names and sizes of usual models, and the catalog's entries for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuspawner.adoption.draft import MOST_GPUS, Draft, Entry, named
from gpuspawner.catalog.models import ANY_GPU, NO_GPU
from gpuspawner.core.gpus.fleet import mig_fraction
from gpuspawner.core.units import GIBIBYTE

NEAR = 0.03
"""A GPU has a little less memory than its name says: what the driver keeps."""


@dataclass(frozen=True)
class Known:
    """``memory_gib`` is 0 where the model comes with several."""

    memory_gib: int
    compute: str


_KNOWN = {
    "k80": Known(12, "3.7"),
    "p4": Known(8, "6.1"),
    "p40": Known(24, "6.1"),
    "p100": Known(16, "6.0"),
    "v100": Known(0, "7.0"),
    "t4": Known(16, "7.5"),
    "a10": Known(24, "8.6"),
    "a10g": Known(24, "8.6"),
    "a16": Known(16, "8.6"),
    "a30": Known(24, "8.0"),
    "a40": Known(48, "8.6"),
    "a100": Known(0, "8.0"),
    "l4": Known(24, "8.9"),
    "l40": Known(48, "8.9"),
    "l40s": Known(48, "8.9"),
    "h100": Known(80, "9.0"),
    "h200": Known(141, "9.0"),
    "gh200": Known(0, "9.0"),
    "b200": Known(180, "10.0"),
    "gb200": Known(186, "10.0"),
    "b300": Known(288, "10.3"),
    "gb300": Known(288, "10.3"),
}
"""NVIDIA's data sheets and its table of compute capabilities."""
_MEMORY = re.compile(r"(?<![.0-9])([0-9]{1,3})gb(?![a-z0-9])")
_VENDOR = re.compile(r"^(nvidia|amd|intel)[-_ (r)]*|\b(tesla|geforce|instinct)[-_ ]", re.IGNORECASE)
_BOARD = re.compile(r"^(sxm[0-9]?|pcie|hbm[0-9]?e?|oam|nvl)$")


def words_of(product: str) -> list[str]:
    """Return a product's name in small words: ``NVIDIA-A100-SXM4-80GB`` is a100, sxm4, 80gb."""
    return [word for word in re.split(r"[-_ ]+", product.lower()) if word not in {"nvidia", "tesla", "amd", "intel"}]


def short_name(product: str) -> str:
    """Return a short name, for example ``a100-80gb``, ``t4`` or ``rtx-4090``."""
    dropped = {"geforce", "instinct", "corporation"}
    return "-".join(word for word in words_of(product) if word not in dropped and not _BOARD.fullmatch(word))


def title_of(product: str) -> str:
    """Return a product's name for people: ``A100 SXM4 80GB``."""
    plain = re.sub(r"[-_ ]+", " ", product).strip()
    while (shorter := _VENDOR.sub("", plain).strip()) != plain and shorter:
        plain = shorter
    return plain if plain != plain.lower() else plain.upper()


def compute_of(product: str) -> str:
    """Return the compute capability of a model, "" where it is not known."""
    return next((_KNOWN[word].compute for word in words_of(product) if word in _KNOWN), "")


def memory_of(product: str) -> int:
    """Return the memory of a whole GPU in bytes, as its name says; 0 where that says nothing."""
    if found := _MEMORY.search("-".join(words_of(product))):
        return int(found[1]) * GIBIBYTE
    return next((_KNOWN[word].memory_gib for word in words_of(product) if word in _KNOWN), 0) * GIBIBYTE


def written_memory(size_bytes: int) -> str:
    """Return a size as a catalog has it: whole GiB where it is close to them, else tenths below it."""
    gib = size_bytes / GIBIBYTE
    whole = round(gib)
    if whole and abs(gib - whole) <= NEAR * whole:
        return f"{whole}GiB"
    return f"{int(gib * 10) / 10:g}GiB" if gib >= 1 else f"{max(1, int(gib * 1024))}MiB"


KnownBy = tuple[str, str, int, bool]
UNKNOWN_MEMORY = "1GiB"
MEMORY_NOTE = (
    "Decide: what memory one has nothing told; 1GiB stands here until you write it. Templates with needs: go by it."
)
SLICE_NOTE = "counts: how much one counts in quotas and GPU hours."
ONE_NOTE = "One to a workspace: CUDA uses no second."


@dataclass(frozen=True)
class FoundGpus:
    """Equal GPUs: their total ``count``, and ``most`` on one machine. Each share counts.

    ``product`` is the vendor's name, "" where nothing tells it; ``profile`` the slice's (MIG), ``replicas`` how many
    workspaces each serves at once. ``match`` and ``resource`` are what the catalog knows them by. ``memory_bytes`` is
    that of one unit, 0 where nothing tells. ``spot`` is whether their nodes are.
    """

    product: str
    match: str
    count: int
    most: int
    memory_bytes: int = 0
    profile: str = ""
    replicas: int = 1
    resource: str = ""
    spot: bool = False
    compute: str = ""
    """The compute capability that the driver tells. "": by the model's name."""

    @property
    def known_by(self) -> KnownBy:
        """By what the catalog tells them from others."""
        return self.match, self.resource, self.replicas, self.spot

    @property
    def is_whole(self) -> bool:
        """Whether one is a whole GPU, given to one workspace."""
        return not self.profile and self.replicas == 1

    @property
    def words(self) -> str:
        """The GPUs in words."""
        name = title_of(self.product) if self.product else f"unknown GPU ({self.resource})"
        name += f" slice {self.profile}" if self.profile else ""
        divided = f", each shared by {self.replicas}" if self.replicas > 1 else ""
        return f"{-(-self.count // max(1, self.replicas))} x {name}{divided}"


@dataclass(frozen=True)
class Finding:
    """The GPUs that were found, where (``this machine``), and sentences that a person should read."""

    where: str
    gpus: tuple[FoundGpus, ...] = ()
    told: tuple[str, ...] = ()
    image: bool = False
    """Whether workspaces are pods, which have an image."""


def literal(product: str) -> str:
    """Return a pattern that fits this name alone."""
    return re.sub(r"[\[\]*?]", "?", product)


def to_draft(finding: Finding) -> Draft:
    """Return a catalog that offers what was found."""
    gpus, names = kinds_of(finding.gpus)
    offered = {names[found.known_by]: found.most if found.is_whole else 1 for found in finding.gpus}
    offered = {one.name: offered[one.name] for one in gpus if one.name in offered}
    head = (
        (
            f"A catalog that gpuspawner server init wrote of {finding.where}. Check it with server check. What "
            "each key "
            "means is explained in hub_config/catalog.yaml."
        ),
        *(f"Found: {one.words}." for one in finding.gpus),
    )
    more = () if gpus else ("GPUs that a cluster or machine gets later: add them to gpus, and to a template's gpus.",)
    return Draft(head, tuple(gpus), tuple(_templates(offered, image=finding.image)), more)


def kinds_of(gpus: Iterable[FoundGpus]) -> tuple[list[Entry], dict[KnownBy, str]]:
    """Return the catalog's kinds for these GPUs, and the name of each by what the catalog knows it by."""
    entries: list[Entry] = []
    names: dict[KnownBy, str] = {}
    # A share comes after what it divides, and last what only a resource tells: the first kind that fits counts.
    for found in sorted(gpus, key=lambda one: (not one.product, not one.is_whole)):
        if found.known_by in names:
            continue
        entry = _shared(found, entries) if found.replicas > 1 else _kind(found, [one.name for one in entries])
        entries.append(entry)
        names[found.known_by] = entry.name
    return entries, names


def _kind(found: FoundGpus, taken: Sequence[str]) -> Entry:
    name = "-".join(filter(None, (short_name(found.product), found.profile, "spot" if found.spot else "")))
    title = (title_of(found.product) or "GPU") + (f" slice {found.profile}" if found.profile else "")
    title += " (spot)" if found.spot else ""
    memory = found.memory_bytes or (0 if found.profile else memory_of(found.product)) or _of_profile(found.profile)
    values: dict[str, Any] = {"title": title[:100], **_known_by(found)}
    values["memory"] = written_memory(memory) if memory else UNKNOWN_MEMORY
    if compute := found.compute or compute_of(found.product):
        values["compute"] = float(compute)
    notes = () if memory else (MEMORY_NOTE,)
    if (part := mig_fraction(f"MIG {found.profile}")) < 1:
        values["counts"] = str(part)
        notes = (*notes, f"{SLICE_NOTE} {ONE_NOTE}")
    return Entry(named(name, [*taken, NO_GPU, ANY_GPU], "gpu"), values, notes)


def _shared(found: FoundGpus, gpus: list[Entry]) -> Entry:
    """Return a share, adding the kind that it divides where it is not there yet."""
    own = found.match, found.spot
    whole = next((one for one in gpus if (one.values.get("match"), "spot" in one.values) == own), None)
    if whole is None:
        memory_bytes = found.memory_bytes * found.replicas
        undivided = FoundGpus(
            found.product, found.match, 0, 0, memory_bytes, found.profile, spot=found.spot, compute=found.compute
        )
        entry = _kind(undivided, [one.name for one in gpus])
        note = "The kind that the share below divides. None of its devices stays whole, so no template offers it."
        whole = Entry(entry.name, entry.values, (note, *entry.notes))
        gpus.append(whole)
    values: dict[str, Any] = {"title": f"1/{found.replicas} of {whole.values['title']}"[:100], "of": whole.name}
    if found.resource:
        values["resource"] = found.resource
    taken = [one.name for one in gpus]
    notes = (
        f"Each device serves {found.replicas} workspaces at once, who share its memory without a bound between them.",
    )
    return Entry(
        named(f"{whole.name}-shared-{found.replicas}", taken, "gpu"), {**values, "shares": found.replicas}, notes
    )


def _known_by(found: FoundGpus) -> dict[str, Any]:
    known = {"match": found.match, "resource": found.resource, "spot": found.spot}
    return {name: value for name, value in known.items() if value}


def _of_profile(profile: str) -> int:
    found = re.search(r"\.([0-9]+)gb", profile)
    return int(found[1]) * 1000**3 if found else 0


def _templates(offered: dict[str, int], *, image: bool) -> Iterable[Entry]:
    """Yield a template with all GPUs, where there are any, and one without."""
    if image:
        choose = "Decide: image, the one that its workspaces have; without it the hub's own."
        lines: tuple[str, ...] = (choose, "image: quay.io/jupyter/pytorch-notebook:cuda12-latest")
    else:
        lines = ()
    sizes = {"cpu": "1-16", "memory": "2GiB-64GiB", "lifetime": "30m-24h"}
    if offered:
        first = next(iter(offered))
        values: dict[str, Any] = {
            "title": "JupyterLab with a GPU",
            "gpus": {name: _count(most) for name, most in offered.items()},
            "bounds": sizes,
            "default": {"gpu": first, "count": 1, "cpu": 2, "memory": "8GiB", "lifetime": "8h"},
        }
        decide = "Decide: bounds, what people may ask for, and default, what they get without asking."
        yield Entry("gpu", values, (*lines, decide))
    yield Entry("notebook", {"title": "Notebook without a GPU"}, () if offered else lines)


def _count(most: int) -> str | int:
    top = min(most, MOST_GPUS)
    return f"1-{top}" if top > 1 else 1
