"""Where a workspace would start, and what another cluster would bring: read before Start."""

from __future__ import annotations

from collections.abc import Mapping

from gpuspawner.catalog import Catalog, Cluster
from gpuspawner.core.gpus.fleet import GpuKind, catalog_kind_name
from gpuspawner.core.leases.request import Request
from gpuspawner.service.tell.rules.teams import sooner


def where_words(
    catalog: Catalog, request: Request, kind: str, alone_seconds: float | None, seconds: Mapping[str, float | None]
) -> str:
    """Return where a start would be, and in which clusters the same kind starts sooner or costs otherwise.

    Args:
        catalog: with its kinds in each cluster; one cluster is no choice, and gives "".
        request: what is asked for.
        kind: what would be given.
        alone_seconds: when it would start.
        seconds: of each kind that may be taken instead, when that would start. None is unknown.
    """
    own = catalog.gpus[kind]
    template = catalog.templates.get(request.template)
    if not own.where or template is None:
        return ""
    its_data = _has_data(_cluster(catalog, own), template.data)
    words = [f"In {own.where}{', where its data is' if its_data else ''}"]
    for name, starts in seconds.items():
        other = catalog.gpus[name]
        if catalog_kind_name(name) != catalog_kind_name(kind) or name == kind:
            continue
        brings = [*filter(None, (_starts(alone_seconds, starts), _costs(own, other)))]
        if brings:
            words.append(f"{other.where} {' and '.join(brings)}")
    return f"{'; '.join(words)}." if its_data or words[1:] else ""


def _cluster(catalog: Catalog, kind: GpuKind) -> Cluster:
    """Return the cluster of a kind; the hub's own has no kubeconfig."""
    return next(one for one in catalog.clusters.values() if kind.cluster == (one.name if one.kubeconfig else ""))


def _has_data(cluster: Cluster, data: tuple[str, ...]) -> bool:
    return bool(data) and cluster.data.issuperset(data)


def _starts(alone_seconds: float | None, seconds: float | None) -> str:
    """Return whether another cluster starts it sooner; "" where it does not."""
    if seconds is None or alone_seconds == 0:
        return ""
    if seconds == 0:
        return "starts now"
    words = sooner(alone_seconds, seconds)
    return f"starts {words}" if words.startswith(("about", "in about")) else ""


def _costs(own: GpuKind, other: GpuKind) -> str:
    """Return what another cluster's costs beside this one's, in per cent; "" where that is the same, or not known."""
    if not own.price_per_hour or other.price_per_hour is None:
        return ""
    percent = round(100 * (other.price_per_hour / own.price_per_hour - 1))
    return f"costs {abs(percent)} % {'less' if percent < 0 else 'more'}" if percent else ""
