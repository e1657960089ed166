"""GPUs that were found, the names and sizes of usual models, and the catalog's entries for them. It does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuspawner.adoption.draft import MOST_GPUS, Draft, Entry, named
from gpuspawner.catalog.template_models import ANY_GPU, NO_GPU
from gpuspawner.core.gpus.vendors import mig_fraction
from gpuspawner.core.units import GIBIBYTE

NEAR = 0.03
"""The part of a GPU's memory that its driver may use."""


@dataclass(frozen=True)
class GpuModel:
    """The memory and compute capability of a model. ``memory_gib`` is 0 for a model of several sizes."""

    memory_gib: int
    compute: str


_MODELS = {
    "k80": GpuModel(12, "3.7"),
    "p4": GpuModel(8, "6.1"),
    "p40": GpuModel(24, "6.1"),
    "p100": GpuModel(16, "6.0"),
    "v100": GpuModel(0, "7.0"),
    "t4": GpuModel(16, "7.5"),
    "a10": GpuModel(24, "8.6"),
    "a10g": GpuModel(24, "8.6"),
    "a16": GpuModel(16, "8.6"),
    "a30": GpuModel(24, "8.0"),
    "a40": GpuModel(48, "8.6"),
    "a100": GpuModel(0, "8.0"),
    "l4": GpuModel(24, "8.9"),
    "l40": GpuModel(48, "8.9"),
    "l40s": GpuModel(48, "8.9"),
    "h100": GpuModel(80, "9.0"),
    "h200": GpuModel(141, "9.0"),
    "gh200": GpuModel(0, "9.0"),
    "b200": GpuModel(180, "10.0"),
    "gb200": GpuModel(186, "10.0"),
    "b300": GpuModel(288, "10.3"),
    "gb300": GpuModel(288, "10.3"),
}
"""NVIDIA's data sheets and its table of compute capabilities."""
_MEMORY = re.compile(r"(?<![.0-9])([0-9]{1,3})gb(?![a-z0-9])")
_VENDOR = re.compile(r"^(nvidia|amd|intel)[-_ (r)]*|\b(tesla|geforce|instinct)[-_ ]", re.IGNORECASE)
_BOARD = re.compile(r"^(sxm[0-9]?|pcie|hbm[0-9]?e?|oam|nvl)$")


def words_of(product: str) -> list[str]:
    """Return the words of a product's name in lower case: ``NVIDIA-A100-SXM4-80GB`` is a100, sxm4, 80gb."""
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
    """Return the compute capability of a model, or "" if it is unknown."""
    return next((_MODELS[word].compute for word in words_of(product) if word in _MODELS), "")


def memory_of(product: str) -> int:
    """Return the memory of a whole GPU in bytes by its name, or 0 if the name does not show it."""
    if found := _MEMORY.search("-".join(words_of(product))):
        return int(found[1]) * GIBIBYTE
    return next((_MODELS[word].memory_gib for word in words_of(product) if word in _MODELS), 0) * GIBIBYTE


def written_memory(size_bytes: int) -> str:
    """Return a size for a catalog: whole GiB if the size is close to them, or else tenths of a GiB, rounded down."""
    gib = size_bytes / GIBIBYTE
    whole = round(gib)
    if whole and abs(gib - whole) <= NEAR * whole:
        return f"{whole}GiB"
    return f"{int(gib * 10) / 10:g}GiB" if gib >= 1 else f"{max(1, int(gib * 1024))}MiB"


KindKey = tuple[str, str, int, bool]
UNKNOWN_MEMORY = "1GiB"
MEMORY_NOTE = (
    "Decide: memory. The memory of one GPU is unknown, so 1GiB is written. needs: of a template compares with it."
)
SLICE_NOTE = "counts: is how much one of them counts in quotas and GPU hours."
ONE_NOTE = "A workspace gets one, because CUDA uses no second one."


@dataclass(frozen=True)
class FoundGpus:
    """Equal GPUs: their total ``count``, and ``most`` on one machine. Each share counts.

    ``product`` is the vendor's name, or "" if it is unknown. ``profile`` is the profile of a MIG slice. ``replicas``
    is how many workspaces share each of them. The catalog finds them by ``match`` and ``resource``. ``memory_bytes``
    is the memory of one unit, or 0 if it is unknown. ``spot`` is whether they are on spot nodes.
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
    """The compute capability that the driver reports, or "" if the name of the model decides."""

    @property
    def kind_key(self) -> KindKey:
        """The properties by which the catalog distinguishes them from other GPUs."""
        return self.match, self.resource, self.replicas, self.spot

    @property
    def is_whole(self) -> bool:
        """Whether each is a whole GPU for one workspace."""
        return not self.profile and self.replicas == 1

    @property
    def words(self) -> str:
        """The GPUs in words."""
        name = title_of(self.product) if self.product else f"unknown GPU ({self.resource})"
        name += f" slice {self.profile}" if self.profile else ""
        divided = f", each shared by {self.replicas}" if self.replicas > 1 else ""
        return f"{-(-self.count // max(1, self.replicas))} x {name}{divided}"


@dataclass(frozen=True)
class Discovery:
    """The GPUs that were found, where they are (``this machine``), and sentences for the person who runs init."""

    where: str
    gpus: tuple[FoundGpus, ...] = ()
    notes: tuple[str, ...] = ()
    image: bool = False
    """Whether workspaces are pods, which have an image."""


def literal(product: str) -> str:
    """Return a pattern that matches only this name."""
    return re.sub(r"[\[\]*?]", "?", product)


def to_draft(discovery: Discovery) -> Draft:
    """Return a catalog that offers what was found."""
    gpus, names = kinds_of(discovery.gpus)
    offered = {names[found.kind_key]: found.most if found.is_whole else 1 for found in discovery.gpus}
    offered = {one.name: offered[one.name] for one in gpus if one.name in offered}
    head = (
        f"gpuspawner server init wrote this catalog of {discovery.where}. Check it with gpuspawner server check.",
        "hub_config/catalog.yaml explains each key.",
        *(f"Found: {one.words}." for one in discovery.gpus),
    )
    more = () if gpus else ("Later, add new GPUs to gpus and to the gpus of a template.",)
    return Draft(head, tuple(gpus), tuple(_templates(offered, image=discovery.image)), more)


def kinds_of(gpus: Iterable[FoundGpus]) -> tuple[list[Entry], dict[KindKey, str]]:
    """Return the catalog's kinds for these GPUs, and the name of each by what the catalog knows it by."""
    entries: list[Entry] = []
    names: dict[KindKey, str] = {}
    # The first kind that fits counts. So shares follow whole GPUs, and GPUs without a product name come last.
    for found in sorted(gpus, key=lambda one: (not one.product, not one.is_whole)):
        if found.kind_key in names:
            continue
        entry = _shared(found, entries) if found.replicas > 1 else _kind(found, [one.name for one in entries])
        entries.append(entry)
        names[found.kind_key] = entry.name
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
    """Return a share. If the kind that it divides is not in ``gpus`` yet, add it."""
    own = found.match, found.spot
    whole = next((one for one in gpus if (one.values.get("match"), "spot" in one.values) == own), None)
    if whole is None:
        memory_bytes = found.memory_bytes * found.replicas
        undivided = FoundGpus(
            found.product, found.match, 0, 0, memory_bytes, found.profile, spot=found.spot, compute=found.compute
        )
        entry = _kind(undivided, [one.name for one in gpus])
        note = "The share below divides this kind. All of its devices are shared, so no template offers it."
        whole = Entry(entry.name, entry.values, (note, *entry.notes))
        gpus.append(whole)
    values: dict[str, Any] = {"title": f"1/{found.replicas} of {whole.values['title']}"[:100], "of": whole.name}
    if found.resource:
        values["resource"] = found.resource
    taken = [one.name for one in gpus]
    notes = (f"{found.replicas} workspaces share each device. Nothing limits how much of its memory one of them uses.",)
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
    """Yield a template with all GPUs, if there are any, and one without GPUs."""
    if image:
        choose = "Decide: image. Without it, workspaces have the image of the hub."
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
        decide = "Decide: bounds, the sizes that users may choose, and default, the size that is preselected."
        yield Entry("gpu", values, (*lines, decide))
    yield Entry("notebook", {"title": "Notebook without a GPU"}, () if offered else lines)


def _count(most: int) -> str | int:
    top = min(most, MOST_GPUS)
    return f"1-{top}" if top > 1 else 1
