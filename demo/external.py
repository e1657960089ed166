"""For `make run SCHEDULER=http`: the demo's GPUs as the reference scheduler's, and the catalog that names it.

Writes both files, and a token. The GPUs of one machine represent two clusters: the scheduler names the node and the
number, and the hub's backend chooses the GPUs.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
from pathlib import Path
from typing import Any

import yaml

NEAR, FAR = "onsite", "cloud"
IN_THE_CLOUD = "h100"
"""The kind that the second cluster has, where the machine has others too."""
FAR_COSTS = 1.5
WARNED = {"vision": 2}
"""Number of GPUs above which a team is warned."""


def inventory_of(catalog: dict[str, Any], node: str) -> dict[str, Any]:
    """Return a catalog's GPUs as those of two clusters."""
    counts = catalog.get("simulated") or _own(catalog)
    far = [kind for kind in counts if kind == IN_THE_CLOUD and len(counts) > 1]
    near = [kind for kind in counts if kind not in far]
    price = {kind: float(catalog["gpus"][kind].get("price", 1.0)) for kind in counts}
    clusters = [
        {"name": name, "near": name == NEAR, "price": priced, "nodes": {node: {kind: counts[kind] for kind in kinds}}}
        for name, kinds, priced in (
            (NEAR, near, price),
            (FAR, far, {kind: round(FAR_COSTS * one, 2) for kind, one in price.items()}),
        )
        if kinds
    ]
    return {"clusters": clusters, "quotas": WARNED}


def _own(catalog: dict[str, Any]) -> dict[str, int]:
    """The machine's own GPUs: the catalog made of them offers all ("1-4") of each kind."""
    offered = catalog["templates"]["pytorch"]["gpus"]
    return {kind: int(str(most).rpartition("-")[2]) for kind, most in offered.items()}


def catalog_of(catalog: dict[str, Any], url: str, token: Path, callback: str) -> dict[str, Any]:
    """Return a catalog whose queue is the scheduler's: without quotas of its own, and without shares of GPUs."""
    whole = {name: kind for name, kind in catalog["gpus"].items() if "of" not in kind}
    templates = {
        name: {
            **one,
            **({"gpus": {kind: most for kind, most in one["gpus"].items() if kind in whole}} if "gpus" in one else {}),
        }
        for name, one in catalog["templates"].items()
    }
    named = {"url": url, "token_file": str(token), "callback": callback}
    kept = {name: value for name, value in catalog.items() if name != "quotas"}
    return {**kept, "gpus": whole, "templates": templates, "scheduler": {"http": named}}


def main(data: Path, catalog: Path, url: str, callback: str) -> None:
    """Write `inventory.yaml`, `catalog.yaml` and `token` into ``data``."""
    told = yaml.safe_load(catalog.read_text())
    data.mkdir(mode=0o700, exist_ok=True)
    token = data / "token"
    if not token.exists():
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_urlsafe(32))
    (data / "inventory.yaml").write_text(yaml.safe_dump(inventory_of(told, platform.node()), sort_keys=False))
    named = catalog_of(told, url, token, callback)
    (data / "catalog.yaml").write_text(yaml.safe_dump(named, sort_keys=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
