"""What does not work, each with its remedy, the gravest first. Pure but for what it reads of the parts in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuspawner.core.gpus.fleet import Gpu
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.outages import DATABASE, ETCD, HUB
from gpuspawner.core.units import show_duration
from gpuspawner.service.engine.gpu_states import find_unmatched_kinds, find_unmeasured_kinds
from gpuspawner.service.failures import Failure
from gpuspawner.service.notifications.sender import USER
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import idle_policy_of
from gpuspawner.service.workspaces.presenter import has_monitor

FAILS_TOLD, OF_LAST = 2, 5
"""A template is told of whose starts failed so many times, of the last so many. Arbitrary: once is an accident."""
LATE_PERIODS = 5
"""A workspace counts as not measured after so many sampling periods without a reading. Arbitrary."""
NAMES_SHOWN = 5
OLD_SECONDS = 60.0
"""The view of the GPUs is renewed every 5 s: one so old is not renewed."""
REMEDY = (
    "Nothing new is granted meanwhile. What runs goes on, and places in the queue stay. Ask gpuspawner server doctor."
)
"""Of a cluster or a scheduler that does not answer."""
REMEDIES = {
    DATABASE: "Nothing is granted or stopped meanwhile, and what runs goes on. Look at its disk, or at the database.",
    HUB: "Nothing starts or stops meanwhile, and places in the queue stay. Look at the hub's log.",
    ETCD: f"{REMEDY} Look at etcd's log: the API server itself answers.",
}


@dataclass(frozen=True)
class Trouble:
    """One thing that does not work: ``what`` in a sentence, and the ``remedy``, "" where ``what`` says it.

    ``grave``: nothing can be granted or stored meanwhile. ``pages`` are where to look: words and address.
    """

    what: str
    remedy: str = ""
    grave: bool = False
    pages: tuple[tuple[str, str], ...] = ()


def troubles(parts: Parts, ended: Iterable[Lease], disputed: Iterable[Lease]) -> list[Trouble]:
    """Return all that does not work. ``ended`` are the last ones, ``disputed`` those called wrong and not answered."""
    found = [
        *_of_service(parts),
        *_of_steps(parts),
        *_of_catalog(parts),
        *_unmeasured(parts),
        *_unmonitored(parts),
        *_of_templates(parts, ended),
        *_of_messages(parts),
        *_disputed(parts, disputed),
        *_taken_over(parts),
    ]
    return sorted(found, key=lambda one: not one.grave)


def _of_service(parts: Parts) -> Iterator[Trouble]:
    now, fleet = parts.clock.now(), parts.scheduler.fleet
    for outage in parts.queue.outages.under_way():
        why = f" {outage.why}" if outage.why else ""
        yield Trouble(f"{outage.words(now)}{why}", REMEDIES.get(outage.part, REMEDY), grave=True)
    if not parts.allocator.observed.hub_answers and parts.allocator.observed.hub_outage is None:
        yield Trouble("The hub has not answered yet.", REMEDIES[HUB], grave=True)
    if damaged := sorted(parts.store.damaged.found):
        named = ", ".join(damaged[:NAMES_SHOWN])
        what = f"{len(damaged)} rows of the store can't be read: {named}. Lists leave them out."
        yield Trouble(what, "The service's log says why. Restore the store from a backup, or delete these rows.")
    for sentence in (*parts.scheduler.unseen, *filter(None, (lacking() for lacking in parts.lacking))):
        yield Trouble(sentence, grave=not fleet.complete)
    yield from _of_nodes(parts)
    if fleet.complete and fleet.outage is None and now - fleet.observed_at > OLD_SECONDS:
        age = show_duration(now - fleet.observed_at)
        yield Trouble(
            f"The GPUs were last seen {age} ago.", "gpuspawner server doctor tells why they can't be read.", grave=True
        )
    if parts.engine.observer.orphans.alert:
        yield Trouble(parts.engine.observer.orphans.alert)
    dcgm = (parts.sampler.dcgm.trouble, *parts.sampler.doubts.sentences(now))
    for sentence in (*parts.engine.observer.orphans.lost_identities, *parts.members.missing(), *filter(None, dcgm)):
        yield Trouble(sentence)


def _of_nodes(parts: Parts) -> Iterator[Trouble]:
    """Yield a trouble for each node of which no GPU can be granted; of many nodes one for all."""
    fleet, nodes = parts.scheduler.fleet, dict[str, list[Gpu]]()
    for gpu in () if fleet.outage is not None else fleet.gpus:
        if fleet.outage_of(gpu.cluster) is None and not gpu.is_coming:
            nodes.setdefault(gpu.node, []).append(gpu)
    lost = {node: gpus for node, gpus in nodes.items() if not any(gpu.healthy or gpu.foreign for gpu in gpus)}
    remedy = (
        "None of them is granted. What runs there keeps its GPUs. Look at the node, or ask gpuspawner server doctor."
    )
    if len(lost) > NAMES_SHOWN:
        named, count = ", ".join(sorted(lost)[:NAMES_SHOWN]), sum(map(len, lost.values()))
        yield Trouble(f"All {count} GPUs of {len(lost)} nodes are out of service: {named} and others.", remedy)
        return
    for node, gpus in sorted(lost.items()):
        of_node = {gpu.id for gpu in gpus}
        leases = [lease for lease in parts.registry if any(slot.gpu in of_node for slot in lease.slots)]
        which = (
            f"The only GPU of the node {node} is" if len(gpus) == 1 else f"All {len(gpus)} GPUs of the node {node} are"
        )
        what = f"{which} out of service: {gpus[0].note or 'no reason is known'}."
        yield Trouble(what, remedy, pages=_pages(parts, leases))


def _of_steps(parts: Parts) -> Iterator[Trouble]:
    """Yield a trouble for each step that fails by a fault of the service, with the leases that it fails for."""
    failing: dict[str, list[Failure]] = {}
    for one in parts.registry.failures.now():
        failing.setdefault(one.step, []).append(one)
    remedy = "It is retried, and the others go on. The service's log has the traceback: please report it."
    for step, found in failing.items():
        first, of_all = found[0], any(not one.subject for one in found)
        leases = [lease for one in found if (lease := parts.registry.get(one.subject)) is not None]
        whose = f" for {len(leases)} workspace{'' if len(leases) == 1 else 's'}" if leases else ""
        since = f"for {show_duration(first.since)}"
        what = f"An error of the service: “{step}” fails{whose} {since} ({first.why})."
        yield Trouble(what, remedy, grave=of_all, pages=_pages(parts, leases))


def _of_catalog(parts: Parts) -> Iterator[Trouble]:
    for sentence in parts.in_force.sentences:
        yield Trouble(sentence)
    kinds, fleet = parts.catalog.gpus.values(), parts.scheduler.fleet
    for sentence in (*find_unmatched_kinds(kinds, fleet), *find_unmeasured_kinds(kinds, fleet)):
        yield Trouble(sentence)


def _unmeasured(parts: Parts) -> Iterator[Trouble]:
    """Yield a trouble for each node on which workspaces are judged and not measured; of many nodes one for all."""
    nodes: dict[str, list[Lease]] = {}
    for lease in parts.registry:
        if _is_unmeasured(parts, lease):
            node = next(filter(None, (parts.scheduler.fleet.node_of(slot.gpu) for slot in lease.slots)), "not known")
            nodes.setdefault(node, []).append(lease)
    remedy = "Nothing there is stopped for idleness meanwhile. Run nvidia-smi in one, and gpuspawner server doctor."
    most = sorted(nodes.items(), key=lambda one: (-len(one[1]), one[0]))
    if len(most) > NAMES_SHOWN:
        named = ", ".join(f"{node} ({len(leases)})" for node, leases in most[:NAMES_SHOWN])
        count = sum(map(len, nodes.values()))
        what = f"On {len(most)} nodes {count} workspaces can't be measured, most of them on {named}."
        pages = (("Those not known", f"{parts.prefix}console/workspaces?use=not+known"),)
        yield Trouble(what, remedy, pages=pages)
        return
    for node, leases in most:
        whose = "1 workspace" if len(leases) == 1 else f"{len(leases)} workspaces"
        why = leases[0].streak.because
        what = f"On the node {node} {whose} can't be measured{f': {why}' if why else ''}."
        yield Trouble(what, remedy, pages=_pages(parts, leases))


def _unmonitored(parts: Parts) -> Iterator[Trouble]:
    """Yield a trouble if the GPU monitor does not run in some workspaces, and nothing else sees all of the time."""
    leases = [lease for lease in parts.registry if lease.phase in UP and has_monitor(parts, lease) is False]
    if not leases:
        return
    templates = sorted({lease.request.template for lease in leases if lease.request.template})
    named = f" of the templates {', '.join(templates[:NAMES_SHOWN])}" if templates else ""
    count = "1 workspace" if len(leases) == 1 else f"{len(leases)} workspaces"
    what = f"The GPU monitor does not run in {count}: GPU work of a few seconds may be missed there."
    remedy = f"Install gpuspawner[workspace] in the images{named}, or name DCGM exporter by readings: in the catalog."
    yield Trouble(what, remedy, pages=_pages(parts, leases))


def _is_unmeasured(parts: Parts, lease: Lease) -> bool:
    """Whether a workspace with GPUs is judged, and its samples are late, or prove nothing."""
    now, kind = parts.clock.now(), lease.streak.kind
    policy = idle_policy_of(parts.catalog, lease, now) if lease.phase in UP and lease.slots else None
    if policy is None:
        return False
    late = now - (lease.sampled_at or lease.running_at or now) >= LATE_PERIODS * policy.sample_seconds
    # What is read in its first minute is not known of any workspace: that is no trouble.
    since_start_up = now - (lease.running_at or now) - policy.start_up_seconds
    return late or (kind is not None and kind.value == "unknown" and since_start_up >= policy.sample_seconds)


def _of_templates(parts: Parts, ended: Iterable[Lease]) -> Iterator[Trouble]:
    """Yield a trouble for each template of whose last starts several failed, the newest of all first."""
    last: dict[str, list[Lease]] = {}
    for lease in ended:
        if lease.reason is not ExitReason.CANCELLED and lease.request.template in parts.catalog.templates:
            last.setdefault(lease.request.template, []).append(lease)
    for name, leases in last.items():
        failed = [x for x in leases[:OF_LAST] if x.reason is ExitReason.FAILED and x.running_at is None]
        if len(failed) < FAILS_TOLD or leases[0] is not failed[0]:
            continue
        template = parts.catalog.templates[name]
        image = f" (image {template.image})" if template.image else ""
        times = f"{len(failed)} of the last {len(leases[:OF_LAST])} times"
        what = f"The template {template.title}{image} failed to start {times}: "
        remedy = "Its image, its pull secret or its start-up may be wrong: the last output is on the page of each."
        yield Trouble(f"{what}{failed[0].message}", remedy, pages=_pages(parts, failed))


def _of_messages(parts: Parts) -> Iterator[Trouble]:
    now, counts = parts.clock.now(), parts.notifier.counts
    for channel, trouble in sorted(parts.notifier.troubles.items()):
        whose = "users" if channel == USER else "administrators"
        what = f"Messages to {whose} are not delivered for {show_duration(now - trouble.since)} ({trouble.why})."
        waiting = f"{parts.notifier.waiting} wait in the store, and are tried again for a day."
        yield Trouble(what, f"{waiting} Look at service_settings.notify_users and notify_admins, and at their server.")
    lost = {name: counts[name] for name in ("dropped", "unaddressed") if counts[name]}
    if lost:
        total = sum(counts.values()) - counts["failed"]
        told = ", ".join(f"{count} {name}" for name, count in lost.items())
        words = f"{sum(lost.values())} of {total} messages were not delivered since the service started ({told})."
        remedy = (
            "The service's log names each (not told: ...). Look at service_settings.notify_users and its mail server."
        )
        yield Trouble(words, remedy)


def _disputed(parts: Parts, disputed: Iterable[Lease]) -> Iterator[Trouble]:
    leases = list(disputed)
    if leases:
        words = "1 stop was" if len(leases) == 1 else f"{len(leases)} stops were"
        remedy = "Look at the readings, and answer on the page of each."
        yield Trouble(f"{words} called wrong by the user, and not answered.", remedy, pages=_said(parts, leases))


def _said(parts: Parts, leases: Iterable[Lease]) -> tuple[tuple[str, str], ...]:
    """Return who called an end wrong, with what they wrote."""
    shown = [(x, x.dispute.sentence if x.dispute else "") for x in list(leases)[:NAMES_SHOWN]]
    return tuple((f"{x.user}: “{text}”" if text else x.user, f"{parts.prefix}workspaces/{x.id}") for x, text in shown)


def _taken_over(parts: Parts) -> Iterator[Trouble]:
    leases = [x for x in parts.registry if x.phase in UP and x.unasked]
    if leases:
        words = "1 workspace was" if len(leases) == 1 else f"{len(leases)} workspaces were"
        what = f"Taken over as they ran: {words} started without the GPU service, before it came or while it was away."
        remedy = "They have no set end until they are started again, and no idle time from before counts."
        yield Trouble(what, remedy, pages=_pages(parts, leases))


def _pages(parts: Parts, leases: Iterable[Lease]) -> tuple[tuple[str, str], ...]:
    shown = list(leases)[:NAMES_SHOWN]
    return tuple(
        (f"{x.user}: {x.key.server or 'default workspace'}", f"{parts.prefix}workspaces/{x.id}") for x in shown
    )
