"""``gpuspawner server check``: what the hub would say of a catalog."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict

import click

from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.load import held_beyond, needing_pods, unknown_groups, without_effect
from gpuspawner.catalog.requests.visibility import named_groups
from gpuspawner.cli import base
from gpuspawner.cli.client import Session
from gpuspawner.cli.errors import INVALID, AwayError, RefusedError
from gpuspawner.cli.output import counted, print_json, say, say_lines, say_progress
from gpuspawner.core.errors import CatalogError

HUB_HELP = (
    "Address of the service behind the hub. With an administrator's $GPUSPAWNER_TOKEN it is asked whether the hub has "
    "the groups that the catalog names. Default: $GPUSPAWNER_URL."
)


@base.command("check", examples="gpuspawner server check catalog.yaml")
@click.argument("file")
@click.option("--hub", metavar="URL", help=HUB_HELP)
@base.json_option
def check(file: str, hub: str | None, *, as_json: bool) -> int:
    """Check a catalog: every error at once, with file, line and remedy."""
    try:
        catalog = load_catalog(file)
    except CatalogError as error:
        if as_json:
            print_json({"problems": [asdict(problem) for problem in error.problems]})
        else:
            say_lines(str(error), to_stderr=True)
        return INVALID
    warnings, need_pods = list(without_effect(file, catalog)), needing_pods(file, catalog)
    gpus, not_asked = catalog.simulated, ""
    if named_groups(catalog):
        groups, totals, not_asked = _ask_hub(hub)
        warnings += [] if groups is None else unknown_groups(file, catalog, groups)
        gpus = {**gpus, **totals}
    warnings += held_beyond(file, catalog, gpus)
    if as_json:
        found = {"problems": (), "warnings": warnings, "needs_kubespawner": need_pods}
        print_json({key: [asdict(one) for one in each] for key, each in found.items()})
        return 0
    for warning in warnings:
        say_progress(f"warning: {warning}")
    counts = (
        counted(len(catalog.templates), "template"),
        counted(len(catalog.gpus), "GPU kind"),
        counted(len(catalog.policies), "policy", "policies"),
    )
    say(f"{file}: good ({', '.join(counts)}).")
    if need_pods:
        more = f" and {len(need_pods) - 1} more" if len(need_pods) > 1 else ""
        say(f"Only for a hub with KubeSpawner: {need_pods[0].entry}{more}. Another hub does not start with it.")
    if not_asked:
        say(not_asked)
    return 0


def _ask_hub(url: str | None) -> tuple[frozenset[str] | None, Mapping[str, int], str]:
    """Return the hub's groups and the number of GPUs of each kind. Without an answer, return None and the reason."""
    address = url or os.environ.get("GPUSPAWNER_URL", "")
    if not address or (url is None and not os.environ.get("GPUSPAWNER_TOKEN")):
        how = "To ask it, set GPUSPAWNER_URL (or --hub) and an administrator's GPUSPAWNER_TOKEN."
        return None, {}, f"The hub was not asked whether it has the groups of this catalog. {how}"
    session = Session(address)
    try:
        groups, offers = session.ask("/groups")["groups"], session.ask("/offers")["offers"]
    except (RefusedError, AwayError) as error:
        return None, {}, f"It is not known whether the hub has the groups of this catalog. {error}"
    return frozenset(groups), {one["kind"]: one["total"] for one in offers if one["total"] is not None}, ""
