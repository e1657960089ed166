"""``gpuspawner crd``: the custom resources' definitions, as a cluster takes them."""

from __future__ import annotations

import argparse

import yaml

from gpuspawner.catalog.resources.definitions import everything


def text() -> str:
    """Return the definitions, the admission policy and its binding as YAML."""
    return yaml.safe_dump_all(everything(), sort_keys=False, width=120, allow_unicode=True)


def print_crds(_arguments: argparse.Namespace) -> int:
    """Print them."""
    print(text(), end="")
    return 0
