"""``gpuspawner check FILE``: what the hub would say to this catalog."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import CatalogError


def check(arguments: argparse.Namespace) -> int:
    """Print every problem and return 1, or say what the catalog holds and return 0."""
    try:
        catalog = load_catalog(arguments.file)
    except CatalogError as error:
        if arguments.json:
            print(json.dumps({"problems": [asdict(problem) for problem in error.problems]}, indent=1))
        else:
            print(error, file=sys.stderr)
        return 1
    counts = (
        f"{len(catalog.templates)} templates",
        f"{len(catalog.gpus)} GPU kinds",
        f"{len(catalog.policies)} policies",
    )
    print(json.dumps({"problems": []}) if arguments.json else f"{arguments.file}: good ({', '.join(counts)}).")
    return 0
