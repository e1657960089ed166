"""What one sample of a workspace proves: busy, unknown, soft or idle (design, section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gpuspawner.core.idle.monitor import by_monitor
from gpuspawner.core.idle.policy import IdlePolicy
from gpuspawner.core.idle.readings import GpuReading, Sample
from gpuspawner.core.idle.soft import CPU, cores_words, counted, everything, spent
from gpuspawner.core.units import show_duration

PERHAPS_BUDGETS = 2
"""Processes that hold a low GPU and compute count for this many times CPU's budget: it may be GPU work, not just CPU.
With one, a burst alone in its hour was missed once in 60,000 session hours; two cost 1 % of the GPU hours recovered."""
UNCLEAR_SECONDS = 7200.0
"""What the buffer of a GPU without persistence mode tells of time before the probe, where nobody holds the GPU, counts
for this long after the last busy sample: it may be the work of a process that has ended, or the probe before that woke
it, if such a buffer outlives the GPU's sleep. Meanwhile it is looked at closely: a sample that meets such a process is
busy. An idle GPU that always looks so is given back after it. With half of it, bursts of 1.5 s every 45 s were stopped
in 39 of 100,000 session hours; with all of it in none."""


DEVICE_SECONDS = 7200.0
"""On a GPU that others compute on too, work of the whole device counts for this long after the last busy sample while a
process of the workspace holds it: kernels that are waited for without CPU show in nothing else. An idle workspace
beside busy neighbours is given back after it."""


class SampleKind(str, Enum):
    """What a sample proves, strongest first."""

    BUSY = "busy"
    """The workspace computes on a GPU."""
    UNKNOWN = "unknown"
    """Nobody can say that it does not."""
    SOFT = "soft"
    """Its GPUs are low, but something else holds them, for as long as the policy lets it."""
    IDLE = "idle"
    """Every GPU is known to be low, and nothing holds them."""


@dataclass(frozen=True)
class GpuEvidence:
    """What a sample proves of one GPU: busy, unknown or idle, and why, in words for people."""

    gpu: str
    kind: SampleKind
    because: str
    perhaps_seconds: float | None = None
    """Work may have fallen between its readings, or be what they show: how long after the last busy sample that counts.
    None: it has not."""
    closer: bool = True
    """A closer look would tell."""


@dataclass(frozen=True)
class Classified:
    """What a sample proves, and why, in words for people.

    ``gpus`` has an entry for every leased GPU, and one for each that was seen without being leased.
    ``peak_percent`` is the highest that was read of the exclusive GPUs, whoever caused it, None where none says
    anything: a shared GPU shows its neighbours' work. ``perhaps`` is set where work of a GPU may have fallen between
    its readings, or may be what they show, and a closer look would tell; ``anew`` where that also is so without: where
    the sample is soft, idle time begins anew. ``alone`` is set where only the workspace's own monitor saw the work of a
    busy sample.
    """

    kind: SampleKind
    because: str
    gpus: tuple[GpuEvidence, ...] = ()
    peak_percent: float | None = None
    perhaps: bool = False
    alone: bool = False
    anew: bool = False


def classify(
    sample: Sample, policy: IdlePolicy, since_busy_seconds: float, since_proved_seconds: float = 0.0
) -> Classified:
    """Judge one sample by the first rule that fits.

    1. busy: a leased GPU is in use, whatever else is unknown; by its own reading, as seen from outside, or, for
       ``monitor_seconds`` after either saw work, by the workspace's own monitor.
    2. unknown: a GPU cannot be judged, one is missing or too many, the workspace is too young or has no GPU.
    3. soft: evidence that the policy counts and whose budget, counted from the last busy sample, is not spent.
    4. unknown: such evidence could not be read.
    5. soft: what may have been work: for twice the budget of ``cpu``, processes that hold a low GPU and computed; for
       once, processes that computed where none holds it any more, and what the monitor alone saw for too long; for
       UNCLEAR_SECONDS, a high value in the buffer of a GPU that nvidia-smi itself may have woken; for DEVICE_SECONDS,
       work of a whole device that a process of the workspace holds beside others.
    6. idle: the rest.

    A workspace without GPUs, under a policy for such, is judged by :func:`_by_activity`.

    Args:
        sample: what the probe told.
        policy: thresholds, bounds and budgets.
        since_busy_seconds: the time between the last busy sample (or the workspace's start) and this one.
        since_proved_seconds: the same, of samples that are busy without the workspace's own monitor.
    """
    readings = () if sample.problem else sample.gpus
    gpus = _gpus(sample, readings, policy)
    if policy.by_activity and not gpus:
        return _by_activity(sample, policy, since_busy_seconds)
    watched = by_monitor(sample, policy)
    if (busy := _busy(sample, policy, gpus, watched, since_proved_seconds)) is not None:
        return busy
    gpus = tuple(_alone(gpu, watched.get(gpu.gpu), policy) for gpu in gpus)
    if unknown := _unknown(sample, policy, gpus):
        return Classified(SampleKind.UNKNOWN, unknown, gpus)
    counts = [name for name, budget_seconds in policy.soft_budget_seconds if since_busy_seconds <= budget_seconds]
    found = counted(sample, policy, counts, since_busy_seconds)
    if found.unknown and not found.active:
        return Classified(SampleKind.UNKNOWN, ", ".join(found.unknown), gpus)
    low = [gpu.because for gpu in gpus]
    percents = [r.highest_percent for r in readings if not r.shared and r.highest_percent is not None]
    peak_percent = max(percents, default=None)
    hidden = [gpu.perhaps_seconds for gpu in gpus if gpu.perhaps_seconds is not None]
    perhaps = any(gpu.perhaps_seconds is not None and gpu.closer for gpu in gpus)
    if found.active or any(since_busy_seconds <= seconds for seconds in hidden):
        because = ", ".join([*found.active, *low])
        return Classified(SampleKind.SOFT, because, gpus, peak_percent, perhaps, anew=bool(hidden))
    told = counted(sample, policy, [name for name in counts if name != CPU], since_busy_seconds).quiet
    over = spent(sample, (name for name, _ in policy.soft_budget_seconds if name not in counts))
    return Classified(SampleKind.IDLE, ", ".join([*low, *told, *over]), gpus, peak_percent, perhaps)


def _busy(
    sample: Sample,
    policy: IdlePolicy,
    gpus: tuple[GpuEvidence, ...],
    watched: Mapping[str, str],
    since_proved_seconds: float,
) -> Classified | None:
    """Return that a sample is busy, and who saw it; None where nobody did, or the monitor alone for too long."""
    outside = _from_outside(sample, policy)
    own = [gpu.because for gpu in gpus if gpu.kind is SampleKind.BUSY]
    alone = not own and not outside
    if alone and (not watched or since_proved_seconds > policy.monitor_seconds):
        return None
    words = watched if alone else outside
    seen = tuple(replace(x, kind=SampleKind.BUSY, because=words[x.gpu]) if x.gpu in words else x for x in gpus)
    return Classified(SampleKind.BUSY, ", ".join(own or words.values()), seen, perhaps=alone, alone=alone)


def _from_outside(sample: Sample, policy: IdlePolicy) -> dict[str, str]:
    """Return in words what others saw of work, by GPU; "" is the workspace, where it has several."""
    leased = tuple(dict.fromkeys(sample.leased))
    found = {}
    for one in sample.outside:
        if policy.below_percent <= one.percent <= 100:  # noqa: PLR2004 - a percentage; NaN is none
            gpu = leased[0] if len(leased) == 1 else one.gpu
            name = f"GPU {leased.index(gpu)}" if gpu in leased else "a GPU"
            found[gpu] = f"{name} at {one.percent:g} % by {one.source}"
    return found


def _alone(gpu: GpuEvidence, watched: str | None, policy: IdlePolicy) -> GpuEvidence:
    """Add work that the monitor alone has seen for too long to an idle GPU: it holds it as CPU use would."""
    if watched is None or gpu.kind is not SampleKind.IDLE:
        return gpu
    seconds = max(_cpu_seconds(policy), -1.0 if gpu.perhaps_seconds is None else gpu.perhaps_seconds)
    return replace(gpu, because=f"{gpu.because}, {watched}, and by nothing else", perhaps_seconds=seconds)


def _by_activity(sample: Sample, policy: IdlePolicy, since_busy_seconds: float) -> Classified:
    """Judge a workspace without GPUs: any activity is its use, and what cannot be read is unknown."""
    if sample.problem:
        return Classified(SampleKind.UNKNOWN, _unread(sample))
    found = counted(sample, policy, everything(), since_busy_seconds)
    if found.active:
        return Classified(SampleKind.BUSY, ", ".join(found.active))
    if found.unknown:
        return Classified(SampleKind.UNKNOWN, ", ".join(found.unknown))
    if sample.age_seconds < policy.start_up_seconds:
        return Classified(SampleKind.UNKNOWN, _too_young(policy))
    return Classified(SampleKind.IDLE, ", ".join(found.quiet))


def _gpus(sample: Sample, readings: tuple[GpuReading, ...], policy: IdlePolicy) -> tuple[GpuEvidence, ...]:
    """Judge every leased GPU, and report those that were seen without being leased."""
    evidence = []
    leased = tuple(dict.fromkeys(sample.leased))  # two shares of one device are one device
    for index, gpu in enumerate(leased):
        name = f"GPU {index}"
        own = [
            (_shared if reading.shared else _exclusive)(reading, name, sample, policy)
            for reading in (_with_possible_holders(one, sample, policy) for one in readings)
            if reading.gpu == gpu
        ]
        busy = [one for one in own if one.kind is SampleKind.BUSY]
        if busy or len(own) == 1:
            evidence.append((busy or own)[0])
        else:
            problem = sample.problem or ("it is listed twice" if own else "it is not listed")
            evidence.append(_unreadable(gpu, name, problem))
    foreign = sorted({reading.gpu for reading in readings} - set(leased))
    return (*evidence, *(GpuEvidence(gpu, SampleKind.UNKNOWN, f"{gpu} is seen, not leased") for gpu in foreign))


def _with_possible_holders(reading: GpuReading, sample: Sample, policy: IdlePolicy) -> GpuReading:
    """Count processes that may hold a GPU as its holders, where they computed or nobody knows whether they did."""
    possible, known = reading.possible_cpu_cores, reading.holders_cpu_cores
    if reading.holders is None or not reading.possible_holders:
        return reading
    if possible is not None and not _computed(possible, sample, policy):
        return reading
    cores = None if possible is None or known is None else possible + known
    return replace(reading, holders=reading.holders + reading.possible_holders, holders_cpu_cores=cores)


def _exclusive(reading: GpuReading, name: str, sample: Sample, policy: IdlePolicy) -> GpuEvidence:
    """Judge a GPU that the workspace has alone, by its utilization."""
    gpu, percent = reading.gpu, reading.highest_percent
    if percent is None or not 0 <= percent <= 100:  # noqa: PLR2004 - a percentage; NaN is none
        return _unreadable(gpu, name, reading.problem or "no utilization")
    if percent < policy.below_percent:
        return _low(f"{name} at {percent:g} %", reading, sample, policy)
    if not reading.may_be_woken:
        return GpuEvidence(gpu, SampleKind.BUSY, f"{name} at {percent:g} %")
    if reading.buffer_percent is not None and reading.buffer_percent >= policy.below_percent:
        because = f"{name} at {percent:g} % before it was read, held by no process now"
        return GpuEvidence(gpu, SampleKind.IDLE, because, UNCLEAR_SECONDS)
    return _low(f"{name} at {percent:g} %, but held by no process: nvidia-smi itself wakes it", reading, sample, policy)


def _shared(reading: GpuReading, name: str, sample: Sample, policy: IdlePolicy) -> GpuEvidence:
    """Judge a GPU that others compute on too, by the CPU use of the workspace's processes that hold it."""
    gpu, cores = reading.gpu, reading.holders_cpu_cores
    if reading.holders is None:
        return _unreadable(gpu, name, reading.problem or "its processes are unknown")
    if reading.holders == 0:
        return _low(f"{name} held by no process", reading, sample, policy)
    if cores is None or not cores >= 0:  # NaN is no measurement
        return _unreadable(gpu, name, reading.problem or "its processes' CPU use is unknown")
    computed = _computed(cores, sample, policy)
    kind = SampleKind.BUSY if computed and cores > policy.cpu_bound_cores else SampleKind.IDLE
    because = f"{name}'s processes at {cores_words(cores)}"
    if computed:
        perhaps_seconds = PERHAPS_BUDGETS * _cpu_seconds(policy) if kind is SampleKind.IDLE else None
        return GpuEvidence(gpu, kind, because, perhaps_seconds)
    percent = reading.highest_percent
    if percent is not None and policy.below_percent <= percent <= 100:  # noqa: PLR2004 - a percentage; NaN is none
        because = f"{because} on a GPU at {percent:g} %, perhaps by others"
        return GpuEvidence(gpu, kind, because, DEVICE_SECONDS, closer=False)
    return GpuEvidence(gpu, kind, because)


def _low(because: str, reading: GpuReading, sample: Sample, policy: IdlePolicy) -> GpuEvidence:
    """Judge a GPU on which no work was seen: processes that hold it, or that have ended, may have hidden some."""
    cores = reading.holders_cpu_cores if reading.holders else sample.cpu_cores
    if reading.holders is None or cores is None or not _computed(cores, sample, policy):
        return GpuEvidence(reading.gpu, SampleKind.IDLE, because)
    if reading.holders:
        said, seconds = "its processes", PERHAPS_BUDGETS * _cpu_seconds(policy)
    else:
        said, seconds = "the workspace's processes, of which some may have ended,", _cpu_seconds(policy)
    return GpuEvidence(reading.gpu, SampleKind.IDLE, f"{because} and {said} at {cores_words(cores)}", seconds)


def _cpu_seconds(policy: IdlePolicy) -> float:
    """Return for how long CPU use counts; below 0 where it does not."""
    return dict(policy.soft_budget_seconds).get(CPU, -1.0)


def _computed(cores: float, sample: Sample, policy: IdlePolicy) -> bool:
    """Whether processes used more CPU than idle ones do. Over a short interval a twitch is no use: seconds count."""
    period_seconds = max(sample.interval_seconds, policy.sample_seconds)
    return cores * sample.interval_seconds > policy.held_bound_cores * period_seconds


def _unreadable(gpu: str, name: str, problem: str) -> GpuEvidence:
    return GpuEvidence(gpu, SampleKind.UNKNOWN, f"{name} can't be read ({problem})")


def _unknown(sample: Sample, policy: IdlePolicy, gpus: tuple[GpuEvidence, ...]) -> str:
    """Return why the sample proves nothing of its GPUs, or an empty text."""
    if not gpus:
        return "no GPU is leased"
    if sample.problem:
        return _unread(sample)
    if unknown := [gpu.because for gpu in gpus if gpu.kind is SampleKind.UNKNOWN]:
        return ", ".join(unknown)
    return _too_young(policy) if sample.age_seconds < policy.start_up_seconds else ""


def _unread(sample: Sample) -> str:
    return f"the workspace can't be read ({sample.problem})"


def _too_young(policy: IdlePolicy) -> str:
    return f"it started less than {show_duration(policy.start_up_seconds)} ago"
