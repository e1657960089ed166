"""Cards of workspaces on pages: gauges, clocks, the last hour of GPU use, and ways to start sooner.

All of it is computed from models and readings that are read already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuspawner.catalog.requests.visibility import cluster_words, given_instead, gpu_title
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.units import GIBIBYTE, ordinal, show_bytes, show_cpu, show_duration, show_time, show_wait
from gpuspawner.service.parts import Parts
from gpuspawner.service.workspaces.links import start_again_links
from gpuspawner.service.workspaces.models import Workspace

HOUR_SECONDS = 3600.0
NAMES_SHOWN = 3
"""The most names of kernels in a sentence."""
WINDOW_END_PERCENT = 97.0
"""The last place of a mark on the bar of a waiting workspace, so that a short range is still seen."""
SECONDS_COUNT_BELOW = 600.0
TIMES = "\N{MULTIPLICATION SIGN}"
"""The sign between a number of GPUs and their kind."""


class Gauge(NamedTuple):
    """A value with its bound. ``percent`` is its part of the bound, ``kind`` the colour of its bar."""

    words: str
    used: str
    of: str
    unit: str
    percent: float
    kind: str


class ClockView(NamedTuple):
    """A time that runs: how much is left or has passed, its part of the whole, and what happens then."""

    value: str
    percent: float
    note: str


class Window(NamedTuple):
    """The range in which a waiting workspace starts. ``likely`` is "" if no time is sure enough.

    ``left`` values are percent of the time from now to the end of the range.
    """

    earliest: str
    likely: str
    range_end: str
    earliest_left: float
    likely_left: float | None


@dataclass(frozen=True)
class SoonerOption:
    """A way to start a waiting workspace sooner. ``action`` is the address that it posts to, below the prefix."""

    icon: str
    title: str
    text: str
    button: str
    action: str
    values: tuple[tuple[str, str], ...] = ()
    asks: str = ""
    """The question of a dialog before it is done, "" to do it at once."""
    link: str = ""
    """The address of a page that does it, instead of an action."""


@dataclass(frozen=True)
class Card:
    """A workspace as a list shows it."""

    shown: Workspace
    summary: str
    """Its GPUs and its template in a few words."""
    opens: Sequence[tuple[str, str]]
    """Words and addresses of what it opens, the default first."""
    points: Sequence[tuple[float, float]] = ()
    """Its GPU use in the last hour: percent of the hour and percent of use."""
    sooner: Sequence[SoonerOption] = ()
    ssh: str = ""
    mine: bool = True

    @property
    def loses(self) -> str:
        """The kernels, terminals and GPU memory that it loses when it stops."""
        return loss_of(self.shown)

    @property
    def gauges(self) -> list[Gauge]:
        """Its GPU memory, CPU and memory. An unknown value has no gauge."""
        shown, found = self.shown, list[Gauge]()
        used = [gpu.memory_used_bytes for gpu in shown.gpus if gpu.memory_used_bytes is not None]
        total = [gpu.memory_total_bytes for gpu in shown.gpus if gpu.memory_total_bytes]
        if shown.gpus and len(used) == len(total) == len(shown.gpus):
            found.append(_memory_gauge("GPU memory", sum(used), sum(total), "mem"))
        cores, most = shown.cpu_cores_used, shown.request.cpu_cores
        if cores is not None and most:
            percent = min(100.0, 100 * cores / most)
            found.append(Gauge("CPU", f"{cores:.1f}", show_cpu(most), "cores", round(percent, 1), "cpu"))
        used_bytes, most_bytes = shown.host_memory_used_bytes, shown.request.memory_bytes
        if used_bytes is not None and most_bytes:
            found.append(_memory_gauge("Memory", used_bytes, most_bytes, "cpu"))
        return found

    @property
    def ends_at(self) -> float | None:
        """When it ends as things are: at its end time, or before for a request with priority."""
        warning = self.shown.warning
        if warning is not None and warning.kind in {"claim", "preempted"} and warning.ends_at is not None:
            return warning.ends_at
        return self.shown.ends_at

    @property
    def time_left(self) -> ClockView | None:
        """How long it still runs, None if it has no set end."""
        shown, ends_at = self.shown, self.ends_at
        if ends_at is None or shown.running_at is None:
            return None
        left = max(0.0, ends_at - shown.now)
        whole = max(ends_at - shown.running_at, 1.0)
        note = f"Ends {show_time(ends_at, shown.now)}"
        return ClockView(show_duration(left), round(min(100.0, 100 * left / whole), 1), note)

    @property
    def idle_clock(self) -> ClockView | None:
        """How long it has been idle, None if nothing judges it."""
        idle = self.shown.idle
        if idle is None:
            return None
        if idle.kept_until is not None:
            return ClockView("Paused", 0, f"Until {show_time(idle.kept_until, self.shown.now)}")
        if idle.state == "awaited":
            return ClockView("Paused", 0, "Until you open it")
        for_words, so_far = show_duration(idle.for_seconds), show_duration(round(idle.idle_seconds))
        percent = round(min(100.0, 100 * idle.idle_seconds / max(idle.for_seconds, 1.0)), 1)
        note = {
            "busy": "In use now",
            "soft": "In use now",
            "unmeasured": "Not measured yet",
            "unknown": "Cannot be measured now",
        }.get(idle.state, "Idle now")
        if idle.grace_ends_at is not None:
            return ClockView(so_far, 100, f"Stops {show_time(idle.grace_ends_at, self.shown.now)}")
        if idle.mode == "observe":
            note = f"{note}, stops nothing"
        return ClockView(f"{so_far if idle.idle_seconds else '0'} of {for_words}", percent, note)

    @property
    def line(self) -> tuple[str, str]:
        """Its queue position, and when it likely starts."""
        queue = self.shown.queue
        if queue is None:
            return "", ""
        if queue.wait_reason is not None or queue.impossible or not queue.form:
            return place_words(queue.place, queue.of), ""
        if queue.likely_seconds is not None:
            when = f"Likely start in {show_wait(queue.likely_seconds)}" if queue.likely_seconds >= 1 else "Starts now"
        elif queue.range_end_at is None:
            when = "May take more than 3 hours"
        else:
            when = f"Starts by {show_time(queue.range_end_at, self.shown.now)} in 9 of 10 cases"
        return place_words(queue.place, queue.of), when

    @property
    def wait_words(self) -> str:
        """The sentence of its wait without its position, which the card shows above."""
        queue = self.shown.queue
        if queue is None or queue.place is None:
            return "" if queue is None else queue.sentence
        return queue.sentence.replace(f" You are {ordinal(queue.place)} in line.", "", 1)

    @property
    def window(self) -> Window | None:
        """When it starts, while it waits. None while that is not known."""
        queue, now = self.shown.queue, self.shown.now
        if queue is None or queue.earliest_start_at is None or queue.range_end_at is None:
            return None
        earliest, latest = queue.earliest_start_at, queue.range_end_at
        whole = max(latest - now, 1.0)

        def left(at: float) -> float:
            return round(min(max(100 * (at - now) / whole, 0.0), WINDOW_END_PERCENT), 1)

        def words(at: float) -> str:
            return "Now" if at - now < 1 else show_time(at, now)

        likely = queue.likely_start_at
        if likely is None:
            return Window(words(earliest), "", words(latest), left(earliest), None)
        return Window(words(earliest), words(likely), words(latest), left(earliest), left(likely))

    @property
    def use(self) -> tuple[str, str]:
        """Its mean GPU use now, and the label of its curve, "" if it is not known."""
        known = [gpu.utilization_percent for gpu in self.shown.gpus if gpu.state != "unknown"]
        values = [value for value in known if value is not None]
        if not values or len(values) < len(self.shown.gpus):
            return "", ""
        now = sum(values) / len(values)
        span = (
            f", {min(y for _, y in self.points):.0f} to {max(y for _, y in self.points):.0f} %" if self.points else ""
        )
        return f"{now:.0f} %", f"GPU use in the last hour: {now:.0f} % now{span}"

    @property
    def soon(self) -> bool:
        """Whether its end is so near that its seconds count."""
        return self.ends_at is not None and self.ends_at - self.shown.now < SECONDS_COUNT_BELOW

    @property
    def curve(self) -> str:
        """The path of its GPU use in the last hour, in a square of 100 by 100, "" with fewer than two readings.

        Two minutes are a step: the path is a large part of the page. A template would write it ten times as slowly.
        """
        pairs = [self.points[start : start + 2] for start in range(0, len(self.points), 2)]
        if len(self.points) < 2:  # noqa: PLR2004 - a line needs two ends
            return ""
        steps = " ".join(f"{pair[-1][0]:.0f} {98 - 0.94 * sum(y for _, y in pair) / len(pair):.0f}" for pair in pairs)
        return f"M{self.points[0][0]:.0f} 100L{steps}V100"


def summary_of(shown: Workspace, *, whole: bool = False) -> str:
    """Return the GPUs and the template of a workspace, if ``whole`` also its nodes and its team."""
    request = shown.request
    gpus = "No GPU"
    if shown.gpus:
        names = {gpu.name.removesuffix(" (simulated)") for gpu in shown.gpus}
        share = "" if shown.gpus[0].share == "1" else f" {shown.gpus[0].share} of a GPU,"
        gpus = f"{len(shown.gpus)} {TIMES}{share} {', '.join(sorted(names))}"
        nodes = sorted({gpu.node for gpu in shown.gpus if gpu.node})
        gpus += f" on {', '.join(nodes)}" if whole and nodes else ""
    elif request.gpu is not None:
        gpus = request.words.replace(" ", f" {TIMES} ", 1).replace(f"{TIMES} simulated ", f"{TIMES} ", 1)
    parts = [gpus, request.template_title]
    if whole and request.team_title:
        parts.append(f"Team {request.team_title}")
    return " · ".join(parts)


def loss_of(shown: Workspace) -> str:
    """Return the kernels, terminals and GPU memory that a running workspace loses when it stops."""
    return lost_words(shown.kernels, sum(gpu.memory_used_bytes or 0 for gpu in shown.gpus))


def kernel_words(names: Sequence[str] | None) -> str:
    """Return ``2 running kernels``, "" if none runs."""
    if names is None:
        return "running kernels"
    return f"{len(names)} running kernel{'s' if len(names) > 1 else ''}" if names else ""


def names_words(names: Sequence[str]) -> str:
    """Return the names of kernels in a few words: ``a.ipynb, b.ipynb, c.ipynb and 3 more``."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{', '.join(names[:NAMES_SHOWN])}{more}"


def lost_words(kernels: Sequence[str] | None, gpu_memory_bytes: float) -> str:
    """Return the losses of a running workspace that stops: ``1 running kernel, terminals and 3 GiB of GPU memory``."""
    held = f"{show_bytes(gpu_memory_bytes)} of GPU memory" if gpu_memory_bytes else ""
    parts = [part for part in (kernel_words(kernels), "terminals", held) if part]
    return f"{', '.join(parts[:-1])}{' and ' if len(parts) > 1 else ''}{parts[-1]}"


def _memory_gauge(words: str, used_bytes: float, most_bytes: float, kind: str) -> Gauge:
    percent = round(min(100.0, 100 * used_bytes / most_bytes), 1)
    return Gauge(words, _gib(used_bytes), _gib(most_bytes), "GiB", percent, kind)


def _gib(size_bytes: float) -> str:
    number = size_bytes / GIBIBYTE
    return f"{number:.0f}" if number >= 10 or number == round(number) else f"{number:.1f}"  # noqa: PLR2004 - two digits


def points_of(minutes: Iterable[tuple[float, float]], now: float) -> list[tuple[float, float]]:
    """Return the curve of the last hour from the mean use of each minute: percent of the hour, and percent of use."""
    return [
        (round(100 * (at - now + HOUR_SECONDS) / HOUR_SECONDS, 1), round(percent, 1))
        for at, percent in minutes
        if now - HOUR_SECONDS <= at <= now
    ]


def place_words(place: int | None, of: int | None) -> str:
    """Return ``1st of 2 in line``."""
    if place is None:
        return "In line"
    return f"{ordinal(place)} of {of} in line" if of else f"{ordinal(place)} in line"


def meanwhile(hub_prefix: str, lease: Lease, user: str, live: Iterable[Lease]) -> SoonerOption | None:
    """Return the offer to work without a GPU while a request waits, in the user's default workspace.

    It is None if the default workspace is in use. ``live`` are the user's workspaces.
    """
    if lease.request.gpu is None or any(one.key.server == "" for one in live):
        return None
    link = start_again_links(hub_prefix, replace(lease, key=replace(lease.key, server="")), user)["without_gpu"]
    text = "Your default workspace starts now. Your place in line stays."
    return SoonerOption("gpu-off", "Work without a GPU meanwhile", text, "Start without GPU", "", link=link)


def sooner_options(shown: Workspace, others: Iterable[Workspace]) -> list[SoonerOption]:
    """Return the ways to start a waiting workspace sooner that can be taken now.

    ``others`` are the other workspaces of the same user.
    """
    queue, request, page = shown.queue, shown.request, f"workspaces/{shown.id}"
    if queue is None:
        return []
    found = []
    if queue.startable_count:
        count = queue.startable_count
        gpus = f"{count} GPU{'s' if count > 1 else ''}"
        are = "are" if count > 1 else "is"
        found.append(
            SoonerOption(
                "bolt", f"Take {gpus} now", f"{count} {are} free. Your place in line stays.", f"Start with {count}",
                f"{page}/take", (("count", str(count)),),
            )
        )  # fmt: skip
    for other in others:
        if other.state in {"idle", "warned"} and other.gpu == request.gpu and other.gpus:
            idle = "" if other.idle is None else f", idle for {show_duration(round(other.idle.idle_seconds))}"
            count = len(other.gpus)
            has = f"has {count} GPU{'s' if count > 1 else ''} of this kind"
            asks = f"{other.name} loses {loss_of(other)}. Its files stay."
            text = f"It is yours{idle}, and {has}."
            found.append(
                SoonerOption("stop", f"Stop {other.name}", text, "Stop it", f"workspaces/{other.id}/stop", (), asks)
            )
    accepted = tuple(("substitutes", one.kind) for one in request.substitutes if one.consented)
    for one in request.substitutes:
        others_accepted = tuple(pair for pair in accepted if pair[1] != one.kind)
        if one.consented:
            title, button, values = f"{one.title} is accepted too", f"Do not take {one.title}", others_accepted
        else:
            title, button = f"Also accept {one.title}", f"Accept {one.title}"
            values = (*accepted, ("substitutes", one.kind))
        text = f"{one.words[:1].upper()}{one.words[1:]}." if one.words else "Whichever is free first."
        found.append(SoonerOption("gpu", title, text, button, f"{page}/consent", values))
    return found


def given_instead_words(parts: Parts, lease: Lease) -> str:
    """Return in sentences which kind was given instead of the requested one, and why in its cluster, or ""."""
    if lease.kind is None or lease.request.gpu is None:
        return ""
    instead = given_instead(parts.catalog, lease.request.gpu, lease.given) if lease.given else ""
    title = f"{gpu_title(lease.given, parts.catalog)}{instead}." if instead else ""
    return " ".join(filter(None, (title, cluster_words(parts.catalog, lease.request, lease.kind))))
