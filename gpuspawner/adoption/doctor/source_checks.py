"""Checks of CUDA versions, of the sources of evidence about GPU work, and of an external scheduler."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from gpuspawner import __version__
from gpuspawner.adoption.doctor.findings import Answer, Finding, bad, good, unknown
from gpuspawner.backends.kubernetes.fleet import cluster_kinds, gpus_of_node
from gpuspawner.backends.kubernetes.nodes import to_node
from gpuspawner.catalog import Catalog, Exporter, HttpSchedulerAddress
from gpuspawner.catalog.template_models import MONITOR
from gpuspawner.cli.output import counted
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import is_at_least, version_numbers
from gpuspawner.core.idle.readings import Measure
from gpuspawner.schedulers.base import UnusableScheduler
from gpuspawner.schedulers.http.client import RequestRejected, SchedulerClient
from gpuspawner.service.clock import SteadyClock
from gpuspawner.service.engine.sampling.dcgm import ask
from gpuspawner.service.engine.sampling.dcgm_values import JITTER, SOURCE, Series, missing_activity, query_of, read

CudaVersion = tuple[int, ...]
SHOWN_NODES = 3
_IN_IMAGE = (
    re.compile(r"/cuda:([0-9]{1,2})\.([0-9]{1,2})"),
    re.compile(r"(?<![a-z])cuda[-_.]?([0-9]{1,2})(?:\.([0-9]{1,2}))?"),
    re.compile(r"(?<![a-z0-9])cu([0-9]{2})([0-9])(?![0-9])"),
)
"""Forms of the CUDA version in names of images: ``nvidia/cuda:12.4.1-base``, ``cuda12.4``, ``cuda12``, ``cu124``."""


def cuda_of_image(image: str) -> CudaVersion | None:
    """Return the CUDA version in the name of an image, or None. A missing minor version counts as 0."""
    found = next((match for form in _IN_IMAGE if (match := form.search(image.lower()))), None)
    return (int(found[1]), int(found[2] or 0)) if found else None


def cuda_of_packages(versions: Mapping[str, str]) -> CudaVersion | None:
    """Return the CUDA version of installed Python packages, or None. ``versions`` has their versions by name."""
    found = [re.match(r"([0-9]{1,2})\.([0-9]{1,2})", versions[name]) for name in versions if _is_runtime(name)]
    return max(((int(match[1]), int(match[2])) for match in found if match), default=None)


def cuda_of_templates(catalog: Catalog, kinds: Iterable[str]) -> dict[str, CudaVersion]:
    """Return the CUDA version of each image of a template that offers one of these kinds, by a description."""
    offered = frozenset(kinds)
    images = {name: one.image or "" for name, one in catalog.templates.items() if not offered.isdisjoint(one.gpus)}
    told = {f"the image {image} of the template {name}": cuda_of_image(image) for name, image in images.items()}
    return {what: version for what, version in told.items() if version is not None}


def drivers_of_nodes(nodes: Iterable[Mapping[str, Any]], catalog: Catalog) -> Iterator[Finding]:
    """Compare the drivers in the labels of nodes with the CUDA versions of the templates that offer their GPUs."""
    kinds = [kind for kind in cluster_kinds(catalog.gpus).values() if kind.claim is None]
    with_any_driver = [replace(kind, driver="", cuda="") for kind in kinds]
    named = frozenset(kind.resource for kind in kinds if kind.resource)
    seen: dict[tuple[str, str, frozenset[str]], list[str]] = {}
    for item in nodes:
        node = to_node(item, named)
        if all(node.driver):
            of_a_kind = all(gpu.pool for gpu in gpus_of_node(node, (), kinds, "", ()))
            gpus = gpus_of_node(node, (), kinds if of_a_kind else with_any_driver, "", ())
            seen.setdefault((*node.driver, frozenset(gpu.pool for gpu in gpus)), []).append(node.name)
    for (driver, supported, pools), names in seen.items():
        more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
        yield from of_driver(driver, supported, catalog, pools, {}, f"on {', '.join(names[:SHOWN_NODES])}{more}")


def of_driver(
    driver: str,
    supported: str,
    catalog: Catalog,
    kinds: Iterable[str],
    more: Mapping[str, CudaVersion],
    where: str = "",
) -> Iterator[Finding]:
    """Check a driver against the templates that offer these kinds.

    Args:
        driver: its version, "" if unknown.
        supported: the highest CUDA version that it supports.
        catalog: the catalog.
        kinds: the kinds of its GPUs, by their names alone.
        more: further CUDA versions that are needed, by a description of what needs them.
        where: the location as shown to users.
    """
    if not driver:
        return
    offered, called = frozenset(kinds), f"the driver {driver}{' ' if where else ''}{where}"
    for name, template in catalog.templates.items():
        if offered.isdisjoint(template.gpus):
            continue
        remedy = f"Update the driver, or lower needs of the template {name}."
        if not is_at_least(driver, needed := template.needs.driver):
            yield bad("driver", f"The template {name} needs driver {needed} and gets no GPU of {called}.", remedy)
        if not is_at_least(supported, needed := template.needs.cuda):
            words = f"The template {name} needs CUDA {needed} and gets no GPU of {called}, which supports {supported}."
            yield bad("CUDA", words, remedy)
    needed_cuda = {**more, **cuda_of_templates(catalog, offered)}
    yield from driver_supports(driver, version_numbers(supported), needed_cuda, where)


def driver_supports(
    driver: str, supported: CudaVersion, needed: Mapping[str, CudaVersion], where: str = ""
) -> Iterable[Finding]:
    """Check a driver against the CUDA versions that are needed.

    Args:
        driver: its version.
        supported: the highest CUDA version that it supports.
        needed: CUDA versions by the name of their source, for example "the image of the template pytorch".
        where: the location as shown to users, for example "on gpu-node". "" on this machine.
    """
    driver = f"the driver {driver}{' ' if where else ''}{where}"
    found = []
    for what, version in needed.items():
        too_old = f"{what} has CUDA {shown(version)}, and {driver} supports CUDA up to {shown(supported)}"
        too_old = too_old[0].upper() + too_old[1:]
        remedy = f"Update the driver, or use packages for CUDA {shown(supported)}."
        if version[0] > supported[0]:
            found.append(bad("CUDA", f"{too_old}: its programs find no GPU.", remedy))
        elif version > supported:
            found.append(unknown("CUDA", f"{too_old}: programs that compile GPU code while they run fail.", remedy))
    if not found and needed:
        return [
            good("CUDA", f"{driver[0].upper()}{driver[1:]} supports CUDA up to {shown(supported)}, which is enough.")
        ]
    return found


def shown(version: CudaVersion) -> str:
    """Return a version with a point: ``12.4``."""
    return f"{version[0]}.{version[1]}"


def _is_runtime(package: str) -> bool:
    return re.fullmatch(r"nvidia[-_]cuda[-_]runtime([-_]cu[0-9]+)?", package.lower()) is not None


PAGE = "docs/how-to/administrators/dcgm.md says how."
INSTALL = (
    "Install gpuspawner[workspace], which brings nvidia-ml-py, where workspaces run. On Kubernetes, that is the image."
)
NAMES_SHOWN = 5


def of_exporter(catalog: Catalog | None) -> Iterable[Finding]:
    """Check the metrics of DCGM exporter in the catalog's Prometheus, if the catalog names one."""
    if catalog is None or catalog.exporter is None:
        return
    try:
        clock = SteadyClock()
        body, ahead_seconds = asyncio.run(ask(catalog.exporter, clock, query_of(catalog.exporter)))
        series, refused = read(body, catalog.exporter, ahead_seconds, clock.now())
    except Unavailable as error:
        remedy = "Correct readings.prometheus in the catalog. Ask from where the service runs."
        yield bad(SOURCE, str(error), remedy)
    else:
        yield judge_exporter(catalog.exporter, series, refused)


def judge_exporter(exporter: Exporter, series: Sequence[Series], refused: str) -> Finding:
    """Judge the series of DCGM exporter in Prometheus. ``refused`` names the metrics that contradict the catalog."""
    if refused:
        return bad(SOURCE, refused, f"Correct readings in the catalog. {PAGE}")
    if not series:
        words = f"Prometheus at {exporter.url} has no metric of DCGM exporter."
        return bad(
            SOURCE,
            words,
            "Configure it to scrape the exporter on each node with GPUs, or correct the names in readings:.",
        )
    if missing := missing_activity(exporter, series):
        return bad(SOURCE, missing, PAGE)
    of_activity = [one for one in series if one.metric.measure is Measure.ENGINE]
    gaps = [later - earlier for one in of_activity for earlier, later in pairwise(sorted(one.values))]
    if gaps and (seconds := median(gaps)) > JITTER * exporter.interval_seconds:
        words = (
            f"Prometheus has a value of {SOURCE} every {seconds:.0f} s, and the exporter collects every "
            f"{exporter.interval_seconds:.0f} s: the service misses the values in between."
        )
        return bad(
            SOURCE, words, "Scrape it as often as it collects, or set readings: interval: and DCGM_EXPORTER_INTERVAL."
        )
    count = len({(one.uuid, one.instance) for one in of_activity or series})
    what = "engine activity" if of_activity else "utilization"
    return good(SOURCE, f"{SOURCE} reports the {what} of {counted(count, 'GPU')}.")


def monitor_here() -> Finding:
    """Judge whether the GPU monitor can run in workspaces of this machine. They use this Python."""
    if importlib.util.find_spec("pynvml") is not None:
        return good("GPU monitor", "This Python has nvidia-ml-py. Workspaces that use it can run the GPU monitor.")
    words = "This Python has no nvidia-ml-py. Workspaces that use it run no GPU monitor, and short work is missed."
    return bad("GPU monitor", words, "pip install 'gpuspawner[workspace]'")


def monitors_running(answer: Answer) -> Iterable[Finding]:
    """Check whether the GPU monitor runs in workspaces with GPUs. ``answer`` is the service's list of workspaces."""
    found = answer.body.get("workspaces") if answer.ok and isinstance(answer.body, dict) else None
    if not isinstance(found, list):
        remedy = "Ask with an administrator's token: --token-file."
        yield unknown("GPU monitor", "The service did not say whether the GPU monitor runs in workspaces.", remedy)
        return
    judged = [one for one in found if isinstance(one, dict) and _monitored(one) is not None]
    without = [one for one in judged if not _monitored(one)]
    if without:
        templates = sorted({str(one.get("template")) for one in without})
        named = ", ".join(templates[:NAMES_SHOWN])
        words = f"The GPU monitor does not run in {len(without)} of {len(judged)} workspaces with GPUs ({named})."
        yield bad("GPU monitor", words, INSTALL)
    elif judged:
        yield good("GPU monitor", f"The GPU monitor runs in each of the {len(judged)} workspaces with GPUs.")


def _monitored(workspace: Mapping[str, Any]) -> bool | None:
    idle = workspace.get("idle")
    return idle.get(MONITOR) if isinstance(idle, dict) else None


CHECK = "scheduler"


def of_scheduler(catalog: Catalog | None) -> Iterable[Finding]:
    """Yield findings of the catalog's scheduler, if gpuspawner does not own the queue."""
    if catalog is None or not isinstance(catalog.scheduler, HttpSchedulerAddress):
        return
    try:
        told = asyncio.run(SchedulerClient(catalog.scheduler, "doctor").capabilities())
    except UnusableScheduler as error:
        remedy = "docs/how-to/administrators/external-scheduler.md says what gpuspawner needs."
        yield bad(CHECK, str(error), remedy)
    except (Unavailable, RequestRejected) as error:
        remedy = "Is it running? Check url and token_file of the catalog's scheduler. A network policy may block it."
        yield bad(CHECK, str(error), remedy)
    else:
        words = f"{told.name} {told.version} owns the queue (contract {told.contract}, gpuspawner {__version__})."
        yield good(CHECK, words)
