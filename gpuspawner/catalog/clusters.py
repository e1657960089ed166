"""The schema of ``clusters``: what is written of each cluster in which workspaces may start."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

from gpuspawner.catalog.entry import Entry, ObjectName, Section, Title
from gpuspawner.catalog.parsers import LONGEST_NAME, TextOf, parse_http_url, parse_kinds, parse_labels, parse_path
from gpuspawner.catalog.rules.schedulers import SchedulerEntry
from gpuspawner.core.errors import quoted
from gpuspawner.core.units import BadValue

MOST_FACTOR = 1000
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")


def parse_factor(value: object) -> float:
    """Read by how much the prices of a cluster are multiplied."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_FACTOR:
        right = "write a number above 0, for example 0.8 for a cluster that costs 20 % less"
        raise BadValue(f"{quoted(value)} is no factor", right)
    return float(value)


def parse_host(value: object) -> str:
    """Read a host's name or address, without scheme and port."""
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        right = "write one without scheme and port, for example nodes.us-east.example.org"
        raise BadValue(f"{quoted(value)} is no name or address of a host", right)
    return value


Labels = Annotated[list[str] | None, BeforeValidator(parse_labels)]


class IngressEntry(Entry):
    """An ingress controller of a cluster: the hub makes an Ingress for each workspace."""

    url: Annotated[str | None, BeforeValidator(parse_http_url)] = None
    """Where the hub's proxy reaches the controller. It must be written."""
    class_name: ObjectName | None = None
    """The IngressClass. Default: the cluster's default one."""


class GatewayEntry(Entry):
    """A Gateway of a cluster: the hub makes an HTTPRoute for each workspace."""

    url: Annotated[str | None, BeforeValidator(parse_http_url)] = None
    """Where the hub's proxy reaches the Gateway. It must be written."""
    name: ObjectName | None = None
    """The Gateway. It must be written."""
    namespace: ObjectName | None = None
    """Where the Gateway is. Default: where workspaces are."""


class ClusterEntry(Entry):
    """A cluster in which workspaces may start. The one without ``kubeconfig`` is the hub's own."""

    title: Title = None
    """What people read: its region, for example. Default: its own name."""
    kubeconfig: Annotated[str | None, BeforeValidator(parse_path)] = None
    """A file that says how hub and service reach it. Default: it is the hub's own cluster."""
    context: Annotated[str | None, BeforeValidator(TextOf(LONGEST_NAME))] = None
    """Of that file. Default: its current one."""
    price_factor: Annotated[float | None, BeforeValidator(parse_factor)] = None
    """By how much the prices of `gpus` are multiplied there. Default: 1."""
    gpus: Annotated[list[str] | None, BeforeValidator(parse_kinds)] = None
    """The kinds of GPU that it has. Default: all."""
    data: Labels = None
    """What data lies there, as templates name it. Default: none."""
    hub: Annotated[str | None, BeforeValidator(parse_http_url)] = None
    """Where its workspaces reach the hub: what stands before the hub's base_url. It must be written but for the hub's
    own."""
    nodes: Annotated[str | None, BeforeValidator(parse_host)] = None
    """Where the hub's proxy reaches its nodes, on a NodePort of each workspace. Default: it reaches the pods' own
    addresses, where neither `ingress` nor `gateway` is written."""
    ingress: Annotated[IngressEntry, Section] = IngressEntry()
    """Where the hub's proxy reaches its workspaces by an ingress controller, instead of `nodes`."""
    gateway: Annotated[GatewayEntry, Section] = GatewayEntry()
    """Where the hub's proxy reaches its workspaces by a Gateway, instead of `nodes`."""
    scheduler: Annotated[SchedulerEntry, Section] = SchedulerEntry()
    """Who owns the queue of this cluster: `kueue`, `volcano` or `kai`. Default: gpuspawner, in one queue with all other
    clusters that it owns."""
