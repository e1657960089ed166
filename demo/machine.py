"""This machine's GPUs for the demo: its own, by nvidia-smi, or the simulated ones of the demo's catalog.

Prints one JSON object: the catalog's path, and a sentence on the GPUs, and whether they are simulated. A second
argument is a label for GPUs that nvidia-smi shows and that are not this machine's own.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from gpuspawner.adoption.discovered_gpus import short_name

CATALOG = Path(__file__).with_name("catalog.yaml")
QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
MIB = "MiB"


def own_gpus() -> Counter[tuple[str, str, str]]:
    """Count this machine's GPUs by name, memory in MiB and compute capability; empty where nvidia-smi does not work."""
    try:
        result = subprocess.run(QUERY, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return Counter()
    rows = [tuple(field.strip() for field in row) for row in csv.reader(result.stdout.splitlines())]
    return Counter((row[0], row[1], row[2]) for row in rows if len(row) == 3 and row[1].isdigit())  # noqa: PLR2004


def kind_names(products: Iterable[str]) -> dict[str, str]:
    """Return the catalog name of each product: its model, for example a100, or the whole name if two share a model."""
    models = {one: re.sub(r"-[0-9]+gb$", "", slug_of(short_name(one))) for one in products}
    shared = {model for model, count in Counter(models.values()).items() if count > 1}
    return {one: slug_of(one) if model in shared or not model else model for one, model in models.items()}


def slug_of(name: str) -> str:
    """Return a name in small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def with_own(catalog: dict[str, Any], own: Counter[tuple[str, str, str]], label: str = "") -> dict[str, Any]:
    """Return a demo's catalog with the machine's or the cluster's own kinds in place of the written ones.

    Titles, which every page shows, carry the ``label``. A user may have all GPUs of
    a kind, so that another one meets a queue.
    """
    kinds, counts, names = {}, {}, kind_names(dict.fromkeys(name for name, _, _ in own))
    for (name, memory, compute), count in own.items():
        slug = names[name]
        title = f"{name} ({label})" if label else name
        kinds[slug] = {"title": title, "match": name, "memory": f"{memory}{MIB}", "compute": float(compute)}
        counts[slug] = f"1-{count}" if count > 1 else 1
    templates = dict(catalog["templates"])
    pytorch = templates.pop("pytorch")
    if kinds:
        written = {key: value for key, value in pytorch.items() if key != "substitutes"}  # they name other kinds
        template = {**written, "gpus": counts, "default": {**pytorch["default"], "gpu": next(iter(kinds))}}
        templates = {"pytorch": template, **templates}
    kept = {key: value for key, value in catalog.items() if key != "simulated"}
    return {
        **kept,
        "gpus": kinds,
        "templates": templates,
        "quotas": _quotas(catalog["quotas"], max(own.values(), default=1)),
    }


def _quotas(quotas: dict[str, Any], most: int) -> dict[str, Any]:
    """Return a demo's quotas in which a user may have at least ``most`` GPUs."""
    each = quotas["each-user"]
    hard = max(each["gpus"]["hard"], most)
    return {**quotas, "each-user": {**each, "gpus": {**each["gpus"], "hard": hard}}}


def main(data: Path, label: str = "") -> None:
    """Print what the launcher needs; writes a catalog to ``data`` where this machine has GPUs, called by ``label``."""
    catalog = yaml.safe_load(CATALOG.read_text())
    own = own_gpus()
    if own:
        path = data / "catalog.yaml"
        path.write_text(yaml.safe_dump(with_own(catalog, own, label), sort_keys=False))
        listed = ", ".join(f"{count} {name}" for (name, _, _), count in own.items())
        gpus = f"of NVIDIA's {label}: {listed}" if label else f"this machine's own: {listed}"
    else:
        path = CATALOG
        simulated = catalog["simulated"]
        listed = ", ".join(f"{count} {kind.upper()}" for kind, count in simulated.items())
        gpus = f"{sum(simulated.values())} simulated GPUs, this machine has none: {listed}"
    print(json.dumps({"catalog": str(path), "gpus": gpus, "simulated": not own}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
