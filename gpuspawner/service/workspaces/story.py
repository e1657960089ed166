"""What a page tells of one workspace beyond the API's view: its chart, its history in words, its end, links on."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any
from urllib.parse import quote, urlencode

from gpuspawner.catalog import LINKED, PAGES, to_options
from gpuspawner.core.leases.events import Stopped, WarnedIdle
from gpuspawner.core.leases.exits import EXIT_KINDS, UNKNOWN, ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.lifetimes import deciding_since
from gpuspawner.core.leases.step_results import EVIDENCE_SECONDS
from gpuspawner.core.leases.stored_events import Other
from gpuspawner.core.quotas.ledger import ledger_lines_until
from gpuspawner.core.rules import BudgetUnit
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.store import AuditLine, ReadingRow
from gpuspawner.service.store.readings import RAW_SECONDS
from gpuspawner.service.waiting.presenter import given_instead, gpu_title, gpus_asked
from gpuspawner.service.workspaces.chart import Axis, Band, Mark, Panel, in_rows, panels
from gpuspawner.service.workspaces.presenter import is_simulated

IDLE_TIMES_SHOWN = 6
"""The chart shows six times the policy's idle minutes: three hours of the default's half hour."""
LONGEST_SHOWN_SECONDS = 12 * 3600.0
ROWS_SHOWN = 60
"""Samples in the table of numbers; all of them are in the API."""
MARKS_SHOWN = 9


@dataclass(frozen=True)
class ChartView:
    """All that the chart's template draws. ``deciding`` is the time that led to the stop."""

    axis: Axis
    panels: tuple[Panel, ...]
    marks: tuple[Mark, ...]
    graces: tuple[Band, ...]
    deciding: Band | None
    below_percent: float
    samples: list[tuple[float, dict[str, ReadingRow]]]
    active_counts: bool
    """Whether its policy counts any of the softer evidence that was seen."""


def chart_of(parts: Parts, lease: Lease, rows: Sequence[ReadingRow], lines: Sequence[AuditLine]) -> ChartView | None:
    """Return the chart of a workspace: up to now, or up to the decision to stop it.

    None where it never ran on a GPU, and where its readings have been thinned since it ended.
    """
    since = lease.running_at or lease.granted_at
    if not lease.slots or since is None or (lease.running_at is None and not rows):
        return None
    now = parts.clock.now()
    idle = policy_of(parts.catalog, lease, now).idle
    stopped_at = max((line.at for line in lines if isinstance(line.event, Stopped)), default=lease.ended_at)
    thinned = stopped_at is not None and stopped_at < now - RAW_SECONDS
    if thinned and not any(row.kept for row in rows):
        return None
    end = now if stopped_at is None else stopped_at
    if stopped_at is None and lease.sampled_at is not None and now - lease.sampled_at < 2 * idle.sample_seconds:
        end = lease.sampled_at  # the next sample is not late: what it will show is not unknown yet
    span_seconds = min(IDLE_TIMES_SHOWN * idle.for_seconds, LONGEST_SHOWN_SECONDS)
    axis = Axis(max(since, end - span_seconds), end, time.localtime(end).tm_gmtoff)
    deciding = None
    if lease.reason is ExitReason.IDLE and lease.sampled_at is not None:
        deciding = axis.band(deciding_since(lease, EVIDENCE_SECONDS), end)
    return ChartView(
        axis,
        panels(rows, (slot.gpu for slot in lease.slots), axis, idle.below_percent),
        _marks(lines, axis),
        _graces(lines, axis),
        deciding,
        idle.below_percent,
        _samples(rows, axis),
        not _active(rows).isdisjoint(idle.soft_names),
    )


def _active(rows: Iterable[ReadingRow]) -> set[str]:
    """Return which softer evidence was seen."""
    return {name for row in rows for name, one in (row.soft or {}).items() if one["active"]}


def _marks(lines: Iterable[AuditLine], axis: Axis) -> tuple[Mark, ...]:
    """Return what happened within the chart, oldest first, lettered."""
    shown = sorted((x for x in lines if x.event.marked and x.at >= axis.start), key=lambda x: x.at)[-MARKS_SHOWN:]
    return in_rows(
        Mark(line.at, letter, history_words(line), axis.left(line.at))
        for letter, line in zip(ascii_uppercase, shown, strict=False)
    )


def _graces(lines: Iterable[AuditLine], axis: Axis) -> tuple[Band, ...]:
    """Return the stretches between an idle warning and what ended it."""
    bands, begun = [], None
    for line in sorted(lines, key=lambda x: x.at):
        if isinstance(line.event, WarnedIdle):
            begun = line.at
        elif begun is not None and line.event.ends_grace:
            bands.append((begun, line.at))
            begun = None
    if begun is not None:
        bands.append((begun, axis.end))
    return tuple(axis.band(start, end) for start, end in bands if end > axis.start)


def _samples(rows: Iterable[ReadingRow], axis: Axis) -> list[tuple[float, dict[str, ReadingRow]]]:
    """Return the newest samples of the chart, newest first: time, and each GPU's reading."""
    samples: dict[float, dict[str, ReadingRow]] = {}
    for row in rows:
        if axis.start <= row.at <= axis.end:
            samples.setdefault(row.at, {})[row.gpu] = row
    return sorted(samples.items(), reverse=True)[:ROWS_SHOWN]


def history_words(line: AuditLine) -> str:
    """Return an audit line as people read it."""
    event = line.event
    words = event.words if event.name != Other.name else event.action.capitalize()
    return f"{words}: {event.why}" if event.why else words


async def charged_gpu_hours(parts: Parts, lease: Lease) -> float:
    """Return the GPU hours that a lease is charged: by the ledger, or so far where it runs."""
    stored = await parts.store.read(parts.store.ledger.of_lease, lease.id)
    lines = [*stored, *ledger_lines_until(lease, parts.clock.now(), parts.allocator.accounting.zone)]
    return float(sum(line.amount(BudgetUnit.GPU_HOURS) for line in lines))


def ended_view(lease: Lease, *, mine: bool) -> dict[str, str]:
    """Return who decided, what was lost and what is kept. ``mine``: it is the reader's own workspace."""
    named = {lease.user: "you" if mine else lease.user, "hub": "the hub", "gpuspawner": "gpuspawner"}
    by = named.get(lease.ended_by, lease.ended_by)
    if lease.ended_by == "gpuspawner" and lease.reason is not None:
        by = EXIT_KINDS[lease.reason].decider.format(policy=lease.request.policy)
    if lease.message == UNKNOWN:
        by = "not known"
    if lease.running_at is None:
        lost = "Nothing: it had not started."
    else:
        lost = "Running kernels and terminals, with what they held in memory and on the GPU."
    return {"by": by, "lost": lost, "kept": "All files, as they were last saved. They are there when it starts again."}


def restarted_words(lease: Lease, *, mine: bool) -> str:
    """Return the headline of a workspace that its user restarts without a GPU, or with one; "" of any other."""
    if lease.reason is not ExitReason.CHANGED:
        return ""
    how = "without a GPU" if lease.request.gpu else "with a GPU"
    if lease.live:
        return f"Restarting {how}"
    return f"{'You' if mine else lease.user} restarted this workspace {how}"


def start_again_links(hub_prefix: str, lease: Lease, user: str) -> dict[str, str]:
    """Return links to the hub's form, prefilled as this workspace was asked for; the form waits for the click.

    ``user`` is what its user is called now.
    """
    server = f"/{quote(lease.key.server, safe='@~')}" if lease.key.server else ""
    form = f"{hub_prefix}spawn/{quote(user, safe='@~')}{server}"
    options = to_options(lease.request) if lease.request.template else {}
    without = to_options(replace(lease.request, gpu=None, count=0)) if options else {}
    return {"same": _with_options(form, options), "without_gpu": _with_options(form, without)}


def _with_options(form: str, options: Mapping[str, Any]) -> str:
    linked = {f"opt-{key}": value for key, value in options.items() if key in LINKED}
    return f"{form}?{urlencode(linked)}" if linked else form


def server_link(hub_prefix: str, lease: Lease, page: str = "user") -> str:
    """Return the address of a workspace's server, or with ``page="hub/spawn-pending"`` of its start's progress."""
    base = hub_prefix.removesuffix("hub/")
    return f"{base}{page}/{quote(lease.user, safe='@~')}/" + (
        f"{quote(lease.key.server, safe='@~')}/" if lease.key.server else ""
    )


DEFAULT_SERVER = "-"
"""What the command line calls the server without a name."""
PAGES_SHOWN = {"lab": "Open Lab", "vscode": "Open VS Code"}


def open_links(hub_prefix: str, lease: Lease, opens: Sequence[str]) -> list[tuple[str, str]]:
    """Return what a running workspace's page offers to open, the default first: words and address."""
    server = server_link(hub_prefix, lease)
    links = [(PAGES_SHOWN[what], server + PAGES[what].lstrip("/")) for what in opens if what in PAGES]
    return links or [("Open Lab", server)]


def ssh_line(lease: Lease, url: str) -> str:
    """Return the command that opens a workspace by SSH, to be copied; ``url`` is where its page was read."""
    return shlex.join(["gpuspawner", "ssh", "--url", url, lease.key.server or DEFAULT_SERVER])


def describe_request(parts: Parts, lease: Lease) -> dict[str, str]:
    """Return the titles of what was asked; names where the catalog no longer has them."""
    request = lease.request
    template = parts.catalog.templates.get(request.template)
    return {
        "template": template.title if template else request.template or "not known",
        "name": lease.key.server or "default workspace",
        "asked": gpus_asked(request, parts.catalog, simulated=is_simulated(parts, lease)),
        "instead": ", ".join(gpu_title(kind, parts.catalog) for kind in request.substitutes),
        "given_instead": _given_instead(parts, lease),
    }


def _given_instead(parts: Parts, lease: Lease) -> str:
    """Return which kind was given in place of the one asked for, in a sentence; "" where it was that one."""
    if not lease.given or lease.request.gpu is None:
        return ""
    title = gpu_title(lease.given, parts.catalog)
    return f"{title}{given_instead(parts.catalog, lease.request.gpu, lease.given)}."
