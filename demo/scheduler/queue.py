"""The reference scheduler's queue: in which order, who stands where, when it starts, and what is told of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING

from demo.scheduler.inventory import INSTEAD
from demo.scheduler.records import Claim, Document, Grant, Job, Place, from_time, many, reason, to_time

if TYPE_CHECKING:
    from demo.scheduler.machine import Machine


def in_order(machine: Machine) -> list[Claim | Job]:
    """Return the waiting entries by priority, then within quota before beyond it, then by request time."""
    waiting: list[Claim | Job] = [claim for claim in machine.claims.values() if claim.waits]
    waiting += [job for job in machine.jobs.values() if not job.gpus]
    held = held_by_team(machine)
    return sorted(waiting, key=lambda entry: _rank(machine, entry, held))


def _rank(machine: Machine, entry: Claim | Job, held: Mapping[str, int]) -> tuple[int, bool, float, str]:
    if isinstance(entry, Job):
        return (-entry.priority, False, entry.asked_at, entry.id)
    return (0, is_beyond(machine, entry.asked, held), to_time(entry.asked["asked_at"]), entry.id)


def weakest_first(machine: Machine, claim: Claim) -> tuple[bool, float]:
    """Order who gives way: those beyond their quota, then who asked last."""
    held = held_by_team(machine)
    limit = machine.inventory.quotas.get(claim.asked["team"] or "", inf)
    return (held[claim.asked["team"] or ""] <= limit, -to_time(claim.asked["asked_at"]))


def held_by_team(machine: Machine) -> Mapping[str, int]:
    """Count the GPUs that each team has."""
    held: dict[str, int] = defaultdict(int)
    for claim in machine.claims.values():
        if claim.grant is not None:
            held[claim.asked["team"] or ""] += claim.count
    return held


def is_beyond(machine: Machine, asked: Document, held: Mapping[str, int]) -> bool:
    """Whether a team would have more than its quota with what is asked."""
    team = asked["team"] or ""
    return team in machine.inventory.quotas and held.get(team, 0) + asked["count"] > machine.inventory.quotas[team]


def kinds_of(entry: Claim | Job) -> list[str]:
    """Return the kinds that an entry takes: the one asked for first, then as this scheduler replaces it."""
    return [entry.kind] if isinstance(entry, Job) else allowed_kinds(entry.asked)


def allowed_kinds(asked: Document) -> list[str]:
    """Return the kinds that a claim takes."""
    kind = asked["kind"]
    if kind is None:
        return []
    best_first = [one for one in INSTEAD.get(kind, ()) if one in asked["substitutes"]]
    return list(dict.fromkeys([kind, *best_first, *asked["substitutes"]]))


def accepts(entry: Claim | Job, kind: str, cluster: str) -> bool:
    """Whether an entry takes a kind in a cluster."""
    return isinstance(entry, Job) or is_accepted(entry.asked, kind, cluster)


def is_accepted(asked: Document, kind: str, cluster: str) -> bool:
    """Whether a claim takes a kind in a cluster: in each, unless it names them."""
    return "accepts" not in asked or {"kind": kind, "cluster": cluster} in asked["accepts"]


def not_before(claim: Claim) -> float:
    """When it may be granted at the earliest."""
    told = claim.asked["not_before"]
    return to_time(told) if told is not None else -inf


class Line:
    """The queue for one kind, for estimates: when its GPUs come free, and what is asked before."""

    def __init__(self, machine: Machine, kind: str, now: float) -> None:
        gpus = {gpu.id for gpu in machine.inventory.of(kind)}
        ends: list[float] = []
        for claim in machine.claims.values():
            if claim.grant is not None:
                end = claim.asked["ends_at"]
                ends += [to_time(end) if end is not None else inf] * len(claim.grant.gpus & gpus)
        for job in machine.jobs.values():
            ends += [job.ends_at or inf] * sum(gpu.id in gpus for gpu in job.gpus)
        self.frees_at = sorted([now] * max(0, len(gpus) - len(ends)) + [max(now, end) for end in ends])
        self.asked = self.entries = self.training = 0

    def add(self, entry: Claim | Job) -> None:
        """Add an entry at the end."""
        self.asked += entry.count
        self.entries += 1
        self.training += isinstance(entry, Job)

    def starts(self, count: int) -> tuple[float | None, float | None]:
        """Return when an entry at its end starts, at the earliest and at the latest; None where that is not known."""
        told = [self.frees_at[n - 1] if n <= len(self.frees_at) else inf for n in (count, self.asked + count)]
        return (told[0] if told[0] < inf else None, told[1] if told[1] < inf else None)


def places(machine: Machine, now: float) -> list[Place | None]:
    """Return where each claim stands, in the order of the claims: in the line for the kind it asks for."""
    lines = {kind: Line(machine, kind, now) for kind in machine.inventory.kinds}
    found: dict[int, Place] = {}
    held = held_by_team(machine)
    for entry in in_order(machine):
        for number, kind in enumerate(kinds_of(entry)):
            if kind in lines:
                line = lines[kind]
                if isinstance(entry, Claim) and number == 0:
                    beyond = quota_words(machine, entry.asked, held)
                    found[id(entry)] = Place(line.entries + 1, 0, line.training, *line.starts(entry.count), beyond)
                line.add(entry)
    for claim in machine.claims.values():
        if id(claim) in found:
            found[id(claim)].of = lines[claim.asked["kind"]].entries
    return [found.get(id(claim)) for claim in machine.claims.values()]


def state(machine: Machine, claim: Claim, now: float) -> Document:
    """Return a claim's state as the contract has it."""
    place, notice = claim.place if claim.waits else None, claim.preemption
    if claim.refused is not None:
        name = "refused"
    elif claim.grant is None:
        name = "waiting"
    elif not claim.is_taken:
        name = "granted"
    else:
        name = "preempting" if notice is not None else "running"
    return {
        "id": claim.id,
        "revision": claim.revision,
        "state": name,
        "position": place and place.number,
        "of": place and place.of,
        "earliest_start": place and from_time(place.earliest),
        "latest_start": place and from_time(place.latest),
        "reason": _why(machine, claim, now) if claim.waits else claim.refused,
        "as_of": from_time(now),
        "grant": claim.grant and _granted(claim.grant),
        "preemption": notice
        and {"deadline": from_time(notice.deadline), "words": notice.words, "acknowledged": notice.acknowledged},
    }


def _granted(grant: Grant) -> Document:
    return {
        "kind": grant.kind,
        "cluster": grant.cluster,
        "slots": grant.slots,
        "expires_at": from_time(grant.expires_at),
        "latest_end": from_time(grant.latest_end),
        "patch": None,
    }


def _why(machine: Machine, claim: Claim, now: float) -> Document | None:
    if now < machine.started_at + machine.settings.settle_seconds:
        return reason("starting", "The scheduler has just started. It first learns what runs.")
    if not_before(claim) > now:
        return reason("not_before", f"It is asked for not before {claim.asked['not_before']}.")
    return _why_there(claim, claim.place) if claim.place is not None else None


def _why_there(claim: Claim, place: Place) -> Document:
    kind = claim.asked["kind"]
    if place.beyond_quota:
        return reason("quota", place.beyond_quota)
    if place.number > 1:
        others = place.number - 1 - place.training_before
        first = [many(place.training_before, "training job")] if place.training_before else []
        first += [many(others, "workspace")] if others else []
        go = "goes" if place.number == 2 else "go"  # noqa: PLR2004 - one is before it
        return reason("behind_others", f"For {kind}, {' and '.join(first)} {go} first.")
    return reason("no_gpus_free", f"No node has {claim.count} {kind} free.")


def quota_words(machine: Machine, asked: Document, held: Mapping[str, int]) -> str:
    """Return a warning if a team would exceed its quota, else ""."""
    if not is_beyond(machine, asked, held):
        return ""
    team = asked["team"]
    then, limit = held.get(team, 0) + asked["count"], machine.inventory.quotas[team]
    return f"With it, team {team} has {then} of its {limit} GPUs: others go first, and training takes its GPUs first."


def offers(machine: Machine, asked: Document, now: float) -> Document:
    """Preview a claim."""
    refused = machine.why_never(asked)
    if refused is not None:
        return {"offers": [], "refused": refused}
    used, held, count = set(machine.used()), held_by_team(machine), asked["count"]
    beyond = quota_words(machine, asked, held)
    warned = reason("quota", beyond) if beyond else None
    found = []
    for kind in allowed_kinds(asked):
        line = Line(machine, kind, now)
        mine = _rank(machine, Claim("", "", asked), held)
        for entry in in_order(machine):
            if kind in kinds_of(entry) and _rank(machine, entry, held) < mine:
                line.add(entry)
        earliest, latest = line.starts(count)
        for cluster in dict.fromkeys(node[0].cluster for node in machine.inventory.nodes(kind)):
            if not is_accepted(asked, kind, cluster):
                continue
            nodes = machine.inventory.nodes(kind, cluster)
            at_once = not line.entries and any(sum(gpu.id not in used for gpu in node) >= count for node in nodes)
            waits = reason("behind_others", f"For {kind}, {line.entries} go first.") if line.entries else None
            found.append(
                {
                    "kind": kind,
                    "count": count,
                    "cluster": cluster,
                    "cost_per_hour": round(count * machine.inventory.clusters[cluster].price[kind], 4),
                    "earliest_start": from_time(now if at_once else earliest),
                    "latest_start": from_time(now if at_once else latest),
                    "notice_seconds": machine.settings.notice_seconds,
                    "position": None if at_once else line.entries + 1,
                    "reason": warned or waits or (None if at_once else reason("no_gpus_free", f"No {kind} is free.")),
                }
            )
    found.sort(key=lambda one: one["position"] or 0)
    return {"offers": found or [_without_gpu(machine, now)], "refused": None}


def _without_gpu(machine: Machine, now: float) -> Document:
    nothing = dict.fromkeys(("cost_per_hour", "notice_seconds", "position", "reason", "kind"))
    cluster = next(iter(machine.inventory.clusters))
    return {**nothing, "count": 0, "cluster": cluster, "earliest_start": from_time(now), "latest_start": from_time(now)}


def stock(machine: Machine, now: float) -> Document:
    """Return the GPUs of each kind in each cluster."""
    used, waiting = set(machine.used()), in_order(machine)
    found = []
    for kind in machine.inventory.kinds:
        for cluster in machine.inventory.clusters:
            gpus = machine.inventory.of(kind, cluster)
            if gpus:
                free = sum(gpu.id not in used for gpu in gpus)
                asking = sum(kind in kinds_of(entry) for entry in waiting)
                one = {"kind": kind, "cluster": cluster, "total": len(gpus), "free": free, "waiting": asking}
                found.append({**one, "as_of": from_time(now)})
    return {"stock": found}
