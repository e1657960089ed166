"""Memory and compute capability of usual GPUs by their names. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
