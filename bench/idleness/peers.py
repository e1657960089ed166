"""Each peer's rule as one small function: what it looks at, and what it takes for idle when it sees nothing.

Read from the peers' own repositories and documents in 2026. All are given the same idle time as ours, whatever their
defaults, and the better of two readings where theirs is unclear: this compares signals, not settings. Each returns when
it would stop a workspace that was started at ``begin``, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.simulate.habits import Frontend, Sharing
from gpuspawner.simulate.sessions import Session
from gpuspawner.simulate.timeline import Span, Timeline, merged

IDLE_SECONDS, MINUTE = 1800.0, 60.0
NONE = Timeline()

Rule = Callable[[Session, float], "float | None"]


def first_gap_end(timeline: Timeline, seconds: float, end: float, start: float = 0.0) -> float | None:
    """Return the first instant, up to ``end``, with nothing under way in the ``seconds`` before it; None for none."""
    quiet_since = start
    for begin, until, _ in timeline.spans:
        if begin - quiet_since >= seconds:
            break
        quiet_since = max(quiet_since, until)
    instant = quiet_since + seconds
    return instant if instant <= end else None


@dataclass(frozen=True)
class Peer:
    """A rule, and how often it looks. None of them gives a grace during which use saves the workspace."""

    name: str
    signal: str
    rule: Rule
    every_seconds: float = MINUTE

    @property
    def policy(self) -> IdlePolicy:
        """Settings of the tool: its idle time, no grace, its own period."""
        return IdlePolicy(for_seconds=IDLE_SECONDS, grace_seconds=0.0, sample_seconds=self.every_seconds)


# Parts


def without(timeline: Timeline, holes: Timeline) -> Timeline:
    """Return the view of a timeline for an observer without readings during the holes."""
    if not holes:
        return timeline
    spans: list[Span] = []
    for begin, end, value in timeline.spans:
        at = begin
        while at < end:
            blind = holes.next_begin(at)
            until = end if blind is None else min(end, blind)
            if until > at:
                spans.append((at, until, value))
            if until == end:
                break
            at = holes.next_end(until)
    return Timeline(spans)


def quiet(activity: Timeline, session: Session, begin: float, every: float = MINUTE) -> float | None:
    """Return when nothing was active for the idle time, as the next look after it finds."""
    at = first_gap_end(activity, IDLE_SECONDS, session.end, begin)
    return None if at is None else ceil(at / every) * every


def by_wall_clock(activity: Timeline, session: Session, begin: float) -> float | None:
    """As :func:`quiet`, by stamps of a wall clock: one set on by an hour makes everything an hour older at once."""
    at = quiet(activity, session, begin)
    for step_at, seconds in session.steps:
        looked = ceil(step_at / MINUTE) * MINUTE
        if seconds > 0 and begin < step_at and not activity.touches(step_at, looked):
            return looked if at is None else min(at, looked)
    return at


def sampled(work: Timeline, every: float) -> Timeline:
    """Return when one-second readings at this period see work. They miss bursts between two readings."""
    spans: list[Span] = []
    for begin, end, _ in work.spans:
        first, last = ceil((begin + 0.25) / every) * every, (end + 0.75) // every * every
        if first <= last:
            spans.append((first, last + 1.0, 1.0))
    return merged([Timeline([span]) for span in spans])


def on_device(session: Session, number: int) -> Timeline:
    """Return a reading of the whole device. On a shared device it includes the neighbours' work."""
    return merged([session.work[number], session.neighbours])


def known(at: float | None, session: Session, blind: Timeline) -> float | None:
    """Put a stop off until something is known again."""
    while at is not None and blind.at(at):
        at = ceil(blind.next_end(at) / MINUTE) * MINUTE
    return at if at is not None and at < session.end else None


# Activity cullers


def kubeflow_v1(session: Session, begin: float) -> float | None:
    """notebook-controller: ``/api/kernels`` busy or last_activity; unreachable, the stamp goes on ageing."""
    return by_wall_clock(without(session.kernel, session.faults), session, begin)


def rhoai(session: Session, begin: float) -> float | None:
    """Open Data Hub, OpenShift AI: kernels and terminals; unreachable, the stamp goes on ageing."""
    return by_wall_clock(without(merged([session.kernel, session.terminal]), session.faults), session, begin)


def kubeflow_v2(session: Session, begin: float) -> float | None:
    """Workspaces v2: Jupyter's status, at its shortest period of 300 s; unreachable counts as active."""
    return quiet(merged([session.kernel, session.terminal, session.faults]), session, begin, 300.0)


def idle_culler(session: Session, begin: float) -> float | None:
    """jupyterhub-idle-culler: the hub's last_activity: proxy traffic and the server's own report.

    A kernel reports when it starts and when it prints (jupyterhub#1498): every other session's tasks print nothing.
    """
    prints = session.seed % 2 == 0
    kernel = session.kernel if prints else Timeline((at, min(at + 1, end), 1.0) for at, end, _ in session.kernel.spans)
    return by_wall_clock(merged([session.browser, kernel, session.terminal]), session, begin)


def determined(session: Session, begin: float) -> float | None:
    """Determined: HTTP, kernels and terminals; unreachable counts as active."""
    return quiet(merged([session.browser, session.kernel, session.terminal, session.faults]), session, begin)


def coder(session: Session, begin: float) -> float | None:
    """Coder: open connections of editors, SSH, terminals and applications."""
    return quiet(merged([session.browser, session.connected]), session, begin)


def skypilot(session: Session, begin: float) -> float | None:
    """SkyPilot: SSH connections and submitted jobs; what runs detached here is taken for a job."""
    jobs = merged([session.used, session.cpu]) if session.frontend is Frontend.DETACHED else NONE
    return quiet(merged([session.connected, jobs]), session, begin)


# GPU cullers


def gpu_pruner(session: Session, begin: float) -> float | None:
    """gpu-pruner: each GPU's PROF_GR_ENGINE_ACTIVE, its highest of the window, is 0; one such GPU takes the pod.

    Looked at every 180 s, for pods older than window and grace of 300 s. A window with holes counts as a whole one.
    """
    found = []
    for number in range(len(session.work)):
        seen = without(on_device(session, number), session.faults)
        at = quiet(seen, session, max(begin, 0.0), 180.0)
        found.append(known(at if at is None else max(at, begin + IDLE_SECONDS + 300.0), session, session.faults))
    return min((at for at in found if at is not None), default=None)


def dstack(session: Session, begin: float) -> float | None:
    """dstack's utilization policy: nvidia-smi every 10 s, any GPU below the threshold all window; holes unchecked."""
    if session.sharing is Sharing.MIG:
        return None  # [N/A]
    blind = merged([session.lost, session.faults])
    found = []
    for number in range(len(session.work)):
        seen = without(sampled(on_device(session, number), 10.0), blind)
        found.append(known(quiet(seen, session, begin), session, blind))
    return min((at for at in found if at is not None), default=None)


def runai(session: Session, begin: float) -> float | None:
    """Run:ai: utilization read every 30 s is zero; any use resets; what is missing is taken to be unknown."""
    seen = [sampled(on_device(session, number), 30.0) for number in range(len(session.work))]
    return known(quiet(merged([*seen, session.faults]), session, begin), session, session.faults)


def dcgm_average(session: Session, begin: float) -> float | None:
    """A site's alert on DCGM_FI_DEV_GPU_UTIL: the average of all GPUs over the window is below 5 %."""
    at, gpus = begin + IDLE_SECONDS, range(len(session.work))
    devices = [on_device(session, number) for number in gpus]
    while at < session.end:
        if sum(device.mean(at - IDLE_SECONDS, at) for device in devices) < 0.05 * len(gpus) and not session.faults.at(
            at
        ):
            return at
        at += MINUTE
    return None


def one_reading_a_minute(session: Session, begin: float) -> float | None:
    """A cron script: one nvidia-smi a minute, all below 5 %; what fails or is no number counts as 0."""
    if session.sharing is Sharing.MIG:
        return quiet(NONE, session, begin)
    blind = merged([session.lost, session.faults])
    seen = [sampled(on_device(session, number), MINUTE) for number in range(len(session.work))]
    return quiet(without(merged(seen), blind), session, begin)


PEERS = (
    Peer("Kubeflow v1", "kernels", kubeflow_v1),
    Peer("RHOAI", "kernels, terminals", rhoai),
    Peer("Kubeflow v2", "kernels, terminals", kubeflow_v2, 300.0),
    Peer("idle-culler", "HTTP, server's report", idle_culler),
    Peer("Determined", "HTTP, kernels, terminals", determined),
    Peer("Coder", "connections", coder),
    Peer("SkyPilot", "SSH, jobs", skypilot),
    Peer("gpu-pruner", "DCGM, each GPU", gpu_pruner, 180.0),
    Peer("dstack", "nvidia-smi, each GPU", dstack),
    Peer("Run:ai", "utilization each 30 s", runai),
    Peer("average", "DCGM, 30 min mean", dcgm_average),
    Peer("cron script", "nvidia-smi a minute", one_reading_a_minute),
)
