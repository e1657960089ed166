"""``gpuspawner check FILE``: what the hub would say to this catalog."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict

from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.catalog_warnings import held_beyond, needing_pods, unknown_groups, without_effect
from gpuspawner.catalog.visibility import named_groups
from gpuspawner.cli.asking import call, token_of
from gpuspawner.cli.errors import AwayError, RefusedError
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
    warnings, of_pods = list(without_effect(arguments.file, catalog)), needing_pods(arguments.file, catalog)
    gpus, not_asked = catalog.simulated, ""
    if named_groups(catalog):
        there, known, not_asked = _asked_of_hub(arguments.hub)
        warnings += [] if there is None else unknown_groups(arguments.file, catalog, there)
        gpus = {**gpus, **known}
    warnings += held_beyond(arguments.file, catalog, gpus)
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
    if not_asked:
        print(not_asked)
    return 0


def _asked_of_hub(url: str | None) -> tuple[frozenset[str] | None, Mapping[str, int], str]:
    """Return the groups that the hub has and how many GPUs there are of each kind; or None, and why it is not known."""
    asked = url or os.environ.get("GPUSPAWNER_URL", "")
    if not asked or (url is None and not os.environ.get("GPUSPAWNER_TOKEN")):
        how = "set GPUSPAWNER_URL (or --hub) and GPUSPAWNER_TOKEN, an administrator's, to ask it"
        return None, {}, f"Whether the hub has the groups that it names was not looked at: {how}."
    try:
        answer = call(f"{asked.rstrip('/')}/api/v1/groups", token_of())
        offers = call(f"{asked.rstrip('/')}/api/v1/offers", token_of())["offers"]
    except (RefusedError, AwayError) as error:
        return None, {}, f"Whether the hub has the groups that it names is not known: {error}"
    totals = {one["kind"]: one["total"] for one in offers if one["total"] is not None}
    return frozenset(answer["groups"]), totals, ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
