"""Leases, offers and readings as JSON: what API, pages, command line and workspaces show, one source for all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from gpuspawner.catalog.prices import prices
from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.gpus.vendors import NVIDIA, vendor_of
from gpuspawner.core.idle.policies import IdlePolicy, Mode
from gpuspawner.core.idle.readings import CPU, Source
from gpuspawner.core.idle.verdicts import explain
from gpuspawner.core.leases.exits import EXIT_KINDS
from gpuspawner.core.leases.lease import UP, WAITING, Key, Lease, Phase
from gpuspawner.core.leases.running_steps import measured
from gpuspawner.core.queue.class_holds import hold_user_of
from gpuspawner.core.queue.decisions import starts_under_way
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.engine.feasibility import KEPT_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.preemption.words import notice_words, reaches_into_words
from gpuspawner.service.rules.policies import idle_policy_of, policy_of
from gpuspawner.service.start.substitutes import instead
from gpuspawner.service.waiting.presenter import (
    after_other_starts,
    cannot_start,
    gpu_title,
    idle_words,
    phase_words,
    starts_at,
    waits,
)
from gpuspawner.service.waiting.reasons import kept_free_words, precedence_words, return_words
from gpuspawner.service.workspaces.idleness import explained, kept_words
from gpuspawner.service.workspaces.records import (
    charged_view,
    held_back_view,
    latest_end_view,
    policy_view,
    why_it_ends,
)
from gpuspawner.service.workspaces.restarts import going_on_view, ways_out
from gpuspawner.service.workspaces.warnings import (
    arrival_view,
    awaited_words,
    of_gpus,
    of_memory,
    reach_words,
    unclaimed_warning,
)

OVERDUE_SECONDS = 15.0
"""What the backend was to end is seen gone by then, as a rule: a kill and a look at it take seconds."""


def lease_view(parts: Parts, lease: Lease) -> dict[str, Any]:
    """Return one lease as JSON. Times are seconds since the epoch; null is unknown or not so."""
    request = lease.request
    view = {
        "id": lease.id,
        "user": lease.user,
        "server": lease.key.server,
        "phase": lease.phase.value,
        "words": phase_words(lease, parts.catalog, simulated=is_simulated(parts, lease)) + _lacking_words(parts, lease),
        "now": parts.clock.now(),
        "fast": parts.catalog.fast,
        "page": f"{parts.prefix}workspaces/{lease.id}",
        "request": {
            "template": request.template,
            "gpu": request.gpu,
            "substitutes": _substitutes(parts, lease),
            "team": request.team or None,
            "team_title": team_title(parts.catalog, request.team) or None,
            "count": request.count,
            "cpu_cores": request.cpu_cores,
            "memory_bytes": request.memory_bytes,
            "lifetime_seconds": request.lifetime_seconds,
        },
        "gpu": lease.kind,
        "given": lease.given or None,
        "opens": opens_of(parts, lease),
        "options": dict(lease.options),
        "asked_at": lease.asked_at,
        "granted_at": lease.granted_at,
        "running_at": lease.running_at,
        "ends_at": lease.deadline_at,
        "latest_end": latest_end_view(lease, parts.clock.now()),
        "ends_words": None if lease.deadline_at is None else show_time(lease.deadline_at, parts.clock.now()),
        "adopted": lease.adopted,
        "gpus": _gpus(parts, lease),
        "simulated": is_simulated(parts, lease),
        "queue": standing_view(parts, lease),
        "policy": policy_view(parts, lease.request.policy),
        "idle": _idle(parts, lease),
        "keep": _keep(parts, lease),
        "extend": _extend(parts, lease),
        "warning": _warning(parts, lease),
        "going_on": going_on_view(parts, lease),
        "arrival": arrival_view(lease, parts.clock.now()),
        "charged": charged_view(parts, lease),
        "end": _end(lease),
    }
    return {**view, "explained": explained(lease, view, policy_of(parts.catalog, lease, parts.clock.now()).idle)}


def _substitutes(parts: Parts, lease: Lease) -> list[dict[str, Any]]:
    """Return the kinds that a request may be given instead of the one asked for, and which its user consents to.

    Of those for some groups only the consented ones: others offers the form, which knows who may have them.
    """
    request, kinds = lease.request, parts.catalog.gpus
    return [
        {
            "kind": kind,
            "title": gpu_title(kind, parts.catalog),
            "words": prices(parts.catalog, request.gpu or "", kind),
            "consented": kind in request.substitutes,
        }
        for kind in instead(parts.catalog, request)
        if kind in request.substitutes or not kinds[kind].groups
    ]


def _lacking_words(parts: Parts, lease: Lease) -> str:
    """Return what a waiting request or a start lacks, to be read after its phase; "" for nothing."""
    outage = parts.queue.outages.of_kind(lease.request.gpu) if lease.phase in WAITING else None
    if outage is not None:
        return f". {outage.words(parts.clock.now()).removesuffix('.')}"
    if lease.phase not in {Phase.RESERVED, Phase.STARTING}:
        return ""
    seconds = parts.scheduler.node_seconds(lease)
    node = "" if seconds is None else f"; a node starts for it, in about {show_duration(seconds)}"
    waits = parts.scheduler.start_words(lease)
    return f"{node}; {waits}" if waits else node


def opens_of(parts: Parts, lease: Lease) -> list[str]:
    """Return what a workspace opens, the default first; empty where the hub's configuration alone says it.

    What its image lacks is left out.
    """
    template = parts.catalog.templates.get(lease.request.template)
    older = template.opens if template else ()  # of a request that was stored without
    opens = older if lease.request.opens is None else lease.request.opens
    return [one for one in opens if one not in lease.lacks]


def is_simulated(parts: Parts, lease: Lease) -> bool:
    """Whether the GPUs that a lease has, or waits for, are simulated ones."""
    kind, fleet = parts.catalog.gpus.get(lease.kind or ""), parts.scheduler.fleet
    held = (fleet.by_id.get(slot.gpu) for slot in lease.slots)
    return (kind is not None and kind.pool in fleet.simulated_pools) or any(gpu and gpu.simulated for gpu in held)


def _gpus(parts: Parts, lease: Lease) -> list[dict[str, Any]]:
    known = parts.scheduler.fleet.by_id
    kind = parts.catalog.gpus.get(lease.kind or "")
    newest = parts.sampler.newest(lease.id)
    gpus = []
    for index, slot in enumerate(lease.slots):
        gpu, reading = known.get(slot.gpu), newest.get(slot.gpu)
        gpus.append(
            {
                "index": index,
                "id": slot.gpu,
                "uuid": _uuid(lease, index),
                "name": (kind.title if kind else "GPU") + (" (simulated)" if gpu is not None and gpu.simulated else ""),
                "model": gpu.model if gpu else "",
                "share": str(slot.share),
                "simulated": gpu is not None and gpu.simulated,
                "utilization_percent": reading.utilization_percent if reading else None,
                "memory_used_bytes": reading.memory_used_bytes if reading else None,
                "memory_total_bytes": reading.memory_total_bytes if reading else None,
                "state": reading.kind if reading else "unknown",
                "problem": reading.because if reading and reading.kind == "unknown" else "",
            }
        )
    return gpus


def _uuid(lease: Lease, index: int) -> str | None:
    """Return the UUID of one of a lease's GPUs, None where it is only counted and its cluster does not tell which."""
    told = lease.uuids[index] if len(lease.uuids) == len(lease.slots) else None
    return lease.slots[index].gpu if lease.slots[index].group is None else told


def outage_words(parts: Parts, gpu: str | None) -> str:
    """Return what does not answer that a request for this kind of GPU needs, and since when; "" for nothing."""
    outage = parts.queue.outages.of_kind(gpu)
    return "" if outage is None else outage.waiting_words(parts.clock.now())


def start_limit(parts: Parts, key: Key) -> str:
    """Return why a start of this key would wait though its GPUs are free; "" where it would not."""
    starts, settings = parts.queue.once("starts", lambda: starts_under_way(parts.registry)), parts.settings
    if starts[key.user_created] >= settings.concurrent_starts_each:
        return after_other_starts(settings.concurrent_starts_each, "of your workspaces")
    if starts.total() >= settings.concurrent_starts:
        return after_other_starts(settings.concurrent_starts, "workspaces")
    return ""


def _held_up_words(parts: Parts, lease: Lease, place: QueuePosition) -> str:
    """Return what a waiting lease waits for beside its turn; "" for nothing."""
    now = parts.clock.now()
    if lease.impossible_since is not None:
        return cannot_start(lease.impossible, lease.impossible_since + KEPT_SECONDS, now)
    if lease.not_before > now:
        why = "The hub did not start it" if lease.failed_starts else lease.message.rstrip(".")
        return f"{why}; it is tried again in {show_duration(lease.not_before - now)}. Others pass meanwhile."
    return start_limit(parts, lease.key) if place.unchanged_seconds == 0 else ""


def standing_view(parts: Parts, lease: Lease) -> dict[str, Any] | None:
    """Return where a lease stands in the queue, and what it waits for; None where it does not wait."""
    if lease.phase not in WAITING:
        return None
    queue, place = parts.queue, parts.queue.place(lease)
    offer = queue.offer(lease.request.gpu, hold_user_of(lease))
    held = queue.held_back(lease)
    told = parts.allocator.foretold.words(place)
    shortage, reach = held.words if held else "", reach_words(parts, lease.user, lease.key)
    kept = kept_free_words(queue.kept_free(lease), lease.request, parts.catalog, parts.clock.now())
    outage = outage_words(parts, lease.request.gpu)
    sentence = waits(
        place, lease.request, parts.catalog, offer, shortage, told=told, kept=kept, reach=reach, outage=outage
    )
    if not outage:
        sentence = _held_up_words(parts, lease, place) or sentence
    others = parts.scheduler.capabilities_of(lease.request.gpu).owns_queue
    owner = parts.allocator.observed.decides(lease) if others else ""
    return {
        "place": place.number,
        "of": place.of,
        "likely_seconds": place.likely_seconds,
        "unchanged_seconds": place.unchanged_seconds,
        **starts_at(place, parts.clock.now()),
        "sentence": sentence,
        "why": " ".join(filter(None, [place.why, *queue.held_back_instead(lease)])),
        "precedence": precedence_words(place, lease.request, parts.catalog, parts.clock.now()),
        "held_back": held_back_view(lease, held, owner),
        "changed": queue.change(lease),
        "impossible": lease.impossible or None,
    }


def _idle(parts: Parts, lease: Lease) -> dict[str, Any] | None:
    policy = idle_policy_of(parts.catalog, lease, parts.clock.now())
    if lease.phase not in UP or policy is None:
        return None
    mode, now = policy_of(parts.catalog, lease, parts.clock.now()).mode, parts.clock.now()
    seen = explain(lease.streak, policy)
    kept_until = parts.actions.kept_until(lease)
    kept = kept_until is not None and kept_until > now
    grace = seen.grace_left_seconds
    grace_ends_at = None if grace is None or mode is not Mode.ENFORCE else _grace_end(lease, grace)
    words = idle_words(seen, None if grace_ends_at is None else show_time(grace_ends_at, now))
    if lease.arrival is not None:
        words = awaited_words(lease, seen.because, now)
    elif kept:
        words = kept_words(parts, lease, seen.because)
    return {
        "state": "awaited" if lease.arrival is not None else "kept" if kept else seen.state.value,
        "mode": mode.value,
        "idle_seconds": seen.idle_seconds,
        "for_seconds": seen.for_seconds,
        "below_percent": policy.below_percent,
        "because": seen.because,
        "words": words,
        "peak_percent": seen.peak_percent,
        "known_share": seen.known_share,
        "grace_ends_at": grace_ends_at,
        "kept_until": kept_until if kept else None,
        "unreadable": [{"gpu": gpu, "seconds": seconds} for gpu, seconds in seen.unreadable],
        "monitor": has_monitor(parts, lease),
        "seen_by": _seen_by(parts, lease, policy),
        "soft_seconds": policy.soft_seconds,
        "soft_left_seconds": seen.soft_left_seconds,
        "also_counts": [{"evidence": name, **_soft(parts, lease, name)} for name in policy.soft_names],
    }


def has_monitor(parts: Parts, lease: Lease) -> bool | None:
    """Return whether the GPU monitor runs in a workspace; None where that is not known, or where it can't run."""
    kind = parts.catalog.gpus.get(lease.kind or "")
    is_nvidia = kind is not None and (not kind.resource or vendor_of(kind.resource) is NVIDIA)
    can_run = bool(lease.slots) and is_nvidia and not is_simulated(parts, lease)
    return parts.sampler.monitors.runs(lease.id) if can_run else None


def _seen_by(parts: Parts, lease: Lease, policy: IdlePolicy) -> list[str]:
    """Return the sources that saw each of its GPUs all of the time, by the newest reading."""
    covering = [
        {one["source"] for one in row.sources or () if one["coverage"] >= policy.coverage and not one["engine"]}
        for row in parts.sampler.newest(lease.id).values()
    ]
    return sorted(Source(source).value for source in set[str]().union(*covering).intersection(*covering))


def _soft(parts: Parts, lease: Lease, name: str) -> dict[str, Any]:
    """Return what the newest reading says of a softer evidence: null is unknown."""
    row = next(iter(parts.sampler.newest(lease.id).values()), None)
    if name == CPU:
        cores = row.cpu_cores if row else None
        bound = policy_of(parts.catalog, lease, parts.clock.now()).idle.cpu_bound_cores
        return {"active": None if cores is None else cores > bound, "words": "CPU use"}
    if row is None or row.soft is None:
        return {"active": None, "words": "not read yet"}
    return row.soft.get(name, {"active": False, "words": "quiet"})


def _grace_end(lease: Lease, left_seconds: float) -> float:
    return (lease.sampled_at or lease.phase_since) + left_seconds


def _keep(parts: Parts, lease: Lease) -> dict[str, Any]:
    keep = policy_of(parts.catalog, lease, parts.clock.now()).keep
    return {"left": max(0, keep.times - lease.keeps_used), "each_seconds": keep.each_seconds}


def extension_left_seconds(parts: Parts, lease: Lease) -> float:
    """Return by how much a lease's end may still be moved."""
    return max(0.0, policy_of(parts.catalog, lease, parts.clock.now()).extend.total_seconds - lease.extended_seconds)


def _extend(parts: Parts, lease: Lease) -> dict[str, Any]:
    extend, left = policy_of(parts.catalog, lease, parts.clock.now()).extend, extension_left_seconds(parts, lease)
    why = parts.allocator.bounds.left_to_others(lease)
    return {"left_seconds": left, "each_seconds": 0.0 if why else min(extend.each_seconds, left), "why": why or None}


def _disruption(parts: Parts, lease: Lease, now: float) -> dict[str, Any]:
    """Return what is to be told of a workspace that its cluster is about to end: nothing here can keep it."""
    until = lease.disrupted_until
    then = f"{return_words(parts, lease)}. " if parts.allocator.returns(lease) else ""
    if until is None:
        end = "This workspace may end at any moment: save now."
    elif now - until < OVERDUE_SECONDS:
        end = f"This workspace ends at {show_time(until, now)}: save now."
    else:
        end = (
            f"This workspace was to end at {show_time(until, now)}, and is not known to be gone: its node may not "
            "answer. What it uses goes to nobody else before it is."
        )
    text = f"{lease.disruption} {end} {then}Running kernels are lost; files stay."
    return {"kind": "preempted", "text": text, "ends_at": until, "actions": []}


def warnings_of(parts: Parts, lease: Lease) -> Iterator[dict[str, Any]]:
    """Yield what its user is to be told now: its cluster, a stronger claim, the idle warning, the coming end."""
    if lease.phase not in UP:
        return
    now, policy = parts.clock.now(), policy_of(parts.catalog, lease, parts.clock.now())
    if lease.disruption:
        yield _disruption(parts, lease, now)
    if lease.notice is not None:
        mail = bool(parts.settings.notify_users)
        returns = parts.allocator.returns(lease) if lease.notice.preemption else lease.notice.moves
        text = notice_words(lease.notice, now, returns=return_words(parts, lease) if returns else "", mail=mail)
        yield {"kind": "claim", "text": text, "ends_at": lease.notice.at, "actions": []}
    grace = lease.streak.grace_left_seconds
    keep = ["keep"] if _keep(parts, lease)["left"] else []
    idle = measured(lease, idle_policy_of(parts.catalog, lease, parts.clock.now()))
    if lease.phase is Phase.RECLAIMING and grace is not None:
        ends_at = _grace_end(lease, grace)
        held = "Running kernels and what they hold on the GPU" if lease.slots else "Running kernels"
        text = f"{idle} This workspace ends at {show_time(ends_at, now)}. {held} would be lost; files stay."
        yield {"kind": "idle", "text": text, "ends_at": ends_at, "actions": [*keep, *ways_out(parts, lease)]}
    elif grace is not None and policy.mode is Mode.WARN:
        text = f"{idle} Please stop this workspace if you do not need it. Nothing is stopped for it."
        yield {"kind": "idle", "text": text, "ends_at": None, "actions": [*keep, *ways_out(parts, lease)]}
    if (unclaimed := unclaimed_warning(lease, keep, now)) is not None:
        yield unclaimed
    yield from of_gpus(parts, lease)
    yield from of_memory(lease, now)
    if lease.reaches_into is not None:
        text = reaches_into_words(lease.reaches_into, lease.deadline_at, now)
        yield {"kind": "hold", "text": text, "ends_at": None, "actions": []}
    if lease.warned_seconds and lease.deadline_at is not None:
        ends = why_it_ends(lease, lease.deadline_at, now)
        text = f"{ends} Save your work: running kernels would be lost; files stay."
        can = _extend(parts, lease)["each_seconds"] > 0
        yield {"kind": "expiry", "text": text, "ends_at": lease.deadline_at, "actions": ["extend"] if can else []}


def _warning(parts: Parts, lease: Lease) -> dict[str, Any] | None:
    """Return all that its user is to be told now, as one: what comes first leads, and each of the others is said."""

    def comes(warning: Mapping[str, Any]) -> tuple[bool, float]:
        ends_at = warning["ends_at"]
        return warning["kind"] != "preempted", math.inf if ends_at is None else ends_at

    found = sorted(warnings_of(parts, lease), key=comes)
    if not found:
        return None
    actions = dict.fromkeys(action for warning in found for action in warning["actions"])
    return {**found[0], "text": " ".join(warning["text"] for warning in found), "actions": list(actions)}


def _end(lease: Lease) -> dict[str, Any] | None:
    if lease.reason is None:
        return None
    words = EXIT_KINDS[lease.reason].words
    return {
        "reason": lease.reason.value,
        "words": words,
        "message": lease.message,
        "why": lease.message if lease.message.startswith(words) else f"{words}. {lease.message}".strip(),
        "by": lease.ended_by,
        "at": lease.ended_at,
        "seen": lease.seen_by_user,
        "disputable": lease.disputable,
        "dispute": asdict(lease.dispute) if lease.dispute else None,
    }
