"""Catalogs made of a catalog: with a GPU kind for each cluster, and with shorter times.

Each cluster has a kind of its own for each GPU kind, with that cluster's price. It may be given instead of the same
kind in another cluster, if the user consents and both clusters share a queue. Queue, estimates and budgets therefore
ignore clusters. Quotas count a kind in all clusters together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

from gpuspawner.catalog.cluster_models import Cluster
from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.template_models import Template
from gpuspawner.core.gpus.fleet import GpuKind, kind_in_cluster
from gpuspawner.core.text_fields import CHEAPEST

PRICE_DIGITS = 6


def spread_over_clusters(catalog: Catalog) -> Catalog:
    """Return a catalog with a GPU kind for each cluster that has it, or the catalog itself if it names no cluster.

    The first cluster that has a kind keeps the kind's own name.
    """
    if not catalog.clusters:
        return catalog
    variants: dict[str, dict[str, GpuKind]] = {}
    names: dict[tuple[str, str], str] = {}
    for kind in catalog.gpus:
        here = [name for name in catalog.clusters if (only := catalog.clusters[name].gpus) is None or kind in only]
        names |= {(kind, name): kind if at == 0 else kind_in_cluster(name, kind) for at, name in enumerate(here)}
    for kind, cluster in names:
        made = _in_cluster(catalog.gpus[kind], catalog.clusters[cluster], names, many=len(catalog.clusters) > 1)
        variants.setdefault(kind, {})[cluster] = made
    kinds = {one.name: one for found in variants.values() for one in found.values()}
    templates = {name: _offered(one, catalog, variants) for name, one in catalog.templates.items()}
    return replace(catalog, gpus=kinds, templates=templates)


def _in_cluster(kind: GpuKind, cluster: Cluster, names: Mapping[tuple[str, str], str], *, many: bool) -> GpuKind:
    price, owner = kind.price_per_hour, cluster.scheduler
    where = cluster.title if owner is None else f"{cluster.title} ({owner.title}'s queue)"
    return replace(
        kind,
        name=names[kind.name, cluster.name],
        title=f"{kind.title} in {where}" if many else kind.title,
        where=where if many else "",
        cluster=cluster.name if cluster.kubeconfig else "",
        of=None if kind.of is None else names[kind.of, cluster.name],
        price_per_hour=None if price is None else round(price * cluster.price_factor, PRICE_DIGITS),
        price_changes=tuple(
            (day, round(each * cluster.price_factor, PRICE_DIGITS)) for day, each in kind.price_changes
        ),
    )


def _offered(template: Template, catalog: Catalog, variants: Mapping[str, Mapping[str, GpuKind]]) -> Template:
    """Return a template with its kinds in every cluster.

    Clusters that have the template's data come first, then the others in the catalog's order. With ``place: cheapest``
    cheaper clusters come before those. A user may take a kind in another cluster instead. Next come the template's
    substitutes, in the same cluster first. A cluster whose scheduler owns its queue shares no substitutes with others.
    A request waits in one queue only.
    """
    ordered = sorted(catalog.clusters.values(), key=lambda one: not one.data.issuperset(template.data))
    if template.place == CHEAPEST:
        ordered.sort(key=lambda one: one.price_factor)
    queue_of = {one.name: one.name if one.scheduler else "" for one in ordered}
    in_queue = {queue: [one for one in ordered if queue_of[one.name] == queue] for queue in queue_of.values()}

    def ones(kind: str, first: str = "") -> list[str]:
        found = variants.get(kind, {})
        places = sorted(in_queue[queue_of[first]], key=lambda one: one.name != first) if first else ordered
        return [found[one.name].name for one in places if one.name in found]

    gpus: dict[str, tuple[int, int]] = {}
    substitutes: dict[str, tuple[str, ...]] = {}
    for kind, counts in template.gpus.items():
        for cluster, made in variants.get(kind, {}).items():
            others = [kind, *template.substitutes.get(kind, ())]
            taken = [name for other in others for name in ones(other, cluster) if name != made.name]
            substitutes[made.name] = tuple(taken)
        gpus |= dict.fromkeys(ones(kind), counts)
    default = template.default
    if default.gpu is not None:
        usual = next(iter(ones(default.gpu)), None) or next(iter(gpus), None)
        default = replace(default, gpu=usual, count=default.count if usual else 0)
    offered = {kind: taken for kind, taken in substitutes.items() if taken}
    where = {kind.cluster for found in variants.values() for kind in found.values() if kind.name in gpus}
    words = _where_words(template, [one for one in ordered if (one.name if one.kubeconfig else "") in where])
    return replace(
        template,
        gpus=gpus,
        substitutes=offered,
        default=default,
        description=" ".join(filter(None, (template.description, words))),
    )


def _where_words(template: Template, clusters: Sequence[Cluster]) -> str:
    """Return where the data of a template lies, what another cluster costs, and whose home is where."""
    if len(clusters) < 2:  # noqa: PLR2004 - there is nothing to choose
        return ""
    first = clusters[0]
    having = [one.title for one in clusters if template.data and one.data.issuperset(template.data)]
    words = [f"Its data is in {' and '.join(having)}."] if having else []
    for one in clusters[1:]:
        percent = round(100 * (one.price_factor / first.price_factor - 1))
        if percent:
            words.append(f"{one.title} costs {abs(percent)} % {'less' if percent < 0 else 'more'} than {first.title}.")
    return " ".join([*words, "Each cluster has a home of its own: what you save in one is not in the other."])


T = TypeVar("T")

MOST_FACTOR = 3600
"""By a larger factor an hour is less than a second."""


def scaled(catalog: Catalog, factor: float) -> Catalog:
    """Return the catalog with every time divided by ``factor``.

    Percentages, counts, budgets of usage and hours of the day stay. So do times that a real program needs. Lifetimes
    stay whole seconds, at least one.

    Raises:
        ValueError: the factor is not from 1 to 3600.
    """
    if not 1 <= factor <= MOST_FACTOR:
        raise ValueError(f"times can be shortened by a factor from 1 to {MOST_FACTOR}, not {factor}")
    policies = {name: _shorten(one, factor).with_name(name) for name, one in catalog.policies.items()}
    return replace(
        catalog,
        policies=policies,
        templates=_shorten_each(catalog.templates, factor),
        clusters=_shorten_each(catalog.clusters, factor),
        rules=replace(catalog.rules, make_room=_shorten(catalog.rules.make_room, factor)),
        scheduler=_shorten(catalog.scheduler, factor),
        fast=factor * (catalog.fast or 1.0),
    )


def _shorten_each(section: Mapping[str, T], factor: float) -> Mapping[str, T]:
    return {name: _shorten(one, factor) for name, one in section.items()}


def _shorten(value: T, factor: float) -> T:
    """Return a section with each time in it, and in the sections below it, divided by ``factor``."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for key in keys_of(type(value)).values():
        now = getattr(value, key.field)
        if key.reader is not None and key.reader.is_time:
            changed[key.field] = _divide(now, factor)
        elif key.section is not None and not key.container:
            changed[key.field] = _shorten(now, factor)
    return replace(value, **changed)


def _divide(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_divide(one, factor) for one in value)
    if isinstance(value, int):
        return max(1, round(value / factor))
    return None if value is None else value / factor
