"""``gpuspawner check FILE``: what the hub would say to this catalog."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.warnings import needing_pods, without_effect
from gpuspawner.core.errors import CatalogError


def check(arguments: argparse.Namespace) -> int:
    """Print every problem and return 1; or warnings and what the catalog holds, and return 0."""
    try:
        catalog = load_catalog(arguments.file)
    except CatalogError as error:
        if arguments.json:
            print(json.dumps({"problems": [asdict(problem) for problem in error.problems]}, indent=1))
        else:
            print(error, file=sys.stderr)
        return 1
    warnings, of_pods = without_effect(arguments.file, catalog), needing_pods(arguments.file, catalog)
    counts = (
        _count(len(catalog.templates), "template", "templates"),
        _count(len(catalog.gpus), "GPU kind", "GPU kinds"),
        _count(len(catalog.policies), "policy", "policies"),
    )
    if arguments.json:
        found = {"problems": (), "warnings": warnings, "needs_kubespawner": of_pods}
        print(json.dumps({key: [asdict(one) for one in each] for key, each in found.items()}, indent=1))
        return 0
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{arguments.file}: good ({', '.join(counts)}).")
    if of_pods:
        more = f" and {len(of_pods) - 1} more" if len(of_pods) > 1 else ""
        print(f"For a hub with KubeSpawner alone: {of_pods[0].entry}{more}. Another hub does not start with it.")
    return 0


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
