"""Several clusters: the kinds of each, and what templates offer of them.

A kind is one of its own in each cluster: it has that cluster's price, and may be taken instead of the same kind in
another, where its user consents and both are in one queue. So queue, estimates and budgets need to know nothing of
clusters; quotas count a kind in all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpuspawner.catalog.building.build_scheduler import build_scheduler
from gpuspawner.catalog.building.extends import Named
from gpuspawner.catalog.clusters import ClusterEntry
from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.models import CatalogEntry
from gpuspawner.catalog.names import did_you_mean
from gpuspawner.catalog.values import Catalog, Cluster, KueueQueues, PodQueues, Route, Template
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.names import name_in

PRICE_DIGITS = 6


def build_clusters(
    entries: CatalogEntry, named: Named, known_teams: Collection[str], issues: list[Issue]
) -> Mapping[str, Cluster]:
    """Return the clusters, adding an issue for each thing wrong."""
    written = entries.clusters
    if written and not named.is_wrong("clusters"):
        own = [name for name, one in written.items() if one.kubeconfig is None]
        if len(own) != 1:
            wrong = "none is the hub's own" if not own else f"{' and '.join(own)} have no kubeconfig"
            right = "let exactly one be without kubeconfig: the cluster that the hub itself uses"
            issues.append(Issue(("clusters",), wrong, right))
        if entries.scheduler.model_fields_set:
            right = "write it in the cluster whose queue that is, for example clusters: {us-east: {scheduler: ...}}"
            issues.append(Issue(("scheduler",), "several clusters have no queue of one scheduler", right))
        for name, one in written.items():
            issues.extend(_wrong(name, one, entries, named, own))
    return MappingProxyType(
        {
            name: Cluster(
                name,
                one.title or name,
                kubeconfig=one.kubeconfig or "",
                context=one.context or "",
                price_factor=one.price_factor or 1.0,
                data=frozenset(one.data or ()),
                hub=one.hub or "",
                nodes=one.nodes or "",
                route=_route(one),
                scheduler=_scheduler(name, one, named, known_teams, issues),
            )
            for name, one in written.items()
        }
    )


def _scheduler(
    name: str, one: ClusterEntry, named: Named, known_teams: Collection[str], issues: list[Issue]
) -> KueueQueues | PodQueues | None:
    loc: Loc = ("clusters", name, "scheduler")
    if "http" in one.scheduler.model_fields_set:
        right = "name kueue, volcano or kai, or write scheduler: beside no clusters:"
        issues.append(Issue((*loc, "http"), "what speaks http decides about one cluster alone", right))
        return None
    found = build_scheduler(one.scheduler, named, known_teams, issues, loc)
    return found if isinstance(found, (KueueQueues, PodQueues)) else None


def _route(one: ClusterEntry) -> Route | None:
    if one.gateway.url is not None:
        return Route(one.gateway.url, gateway=one.gateway.name or "", namespace=one.gateway.namespace or "")
    return None if one.ingress.url is None else Route(one.ingress.url, one.ingress.class_name or "")


def _wrong(name: str, one: ClusterEntry, entries: CatalogEntry, named: Named, own: Sequence[str]) -> Iterable[Issue]:
    loc: Loc = ("clusters", name)
    if one.context is not None and one.kubeconfig is None:
        yield Issue((*loc, "context"), "of which kubeconfig is not said", "add kubeconfig: with its file")
    if name not in own and one.hub is None and named.knows("clusters", name, ("hub",)):
        right = "add hub: with that address, for example hub: https://hub.example.org"
        yield Issue(loc, "where its workspaces reach the hub is not said", right)
    yield from _wrong_ways(loc, one, named)
    for kind in one.gpus or ():
        whole = entries.gpus[kind].of if kind in entries.gpus else None
        if not named.has("gpus", kind):
            yield Issue((*loc, "gpus"), f"no GPU kind is called `{kind}`", did_you_mean(kind, entries.gpus))
        elif whole is not None and whole not in (one.gpus or ()):
            yield Issue((*loc, "gpus"), f"`{kind}` divides `{whole}`, which is not there", f"add {whole}")


def _wrong_ways(loc: Loc, one: ClusterEntry, named: Named) -> Iterable[Issue]:
    """Yield what is wrong with how the hub's proxy reaches a cluster's workspaces."""
    ways = [way for way in ("nodes", "ingress", "gateway") if way in one.model_fields_set]
    if len(ways) > 1:
        right = f"keep one of {', '.join(ways[:-1])} and {ways[-1]}"
        yield Issue(loc, "the hub's proxy can't reach a workspace in two ways", right)
    missing = [("ingress", "url", one.ingress.url), ("gateway", "url", one.gateway.url)]
    for way, key, value in [*missing, ("gateway", "name", one.gateway.name)]:
        if way in ways and value is None and named.knows("clusters", str(loc[-1]), (way,)):
            example = "https://workspaces.us-east.example.org" if key == "url" else "public"
            yield Issue((*loc, way), f"its {key} is not said", f"add {key}:, for example {key}: {example}")


def across(catalog: Catalog, has: Mapping[str, Sequence[str] | None]) -> Catalog:
    """Return a catalog with its kinds as each cluster has them; itself where it names no cluster.

    ``has`` says which kinds each cluster has; None is all. The first cluster that has a kind has it by its own name.
    """
    if not catalog.clusters:
        return catalog
    variants: dict[str, dict[str, GpuKind]] = {}
    names: dict[tuple[str, str], str] = {}
    for kind in catalog.gpus:
        here = [name for name in catalog.clusters if (only := has[name]) is None or kind in only]
        names |= {(kind, name): kind if at == 0 else name_in(name, kind) for at, name in enumerate(here)}
    for kind, cluster in names:
        made = _in_cluster(catalog.gpus[kind], catalog.clusters[cluster], names, many=len(catalog.clusters) > 1)
        variants.setdefault(kind, {})[cluster] = made
    kinds = {one.name: one for found in variants.values() for one in found.values()}
    templates = {name: _offered(one, catalog, variants) for name, one in catalog.templates.items()}
    return replace(catalog, gpus=MappingProxyType(kinds), templates=MappingProxyType(templates))


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
    )


def _offered(template: Template, catalog: Catalog, variants: Mapping[str, Mapping[str, GpuKind]]) -> Template:
    """Return a template with its kinds in every cluster: those first that have its data, then as they are written.

    Instead of a kind in one cluster, people may take it in another; then what the template gives instead, in the same
    cluster first. Nothing of a cluster whose scheduler owns its queue is taken instead elsewhere, nor the other way:
    a request stands in one queue.
    """
    ordered = sorted(catalog.clusters.values(), key=lambda one: not one.data.issuperset(template.data))

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
        gpus=MappingProxyType(gpus),
        substitutes=MappingProxyType(offered),
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
