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
    warnings = (*needing_pods(arguments.file, catalog), *without_effect(arguments.file, catalog))
    counts = (
        _count(len(catalog.templates), "template", "templates"),
        _count(len(catalog.gpus), "GPU kind", "GPU kinds"),
        _count(len(catalog.policies), "policy", "policies"),
    )
    if arguments.json:
        print(json.dumps({"problems": [], "warnings": [asdict(warning) for warning in warnings]}, indent=1))
        return 0
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{arguments.file}: good ({', '.join(counts)}).")
    return 0


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
